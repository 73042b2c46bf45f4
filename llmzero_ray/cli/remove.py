"""The command `rm`: lists what it will delete, asks, and deletes searches."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from llmzero_ray.cli import options
from llmzero_ray.cli.completion import searches
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.errors import ConfigError, SearchBusyError
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import find, missing, searches_in
from llmzero_ray.storage.presence import SearchLock, owner, start_of
from llmzero_ray.utils.files import storage_error
from llmzero_ray.utils.text import size


def rm(
    names: Annotated[
        list[str],
        typer.Argument(metavar="SEARCH...", help="names or directories", autocompletion=searches),
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    storage: options.Storage = "runs",
) -> int:
    """Delete searches that are not running.

    It lists what goes and asks. A journal in an object store stays there.
    """
    console = TerminalConsole()
    places = [find(name, storage) for name in names]
    for place in places:
        _check(place)
        print_lines(console, _content(place))
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nothing was deleted: without a terminal rm deletes only with --yes.")
        if not typer.confirm("Delete for good?"):
            print_line(console, "nothing was deleted")
            return 0
    for place in places:
        _delete(place.paths.root)
        print_line(console, f"deleted {place.paths.root}")
    return 0


def _check(place: SearchStorage) -> None:
    root = place.paths.root
    if root not in searches_in(root.parent):
        raise missing(root)
    start = start_of(root)
    someone = owner(root) or (start if start is not None and start.alive is not False else None)
    if someone is not None:
        raise SearchBusyError(f"{root}: {someone}. Stop it first: `llmzero stop {shlex.quote(str(root))}`.")


def _content(place: SearchStorage) -> Iterator[str]:
    """Contents of a search's directory, the largest first."""
    root = place.paths.root
    sizes = {entry.name: _bytes(entry) for entry in root.iterdir()}
    yield f"{root}: {size(sum(sizes.values()))}"
    yield from (f"  {size(sizes[name]):>8}  {name}" for name in sorted(sizes, key=sizes.__getitem__)[::-1])
    config = place.config()
    if config is not None and config.journal_address is not None:
        yield f"  stays: its journal at {config.journal_address}"


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files)


def _delete(root: Path) -> None:
    lock = SearchLock(root)
    lock.acquire(private_head=False, role="command")  # so that nobody starts it meanwhile
    try:
        shutil.rmtree(root)
    except OSError as error:
        raise storage_error(error.filename or root, error) from error
    finally:
        lock.release()
