"""A child dies with its parent, running or stopped, and also when the parent was gone before it could ask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.waiting import wait_until

CHILD = """
import os, sys
from llmzero_ray.utils.parent_death import die_with_parent
die_with_parent(int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""
PARENT = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}, str(os.getpid())], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    yield parent, child
    parent.kill()
    parent.wait()
    if child.is_running():
        child.kill()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_dies_when_its_parent_is_killed_even_if_it_is_stopped(
    family: tuple[subprocess.Popen[str], psutil.Process], stopped: bool
) -> None:
    parent, child = family
    if stopped:
        child.suspend()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, child.status)


def test_a_child_whose_parent_has_died_before_dies_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    late = subprocess.run([sys.executable, "-c", CHILD, str(gone.pid)], capture_output=True, text=True)
    assert (late.returncode, late.stdout) == (-signal.SIGKILL, "")


def test_a_child_of_a_thread_that_ended_lives_on() -> None:
    """The kernel means the thread that started the child when it says parent."""
    from llmzero_ray.engines.verl.driver_process import _launcher

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    started: list[subprocess.Popen[str]] = []
    caller = threading.Thread(target=lambda: started.append(_launcher.submit(start).result()))
    caller.start()
    caller.join()
    (child,) = started
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    _, _ = child.communicate()  # the end of its input ends it in its own way
    assert child.returncode == 0
