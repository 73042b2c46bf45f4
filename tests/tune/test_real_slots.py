"""Phases of real VeRL under Ray Tune, on a slot of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.tune import verl_trainable
from tests.searches import verl_search
from tests.tune.test_verl_trainable import LR, fit, reserved

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("head")]


def test_a_phase_goes_on_from_another_trials_adapter_to_the_digit_and_starts_warm(
    taught_task: PreparedTask, tmp_path: Path
) -> None:
    train = verl_trainable(verl_search(tmp_path, taught_task, lr=2e-3))

    def slower(request: ProposalRequest) -> dict[str, Any]:
        return {LR: 5e-4}

    results, search = fit(train, tmp_path, budget=2, phase_steps=4, propose=slower)
    assert not results.errors and reserved() == []
    first, second = search.phases[0], search.phases[1]
    assert second.start.resume_from is not None and second.start.resume_from.node == 0
    source = first.steps[second.start.resume_from.step]
    # The adapter of a step is the policy that its validation scored.
    assert second.steps[1].metrics["start_score"] == source.val_score
    last = next(one.metrics for one in results if one.metrics["trial_id"] == second.trials[0])
    assert last["warm"] is True and last["global_step"] == second.run.base_step + 4
    assert last["actor/lr"] == pytest.approx(5e-4)
