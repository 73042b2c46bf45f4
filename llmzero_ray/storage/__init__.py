"""Directory of a search: its files, metrics, checkpoints, lock and heartbeat."""

from llmzero_ray.storage.search_storage import (
    SearchPaths,
    SearchStorage,
)

__all__ = [
    "SearchPaths",
    "SearchStorage",
]
