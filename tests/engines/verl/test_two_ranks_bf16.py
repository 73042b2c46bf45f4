"""As near to a GPU slot as the CPU comes: two FSDP2 ranks that compute in bfloat16 from float32 masters, with
offloaded weights, and one vLLM in bfloat16 over both, with workers of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.verl.config_check import MAX_ROLLOUT_KL
from llmzero_ray.engines.verl.overrides import ACTOR, ROLLOUT
from llmzero_ray.records import PhaseResult, PhaseSpec
from tests.engines.verl.conftest import COLD_KEYS, Lab
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]

KL, PROB_DIFF = "rollout_corr/kl", "training/rollout_probs_diff_mean"
AS_ON_GPUS: dict[str, Any] = {
    # VeRL's own values where nothing is said, as on GPUs; the CPU's engine has float32 everywhere.
    f"+{ACTOR}.fsdp_config.mixed_precision": {
        "param_dtype": "bf16",
        "reduce_dtype": "fp32",
        "buffer_dtype": "fp32",
    },
    f"{ACTOR}.fsdp_config.param_offload": True,
    f"{ACTOR}.fsdp_config.optimizer_offload": True,
    f"{ROLLOUT}.dtype": "bfloat16",
}
MICRO = {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 16}


@pytest.fixture
def slot(lab: Lab) -> Iterator[Lab]:
    """The task of the other tests on two bundles; the engine of those is ended."""
    import ray

    from llmzero_ray.engines.verl.engine import VerlEngine

    lab.engine.close()
    group = ray.util.placement_group([{"CPU": 3, "GPU": 1}] * 2, strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=PATIENCE_S)
    settings = dataclasses.replace(
        lab.settings,
        search="bf16",
        n_gpus_per_node=2,
        tensor_model_parallel_size=2,
        placement_groups=(group.id.hex(),),
        overrides={**lab.settings.overrides, **AS_ON_GPUS},
    )
    engine = VerlEngine(settings, lab.task.n_train, lab.spec(**MICRO), lambda key: key not in COLD_KEYS)
    yield Lab(engine=engine, settings=settings, task=lab.task, root=lab.root / "bf16")
    engine.close()
    ray.util.remove_placement_group(group)


def phase(slot: Lab, directory: Path, **given: Any) -> PhaseSpec:
    return dataclasses.replace(slot.spec(n_steps=4, seed=3, **given, **MICRO), checkpoint_dir=str(directory))


def precision_of_workers(slot: Lab) -> list[tuple[str, str, bool]]:
    """Of each rank: dtype of its shards, of its computation, and whether its weights are offloaded."""
    import ray

    def look(worker: Any) -> tuple[str, str, bool]:
        (role,) = worker.worker_dict.values()
        engine = role.actor.engine
        shards = {str(parameter.dtype) for parameter in engine.module.parameters()}
        return ",".join(sorted(shards)), str(engine._autocast_dtype), engine.is_param_offload_enabled

    entries = ray.util.list_named_actors(all_namespaces=True)
    workers = [
        ray.get_actor(entry["name"], namespace=entry["namespace"])
        for entry in entries
        if entry["namespace"].startswith(slot.settings.slot_namespace) and "WorkerDict" in entry["name"]
    ]
    found: list[tuple[str, str, bool]] = ray.get([worker.__ray_call__.remote(look) for worker in workers])
    return found


def test_phases_in_bfloat16_pass_every_check_and_go_on_warm(slot: Lab, tmp_path: Path) -> None:
    outcome, points = slot.run(phase(slot, tmp_path / "first"))
    assert isinstance(outcome, PhaseResult), outcome
    assert [point.step for point in points] == [0, 1, 2, 3, 4]
    assert precision_of_workers(slot) == [("torch.float32", "torch.bfloat16", True)] * 2
    # In float32 the two programs agree to six digits; here they differ, and the checks must let it pass.
    differences = [abs(point.metrics[KL]) for point in points[1:]]
    assert 0 < max(differences) < MAX_ROLLOUT_KL / 2, differences
    assert all(0 < point.metrics[PROB_DIFF] < 0.05 for point in points[1:])

    # The adapter goes from the file to the offloaded shards and to vLLM; digests and canary are checked.
    adapter = outcome.checkpoints[-1].path
    again, more = slot.run(phase(slot, tmp_path / "second", adapter=adapter))
    assert isinstance(again, PhaseResult) and again.warm, again
    assert more[0].val_score == pytest.approx(points[-1].val_score, abs=0.05)
