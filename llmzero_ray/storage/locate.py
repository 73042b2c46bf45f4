"""Locate a search by its directory, its configuration or its name."""

from __future__ import annotations

from pathlib import Path

from llmzero_ray.config import load_config
from llmzero_ray.config.yaml_text import local_path
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
    below = Path(storage).absolute() / search
    # A name has no slash: with one it is a path, also of a directory that is not there yet.
    if path.is_dir() or (len(path.parts) > 1 and not below.is_dir()):
        return SearchStorage.at(path)
    return SearchStorage.at(below)
