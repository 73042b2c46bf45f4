"""vLLM is given weights with the adapter added in (`engine.serve_merged`): two phases on one warm engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.records import PhaseResult
from tests.engines.verl.conftest import ACTOR, COLD_KEYS, Lab, tiny_settings

pytestmark = [pytest.mark.verl, pytest.mark.slow]
LR = f"{ACTOR}.optim.lr".replace(".", "__")


@pytest.fixture
def merging(ray_group: Any, lab: Lab, tmp_path: Path) -> Iterator[Lab]:
    """An engine beside the lab's, on hardware of its own."""
    import ray

    from llmzero_ray.engines.verl.engine import VerlEngine

    group = ray.util.placement_group([{"CPU": 3, "GPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=60)
    settings = tiny_settings(
        lab.task,
        Path(lab.settings.model_path),
        group,
        tmp_path,
        search="merging",
        serve_merged=True,
        canary_every_push=True,
    )
    found = Lab(engine=None, settings=settings, task=lab.task, root=tmp_path)
    found.engine = VerlEngine(settings, lab.task.n_train, found.spec(), lambda key: key not in COLD_KEYS)
    yield found
    found.engine.close()
    ray.util.remove_placement_group(group)


def test_phases_train_and_resume_and_the_base_model_stays_what_it_was(lab: Lab, merging: Lab) -> None:
    """Its answers are those of the adapter that is served beside the base model, before a step was trained
    and after; what is sampled is the policy (the canary of every push, and VeRL's KL of every step)."""
    cap = merging.settings.eval_max_response_length
    served, served_points = lab.run(lab.spec(n_steps=3, **{LR: 1e-2}))
    first, points = merging.run(merging.spec(n_steps=3, **{LR: 1e-2}))
    assert isinstance(served, PhaseResult), served
    assert isinstance(first, PhaseResult), first
    assert points[0].items == served_points[0].items
    assert all(abs(point.metrics["rollout_corr/kl"]) < 1e-4 for point in points[1:])
    assert points[-1].items != points[0].items
    adapter = first.checkpoints[-1].path
    assert lab.engine.evaluate(adapter, lab.task.val, cap) == points[-1].items

    second, resumed = merging.run(merging.spec(n_steps=2, adapter=adapter, seed=2, **{LR: 1e-3}))
    assert isinstance(second, PhaseResult), second
    assert second.warm
    assert resumed[0].items == points[-1].items
    assert merging.engine.evaluate(None, merging.task.val, cap) == points[0].items
