"""Creates a task's directory once and atomically.

The content is written into a directory next to the target, which is then renamed. A second call finds the
task and returns at once. Of two concurrent calls, one writes it and the other waits.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from llmzero_ray.errors import StorageError, TaskError
from llmzero_ray.prepared.manifest import MANIFEST, read_manifest
from llmzero_ray.utils.files import FileLock, sync_tree

Progress: TypeAlias = Callable[[str, float], None]
"""Callback with the current work and its finished share in [0, 1]."""


def no_progress(_doing: str, _share: float) -> None:
    """No-op progress callback."""


@contextlib.contextmanager
def progress_lines(say: Callable[[str], None], every_s: float = 15.0) -> Iterator[Progress]:
    """Context with a progress callback that prints lines with `say`: one when a part of the work begins, and,
    from a thread, one every `every_s` seconds. The text before the first colon names the part."""
    turn, ended = threading.Lock(), threading.Event()
    part = line = ""

    def progress(doing: str, share: float) -> None:
        nonlocal part, line
        with turn:
            before, part = part, doing.split(":")[0]
            line = f"preparing the task: {doing} ({share:.0%})"
            if part != before:
                say(line)

    def repeat() -> None:
        while not ended.wait(every_s):
            with turn:
                if line and not ended.is_set():
                    say(line)

    thread = threading.Thread(target=repeat, name="progress-lines", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        ended.set()
        thread.join()


def create_once(target: Path, write: Callable[[Path], None], progress: Progress) -> None:
    """Let `write` write the task into an empty directory, and rename that to `target`, unless a task exists
    there.

    Raises:
        TaskError: `target` holds something else, or `write` raises it.
        StorageError: it cannot be written; nothing is left there.
    """
    if (target / MANIFEST).exists():
        return
    try:
        _write_beside(target, write, progress)
    except OSError as error:
        raise StorageError(
            f"task directory {target} cannot be written: {error.strerror or error}; nothing was kept "
            "there. Free space, or set task.dir to a directory that can be written"
        ) from error


def _write_beside(target: Path, write: Callable[[Path], None], progress: Progress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock_target(target, progress):
        if (target / MANIFEST).exists():
            return
        _check_vacant(target)
        part = target.parent / f".{target.name}.part-{uuid.uuid4().hex[:8]}"
        try:
            part.mkdir()
            write(part)
            # Sync first: a power cut must not keep the rename and lose the content.
            sync_tree(part)
            _put_in_place(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _check_vacant(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise TaskError(f"task directory {target} is a file; choose another task.dir")
    if target.exists() and (held := sorted(entry.name for entry in target.iterdir())):
        raise TaskError(
            f"task directory {target} holds {', '.join(held[:8])}, but no {MANIFEST}: not made by prepare. "
            "Choose another task.dir, or empty it"
        )


def _put_in_place(part: Path, target: Path) -> None:
    try:
        part.rename(target)
    except OSError:
        # Without working locks another process may have been first. Then its task counts.
        if not (target / MANIFEST).exists():
            raise


@contextlib.contextmanager
def _lock_target(target: Path, progress: Progress) -> Iterator[None]:
    """Context in which one process at a time writes `target`, after removing files of killed ones. Without
    file locks, the rename alone decides who was first."""
    lock = FileLock(target.parent / f".{target.name}.lock")
    if not lock.acquire():
        progress("waiting for another process that makes the same task", 0.0)
        lock.acquire(timeout_s=None)
    try:
        if lock.is_enforced:
            for left in target.parent.glob(f".{target.name}.part-*"):
                shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        lock.release()


def check_same_spec(target: Path, differences_from: Callable[[Mapping[str, Any]], list[str]]) -> None:
    """Check that the task in `target` was made with the same settings. One written by hand always passes.

    Raises:
        TaskError: it has other settings; the message lists the differences.
    """
    found = read_manifest(target).recipe
    if found is None:
        return
    differences = differences_from(found)
    if differences:
        raise TaskError(
            f"task directory {target} holds a task made with other settings: {'; '.join(differences)}. "
            "Choose another task.dir, or delete that directory to make it again"
        )


def spec_differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Descriptions of the values in `wanted` that differ from `found`."""
    return [
        f"{key} is {found.get(key)!r} there, {value!r} wanted"
        for key, value in wanted.items()
        if found.get(key) != value
    ]
