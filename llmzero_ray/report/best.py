"""best/: a checked copy of the winning adapter, with its card.

The folder is replaced atomically: readers find the old adapter or the new one, never a mixture.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from llmzero_ray.errors import ConfigError, StorageError
from llmzero_ray.storage.manifests import read_manifest
from llmzero_ray.utils.files import file_digest, replace_directory, replace_file, storage_errors

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
CARD = "README.md"
CHECKSUMS = "checksums.sha256"


def adapter_checksums(adapter: Path) -> dict[str, str]:
    """File -> SHA-256 of a saved PEFT adapter.

    Raises:
        StorageError: a file is missing, cannot be read, or differs from the saved one.
    """
    found = {name: _digest(adapter / name) for name in ADAPTER_FILES}
    recorded = (read_manifest(adapter) or {}).get("sha256", {})  # an engine may write no manifest
    damaged = [name for name, digest in found.items() if recorded.get(name, digest) != digest]
    if damaged:
        raise StorageError(
            f"{adapter}: {', '.join(damaged)} is not what was saved (its checksum differs from "
            "manifest.json). Restore it from a backup, or train the strategy again from strategy.yaml."
        )
    return found


def check_inside(adapter: Path, root: Path) -> None:
    """Check that an adapter's files belong to the search in `root`, because users share best/ with others.

    Raises:
        StorageError: a link leads outside the search, or one of them is not a file.
    """
    for path in (adapter / name for name in ADAPTER_FILES):
        there = path.resolve()
        if there.exists() and not (there.is_file() and there.is_relative_to(root.resolve())):
            raise StorageError(
                f"{path}: leads to {there}, which is not a file of this search. Put the file itself there."
            )


def write_best(best: Path, adapter: Path, checksums: Mapping[str, str], card: str) -> None:
    """Fill `best` with the adapter, its card and a checksum file for `sha256sum -c`.

    Raises:
        StorageError: the folder cannot be written, or the copy differs from the original.
    """
    listed = "".join(f"{digest}  {name}\n" for name, digest in checksums.items())
    with storage_errors(best), replace_directory(best) as folder:
        for name, digest in checksums.items():
            _copy(adapter / name, folder / name, digest)
        replace_file(folder / CHECKSUMS, listed)
        replace_file(folder / CARD, card)


def checked_best(best: Path, remedy: str = "") -> dict[str, str]:
    """File -> SHA-256 of the adapter in `best`, a folder that `write_best` filled. Errors advise `remedy`, or
    to write the report again if that is empty.

    Raises:
        ConfigError: there is no adapter.
        StorageError: a file is missing, cannot be read, or is not the one that was written.
    """
    remedy = remedy or f"Write it again with `llmzero report {shlex.quote(str(best.parent))}`."
    try:
        lines = (best / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(
            f"{best} holds no adapter: the search has no best strategy yet, or it was not written. {remedy}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{best / CHECKSUMS}: cannot be read ({error}).") from error
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    found = {name: _digest(best / name) for name in ADAPTER_FILES}
    if found != listed:
        raise StorageError(
            f"{best}: the adapter is not the one that was written (its checksums differ from {CHECKSUMS}). "
            f"{remedy}"
        )
    return found


def _copy(source: Path, target: Path, digest: str) -> None:
    shutil.copyfile(source, target)
    if _digest(target) != digest:
        raise StorageError(f"{target}: the copy differs from {source}; check the disk, then write it again.")


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read ({error.strerror}); the adapter there is incomplete or gone."
        ) from error
