"""The API key is where the model is called, and nowhere else: a whole search by the command line, on a
private head, with the scripted engine and a model behind a real HTTP server."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks.prepare import prepare
from tests.actors.test_model_search import sensible
from tests.agents.llm.messages_server import KEY, MessagesServer, Reply, Request
from tests.searches import CHECKOUT, scripted_search

from .intruder import attack, endpoint
from .known_listeners import unknown_listeners
from .processes import Seen, processes_with, tcp_listeners

VARIABLES = (b"ANTHROPIC_API_KEY=", b"ANTHROPIC_API_KEY_FILE=")
RUNNING_S = 900.0


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory with a short path, as Ray's sockets need."""
    with tempfile.TemporaryDirectory(prefix="llmzero-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def listeners_of(process: Seen) -> list[tuple[str, int]]:
    with contextlib.suppress(psutil.Error):  # it may have gone
        return tcp_listeners(process.pid)
    return []


RUNNER = ("ray::PhaseRunner", "ray::phase-")
"""Titles of a runner's process: idle, and while it trains a phase."""


class Watcher:
    """Answers as `sensible` does, and looks at the search's processes each time it is asked."""

    def __init__(self, mark: str, runtime_dir: Path) -> None:
        self.mark, self.runtime_dir = mark, runtime_dir
        self.seen: dict[int, Seen] = {}
        self.listening: set[str] = set()
        self.unknown: set[tuple[str, str]] = set()
        self.let_in: list[bool] = []
        self.key_files: list[tuple[int, str]] = []
        self.asked: list[str] = []
        self.killed = threading.Event()

    def __call__(self, request: Request) -> Reply:
        self.asked.append(request.tool)
        found = processes_with(self.mark)
        self.seen |= {one.pid: one for one in found}
        self.unknown |= unknown_listeners(found)
        ports = sorted({at for one in found for at in listeners_of(one)})
        self.listening |= {host for host, _ in ports}
        if not self.let_in and any(one.title.startswith(RUNNER) for one in found):
            self.let_in = attack(self.runtime_dir / "touched", [endpoint(*at) for at in ports])
        for path in self.runtime_dir.glob("llmzero/key-*"):
            self.key_files.append((stat.S_IMODE(path.stat().st_mode), path.read_text()))
        if request.tool == "propose_phase" and not self.killed.is_set():
            (coordinator,) = [one for one in found if one.title.startswith("ray::SearchCoordinator")]
            self.killed.set()
            os.kill(coordinator.pid, signal.SIGKILL)  # with its question on the way
        return sensible(request)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", ["ANTHROPIC_API_KEY", pytest.param("ANTHROPIC_API_KEY_FILE", marks=pytest.mark.long)]
)
def test_no_process_of_ray_has_the_key_and_a_killed_coordinator_still_calls(
    scratch: Path, given: str
) -> None:
    prepare(dir=scratch / "task", family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
    runtime_dir = scratch / "run"
    runtime_dir.mkdir(mode=0o700)
    mark = f"mark-{uuid.uuid4().hex}"
    (scratch / "key.txt").write_text(KEY)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_ADDRESS", "ANTHROPIC_"))} | {
        given: KEY if given == "ANTHROPIC_API_KEY" else str(scratch / "key.txt"),
        "LLMZERO_TEST_MARK": mark,
        "XDG_RUNTIME_DIR": str(runtime_dir),
        "RAY_TMPDIR": str(scratch),
    }
    watcher = Watcher(mark, runtime_dir)
    with MessagesServer(watcher) as server:
        agents = {"backend": "claude", "base_url": server.base_url, "deadline_s": 300.0}
        stopper = {"interval_steps": 2, "min_steps": 2}
        script = {"step_s": 0.1}
        content = scripted_search(
            scratch, scratch / "task", script, budget={"runs": 2}, agents=agents, stopper=stopper
        )
        (scratch / "search.yaml").write_text(yaml.safe_dump(content))
        command = [sys.executable, "-m", "jobs.search", str(scratch / "search.yaml")]
        done = subprocess.run(
            command, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=RUNNING_S, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr

    follower = Follower(SearchStorage(str(scratch / "runs"), "demo"))
    follower.poll()
    assert watcher.killed.is_set()
    assert len([event for event in follower.events if isinstance(event, ev.CoordinatorStarted)]) == 2
    proposers = {run.proposal.agent for node, run in follower.core.runs.items() if node > 0 and run.proposal}
    assert proposers == {"claude"}

    titles = " ".join(one.title for one in watcher.seen.values())
    for part in ("gcs_server", "raylet", "ray::SearchCoordinator", "ray::StopperActor"):
        assert part in titles
    assert any(part in titles for part in RUNNER)
    holders = [
        one.title for one in watcher.seen.values() if any(name in one.environment for name in VARIABLES)
    ]
    assert holders and all("jobs.search" in title for title in holders), holders

    assert watcher.unknown == set()
    assert watcher.listening and watcher.listening <= {"127.0.0.1", "::1"}, "out of the network's reach"
    assert watcher.let_in and not any(watcher.let_in)
    assert not (runtime_dir / "touched").exists()

    if given == "ANTHROPIC_API_KEY":
        assert set(watcher.key_files) == {(0o600, KEY + "\n")}
    else:
        assert watcher.key_files == []
    assert list(runtime_dir.rglob("key-*")) == []
    written = [path for path in scratch.rglob("*") if path.is_file() and path.name != "key.txt"]
    assert any("session_" in str(path) for path in written)
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []
    assert KEY not in done.stdout + done.stderr
