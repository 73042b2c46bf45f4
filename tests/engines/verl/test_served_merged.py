"""vLLM is given base model and adapter as one: warm phases, and the base model is only read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.verl.overrides import ROLLOUT
from llmzero_ray.records import PhaseFailure, PhaseResult
from llmzero_ray.records.metrics import MERGE_ROUNDING
from tests.engines.verl.conftest import ACTOR, COLD_KEYS, Lab, tiny_settings
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.verl, pytest.mark.slow]

KL = "rollout_corr/kl"
RATE = {f"{ACTOR}.optim.lr".replace(".", "__"): 1e-2}


@pytest.fixture(scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def merged(
    lab: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Lab]:
    """An engine that serves merged weights in this precision, beside the other tests' one."""
    import ray

    from llmzero_ray.engines.verl.engine import VerlEngine

    root = tmp_path_factory.mktemp("merged")
    group = ray.util.placement_group([{"CPU": 3, "GPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=PATIENCE_S)
    settings = tiny_settings(
        lab.task,
        Path(lab.settings.model_path),
        group,
        root,
        search="merged",
        serve_merged=True,
        canary_every_push=True,
        overrides={f"{ROLLOUT}.dtype": request.param},
    )
    found = Lab(engine=None, settings=settings, task=lab.task, root=root)
    found.engine = VerlEngine(settings, lab.task.n_train, found.spec(), lambda key: key not in COLD_KEYS)
    yield found
    found.engine.close()
    ray.util.remove_placement_group(group)


def base_digest(slot: Lab, spoil: bool = False) -> str:
    """Of the base model's tensors that the FSDP worker has; `spoil`: from now on no adapter is merged in."""
    import ray

    def look(worker: Any) -> str:
        from llmzero_ray.engines.verl import merging
        from llmzero_ray.engines.verl.adapters import digest_of

        (role,) = worker.worker_dict.values()
        if spoil:
            merging._scaling = lambda *_: 0.0
        tensors = {
            name: (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().cpu()
            for name, tensor in role.actor.engine.module.state_dict().items()
            if "lora_" not in name
        }
        return digest_of(tensors)

    entries = [
        entry
        for entry in ray.util.list_named_actors(all_namespaces=True)
        if entry["namespace"].startswith(slot.settings.slot_namespace) and "WorkerDict" in entry["name"]
    ]
    (worker,) = [ray.get_actor(entry["name"], namespace=entry["namespace"]) for entry in entries]
    found: str = ray.get(worker.__ray_call__.remote(look))
    return found


def is_exact(merged: Lab) -> bool:
    return bool(merged.settings.overrides[f"{ROLLOUT}.dtype"] == "float32")


def test_phases_go_on_warm_and_a_lost_adapter_ends_one(lab: Lab, merged: Lab) -> None:
    """At its end it spoils the engine."""
    exact = is_exact(merged)
    idle = merged.run(merged.spec(n_steps=1, seed=3))[0]
    assert isinstance(idle, PhaseResult), idle
    before = base_digest(merged)
    outcome, points = merged.run(merged.spec(n_steps=6, seed=3, **RATE))
    assert isinstance(outcome, PhaseResult), outcome
    assert base_digest(merged) == before  # to the bit, after ten pushes
    assert max(abs(point.metrics[KL]) for point in points[1:]) < (1e-4 if exact else 0.05)
    rounding = [point.metrics[MERGE_ROUNDING] for point in points]
    assert all(share < (1e-4 if exact else 0.5) for share in rounding[1:]), rounding

    adapter = outcome.checkpoints[-1].path
    again, more = merged.run(merged.spec(n_steps=1, seed=3, adapter=adapter))
    assert isinstance(again, PhaseResult) and again.warm, again
    assert more[0].val_score == pytest.approx(points[-1].val_score, abs=0 if exact else 0.05)
    cap = merged.settings.eval_max_response_length
    scored = merged.engine.evaluate(adapter, merged.task.val, cap)
    if exact:  # also as the adapter that is served beside the base model
        assert scored == points[-1].items == lab.engine.evaluate(adapter, lab.task.val, cap)

    base_digest(merged, spoil=True)
    lost, _ = merged.run(merged.spec(n_steps=1, seed=3, adapter=adapter))
    assert isinstance(lost, PhaseFailure) and lost.failure_class == "mismatch", lost
    assert "engine.serve_merged to false" in lost.cause
