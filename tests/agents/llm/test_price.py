"""What agents are told of the budget: the limit that binds first, steps that fit, and costs as they are
charged."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.agents.llm.context import (
    error_context,
    proposer_context,
    stable_context,
    stop_context,
)
from llmzero_ray.agents.llm.context_budget import budget_lines, fitting_steps, phase_cost, without_own_steps
from llmzero_ray.agents.llm.prompts import Prompts
from llmzero_ray.hyperparameters import VERL_SPACE, complete
from llmzero_ray.hyperparameters.compute import (
    GENERATION_TIME,
    ComputeClock,
    amount,
    plus,
    step_tokens,
    steps_that_fit,
    tokens_of,
    tokens_so_far,
)
from llmzero_ray.methods.prompt_eval.cases import RECORDED, read_cases
from llmzero_ray.methods.skills.workbench import Workbench
from llmzero_ray.records import ComputeLimit, TokenCost, TokenCounts
from llmzero_ray.records.agents import Budget, NodeView, ProposalRequest
from llmzero_ray.records.metrics import (
    LENGTH,
    PROMPT_LENGTH,
    STEP_TIME,
    TESTING_TIME,
    VAL_TOKENS,
    Curves,
    series,
)
from tests.agents import curves as c
from tests.agents.llm import large_requests

PROMPTS = Prompts.load()
COST = TokenCost(rollout=0.5, trained=0.25)
WHOLE = 1e7
LEFT = ComputeLimit(amount=2.4e6, cost=COST)


def priced(view: NodeView, rollout: float = 4e4, trained: float = 8e4, **more: Any) -> NodeView:
    """The view with a step of that many tokens, ten of them in all."""
    step = TokenCounts(rollout=rollout, trained=trained)
    whole = TokenCounts(rollout=10 * rollout, trained=10 * trained)
    return replace(view, step_tokens=step, tokens=whole, **more)


def phase(n: int = 10, **changed: Any) -> NodeView:
    found = c.curves(n, reward=[0.5] * n, start=0.4, val={n: 0.5}, length=[20.0 + i for i in range(n)])
    metrics = {**found.metrics, PROMPT_LENGTH: (40.0,) * n, STEP_TIME: (36.0,) * n}
    metrics[VAL_TOKENS] = (*(None,) * (n - 1), 5000.0)
    return c.node(replace(found, metrics=metrics), complete(c.TINY, changed), n_steps=n)


def test_a_step_is_priced_as_it_is_charged() -> None:
    view = phase(ppo_epochs=3)
    charged = TokenCounts()
    for i in range(10):
        row = {name: values[i] for name, values in view.curves.metrics.items()}
        charged = plus(charged, tokens_of(view.hyperparameters, row))
    assert tokens_so_far(view.hyperparameters, view.curves) == charged
    step = step_tokens(view.hyperparameters, view.curves)
    assert step is not None
    without_validation = amount(charged, COST) - 5000 * COST.rollout
    assert 10 * amount(step, COST) == pytest.approx(without_validation)


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        ({"compute": LEFT, "whole_compute": WHOLE, "runs": 27}, "compute"),
        ({"compute": LEFT, "whole_compute": WHOLE, "runs": 0}, "training runs"),
        ({"runs": 2, "gpu_hours": 0.1}, "GPU hours"),
        ({"runs": 2, "wall_clock_hours": 0.1, "gpu_hours": 50.0}, "hours of wall clock"),
        ({"runs": 2, "gpu_hours": 50.0}, "training runs"),
        ({"runs": 9, "dollars": 0.5, "dollars_per_run": 0.4, "dollars_end_it": True}, "dollars"),
        ({"runs": 9, "dollars": 0.5, "dollars_per_run": 0.4}, "training runs"),
        ({"compute": LEFT, "whole_compute": WHOLE, "gpu_hours": 0.01, "runs": 9}, "GPU hours"),
    ],
)
def test_the_limit_that_binds_first_is_named_first_and_as_such(limits: dict[str, Any], first: str) -> None:
    lines = budget_lines(Budget(**limits), priced(phase()), 10, 1)
    assert lines[0].startswith(first)
    assert lines[0].endswith("(this limit binds first)")
    assert sum("binds first" in line for line in lines) == 1


def test_compute_is_left_as_a_share_and_in_steps_that_agree_with_it() -> None:
    budget = Budget(compute=LEFT, whole_compute=WHOLE, root_step=TokenCounts(rollout=6e4, trained=12e4))
    view = priced(phase(), 4e4, 8e4, node=3)
    line = budget_lines(budget, replace(view, val_tokens=0.0), 10, 1)[0]
    assert line == (
        "compute: 24% of the search's whole is left: about 60 steps of node 3's configuration (0.4% each) or "
        "about 40 steps of the root's (0.6% each), validations not counted (this limit binds first)"
    )
    line = budget_lines(budget, replace(view, val_tokens=8e5), 10, 1, test_freq=10)[0]
    # 3 x (10 steps and a validation of as much) for 2.4e6, and 2 x for the root's.
    assert line == (
        "compute: 24% of the search's whole is left: about 30 steps of node 3's configuration (0.4% each) or "
        "about 20 steps of the root's (0.6% each), validations (4% each) counted (this limit binds first)"
    )


def test_a_phase_is_told_no_more_steps_than_its_validations_leave() -> None:
    """As it came: 6.33 % were said to be 7 steps of .8 %, and a validation of 4.6 % left room for two."""
    compute = replace(LEFT, amount=0.0633 * WHOLE)
    view = priced(phase(), 8e4, 16e4, val_tokens=9.2e5)
    lines = budget_lines(Budget(compute=compute, whole_compute=WHOLE), view, 10, 1, test_freq=10)
    assert "about 2 steps of node" in lines[0]
    text = "\n".join(lines)
    assert "as it is 0.8% a step (2 fit), batch_size or n doubled 1.6% a step (1 fit)" in text
    assert "; 10 steps as it is cost 12.6% with 1 validation of 5.75 steps each" in text
    assert "does not fit any more: this may be the last one" in text


@given(
    every=st.sampled_from([1, 2, 3, 5, 10]),
    length=st.integers(1, 30),
    validation=st.one_of(st.just(0.0), st.floats(1.0, 2000.0)),
    steps=st.floats(1.0, 40.0),
)
def test_as_many_steps_fit_as_the_clock_of_a_phase_trains_or_one_fewer(
    every: int, length: int, validation: float, steps: float
) -> None:
    full = phase(batch=16, mini_batch=16).hyperparameters
    row = {LENGTH: float(length), PROMPT_LENGTH: 10.0}
    one = amount(tokens_of(full, row), COST)
    limit = ComputeLimit(amount=steps * one, cost=COST)
    clock, trained, following = ComputeClock(limit, full, validation_tokens=validation), 0, "go on"
    while following != "end":
        trained += 1
        validated = trained % every == 0 or following == "last step"
        found = clock.take(trained, {**row, **({VAL_TOKENS: validation} if validated else {})})
        following = "end" if following == "last step" else found
    fit = steps_that_fit(limit.amount, one, validation * COST.rollout, every)
    assert fit <= trained <= max(1, fit) + 1


@pytest.mark.parametrize("amount_left", [0.0, 3.9e4, 4.1e4, 8.1e4])
def test_a_rest_below_two_steps_is_said_to_be_one(amount_left: float) -> None:
    budget = Budget(compute=replace(LEFT, amount=amount_left), whole_compute=WHOLE)
    said = budget_lines(budget, priced(phase(), val_tokens=0.0), 10, 1)[0]
    expected = {0: "less than one step of", 1: "about 1 step of", 2: "about 2 steps of"}
    assert expected[int(amount_left // 4e4)] in said


def test_a_planned_step_is_priced_as_it_would_be_charged_with_each_factor_named() -> None:
    view = phase(batch=32, mini_batch=32, ppo_epochs=1)
    lines = budget_lines(Budget(compute=LEFT, whole_compute=WHOLE), replace(view, val_tokens=8e4), 10, 1)
    text = "\n".join(lines)
    formula = re.search(
        r"price of a step = batch_size (\d+) x n (\d+) x \(answer ([\d.]+) x ([\d.e-]+)% for sampling \+ "
        r"ppo_epochs (\d+) x \(answer ([\d.]+) \+ prompt ([\d.]+)\) x ([\d.e-]+)% for training\)",
        text,
    )
    assert formula is not None
    batch, n, answer, rollout, epochs, again, prompt, trained = map(float, formula.groups())
    means = {LENGTH: 24.5, PROMPT_LENGTH: 40.0}
    charged = amount(tokens_of(view.hyperparameters, means), COST)
    share = batch * n * (answer * rollout + epochs * (again + prompt) * trained)
    assert share == pytest.approx(100 * charged / WHOLE, rel=0.03), "of coefficients with two digits"
    planned = {
        "as it is": charged,
        "batch_size or n doubled": amount(
            tokens_of(phase(batch=64, mini_batch=64).hyperparameters, means), COST
        ),
        "ppo_epochs 2": amount(
            tokens_of(phase(batch=32, mini_batch=32, ppo_epochs=2).hyperparameters, means), COST
        ),
        "answers twice as long": amount(tokens_of(view.hyperparameters, {**means, LENGTH: 49.0}), COST),
    }
    for name, step in planned.items():
        told = re.search(rf"{name} ([\d.]+)% a step \((\d+) fit\)", text)
        assert told is not None, name
        assert float(told[1]) == pytest.approx(100 * step / WHOLE, rel=0.01)
        assert int(told[2]) == int((LEFT.amount - 8e4 * COST.rollout) // step)
    ten = re.search(r"; 10 steps as it is cost ([\d.]+)% with 1 validation of ([\d.]+) steps each", text)
    assert ten is not None
    assert float(ten[1]) == pytest.approx(100 * (10 * charged + 8e4 * COST.rollout) / WHOLE, rel=0.01)
    assert float(ten[2]) == pytest.approx(8e4 * COST.rollout / charged, rel=0.01)
    assert "not refused: it is cut" in text


@pytest.mark.parametrize("limit", ["gpu_hours", "wall_clock_hours"])
def test_a_planned_step_has_its_seconds_where_hours_are_limited(limit: str) -> None:
    view = phase(ppo_epochs=1)
    seconds = {GENERATION_TIME: (20.0,) * 10, VAL_TOKENS: (None,) * 10}
    view = replace(view, curves=replace(view.curves, metrics={**view.curves.metrics, **seconds}))
    hours = {limit: 3.0}
    (line,) = (one for one in budget_lines(Budget(**hours), view, 10, 2) if one.startswith("a step takes"))  # type: ignore[arg-type]
    # 20 s sample answers of 24.5 tokens; 16 s train on them and on prompts of 40.
    assert line == (
        "a step takes as it is 36 s, batch_size or n doubled 72 s, ppo_epochs 2 52 s, answers twice as long "
        f"{20 * 2 + 16 * (2 * 24.5 + 40) / (24.5 + 40):.1f} s"
    )
    by_runs = budget_lines(Budget(runs=3), view, 10, 2)
    assert by_runs == [
        "training runs: 4 left with the one you plan (this limit binds first)",
        f"{line}; 10 steps as it is take 6.0 min",
        "no limit ends a long phase, and somebody waits for it",
    ]
    both = budget_lines(Budget(**hours, compute=LEFT, whole_compute=WHOLE), view, 10, 2)  # type: ignore[arg-type]
    assert not any(one.startswith("a step takes") for one in both), "two prices are worse than one"
    assert sum("saved but not validated" in one for one in both) == 1


def test_hours_count_validations() -> None:
    view = phase(ppo_epochs=1)
    tested = {TESTING_TIME: (*(None,) * 9, 90.0)}
    view = replace(view, curves=replace(view.curves, metrics={**view.curves.metrics, **tested}))
    lines = budget_lines(Budget(wall_clock_hours=0.5), view, 10, 1, test_freq=5)
    # 1,800 s: six times five steps of 36 s with a validation are 1,620 s; two more steps and one are 162 s.
    assert lines[0] == (
        "hours of wall clock: 0.5 left: about 32 steps like node 0's (36 s each, validations of 90 s "
        "counted) (this limit binds first)"
    )
    by_runs = "\n".join(budget_lines(Budget(runs=3), view, 10, 1, test_freq=5))
    assert "; 10 steps as it is take 9.0 min with validations" in by_runs


def test_a_phase_that_validates_its_start_pays_for_it() -> None:
    view = priced(phase(), val_tokens=8e5)  # 4e4 a step and 4e5 a validation
    for starts, fit, cost in ((False, 30, 8), (True, 20, 12)):
        budget = Budget(compute=LEFT, whole_compute=WHOLE, validates_start=starts)
        text = "\n".join(budget_lines(budget, view, 10, 1, test_freq=10))
        assert f"about {fit} steps of node 0's" in text
        n = "2 validations" if starts else "1 validation"
        assert f"10 steps as it is cost {cost}% with {n} of 10 steps each" in text
        assert ("one more where the start has no score or a memory key changes" in text) != starts
        assert (", that of its start too" in text) == starts
        longest = replace(large_requests.proposal_request().task, max_phase_steps=99, test_freq=10)
        assert fitting_steps(budget, view, longest, 1) == fit
        assert fitting_steps(budget, view, replace(longest, max_phase_steps=fit), 1) is None


@pytest.mark.parametrize(("left", "said"), [(0.0, True), (1e12, False)])
def test_a_request_says_how_many_steps_fit_and_also_if_none_does(left: float, said: bool) -> None:
    prompts = Prompts.load()
    budget = Budget(compute=ComputeLimit(amount=left), whole_compute=1e12)
    request = replace(large_requests.proposal_request(), budget=budget)
    stable = stable_context("proposer", request.task, prompts.knowledge)
    text = prompts.render("proposer", stable, proposer_context(request, prompts.knowledge)).user
    assert ("; 0 as it is fit." in text) == said


@pytest.mark.parametrize(("steps_left", "said"), [(9.5, True), (10.5, False), (60.0, False)])
def test_the_last_phase_that_fits_is_announced(steps_left: float, said: bool) -> None:
    budget = Budget(compute=replace(LEFT, amount=4e4 * steps_left), whole_compute=WHOLE)
    text = "\n".join(budget_lines(budget, priced(phase(), val_tokens=0.0), 10, 1))
    assert ("a phase of 10 steps as it is does not fit any more: this may be the last one" in text) == said


@pytest.mark.parametrize(
    ("after", "runs", "said"),
    [
        (0, 5, "forced right after this run"),
        (1, 5, "forced after 1 more run,"),
        (4, 5, "forced after 4 more runs,"),
        (8, None, "forced after 8 more runs,"),
        (5, 5, None),
        (9, None, None),  # ten phases of the usual length are left, and this is one of them
        (None, 5, None),
    ],
)
def test_the_next_forced_fresh_start_is_said_to_draw_on_the_budget(
    after: int | None, runs: int | None, said: str | None
) -> None:
    budget = Budget(runs=runs, wall_clock_hours=1.0, fresh_start_in=after)
    lines = [line for line in budget_lines(budget, phase(), 10, 1) if "fresh start" in line]
    assert len(lines) == (said is not None)
    assert all(said is not None and said in line for line in lines)


def test_every_recorded_phase_is_priced_where_its_lengths_were_logged() -> None:
    budget = Budget(compute=LEFT, whole_compute=WHOLE)
    asked = [case.request for case in read_cases(RECORDED) if case.agent == "proposer"]
    priced_ones = 0
    for request in asked:
        assert isinstance(request, ProposalRequest)
        lines = proposer_context(replace(request, budget=budget), PROMPTS.knowledge)["budget"]
        told = sum(line.startswith("price of a step = batch_size ") for line in lines)
        logged = len(series(request.on.curves, LENGTH)) > 0
        assert told == logged
        priced_ones += logged
    assert 10 < priced_ones < len(asked)


def test_a_phase_without_steps_has_no_price_and_the_share_is_said_all_the_same() -> None:
    empty = c.node(Curves(), node=4, status="failed")
    lines = budget_lines(Budget(compute=LEFT, whole_compute=WHOLE, runs=3), empty, 10, 1)
    assert lines[0].startswith("compute: 24% of the search's whole is left (this")
    root = replace(
        Budget(compute=LEFT, whole_compute=WHOLE), root_step=TokenCounts(rollout=6e4, trained=12e4)
    )
    assert "about 40 steps of the root's" in budget_lines(root, empty, 10, 1)[0]


def test_every_phase_of_the_tree_has_its_cost_beside_what_it_gained() -> None:
    request = large_requests.proposal_request()
    tree = tuple(priced(view, 1e4 * view.node) for view in request.tree)
    budget = Budget(compute=LEFT, whole_compute=WHOLE)
    path = tuple(priced(view, 1e4 * view.node) for view in request.path)
    asked = replace(request, budget=budget, tree=tree, path=path, on=path[-1])
    stable = stable_context("proposer", asked.task, PROMPTS.knowledge)
    text = PROMPTS.render("proposer", stable, proposer_context(asked, PROMPTS.knowledge)).user
    for view in (*tree, asked.on):
        if view.curves.val_scores:
            cost = phase_cost(budget, view)
            assert re.search(rf"^- node {view.node} \(.* => .*; {re.escape(cost)}(;|$)", text, re.MULTILINE)
    assert "not counted yet: nodes 24 to 26" in text
    hours = replace(asked, budget=Budget(gpu_hours=3.0), on=replace(asked.on, gpu_hours=1.25))
    text = PROMPTS.render("proposer", stable, proposer_context(hours, PROMPTS.knowledge)).user
    assert "; cost 1.25 GPU hours" in text


def test_a_running_phases_own_steps_are_taken_off() -> None:
    running = phase()
    used = amount(tokens_so_far(running.hyperparameters, running.curves), COST)
    left = without_own_steps(Budget(compute=LEFT, whole_compute=WHOLE), running).compute
    assert left is not None and left.amount == pytest.approx(LEFT.amount - used)


def test_every_agent_is_told_the_price() -> None:
    budget = Budget(compute=LEFT, whole_compute=WHOLE, runs=27)
    asked = replace(large_requests.proposal_request(), budget=budget)
    failed = replace(large_requests.error_request(), budget=budget)
    running = replace(large_requests.stop_request(), budget=budget)
    bench: Any = {"n_val": 500, "n_gpus": 1, "space": VERL_SPACE}
    texts = [
        PROMPTS.render(agent, stable_context(agent, asked.task, PROMPTS.knowledge), call).user
        for agent, call in (
            ("proposer", proposer_context(asked, PROMPTS.knowledge)),
            ("error_analyzer", error_context(failed)),
            ("early_stopper", stop_context(running)),
        )
    ]
    texts += [Workbench(one, PROMPTS.knowledge.metrics, **bench).question() for one in (asked, running)]
    for text in texts:
        assert "- compute: " in text
        assert "of the search's whole is left" in text
        assert re.search(r"- training runs: (28 left with the one you plan|27 left after this one)", text)
