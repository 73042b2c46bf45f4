"""The directory of a search: its files, metrics, signs of life and checkpoints."""

from llmzero_ray.storage.search_storage import (
    SearchPaths,
    SearchStorage,
)

__all__ = [
    "SearchPaths",
    "SearchStorage",
]
