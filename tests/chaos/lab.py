"""A private Ray cluster of several machines on this one, commands on it, and all processes of both.

The head has no GPU; every other machine is a raylet with logical ones. Deaths are noticed fast. Processes of
the cluster carry the lab's directory in their environment, which tells them from everybody else's. Nothing in
this process is connected to Ray, so that the head may die. Not here: who is killed when (killer.py), what
must hold afterwards (checks.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from llmzero_ray.utils.failpoints import VARIABLE
from tests.waiting import wait_for_ray_nodes

CHECKOUT = Path(__file__).resolve().parents[2]
_FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}
_STORE_BYTES = 80 * 2**20
_GONE_S = 20.0
_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
_IDLE = ("ray::IDLE", *_AGENTS)


@dataclass(frozen=True, kw_only=True)
class Actor:
    """An actor that is not dead."""

    name: str
    pid: int
    machine: str
    """Id of its machine (hex)."""
    state: str


class Command:
    """One `python -m ...` with its output in a file."""

    def __init__(self, words: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=CHECKOUT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self.log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


class Lab:
    """A cluster with `machines` machines beside the head; a context manager."""

    def __init__(self, *, machines: int = 3, cpus: int = 2, gpus: int = 1) -> None:
        self._n, self._resources = machines, {"num_cpus": cpus, "num_gpus": gpus}
        self._root = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._places = self._root / "places"
        self._places.mkdir()
        (self._root / "ray").mkdir()
        self._cluster: Any = None
        self._commands: list[Command] = []
        self._segments = set[str]()

    def __enter__(self) -> Lab:
        try:
            self.power_on()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
        for command in self._commands:
            if command.running:
                command.kill()
        self.power_off()
        shutil.rmtree(self._root, ignore_errors=True)

    # --- machines -------------------------------------------------------------------------------------------

    def power_on(self) -> None:
        """A fresh cluster."""
        from ray.cluster_utils import Cluster

        wait_for_ray_nodes()
        head = {"num_cpus": 2, "include_dashboard": False, "_system_config": _FAST}
        head["object_store_memory"] = _STORE_BYTES
        with self._environment():
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(self._n):
            self.add_machine()

    def power_off(self) -> None:
        """Kill every process of the cluster at once, so that none can react to the end of another."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.global_state.disconnect()
        killed = self.processes()
        for process in killed:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(killed, timeout=_GONE_S)
        for node in cluster.list_all_nodes() if cluster is not None else ():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def add_machine(self) -> str:
        """One more machine; its id."""
        with self._environment():
            node = self._cluster.add_node(**self._resources, object_store_memory=_STORE_BYTES)
        return str(node.node_id)

    def kill_machine(self, machine: str) -> None:
        """Kill the raylet of a machine and its agents; its workers notice and follow by themselves."""
        (node,) = [node for node in self._cluster.worker_nodes if node.node_id == machine]
        agents = [
            process
            for info in node.all_processes["raylet"]
            for process in psutil.Process(info.process.pid).children()
            if " ".join(process.cmdline()).startswith(_AGENTS)
        ]
        self._cluster.remove_node(node, allow_graceful=False)
        for process in agents:
            with contextlib.suppress(psutil.Error):
                process.kill()

    @property
    def machines(self) -> list[str]:
        """Ids of the machines beside the head."""
        return [str(node.node_id) for node in self._cluster.worker_nodes]

    # --- what is on it --------------------------------------------------------------------------------------

    def command(self, *words: object) -> Command:
        """Start `python -m ...` as a user of the cluster."""
        environment = {**os.environ, "RAY_ADDRESS": str(self._cluster.address)}
        made = Command(
            tuple(str(word) for word in words), environment, self._root / f"command-{len(self._commands)}.log"
        )
        self._commands.append(made)
        return made

    def actors(self) -> dict[str, Actor]:
        """Named actors by name, those that are dead left out."""
        if self._cluster is None:
            return {}
        return {
            entry["Name"]: Actor(
                name=entry["Name"],
                pid=entry["Pid"],
                machine=entry["Address"]["NodeID"],
                state=entry["State"],
            )
            for entry in self._cluster.global_state.actor_table(None).values()
            if entry["State"] != "DEAD" and entry["Name"]
        }

    def groups(self) -> list[str]:
        """Names of placement groups that have not been removed."""
        table = self._cluster.global_state.placement_group_table()
        return [group["name"] for group in table.values() if group["state"] != "REMOVED"]

    def processes(self) -> list[psutil.Process]:
        """Every process that the cluster started, and theirs."""
        found, ours = [], f"={self._root}".encode()
        for process in psutil.process_iter():
            # Processes that give themselves a title may write it over a part of their environment.
            with contextlib.suppress(psutil.Error, OSError):
                if ours in Path(f"/proc/{process.pid}/environ").read_bytes() and process.pid != os.getpid():
                    found.append(process)
        return found

    def left_over(self, search: str) -> list[str]:
        """What is left of a search that has ended: actors, placement groups, processes, shared memory."""
        if self._cluster is None:
            return []
        named = [f"actor {name}" for name in self.actors() if search in name]
        named += [f"placement group {name}" for name in self.groups() if search in name]
        named += [f"process {line}" for line in filter(None, map(_at_work, self.processes()))]
        return named + [name for name in sorted(self._segments) if Path(name).exists()]

    def note_segments(self) -> None:
        """Record the shared memory of the cluster's processes: afterwards its owner cannot be determined."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                self._segments |= {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line}

    # --- named places ---------------------------------------------------------------------------------------

    def lay(self, place: str) -> None:
        """From now on the first process that reaches the place dies there."""
        (self._places / place).touch()

    def waits(self, place: str) -> bool:
        """Whether no process has reached the place yet."""
        return (self._places / place).exists()

    def pick_up(self, place: str) -> None:
        """Disarm the place."""
        (self._places / place).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        """What processes of the cluster inherit; this one must not keep it, or it would die at its places."""
        ours = {
            VARIABLE: str(self._places),
            "RAY_TMPDIR": str(self._root),
            "PYTHONPATH": str(CHECKOUT),
        }
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; whether there was such a process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def until(happened: Callable[[], bool], *, within_s: float, look_s: float = 0.05) -> bool:
    """Wait for something; whether it happened in time."""
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(look_s)
    return True


def _at_work(process: psutil.Process) -> str | None:
    """A process that is working, or that has no parent any more; None: one of an idle cluster's."""
    try:
        words, parent = process.cmdline(), process.parent()
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
    except psutil.Error:
        return None
    line = " ".join(words)[:120]
    if parent is None or parent.pid == 1:
        return f"{process.pid} (orphan): {line}"
    return f"{process.pid}: {line}" if line.startswith("ray::") and not line.startswith(_IDLE) else None
