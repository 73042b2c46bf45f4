"""What a neighbour finds of a running slot: no queue on the network, no API key in VeRL's processes."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import psutil
import pytest
import zmq
from transfer_queue.utils.serial_utils import _PICKLE_FALLBACK_SENTINEL

from llmzero_ray.engines.verl.internals import QUEUE_DIR_ENV
from llmzero_ray.records import PhaseResult
from tests.engines.verl.conftest import SECRET, Lab
from tests.security.processes import Seen, processes_with, speaks_zeromq, tcp_listeners

pytestmark = [pytest.mark.verl, pytest.mark.slow]


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.fixture(scope="module")
def running(lab: Lab) -> list[Seen]:
    """VeRL's processes, after a phase that has used all of them."""
    outcome, _ = lab.run(lab.spec(n_steps=1))
    assert isinstance(outcome, PhaseResult), outcome
    return [one for one in processes_with(f"{QUEUE_DIR_ENV}=/") if one.pid in below_this_process()]


def below_this_process() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def titles(processes: list[Seen]) -> str:
    return " ".join(one.title for one in processes)


def test_the_processes_looked_at_are_all_of_verls(running: list[Seen]) -> None:
    for part in (
        "llmzero_ray.engines.verl",
        "ray::TransferQueueController",
        "ray::SimpleStorageUnit",
        "ray::WorkerDict",
        "ray::RecordingServer",
    ):
        assert part in titles(running)


def test_no_process_of_a_slot_has_the_key(running: list[Seen]) -> None:
    raylets = [one for one in processes_with(SECRET) if "raylet/raylet" in one.title]
    assert raylets, "this Ray was to be started with a key in its environment"
    assert titles([one for one in running if SECRET.encode() in one.environment]) == ""


def test_the_queue_listens_in_a_directory_of_the_users_alone(running: list[Seen]) -> None:
    variables = running[0].environment.split(b"\0")
    (named,) = [v.partition(b"=")[2] for v in variables if v.startswith(QUEUE_DIR_ENV.encode() + b"=")]
    directory = Path(os.fsdecode(named))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [stat.S_ISSOCK(path.stat().st_mode) for path in directory.iterdir()] == [True] * 3


def test_two_frames_to_any_port_of_a_slot_run_nothing(running: list[Seen], tmp_path: Path) -> None:
    listeners = {at for one in running for at in tcp_listeners(one.pid)}
    assert listeners  # Ray's own, and vLLM's HTTP
    marker = tmp_path / "touched"
    context = zmq.Context()
    for host, port in sorted(listeners):
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IPV6, 1)
        socket.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        socket.send_multipart([_PICKLE_FALLBACK_SENTINEL, pickle.dumps(Touch(marker))], zmq.DONTWAIT)
        assert not speaks_zeromq(host, port), f"a ZeroMQ socket listens at {host}:{port}"
        socket.close(linger=500)
    context.destroy(linger=500)
    assert not marker.exists()
