"""Locks between processes, and digests; writing files is held by test_storage.py and test_journal.py."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from llmzero_ray.utils.files import FileLock, file_digest, is_locked, replace_directory, text_digest

HOLDER = """
import sys
from pathlib import Path
from llmzero_ray.utils.files import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def holder_of(path: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_held_by_one_process_and_free_once_that_is_killed(tmp_path: Path) -> None:
    path, lock = tmp_path / "lock", FileLock(tmp_path / "lock")
    holder = holder_of(path)
    try:
        assert is_locked(path)
        assert not lock.acquire()
    finally:
        holder.kill()
        holder.communicate()
    assert not is_locked(path)
    assert lock.acquire(timeout_s=None)
    assert lock.is_enforced


def test_the_text_in_a_locked_file_survives_attempts_to_take_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = FileLock(path), FileLock(path)
    assert first.acquire()
    path.write_text("the holder")
    assert not second.acquire()
    assert is_locked(path)
    first.release()
    first.release()
    assert second.acquire()
    assert path.read_text() == "the holder"


def test_probes_do_not_take_a_lock_from_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with open(path) as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH)  # as another probe does
        assert not is_locked(path)


def test_without_locks_of_the_file_system_no_process_is_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    assert not lock.is_enforced
    lock.release()


def test_a_directory_that_can_neither_be_replaced_nor_put_back_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "best", os.rename
    path.mkdir()
    (path / "adapter").write_text("old")

    def away_only(source: Path, target: Path) -> None:
        if target == path:
            raise OSError("the file system has gone")
        rename(source, target)

    monkeypatch.setattr(os, "rename", away_only)
    with pytest.raises(OSError, match="has gone"), replace_directory(path) as new:
        (new / "adapter").write_text("new")
    assert [file.read_text() for file in tmp_path.glob(".best.*.tmp/adapter")] == ["old"]


def test_digests_of_texts_and_files_are_sha256(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert file_digest(tmp_path / "file") == text_digest("abc") == text_digest(b"abc")
    assert text_digest("abc") == sha256(b"abc").hexdigest()
    assert len(text_digest("\ud800")) == 64
