"""Two slots on three raylets: each slot's processes lie on its own node, and the loss of one node leaves the
other slot's phase alone."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.records import MetricPoint, PhaseResult, PhaseSpec
from llmzero_ray.tasks.prepare import prepare
from tests.engines.verl.conftest import Lab, tiny_settings
from tests.waiting import wait_for_ray_nodes, wait_until

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]

SLOTS = ("first", "second")
LONG_S = 900.0


class SlotHost:
    """Holds the engine of one slot on the slot's node, as the search's runner does."""

    def __init__(self, settings: Any, n_train: int, idle: PhaseSpec) -> None:
        from llmzero_ray.engines.verl.engine import VerlEngine

        self._engine = VerlEngine(settings, n_train, idle, lambda _: True)
        self._step = -1

    def run(self, spec: PhaseSpec) -> Any:
        """The phase's outcome."""

        def on_metric(point: MetricPoint) -> None:
            self._step = point.step

        return self._engine.run(spec, on_metric)

    def step(self) -> int:
        """The last step that was reported."""
        return self._step

    def stop(self) -> None:
        """End the phase."""
        self._engine.stop("user")

    def close(self) -> None:
        """End VeRL."""
        self._engine.close()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without GPUs, and two nodes with one each."""
    import ray
    from ray.cluster_utils import Cluster

    wait_for_ray_nodes()
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    (Path(temporary) / "ray").mkdir()
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", temporary)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 16, "include_dashboard": False})
    for _ in SLOTS:
        made.add_node(num_cpus=16, num_gpus=1)
    ray.init(made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()
    shutil.rmtree(temporary, ignore_errors=True)


def has_done(host: Any, step: int) -> bool:
    """Whether the phase of a slot has reported this step."""
    import ray

    return bool(ray.get(host.step.remote()) >= step)


def actors_by_node(slot_namespace: str) -> dict[str, list[str]]:
    """Node (hex id) -> classes of the living actors of a slot's jobs."""
    import ray
    from ray._private.state import state

    found: dict[str, list[str]] = {}
    for job in state.job_table():
        if slot_namespace in job["Entrypoint"].split():
            for actor in state.actor_table(None, ray.JobID(bytes.fromhex(job["JobID"])), None).values():
                if actor["State"] == "ALIVE":
                    found.setdefault(actor["Address"]["NodeID"], []).append(actor["ActorClassName"])
    return found


def test_the_loss_of_one_slots_node_leaves_the_other_slot_alone(cluster: Any, tmp_path: Path) -> None:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    task = prepare(dir=str(tmp_path / "task"), family="echo", n_train=64, n_val=8, n_test=8, seed=1)
    assert task.model_path is not None
    nodes, hosts, runs, names = {}, {}, {}, {}
    for i, slot in enumerate(SLOTS):
        group = ray.util.placement_group([{"CPU": 3, "GPU": 1}], strategy="STRICT_PACK")
        ray.get(group.ready(), timeout=LONG_S)
        table = ray.util.placement_group_table(group)
        (nodes[slot],) = set(table["bundles_to_node_id"].values())
        root = tmp_path / slot
        root.mkdir()
        settings = dataclasses.replace(
            tiny_settings(task, Path(task.model_path), group, root, slot=i, search="machines"),
            rollout_calls="per_request",
            start_timeout_s=LONG_S,
        )
        lab = Lab(engine=None, settings=settings, task=task, root=root)
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        host = ray.remote(SlotHost).options(num_cpus=0, max_concurrency=3, scheduling_strategy=place)
        hosts[slot] = host.remote(settings, task.n_train, lab.spec())
        runs[slot] = hosts[slot].run.remote(lab.spec(n_steps=400))
        names[slot] = settings.slot_namespace
    assert nodes["first"] != nodes["second"]
    for slot in SLOTS:
        wait_until(partial(has_done, hosts[slot], 1), patience_s=LONG_S, every_s=1.0)
    wanted = (
        "RecordingServer",
        "AgentLoopWorker",
        "RewardWorker",
        "Controller",
        "StorageUnit",
        "LoadBalancer",
    )
    for slot in SLOTS:
        found = actors_by_node(names[slot])
        assert set(found) == {nodes[slot]}, found
        for part in wanted:
            assert any(part in name for name in found[nodes[slot]]), (part, found)

    (lost,) = [node for node in cluster.worker_nodes if node.node_id == nodes["second"]]
    cluster.remove_node(lost, allow_graceful=False)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(runs["second"], timeout=LONG_S)
    before = ray.get(hosts["first"].step.remote())
    wait_until(partial(has_done, hosts["first"], before + 2), patience_s=LONG_S, every_s=1.0)
    ray.get(hosts["first"].stop.remote())
    outcome = ray.get(runs["first"], timeout=LONG_S)
    assert isinstance(outcome, PhaseResult), outcome
    assert (outcome.stop_reason, outcome.status) == ("user", "completed") and outcome.steps_done >= before + 2
    ray.get(hosts["first"].close.remote(), timeout=LONG_S)
    assert actors_by_node(names["first"]) == {}
