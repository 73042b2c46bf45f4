"""Scoring an adapter after a phase of another LoRA rank and alpha, as the reference is after the search."""

from __future__ import annotations

import pytest

from llmzero_ray.hyperparameters.verl_keys import LORA_ALPHA, LORA_RANK
from llmzero_ray.records import ItemOutcome, PhaseResult
from tests.engines.verl.conftest import ACTOR, Lab

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]  # three cold starts


def test_an_adapter_is_scored_at_the_rank_and_alpha_it_was_trained_with(lab: Lab) -> None:
    path, before, validated = train(lab, rank=4, alpha=32)
    assert [item.response for item in validated] != [item.response for item in before]
    train(lab, rank=lab.settings.lora_rank, alpha=lab.settings.lora_alpha)
    assert lab.engine.evaluate(path, lab.task.val, lab.settings.eval_max_response_length) == validated


def train(lab: Lab, *, rank: int, alpha: int) -> tuple[str, tuple[ItemOutcome, ...], tuple[ItemOutcome, ...]]:
    """The adapter after two steps, and the outcomes before the first and after the last of them."""
    asked = {LORA_RANK: rank, LORA_ALPHA: alpha, f"{ACTOR}.optim.lr": 1e-2}
    outcome, points = lab.run(lab.spec(n_steps=2, **{key.replace(".", "__"): v for key, v in asked.items()}))
    assert isinstance(outcome, PhaseResult), outcome
    return outcome.checkpoints[-1].path, points[0].items, points[-1].items
