"""manifest.json of a checkpoint directory. A checkpoint is complete once it has one, and intact if its files
match the checksums in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.utils.files import file_digest, replace_file, storage_errors

NAME = "manifest.json"
FORMAT = 1


def write_manifest(directory: Path, facts: Mapping[str, Any]) -> None:
    """Complete a checkpoint directory: flush every file to disk, then write the manifest with their SHA-256
    checksums. `facts` are JSON values to store with them.

    Raises:
        StorageError: a file cannot be read, or the manifest not written; the directory stays incomplete.
    """
    with storage_errors(directory):
        digests = {
            path.relative_to(directory).as_posix(): _flushed_digest(path)
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path != directory / NAME and not _is_unfinished(path)
        }
    body = {"format": FORMAT, "sha256": digests, **facts}
    replace_file(directory / NAME, json.dumps(body, indent=2) + "\n")


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """Manifest of a directory. None if it is missing or invalid."""
    try:
        found = json.loads((directory / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("sha256"), dict) else None


def problem_of(directory: Path) -> str | None:
    """Reason why a checkpoint cannot be used, in one line. None if every file matches its manifest."""
    if not directory.is_dir():
        return "the directory does not exist"
    if not (directory / NAME).is_file():
        return f"it has no {NAME}: it was never completed"
    manifest = read_manifest(directory)
    if manifest is None:
        return f"its {NAME} cannot be read"
    if manifest.get("format") != FORMAT:
        return f"its {NAME} has format {manifest.get('format')!r}; this version reads {FORMAT}"
    if not manifest["sha256"]:
        return f"its {NAME} names no files"
    for name, digest in manifest["sha256"].items():
        try:
            found = file_digest(directory / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
        if found != digest:
            return f"{name} is not what was saved (its checksum differs from {NAME})"
    return None


def _is_unfinished(path: Path) -> bool:
    """Whether a file is a partial manifest of a killed process. `SearchStorage.sweep` removes these."""
    return path.name.startswith(f".{NAME}.")


def _flushed_digest(path: Path) -> str:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return file_digest(path)
