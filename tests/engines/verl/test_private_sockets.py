"""What a neighbour finds of a running slot: no queue on the network, no API key in VeRL's processes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psutil
import pytest

from llmzero_ray.engines.verl.internals import QUEUE_DIR_ENV
from llmzero_ray.records import PhaseResult
from tests.engines.verl.conftest import SECRET, Lab, below_this_process
from tests.security.intruder import attack, endpoint
from tests.security.processes import (
    Seen,
    bound_sockets,
    processes_with,
    speaks_http,
    speaks_zeromq,
    tcp_listeners,
    those_that,
)

pytestmark = [pytest.mark.verl, pytest.mark.slow]


@pytest.fixture(scope="module")
def running(lab: Lab) -> list[Seen]:
    """VeRL's processes, after a phase that has used all of them."""
    outcome, _ = lab.run(lab.spec(n_steps=1))
    assert isinstance(outcome, PhaseResult), outcome
    return [one for one in processes_with(f"{QUEUE_DIR_ENV}=/") if one.pid in below_this_process()]


def listening(processes: list[Seen]) -> list[tuple[str, int]]:
    return sorted({at for one in processes for at in tcp_listeners(one.pid)})


def addresses(process: Seen) -> list[str]:
    found = psutil.Process(process.pid).net_connections(kind="tcp")
    return [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]


def titles(processes: list[Seen]) -> str:
    return " ".join(one.title for one in processes)


def test_the_processes_looked_at_are_all_of_verls(running: list[Seen]) -> None:
    for part in (
        "llmzero_ray.engines.verl",
        "ray::WorkerDict",
        "ray::RecordingServer",
    ):
        assert part in titles(running)


def test_no_process_of_a_slot_has_the_key(running: list[Seen]) -> None:
    raylets = [one for one in processes_with(SECRET) if "raylet/raylet" in one.title]
    assert raylets, "this Ray was to be started with a key in its environment"
    assert titles([one for one in running if SECRET.encode() in one.environment]) == ""


def test_a_slot_of_one_rank_has_no_queue_and_no_socket_that_other_users_reach(running: list[Seen]) -> None:
    """The queue is in the process that embeds VeRL; one in processes of its own: test_two_ranks.py,
    test_rollout_calls.py."""
    variables = running[0].environment.split(b"\0")
    (named,) = [v.partition(b"=")[2] for v in variables if v.startswith(QUEUE_DIR_ENV.encode() + b"=")]
    assert stat.S_IMODE(Path(os.fsdecode(named)).stat().st_mode) == 0o700
    assert "TransferQueue" not in titles(running) and "SimpleStorage" not in titles(running)
    bound = {path for one in running for path in bound_sockets(one.pid)}
    assert bound and not [path for path in bound if path.startswith("@")]


def test_what_a_slot_listens_on_beside_ray_is_on_loopback_or_in_its_directory(running: list[Seen]) -> None:
    """torch's process groups and vLLM's processes: this Ray is an open one, and listens everywhere."""
    (rays_own,) = {
        tuple(sorted(at for at in addresses(one) if at not in ("127.0.0.1", "::1")))
        for one in running
        if one.title.startswith("ray::WorkerDict")
    }
    for one in running:
        beyond = tuple(sorted(at for at in addresses(one) if at not in ("127.0.0.1", "::1")))
        is_rays = one.title.startswith("ray::") or "llmzero_ray.engines.verl.driver" in one.title
        assert beyond == (rays_own if is_rays else ()), one.title
    (core,) = [one for one in running if one.title.startswith("VLLM::EngineCore")]
    assert set(addresses(core)) == {"127.0.0.1"}, "of its process groups"


def test_two_frames_to_any_port_of_a_slot_run_nothing(running: list[Seen], tmp_path: Path) -> None:
    assert listening(running)  # Ray's own
    assert not those_that(speaks_zeromq, listening(running))
    assert not any(attack(tmp_path / "touched", [endpoint(*at) for at in listening(running)]))
    assert not (tmp_path / "touched").exists()


def test_rollout_servers_listen_on_no_port_of_their_own(running: list[Seen]) -> None:
    servers = [one for one in running if one.title.startswith("ray::RecordingServer")]
    idle = [one for one in running if one.title.startswith("ray::IDLE")]
    rays_own = max(len(tcp_listeners(one.pid)) for one in idle)
    assert {len(tcp_listeners(one.pid)) for one in servers} == {rays_own}
    assert not those_that(speaks_http, listening(servers))
