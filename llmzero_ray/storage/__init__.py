"""The directory of a search: its files, metrics, signs of life and checkpoints."""

from llmzero_ray.storage.search_storage import (
    MIN_FREE_BYTES,
    SearchPaths,
    SearchStorage,
)

__all__ = [
    "MIN_FREE_BYTES",
    "SearchPaths",
    "SearchStorage",
]
