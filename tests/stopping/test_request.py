"""What the stopper is asked with: the whole path of the incumbent, and what a stop would save."""

from __future__ import annotations

import dataclasses

import pytest

from llmzero_ray.config import SearchConfig
from llmzero_ray.hyperparameters.compute import amount, token_cost, tokens_of
from llmzero_ray.records import Saving
from llmzero_ray.records.agents import EarlierVerdict
from llmzero_ray.records.metrics import LENGTH, PROMPT_LENGTH, Curves
from llmzero_ray.stopping.request import saving, saving_text, stop_request
from tests.agents import curves as c
from tests.builders import make_config


def config(**budget: float) -> SearchConfig:
    return make_config(budget={"runs": 8, **budget}, phase={"n_steps": 10})


def run(n: int, seconds: float | None = 4.0) -> Curves:
    metrics = {} if seconds is None else {"timing_s/step": [seconds] * n}
    found = c.curves(n, reward=[0.5] * n, start=0.4, val={5: 0.5})
    return dataclasses.replace(found, metrics={**found.metrics, **{k: tuple(v) for k, v in metrics.items()}})


def test_a_stop_saves_the_steps_that_are_left_and_their_share_of_the_searchs_runs() -> None:
    assert saving(config(), c.node(run(5), n_steps=20)) == Saving(steps=15, seconds=60.0, share=0.1875)
    assert saving(config(), c.node(run(5), n_steps=5)) == Saving(steps=0, seconds=0.0, share=0.0)


def test_where_gpu_hours_are_limited_the_share_is_of_them() -> None:
    assert saving(config(gpu_hours=0.1), c.node(run(5), n_steps=20)).share == pytest.approx(1 / 6, abs=1e-4)


def test_without_a_timed_step_the_time_is_unknown_and_the_share_is_of_the_runs() -> None:
    found = saving(config(gpu_hours=0.1), c.node(run(5, seconds=None), n_steps=20))
    assert found == Saving(steps=15, seconds=None, share=0.1875)


@pytest.mark.parametrize(
    ("saves", "text"),
    [
        (Saving(steps=5, seconds=40.0, share=0.0625), "5 steps, 40 s, 6.2% of the budget"),
        (Saving(steps=1, seconds=7200.0), "1 step, 2.0 h"),
        (Saving(steps=0), "0 steps"),
    ],
)
def test_savings_are_said_in_a_few_words(saves: Saving, text: str) -> None:
    assert saving_text(saves) == text


def test_a_request_holds_the_incumbents_path_the_differences_and_the_verdicts_so_far() -> None:
    best = c.node(c.curves(10, reward=[0.5] * 10, start=0.4, val={5: 0.55, 10: 0.7}), node=0)
    verdicts = (EarlierVerdict(step=5, stop=False, rule="early_stopper", reason="too early"),)
    running = c.node(run(5), node=1, n_steps=20, status="running")
    found = stop_request(config(), c.TASK, running, (best,), verdicts, lambda _: {}, n_val=100)
    assert (found.incumbent, found.incumbent_chain, found.verdicts) == (best, (best,), verdicts)
    assert found.incumbent_path == ((0, 0.4), (5, 0.55), (10, 0.7))
    assert [one.global_step for one in found.standings] == [0, 5]
    last = found.standings[-1]
    assert last.at_same_step is not None and last.at_same_step.gain == pytest.approx(-0.05)
    assert last.to_best is not None and last.to_best.gain == pytest.approx(-0.2)
    assert found.saves == Saving(steps=15, seconds=60.0, share=0.1875)


def test_where_compute_is_limited_the_share_is_of_it_at_the_cost_that_is_charged() -> None:
    limited = config(compute=1e5, gpu_hours=0.1)
    found = run(5)
    lengths = {LENGTH: (30.0,) * 5, PROMPT_LENGTH: (20.0,) * 5}
    view = c.node(dataclasses.replace(found, metrics={**found.metrics, **lengths}), n_steps=20)
    step = tokens_of(view.hyperparameters, {LENGTH: 30.0, PROMPT_LENGTH: 20.0})
    assert saving(limited, view).share == pytest.approx(
        15 * amount(step, token_cost(limited)) / 1e5, abs=1e-4
    )
    # Without lengths there is no price: hours say it.
    assert saving(limited, c.node(found, n_steps=20)).share == pytest.approx(1 / 6, abs=1e-4)
