"""Locate a search by its directory, its configuration or its name."""

from __future__ import annotations

from pathlib import Path

from llmzero_ray.config import load_config
from llmzero_ray.config.yaml_text import local_path
from llmzero_ray.errors import ConfigError
from llmzero_ray.storage import SearchStorage

_MOST = 20
"""Names of searches in a message."""


def is_search(root: Path) -> bool:
    """Whether a directory is that of a search, or of one whose start was interrupted."""
    return SearchStorage.at(root).is_search()


def searches_in(storage: Path) -> list[Path]:
    """Directories of the searches of a storage."""
    return [path for path in sorted(storage.iterdir()) if is_search(path)] if storage.is_dir() else []


def beside(root: Path) -> str:
    """A sentence that names the searches in a directory, or else next to it; empty where there is none."""
    for place in (root, root.parent):
        if names := [path.name for path in searches_in(place) if path != root]:
            return f" {place} has {', '.join(names[:_MOST])}."
    return ""


def missing(root: Path) -> ConfigError:
    """The error that there is no search in a directory, with those in it or next to it."""
    there = beside(root) or " Start one with `llmzero search`."
    return ConfigError(f"{root}: there is no search here.{there}")


def find(search: str, storage: str) -> SearchStorage:
    """The storage of a search; names are looked up in `storage`, where `.` is the only search that it holds.

    Raises:
        ConfigError: an address or a node was given, a configuration cannot be read, or `.` is none.
    """
    search, storage = local_path(search), local_path(storage)
    path = Path(search)
    if search == "." and not (path / "journal").is_dir():
        place = Path(storage).absolute()
        found = searches_in(place)
        if len(found) == 1:
            return SearchStorage.at(found[0])
        if not found:
            raise missing(place)
        raise ConfigError(f"name the search that you mean.{beside(place / '?')}")
    if path.is_file():
        config = load_config(path)
        return SearchStorage(config.storage, config.name)
    below = Path(storage).absolute() / search
    name = search.rpartition(":")[0]
    if name and not is_search(path) and not is_search(below) and find(name, storage).is_search():
        raise ConfigError(
            f"{search} is no search, but {name} is one. Commands that take a node take its number or best: "
            f"`llmzero show {name}:best`."
        )
    # A name has no slash: with one it is a path, also of a directory that is not there yet. A folder of
    # another kind hides no search of its name.
    if is_search(path) or (not is_search(below) and (path.is_dir() or len(path.parts) > 1)):
        return SearchStorage.at(path)
    return SearchStorage.at(below)
