"""Two FSDP2 ranks: each saves its shard of a full checkpoint, and a repeat goes on from all of them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.verl.internals import QUEUE_DIR_ENV, QUEUE_NAMESPACE_ENV
from llmzero_ray.engines.verl.rolling_checkpoint import directory_of
from llmzero_ray.records import MetricPoint, PhaseResult, PhaseSpec
from tests.engines.verl.conftest import COLD_KEYS, Lab, assert_same_metrics, below_this_process
from tests.security.processes import bound_sockets, processes_with
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]


@pytest.fixture
def two_ranks(lab: Lab) -> Iterator[Lab]:
    """The same task on two bundles of one placement group; the engine of the other tests is ended."""
    import ray

    from llmzero_ray.engines.verl.engine import VerlEngine

    lab.engine.close()
    group = ray.util.placement_group([{"CPU": 3, "GPU": 1}] * 2, strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=PATIENCE_S)
    settings = dataclasses.replace(
        lab.settings, search="ranks", n_gpus_per_node=2, placement_groups=(group.id.hex(),)
    )
    engine = VerlEngine(settings, lab.task.n_train, lab.spec(), lambda key: key not in COLD_KEYS)
    yield Lab(engine=engine, settings=settings, task=lab.task, root=lab.root / "ranks")
    engine.close()
    ray.util.remove_placement_group(group)


def test_a_repeat_on_two_ranks_is_the_undisturbed_phase(two_ranks: Lab, tmp_path: Path) -> None:
    rolling, kept = tmp_path / "rolling", tmp_path / "kept"
    spec = phase(two_ranks, tmp_path / "adapters", rolling)

    def copy(point: MetricPoint) -> None:
        if point.step == 3:
            shutil.copytree(directory_of(str(rolling), 2), directory_of(str(kept), 2))

    outcome, points = two_ranks.run(spec, each=copy)
    assert isinstance(outcome, PhaseResult), outcome
    names = sorted(path.name for path in kept.rglob("optim_*"))
    assert names == ["optim_world_size_2_rank_0.pt", "optim_world_size_2_rank_1.pt"]
    saved = adapter(outcome)
    again = dataclasses.replace(spec, rolling_dir=str(kept), restore=True, attempt=1)
    repeated, more = two_ranks.run(again)
    assert isinstance(repeated, PhaseResult) and repeated.warm, repeated
    assert [p.step for p in more] == [3, 4]
    assert_same_metrics(points[3:], more)
    assert adapter(repeated) == saved

    # An adapter that was put together from both ranks is shared out again.
    resumed = dataclasses.replace(
        spec, node=1, adapter=outcome.checkpoints[-1].path, rolling_freq=0, rolling_dir=None
    )
    child, _ = two_ranks.run(resumed)
    assert isinstance(child, PhaseResult) and child.warm, child

    queue_listens_in_a_directory_of_the_users_alone(two_ranks)


def queue_listens_in_a_directory_of_the_users_alone(lab: Lab) -> None:
    """Its three sockets, where it has processes of its own."""
    name = f"{QUEUE_NAMESPACE_ENV}={lab.settings.slot_namespace}"
    running = [one for one in processes_with(name) if one.pid in below_this_process()]
    variables = running[0].environment.split(b"\0")
    (named,) = [v.partition(b"=")[2] for v in variables if v.startswith(QUEUE_DIR_ENV.encode() + b"=")]
    directory = os.fsdecode(named)
    assert stat.S_IMODE(Path(directory).stat().st_mode) == 0o700
    queues = [one for one in running if one.title.startswith(("ray::TransferQueue", "ray::SimpleStorage"))]
    bound = {path for one in queues for path in bound_sockets(one.pid)}
    assert len({path for path in bound if path.startswith(directory)}) == 3
    assert not [path for path in bound if path.startswith("@")], "none that other users reach"


def phase(lab: Lab, adapters: Path, rolling: Path) -> PhaseSpec:
    changes: dict[str, Any] = {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 16}
    return dataclasses.replace(
        lab.spec(n_steps=4, seed=3, **changes),
        test_freq=2,
        checkpoint_dir=str(adapters),
        rolling_dir=str(rolling),
        rolling_freq=2,
    )


def adapter(outcome: PhaseResult) -> bytes:
    return (Path(outcome.checkpoints[-1].path) / "adapter_model.safetensors").read_bytes()
