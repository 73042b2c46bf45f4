"""One slot over two raylets, each with an address of its own: VeRL's queue listens on their addresses, with
CURVE keys, and reads nothing of a neighbour who does not hold them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.verl.internals import QUEUE_DIR_ENV
from llmzero_ray.engines.verl.queue_keys import STORE
from llmzero_ray.records import PhaseResult
from llmzero_ray.tasks.prepare import prepare
from tests.engines.test_slots_on_machines import actors_by_node
from tests.engines.verl.conftest import COLD_KEYS, Lab, tiny_settings
from tests.security.intruder import attack, endpoint
from tests.security.processes import processes_with, speaks_zeromq, tcp_listeners, those_that
from tests.waiting import PATIENCE_S, wait_for_ray_nodes

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]

HEAD, *NODES = "127.0.0.2", "127.0.0.3", "127.0.0.4"
"""Linux answers on all of 127.0.0.0/8: to Ray these are machines of their own."""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without GPUs, and two nodes with one each."""
    import ray
    from ray.cluster_utils import Cluster

    wait_for_ray_nodes()
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", temporary)
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 16, "node_ip_address": HEAD, "include_dashboard": False},
    )
    for address in NODES:
        made.add_node(num_cpus=16, num_gpus=1, node_ip_address=address)
    ray.init(made.address, log_to_driver=False, logging_level="ERROR", _node_ip_address=HEAD)
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.usefixtures("cluster")
def test_the_queue_of_a_slot_over_two_machines_admits_its_own_processes_alone(tmp_path: Path) -> None:
    import ray
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

    from llmzero_ray.engines.verl.engine import VerlEngine

    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {HEAD, *NODES}
    task = prepare(dir=str(tmp_path / "task"), family="echo", n_train=64, n_val=8, n_test=8, seed=1)
    groups = [ray.util.placement_group([{"CPU": 3, "GPU": 1}], strategy="STRICT_PACK") for _ in NODES]
    for group in groups:
        ray.get(group.ready(), timeout=PATIENCE_S)
    settings = tiny_settings(
        task,
        Path(str(task.model_path)),
        groups[0],
        tmp_path,
        search="machines",
        nnodes=len(groups),
        placement_groups=tuple(group.id.hex() for group in groups),
    )
    lab = Lab(engine=None, settings=settings, task=task, root=tmp_path)
    engine = VerlEngine(settings, task.n_train, lab.spec(), lambda key: key not in COLD_KEYS)
    lab.engine = engine
    smaller = {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 16}  # of two ranks
    try:
        outcome, points = lab.run(lab.spec(n_steps=2, **smaller))
        assert isinstance(outcome, PhaseResult), outcome
        assert [point.step for point in points] == [0, 1, 2]
        classes = actors_by_node(settings.slot_namespace)
        assert len(classes) == len(NODES)
        assert all(any("WorkerDict" in name for name in found) for found in classes.values()), classes

        running = processes_with(settings.slot_namespace)
        assert not [one.title for one in running if f"{QUEUE_DIR_ENV}=/".encode() in one.environment]
        queues = [
            one for one in running if one.title.startswith(("ray::TransferQueue", "ray::SimpleStorage"))
        ]
        ports = those_that(speaks_zeromq, [at for one in queues for at in tcp_listeners(one.pid)])
        assert len(ports) == 3 and {host for host, _ in ports} <= set(NODES), ports
        assert not any(attack(tmp_path / "touched", [endpoint(*at) for at in ports]))
        assert not (tmp_path / "touched").exists()

        (start,) = _internal_kv_list(settings.slot_namespace, namespace=STORE)
        secret = _internal_kv_get(start, namespace=STORE).split()[1]
        assert not [one.title for one in running if secret in one.environment]
        assert secret not in (tmp_path / "engine.log").read_bytes()
        again, _ = lab.run(lab.spec(n_steps=1, **smaller))  # the attack has harmed nothing
        assert isinstance(again, PhaseResult) and again.warm, again
    finally:
        engine.close()
    assert _internal_kv_list(settings.slot_namespace, namespace=STORE) == []
