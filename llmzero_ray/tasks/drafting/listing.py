"""The files of a folder, grouped by name pattern: bounded in number and depth, without following links."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llmzero_ray.errors import TaskError

MAX_FILES = 20_000
MAX_DEPTH = 8
DATA = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_FIRST_TEXT = re.compile(r"^(readme|licen[cs]e|copying|data[_-]?card|description)(\.\w+)?$", re.IGNORECASE)
_TEXT = re.compile(r"^(readme|licen[cs]e|copying|.+\.(md|txt|rst))$", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_PREPARED = {"manifest.json", "train.parquet", "val.parquet"}
_MAX_TEXTS = 6
_ALIKE = 5
"""Maximum skipped files of one pattern that are listed individually."""


@dataclass
class FolderListing:
    """Names relative to the folder, with forward slashes."""

    groups: dict[str, list[str]] = field(default_factory=dict)
    """Pattern of a name -> the data files of that pattern, sorted. `#` replaces a number."""
    texts: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    n_files: int = 0
    complete: bool = True


def list_files(folder: Path) -> FolderListing:
    """The files of the folder.

    Raises:
        TaskError: it is not a directory, or cannot be listed.
    """
    if not folder.is_dir():
        raise TaskError(f"{folder} is no directory; name the folder that holds the data")
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
    """Pair of file name and reason for skipping it. The reason is empty if the file is read."""
    pending = [("", 0)]
    while pending:
        prefix, depth = pending.pop()
        try:
            entries = _entries(folder / prefix, MAX_FILES - found.n_files + 1)
        except OSError as error:
            yield prefix.rstrip("/"), f"cannot be listed ({error.strerror})"
            continue
        if prefix and {entry.name for entry in entries} >= _PREPARED:
            yield prefix.rstrip("/"), "is a prepared task"
            continue
        for entry in entries:
            name = f"{prefix}{entry.name}"
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if not entry.is_symlink() and entry.is_dir(follow_symlinks=False):
                if depth + 1 > MAX_DEPTH:
                    yield f"{name}/", f"lies deeper than {MAX_DEPTH} folders"
                else:
                    pending.append((f"{name}/", depth + 1))
                continue
            if found.n_files >= MAX_FILES:
                found.complete = False
                return
            found.n_files += 1
            yield name, _why_not(entry)


def _entries(place: Path, limit: int) -> list[os.DirEntry[str]]:
    found = []
    with os.scandir(place) as entries:
        for entry in entries:
            found.append(entry)
            if len(found) > limit:
                break
    return sorted(found, key=lambda entry: entry.name)


def _why_not(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "is a symbolic link; links are not followed"
    try:
        held = entry.stat(follow_symlinks=False)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not stat.S_ISREG(held.st_mode):
        return "is no plain file"
    if not entry.name.isprintable():
        return "has control characters in its name"
    if held.st_size == 0:
        return "is empty"
    if entry.name.lower().endswith(DATA) or _is_text(entry.name):
        return ""
    return "is of no format that is read"


def _is_text(name: str) -> bool:
    return _TEXT.match(name.rpartition("/")[2]) is not None


def _pattern(name: str) -> str:
    return _NUMBER.sub("#", name)
