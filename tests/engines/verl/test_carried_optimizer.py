"""`engine.carry_optimizer` on real VeRL: a phase that resumes goes on with the optimizer's state."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.verl.settings import OPTIMIZER_FILE
from llmzero_ray.records import PhaseFailure, PhaseResult
from llmzero_ray.storage.manifests import write_manifest
from tests.engines.verl.conftest import COLD_KEYS, Lab, tiny_settings
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.verl, pytest.mark.slow]


@pytest.fixture
def carrying(lab: Lab, ray_group: Any, tmp_path: Path) -> Iterator[Lab]:
    """An engine beside the other tests' one."""
    import ray

    from llmzero_ray.engines.verl.engine import VerlEngine

    group = ray.util.placement_group([{"CPU": 3, "GPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=PATIENCE_S)
    model = Path(lab.settings.model_path)
    settings = tiny_settings(lab.task, model, group, tmp_path, search="carrying", carry_optimizer=True)
    found = Lab(engine=None, settings=settings, task=lab.task, root=tmp_path)
    found.engine = VerlEngine(settings, lab.task.n_train, found.spec(), lambda key: key not in COLD_KEYS)
    yield found
    found.engine.close()
    ray.util.remove_placement_group(group)


def updates(checkpoint: Any) -> set[float]:
    """How many updates the parameters of a checkpoint have had, by their optimizer's count."""
    from safetensors.torch import load_file

    state = load_file(str(Path(checkpoint.path) / OPTIMIZER_FILE))
    return {float(value) for name, value in state.items() if name.endswith(":step")}


def test_updates_are_counted_along_the_whole_strategy(carrying: Lab, tmp_path: Path) -> None:
    first, _ = carrying.run(carrying.spec(n_steps=2, seed=3))
    assert isinstance(first, PhaseResult), first
    cut = first.checkpoints[-1]
    (before,) = updates(cut)
    again, points = carrying.run(carrying.spec(n_steps=1, seed=4, adapter=cut.path))
    assert isinstance(again, PhaseResult) and again.warm, again
    assert updates(again.checkpoints[-1]) == {before * 3 / 2}
    assert points[0].val_score == first.final_score

    # What acts is compared with what was saved: here the state of the phase before stays.
    left, _ = carrying.run(carrying.spec(n_steps=1, seed=5, adapter=cut.path), skip=("optimizer",))
    assert isinstance(left, PhaseFailure) and left.failure_class == "mismatch", left
    assert "optimizer's state" in left.cause

    bare = tmp_path / "bare"
    shutil.copytree(cut.path, bare)
    (bare / OPTIMIZER_FILE).unlink()
    write_manifest(bare, {})
    without, _ = carrying.run(carrying.spec(n_steps=1, seed=6, adapter=str(bare)))
    assert isinstance(without, PhaseFailure) and without.failure_class == "config", without
    assert f"has no {OPTIMIZER_FILE}" in without.cause
