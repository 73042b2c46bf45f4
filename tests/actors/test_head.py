"""A private head that does not come up: tried again with a message, and nothing is left of it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import psutil
import pytest

from actors import head
from llmzero_ray.errors import CapacityError


class Machine:
    """In place of `ray.init`: fails `n_failures` times, each time leaving a process behind."""

    def __init__(self, n_failures: int, error: Exception | None = None) -> None:
        self.n_failures, self.n_starts = n_failures, 0
        self.error = error or RuntimeError("The current node timed out during startup.")
        self.left: list[subprocess.Popen[bytes]] = []

    def __call__(self, _: object) -> None:
        self.n_starts += 1
        if self.n_starts > self.n_failures:
            return
        self.left.append(leave_process(f"/tmp/ray/session_2026-11-22_10-00-00_123456_{os.getpid()}/logs"))
        raise self.error


def leave_process(argument: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", argument])


@pytest.fixture(autouse=True)
def unchanged_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_prepare_environment", lambda: None)


def test_a_head_that_is_too_slow_is_started_again_and_its_processes_are_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(n_failures=2)
    monkeypatch.setattr(head, "_start_ray", machine)
    other = leave_process(f"/tmp/ray/session_2026-11-22_10-00-00_123456_{os.getpid()}9/logs")
    try:
        with caplog.at_level(logging.WARNING):
            head.start_private_head(num_cpus=1)
        assert machine.n_starts == 3
        assert not any(psutil.pid_exists(process.pid) for process in machine.left)
        assert psutil.pid_exists(other.pid) and other.poll() is None  # of another command
        first, second = (record.getMessage() for record in caplog.records)
        assert "timed out during startup" in first
        assert "(2 of 3)" in first and "(3 of 3)" in second
    finally:
        other.kill()
        other.wait()


def test_a_head_that_never_comes_up_is_one_message_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(n_failures=99)
    monkeypatch.setattr(head, "_start_ray", machine)
    with pytest.raises(CapacityError, match="Ray did not start on this machine: The current node timed out"):
        head.start_private_head()
    assert machine.n_starts == 3
    assert not any(psutil.pid_exists(process.pid) for process in machine.left)


def test_options_that_ray_refuses_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(n_failures=99, error=ValueError("num_cpus is -1"))
    monkeypatch.setattr(head, "_start_ray", machine)
    with pytest.raises(CapacityError, match="num_cpus is -1"):
        head.start_private_head(num_cpus=-1)
    assert machine.n_starts == 1
    assert not psutil.pid_exists(machine.left[0].pid)
