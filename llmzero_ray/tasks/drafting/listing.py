"""The files of a folder, grouped by name pattern: bounded in number and depth, without following links."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.sources.readers import ENDINGS, NO_ROWS, PREPARED

MAX_FILES = 20_000
MAX_DEPTH = 8
_FIRST_TEXT = re.compile(r"^(readme|licen[cs]e|copying|data[_-]?card|description)(\.\w+)?$", re.IGNORECASE)
_TEXT = re.compile(r"^(readme|licen[cs]e|copying|.+\.(md|txt|rst))$", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_MAX_TEXTS = 6
_ALIKE = 5
"""Maximum skipped files of one pattern that are listed individually."""


@dataclass
class FolderListing:
    """Names relative to the folder, with forward slashes."""

    groups: dict[str, list[str]] = field(default_factory=dict)
    """Pattern of a name -> the data files of that pattern, sorted. `#` replaces a number."""
    texts: list[str] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)
    """Files of the `datasets` library that describe data (`readers.NO_ROWS`). They are not read."""
    skipped: dict[str, str] = field(default_factory=dict)
    n_files: int = 0
    complete: bool = True


def list_files(folder: Path) -> FolderListing:
    """The files of the folder.

    Raises:
        TaskError: it is not a directory, or cannot be listed.
    """
    if not folder.is_dir():
        raise TaskError(f"{folder} is not a directory; name the folder that holds the data")
    found, skipped = FolderListing(), dict[str, list[tuple[str, str]]]()
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise TaskError(f"{folder} cannot be listed: {error.strerror}; make it readable") from error
    for name, why in _walk(folder, found):
        if why:
            skipped.setdefault(f"{_pattern(name)} ({why})", []).append((name, why))
        elif _is_text(name):
            found.texts.append(name)
        else:
            found.groups.setdefault(_pattern(name), []).append(name)
    found.texts.sort(key=lambda name: (not _FIRST_TEXT.match(name.rpartition("/")[2]), name.count("/"), name))
    for name in found.texts[_MAX_TEXTS:]:
        skipped.setdefault("texts", []).append((name, f"was not read: at most {_MAX_TEXTS} texts are"))
    del found.texts[_MAX_TEXTS:]
    for same in skipped.values():
        for name, why in same[:_ALIKE]:
            found.skipped[name] = why
        if len(same) > _ALIKE:
            found.skipped[f"{len(same) - _ALIKE} more like {_pattern(same[0][0])}"] = same[0][1]
    found.groups = {pattern: sorted(found.groups[pattern]) for pattern in sorted(found.groups)}
    return found


def _walk(folder: Path, found: FolderListing) -> Iterator[tuple[str, str]]:
    """(name, reason for skipping it) of each file. The reason is empty if the file is read."""

    def not_listed(error: OSError) -> None:
        name = Path(str(error.filename)).relative_to(folder).as_posix()
        found.skipped[name] = f"cannot be listed ({error.strerror})"

    for place, folders, names in os.walk(folder, onerror=not_listed):
        prefix = "" if Path(place) == folder else f"{Path(place).relative_to(folder).as_posix()}/"
        if prefix and set(names) >= set(PREPARED):
            folders.clear()
            yield prefix.rstrip("/"), "is a prepared task"
            continue
        names += [name for name in folders if os.path.islink(os.path.join(place, name))]
        folders[:] = sorted(set(folders) - set(names) - {"__pycache__"})
        folders[:] = [name for name in folders if not name.startswith(".")]
        if prefix.count("/") == MAX_DEPTH:
            yield from ((f"{prefix}{name}/", f"lies deeper than {MAX_DEPTH} folders") for name in folders)
            folders.clear()
        found.descriptions += [f"{prefix}{name}" for name in sorted(NO_ROWS.intersection(names))]
        for name in sorted(name for name in names if not name.startswith(".") and name not in NO_ROWS):
            if found.n_files >= MAX_FILES:
                found.complete = False
                return
            found.n_files += 1
            yield f"{prefix}{name}", _why_not(Path(place) / name)


def _why_not(file: Path) -> str:
    if file.is_symlink():
        return "is a symbolic link; links are not followed"
    if not file.is_file():
        return "is not a plain file"
    if not file.name.isprintable():
        return "has control characters in its name"
    if file.stat().st_size == 0:
        return "is empty"
    if file.suffix.lower() in ENDINGS or _is_text(file.name):
        return ""
    return "is of no format that is read"


def _is_text(name: str) -> bool:
    return _TEXT.match(name.rpartition("/")[2]) is not None


def _pattern(name: str) -> str:
    return _NUMBER.sub("#", name)
