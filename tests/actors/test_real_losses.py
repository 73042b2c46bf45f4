"""Real VeRL on two slots of one cluster: they do not touch each other, and a killed runner leaves nothing.

Runs are bit-deterministic on the CPU, so a mix-up of any trajectory, weight or prompt shows in the numbers.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.slot import local_slots, small_phase
from benchmarks.two_slots import make_spec, start_runner
from llmzero_ray.engines.base import Slot
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import MetricPoint, PhaseResult, PhaseSpec
from llmzero_ray.tasks.prepare import prepare
from tests.engines.verl.conftest import abandoned_segments, assert_same_metrics, processes_of, socket_files
from tests.waiting import wait_until

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]

LR = "actor_rollout_ref.actor.optim.lr"
N_STEPS = 12
VERL_ACTORS = ("WorkerDict", "RecordingServer")


@dataclasses.dataclass
class Lane:
    """One slot with its own task, learning rate and seed, and what its phase is when it runs alone."""

    config: dict[str, Any]
    task: PreparedTask
    slot: Slot
    spec: PhaseSpec
    root: Path
    runner: Any = None
    alone: list[MetricPoint] = dataclasses.field(default_factory=list)

    def start(self) -> Lane:
        self.runner = start_runner(self.config, self.task, self.slot, str(self.root))
        return self

    def begin(self, spec: PhaseSpec | None = None) -> Any:
        return self.runner.run.remote(spec or self.spec)


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lane, Lane]]:
    """Two slots, each of which has trained its phase alone."""
    import ray

    made = []
    with local_slots("lanes", 2) as slots:
        for index, slot in enumerate(slots):
            root = tmp_path_factory.mktemp(f"slot{index}")
            task = prepare(
                dir=str(root / "task"), family="echo", n_train=256, n_val=64, n_test=64, seed=1 + index
            )
            config = small_phase("lanes")
            spec = make_spec(config, task, str(root), index, N_STEPS)
            lr = {LR: (1e-3, 4e-3)[index]}
            spec = dataclasses.replace(spec, hyperparameters={**spec.hyperparameters, **lr}, test_freq=4)
            made.append(Lane(config, task, slot, spec, root).start())
        for lane in made:
            lane.alone = points_of(ray.get(lane.begin()))
        yield made[0], made[1]
        ray.get([lane.runner.close.remote() for lane in made])


def test_two_slots_at_once_train_what_each_trains_alone(lanes: tuple[Lane, Lane]) -> None:
    import ray

    first, second = lanes
    rewards = [[p.metrics["critic/score/mean"] for p in lane.alone[1:]] for lane in lanes]
    assert rewards[0] != rewards[1]  # else a mix-up could not be seen
    both = ray.get([lane.begin() for lane in lanes])
    times = [[at for at, point in points if point.step > 0] for _, points in both]
    assert max(t[0] for t in times) < min(t[-1] for t in times)  # they did train at the same time
    for lane, ended in zip((first, second), both, strict=True):
        assert_same_metrics(lane.alone, points_of(ended))
        answers = [[item.response for item in point.items] for point in lane.alone]
        assert answers == [[item.response for item in point.items] for point in points_of(ended)]


def test_a_killed_runner_takes_all_of_its_job_with_it_although_host_and_worker_are_stuck(
    lanes: tuple[Lane, Lane], tmp_path: Path
) -> None:
    """Host and FSDP worker are stopped, as in a hang: only a kill from outside ends them."""
    import ray

    lost, other = lanes
    spec = dataclasses.replace(
        lost.spec,
        rolling_dir=str(tmp_path / "rolling"),
        rolling_freq=4,
        checkpoint_dir=str(tmp_path / "adapters"),
    )
    running, beside = lost.begin(spec), other.begin()
    wait_until(lambda: (state_of(lost)["step"] or 0) >= 6, patience_s=600)
    segments = abandoned_segments()
    host, mine = host_of(lost.slot), job_of(lost.slot)
    assert {name for name in VERL_ACTORS if any(name in title for title in mine.values())} == {*VERL_ACTORS}
    assert not [path for pid in (host, *mine) for path in socket_files(pid)]  # nothing that could be left
    for pid in (host, *[pid for pid, title in mine.items() if title.startswith("ray::WorkerDict")]):
        os.kill(pid, signal.SIGSTOP)
    os.kill(state_of(lost)["pid"], signal.SIGKILL)
    killed = time.monotonic()
    wait_until(lambda: not is_running(host))
    print(f"host gone after {time.monotonic() - killed:.2f} s")
    wait_until(lambda: not [pid for pid in mine if is_running(pid)])
    print(f"its {len(mine)} processes gone after {time.monotonic() - killed:.2f} s")
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(running)
    assert_same_metrics(other.alone, points_of(ray.get(beside)))  # the other slot has noticed nothing
    wait_until(lambda: abandoned_segments() <= segments)
    lost.start()
    outcome, points = ray.get(lost.begin(dataclasses.replace(spec, restore=True, attempt=1)))
    again = [point for _, point in points]
    assert isinstance(outcome, PhaseResult) and not outcome.warm
    assert again[0].step in (5, 9)
    assert_same_metrics(lost.alone[again[0].step :], again)
    assert len(processes_of("WorkerDict")) == 2


def points_of(ended: Any) -> list[MetricPoint]:
    outcome, points = ended
    assert isinstance(outcome, PhaseResult), outcome
    return [point for _, point in points]


def state_of(lane: Lane) -> dict[str, Any]:
    import ray

    found: dict[str, Any] = ray.get(lane.runner.state.remote())
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def host_of(slot: Slot) -> int:
    """The VeRL host process of a slot."""
    name = f"llmzero-{slot.search}-slot{slot.index}"
    (pid,) = [
        pid for pid, title in titles().items() if "engines.verl.driver" in title and title.endswith(name)
    ]
    return pid


def job_of(slot: Slot) -> dict[int, str]:
    """Processes of the Ray job whose driver is the slot's host, and what they started."""
    host = psutil.Process(host_of(slot))
    scope = host.environ()["LLMZERO_TRANSFER_QUEUE_NAMESPACE"]
    return {pid: title for pid, title in titles().items() if pid != host.pid and scope == scope_of(pid)}


def scope_of(pid: int) -> str | None:
    try:
        return psutil.Process(pid).environ().get("LLMZERO_TRANSFER_QUEUE_NAMESPACE")
    except psutil.Error:
        return None


def titles() -> dict[int, str]:
    """Command lines of all processes of this test."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            found[process.pid] = " ".join(process.cmdline()).strip()
        except psutil.Error:
            continue
    return found
