"""Locate a search by its directory, its configuration or its name."""

from __future__ import annotations

import shlex
from pathlib import Path

from llmzero_ray.config import load_config
from llmzero_ray.config.yaml_text import local_path
from llmzero_ray.errors import ConfigError
from llmzero_ray.storage import SearchStorage

_MOST = 20
"""Maximum names of searches in a message."""


def is_search(root: Path) -> bool:
    """Whether a directory belongs to a search, or to one whose start was interrupted."""
    return SearchStorage.at(root).is_search()


def searches_in(storage: Path, *, unreadable: bool = False) -> list[Path]:
    """Directories of all searches in a storage. With `unreadable`, also those that cannot be read, each of
    which may be a search."""
    found = []
    for path in sorted(storage.iterdir()) if storage.is_dir() else ():
        try:
            counts = is_search(path)
        except OSError:
            counts = unreadable
        if counts:
            found.append(path)
    return found


def beside(root: Path) -> str:
    """Sentence that names the searches in a directory, or otherwise next to it. Empty if there are none."""
    for place in (root, root.parent):
        if names := [path.name for path in searches_in(place) if path != root]:
            return f" {place} has {', '.join(names[:_MOST])}."
    return ""


def missing(root: Path) -> ConfigError:
    """Error for a directory without a search. It names the searches in the directory or next to it."""
    there = beside(root) or " Start one with `llmzero search`."
    return ConfigError(f"{root}: there is no search here.{there}")


def renamed(root: Path, name: str) -> str:
    """Sentence that says how a search called `name` continues if its directory has another name. Empty if it,
    or what it links to, has that name."""
    if root.name == name:
        return ""
    root = root.resolve()
    if root.name == name:
        return ""
    back = root.with_name(name)
    target = shlex.quote(str(back)) if not back.exists() else f"OTHER_STORAGE/{name}"
    return (
        f"{root} holds the search {name}, which continues only under its own name: "
        f"`mv {shlex.quote(str(root))} {target}`, then resume it there."
    )


def find(search: str, storage: str) -> SearchStorage:
    """Storage of a search, given its directory, its search.yaml, or its name in `storage`. `.` stands for the
    only search in `storage`.

    Raises:
        ConfigError: an address or a node was given, a configuration cannot be read, or `.` is ambiguous or
            finds no search.
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
        inside = SearchStorage.at(path.parent)
        if path.name == inside.paths.config.name and inside.has_begun():
            return inside
        config = load_config(path)
        return SearchStorage(config.storage, config.name)
    below = Path(storage).absolute() / search
    name = search.rpartition(":")[0]
    if name and not is_search(path) and not is_search(below) and find(name, storage).is_search():
        raise ConfigError(
            f"{search} is no search, but {name} is one. Commands that take a node take its number or best: "
            f"`llmzero show {shlex.quote(name)}:best`."
        )
    # Text with a slash is a path, even if it does not exist yet. A search in `storage` takes precedence over
    # a folder of the same name that is not a search.
    if is_search(path) or (not is_search(below) and (path.is_dir() or len(path.parts) > 1)):
        return SearchStorage.at(path)
    return SearchStorage.at(below)
