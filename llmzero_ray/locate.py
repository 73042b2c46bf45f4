"""Locate a search by its directory, its configuration or its name."""

from __future__ import annotations

from pathlib import Path

from llmzero_ray.config import load_config
from llmzero_ray.config_text import local_path
from llmzero_ray.storage import SearchStorage


def find(search: str, storage: str) -> SearchStorage:
    """The storage of a search; names are looked up in `storage`.

    Raises:
        ConfigError: an address was given in place of a path, or a configuration that cannot be read.
    """
    search, storage = local_path(search), local_path(storage)
    path = Path(search)
    if path.is_file():
        config = load_config(path)
        return SearchStorage(config.storage, config.name)
    return SearchStorage.at(path) if path.is_dir() else SearchStorage(Path(storage).absolute(), search)
