"""Handle of the process that embeds VeRL: starts it, talks to it over a pipe, and ends it. It dies with the
process that holds the handle."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeVar

from llmzero_ray.engines.verl import failures
from llmzero_ray.engines.verl.environment import process_env, runtime_env, worker_vars
from llmzero_ray.engines.verl.internals import QUEUE_NAMESPACE_ENV
from llmzero_ray.engines.verl.messages import ProcessDied, Ready, StageBegan, StageProgressed, Start
from llmzero_ray.engines.verl.queue_keys import forget_keys
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.engines.verl.stage_clock import StageClock
from llmzero_ray.errors import EngineError, EngineLostError
from llmzero_ray.records import PhaseSpec
from llmzero_ray.utils.private_files import private_directory

logger = logging.getLogger(__name__)

A = TypeVar("A")

DRIVER_MODULE = "llmzero_ray.engines.verl.driver"
_LOOK_S = 0.5
_GONE_TIMEOUT_S = 60.0

# The kernel ties a child's life to the thread that started it, so this thread lives as long as the process.
_launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="verl-driver-launcher")


class DriverProcess:
    """A running child and the pipe to it. Only `send` is thread-safe."""

    def __init__(self, settings: VerlSettings, clock: StageClock) -> None:
        """Start the child. `clock` receives the stages that it reports."""
        self._socket_dir = private_directory("slot") if is_here(settings) else None
        if self._socket_dir is not None:
            path = str(self._socket_dir.path)
            settings = dataclasses.replace(
                settings, socket_dir=path, queue_dir=path if on_one_machine() else ""
            )
        self._settings, self._clock = settings, clock
        self._pipe, theirs = Pipe(duplex=True)
        self._sending = threading.Lock()
        self._child = _launcher.submit(_launch, settings, theirs).result()
        theirs.close()

    @property
    def pid(self) -> int:
        """Process id of the driver."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._child.poll() is None

    def start(self, spec: PhaseSpec, n_train: int) -> Ready:
        """Start VeRL for the cold keys of `spec`.

        Raises:
            EngineError: the start took longer than `start_timeout_s`.
            EngineLostError: the process has died.
        """
        import ray

        address = ray.get_runtime_context().gcs_address
        self.send(Start(self._settings, spec, n_train, address, runtime_env(self._settings)))
        deadline = time.monotonic() + self._settings.start_timeout_s
        while (answer := self.next_message()) is None:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"VeRL did not start within {self._settings.start_timeout_s:.0f} s; see "
                    f"{self._settings.log_path}"
                )
        ready: Ready = _expected(answer, Ready)
        return ready

    def ask(self, request: Any, kind: type[A]) -> A:
        """Send a request and wait for its answer.

        Raises:
            EngineLostError: the process has died.
        """
        self.send(request)
        while (answer := self.next_message()) is None:
            pass
        return _expected(answer, kind)

    def send(self, message: Any) -> None:
        """Send a message. Raises EngineLostError if the process has died."""
        try:
            with self._sending:
                self._pipe.send(message)
        except OSError:
            raise self._lost() from None

    def next_message(self) -> Any:
        """Next message for the engine, or None if none arrives within a short wait.

        Raises:
            EngineLostError: the process, or one of VeRL's, has died.
        """
        try:
            message = self._pipe.recv() if self._pipe.poll(_LOOK_S) else None
        except (EOFError, OSError):
            raise self._lost() from None
        if isinstance(message, ProcessDied):
            raise EngineLostError(f"a VeRL process went away: {message.what}")
        if isinstance(message, StageBegan):
            self._clock.enter(message.name, message.at)
            return None
        if isinstance(message, StageProgressed):
            self._clock.progress(message.at)
            return None
        return message

    def end(self, grace_s: float = 5.0) -> None:
        """Close the pipe, which ends the process; kill it after `grace_s` seconds. Idempotent."""
        self._pipe.close()
        if self._exit_code(grace_s) is None:
            self._child.kill()
            self._child.wait()
        if self._socket_dir is not None:
            self._socket_dir.remove()
        if not self._settings.queue_dir:
            forget_keys(worker_vars(self._settings)[QUEUE_NAMESPACE_ENV])

    def _exit_code(self, wait_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(timeout=wait_s)
        return None

    def _lost(self) -> EngineLostError:
        log = failures.tail(self._settings.log_path, n_lines=5)
        code = self._exit_code(1.0)
        return EngineLostError(
            f"the VeRL driver process ended (exit code {code}); last log lines: {log or 'none'}"
        )


def _expected(message: Any, kind: type[A]) -> A:
    if not isinstance(message, kind):
        raise EngineError(f"expected {kind.__name__} from the VeRL driver, got {type(message).__name__}")
    return message


def is_here(settings: VerlSettings) -> bool:
    """Whether all bundles of the slot are on this process's machine."""
    import ray
    from ray.util import placement_group_table

    address = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    table = placement_group_table()
    nodes = [
        node for group in settings.placement_groups for node in table[group]["bundles_to_node_id"].values()
    ]
    return {address[node] for node in nodes} == {address[ray.get_runtime_context().get_node_id()]}


def on_one_machine() -> bool:
    """Whether this machine is the whole Ray cluster, so that VeRL's processes can use socket files.

    On a cluster of several machines, VeRL spreads a slot's helpers over all of them. Its TransferQueue then
    listens on TCP ports, protected by keys (queue_keys.py).
    """
    import ray

    return len({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}) == 1


def wait_until_slot_is_free(slot_namespace: str) -> None:
    """Block until no earlier Ray job of this slot has a live actor. After a minute, log a warning and
    return."""
    import ray

    if not ray.is_initialized():
        return
    deadline = time.monotonic() + _GONE_TIMEOUT_S
    while left := _living_actors(slot_namespace):
        if time.monotonic() > deadline:
            logger.warning(
                "after %.0f s these actors of %s are left: %s", _GONE_TIMEOUT_S, slot_namespace, left
            )
            return
        time.sleep(0.1)


def _living_actors(slot_namespace: str) -> list[str]:
    import ray
    from ray._private.state import state

    jobs = [job for job in state.job_table() if slot_namespace in job["Entrypoint"].split()]
    actors = [
        actor
        for job in jobs
        for actor in state.actor_table(None, ray.JobID(bytes.fromhex(job["JobID"])), None).values()
    ]
    return [f"{actor['ActorClassName']} {actor['ActorID']}" for actor in actors if actor["State"] != "DEAD"]


def _launch(settings: VerlSettings, theirs: Connection) -> subprocess.Popen[bytes]:
    log_path = Path(settings.log_path)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    # The slot's name in the command line identifies the process and its Ray job.
    arguments = [str(theirs.fileno()), str(os.getpid()), settings.slot_namespace]
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", DRIVER_MODULE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=process_env(settings),
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # the search handles a Ctrl-C in the terminal
        )
