"""The warm-up of VeRL's optimizer, as the guide for agents tells it."""

from __future__ import annotations

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.agents.llm.prompts import Prompts


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_warm_up_costs_what_the_guide_says(k: int) -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("verl.utils.torch_functional")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, rates = functional.get_constant_schedule_with_warmup(optimizer, k), list[float]()
    for _ in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:2] == [0.0, 1 / k]
    assert 10 - sum(rates) == pytest.approx((k + 1) / 2)
    said = " ".join(Prompts.load().knowledge.hyperparameters[hp.canonical("lr_warmup_steps")].split())
    assert "step 1 of k trains at rate 0, step 2 at 1 / k of it. That costs (k + 1) / 2 steps" in said
