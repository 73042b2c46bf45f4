"""The pair without a Tuner: what it refuses, which nodes it begins, and how proposals are checked."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from ray import cloudpickle, tune

from llmzero_ray.config import StopperSettings
from llmzero_ray.errors import ConfigError, SearchError
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.records import Diagnosis, Proposal, ResumeFrom, StopDecision
from llmzero_ray.records.agents import NodeView, ProposalRequest
from llmzero_ray.tune import get_checkpoint, tree_search
from llmzero_ray.tune.early_stop import EarlyStops
from llmzero_ray.tune.phase_start import PhaseStart
from llmzero_ray.tune.searcher import TreeSearcher
from tests.waiting import wait_until

SPACE = {"rate": tune.uniform(0.1, 10.0), "kind": tune.choice([1, 2])}
ROOT = {"rate": 1.0, "kind": 1}


def make_searcher(workers: int = 1, **given: Any) -> TreeSearcher:
    values: dict[str, Any] = {"metric": "x", "space": SPACE, "root": ROOT, "budget": 8, "phase_steps": 3}
    searcher, _ = tree_search(**{**values, **given})
    searcher.set_max_concurrency(workers)
    return searcher


def next_trial(searcher: TreeSearcher, trial: str) -> dict[str, Any]:
    """The next configuration that is not None; proposals come from a thread."""
    found: list[Any] = []

    def came() -> bool:
        found.append(searcher.suggest(trial))
        return found[-1] is not None

    wait_until(came)
    assert found[-1] != "FINISHED"
    configuration: dict[str, Any] = found[-1]
    return configuration


def train(searcher: TreeSearcher, trial: str, scores: list[float]) -> None:
    node = searcher.search.node_of(trial)
    assert node is not None
    for step, score in enumerate(scores, start=1):
        searcher.search.report(node, step, {"x": score}, f"{trial}/checkpoint_{step:06d}")
    searcher.on_trial_complete(trial, {"x": scores[-1]})


def start_of(configuration: dict[str, Any]) -> PhaseStart:
    start = PhaseStart.of(configuration)
    assert start is not None
    return start


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "up"}, "mode is 'up'; must be 'max' or 'min'"),
        ({"budget": 0}, "budget is 0; must be a whole number >= 2"),
        ({"phase_steps": 2.5}, "phase_steps is 2.5; must be a whole number"),
        ({"root": {"rate": 20.0, "kind": 1}}, "root does not lie in the space: rate=20"),
        ({"proposer": "clever"}, "proposer is 'clever'; must be 'local', 'random', 'expert', 'claude', an"),
        ({"proposer": "expert"}, "proposer is 'expert', whose rules or prompts read VeRL's metrics"),
        ({"proposer": "claude"}, "proposer is 'claude', whose rules or prompts read VeRL's metrics"),
        ({"proposer": "nowhere:make"}, "proposer is 'nowhere:make', which cannot be loaded"),
        ({"proposer": 3}, "proposer is 3; must be"),
        ({"stopper": 3}, "stopper is 3; must be StopperSettings"),
        ({"metric": None}, "metric is None; must be the name"),
        ({"metric": ""}, "metric is ''; must be the name"),
        ({"dollars": "x"}, "dollars is 'x'; must be a number > 0"),
        ({"dollars": -1}, "dollars is -1; must be a number > 0"),
        ({"rules": {"c": 1}}, "rules is {'c': 1}; must be a SearchRules"),
        ({"space": {"llmzero": tune.uniform(0, 1)}, "root": {"llmzero": 0.5}}, "'llmzero' is the search's"),
    ],
)
def test_a_wrong_argument_is_one_message(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_searcher(**given)


def test_a_proposer_that_cannot_be_pickled_is_refused_with_what_to_do() -> None:
    lock = threading.Lock()

    def propose(request: ProposalRequest) -> dict[str, Any]:
        with lock:
            return {"rate": 2.0}

    with pytest.raises(ConfigError, match=r"cannot be pickled .*tuner\.pkl.*package\.module:factory"):
        make_searcher(proposer=propose)


def test_another_metric_in_the_tuner_and_domains_in_param_space_are_refused() -> None:
    searcher = make_searcher()
    with pytest.raises(ConfigError, match="TuneConfig has metric='y'"):
        searcher.set_search_properties("y", None, {})
    with pytest.raises(ConfigError, match="param_space has domains for rate"):
        searcher.set_search_properties(None, None, {"rate": tune.uniform(0, 1)})
    assert searcher.set_search_properties("x", "max", {"data": "here"})


def test_a_checkpoint_is_asked_for_inside_a_trial_only() -> None:
    with pytest.raises(SearchError, match="outside of a trial"):
        get_checkpoint()


# --- nodes --------------------------------------------------------------------------------------------------


def test_the_first_trial_is_the_root_and_nothing_is_begun_beside_it() -> None:
    searcher = make_searcher(workers=3)
    configuration = searcher.suggest("a")
    assert configuration == {**ROOT, "llmzero_phase": "node0-root-base0-steps3"}
    assert searcher.suggest("b") is None


def test_a_phase_goes_on_from_the_best_checkpoint_of_another_trial() -> None:
    searcher = make_searcher(proposer=lambda request: {"kind": 2})
    searcher.suggest("a")
    train(searcher, "a", [1.0, 3.0, 2.0])
    configuration = next_trial(searcher, "b")
    assert configuration["kind"] == 2
    assert start_of(configuration).resume_from == ResumeFrom(node=0, step=2)


def test_proposals_under_way_count_as_running_trials() -> None:
    searcher = make_searcher(workers=2, proposer="tests.tune.slow_proposer:make")
    searcher.suggest("a")
    train(searcher, "a", [1.0])
    assert searcher.suggest("b") is None
    assert len(searcher.search.phases) == 3
    assert searcher.suggest("c") is None
    assert len(searcher.search.phases) == 3


def test_without_a_limit_one_more_trial_begins_whenever_tune_asks() -> None:
    searcher, _ = tree_search(metric="x", space=SPACE, root=ROOT, budget=8, phase_steps=3)
    searcher.suggest("a")
    assert searcher.suggest("b") is None
    train(searcher, "a", [1.0])
    next_trial(searcher, "b")
    n_begun = len(searcher.search.phases)
    next_trial(searcher, "c")
    assert n_begun <= 3 and len(searcher.search.phases) <= n_begun + 1


def test_the_budget_ends_the_search() -> None:
    searcher = make_searcher(budget=2)
    searcher.suggest("a")
    train(searcher, "a", [1.0])
    next_trial(searcher, "b")
    assert searcher.suggest("c") is None
    train(searcher, "b", [1.0])
    assert searcher.suggest("c") == "FINISHED"


def test_a_copy_of_the_search_from_its_pickle_goes_on_with_its_state(tmp_path: Any) -> None:
    pair = tree_search(metric="x", space=SPACE, root=ROOT, budget=8, phase_steps=3)
    pickled = cloudpickle.dumps(pair)
    searcher, _ = pair
    searcher.set_max_concurrency(1)
    searcher.suggest("a")
    train(searcher, "a", [1.0, 2.0])
    next_trial(searcher, "b")
    searcher.save(str(tmp_path / "state"))
    again, scheduler = cloudpickle.loads(pickled)
    again.restore(str(tmp_path / "state"))
    assert again.search.phases[0].steps == searcher.search.phases[0].steps
    assert again.search.phases[1].start == searcher.search.phases[1].start
    assert scheduler._searcher is again


# --- proposals ----------------------------------------------------------------------------------------------


def test_a_refused_proposal_goes_back_with_the_reason() -> None:
    reasons: list[str | None] = []

    class Stubborn:
        def __getstate__(self) -> dict[str, Any]:
            return {}

        def propose(self, request: ProposalRequest) -> dict[str, Any]:
            reasons.append(request.rejected)
            return {"rate": 99.0} if request.tries == 0 else {"rate": 5.0}

    searcher = make_searcher(proposer=Stubborn())
    searcher.suggest("a")
    train(searcher, "a", [1.0])
    assert next_trial(searcher, "b")["rate"] == 5.0
    assert reasons[0] is None and "rate=99" in str(reasons[1])


@pytest.mark.parametrize(
    "answer",
    [
        {"rate": 99.0},
        {"speed": 1.0},
        ["rate"],
        Proposal(
            diagnosis=Diagnosis(state="unknown", summary=""), changes=(), n_steps=3,
            resume_from=ResumeFrom(node=7, step=1), rationale="",
        ),
        RuntimeError("no network"),
    ],
)  # fmt: skip
def test_after_three_useless_answers_the_best_checkpoint_is_continued_as_it_was(answer: Any) -> None:
    def propose(request: ProposalRequest) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    searcher = make_searcher(proposer=propose)
    searcher.suggest("a")
    train(searcher, "a", [1.0, 2.0])
    configuration = next_trial(searcher, "b")
    assert {key: configuration[key] for key in ROOT} == ROOT
    assert start_of(configuration).resume_from == ResumeFrom(node=0, step=2)


def test_a_phase_that_is_continued_after_useless_answers_is_no_copy_of_another() -> None:
    searcher = make_searcher(proposer=lambda request: {"rate": 99.0})
    searcher.suggest("a")
    train(searcher, "a", [1.0])
    first = next_trial(searcher, "b")
    searcher.on_trial_complete("b")
    second = next_trial(searcher, "c")
    assert start_of(second).resume_from == start_of(first).resume_from == ResumeFrom(node=0, step=1)
    assert (first["rate"], second["rate"]) == (1.0, 0.8)


def test_a_copy_of_a_known_phase_is_refused() -> None:
    reasons: list[str | None] = []

    class Same:
        def __getstate__(self) -> dict[str, Any]:
            return {}

        def propose(self, request: ProposalRequest) -> dict[str, Any]:
            reasons.append(request.rejected)
            return {"rate": 2.0}

    searcher = make_searcher(proposer=Same())
    searcher.suggest("a")
    train(searcher, "a", [1.0])
    next_trial(searcher, "b")
    searcher.on_trial_complete("b")
    next_trial(searcher, "c")
    assert any("copy of node 1" in str(reason) for reason in reasons)


# --- early stops --------------------------------------------------------------------------------------------


def running_view() -> NodeView:
    searcher = make_searcher()
    searcher.suggest("a")
    searcher.search.report(0, 1, {"x": 1.0, "actor/grad_norm": float("nan")}, None)
    return searcher.search.view(0)


@pytest.mark.parametrize(
    ("stopper", "reason"),
    [
        (None, None),
        (lambda running, best: running.score < 2, "stopper"),
        (lambda running, best: "behind", "behind"),
        (lambda running, best: StopDecision(stop=True, reason="low", rule="mine"), "mine: low"),
        (lambda running, best: False, None),
        (StopperSettings(), "non_finite: actor/grad_norm is nan at step 1"),
    ],
)
def test_a_stopper_gives_a_reason_or_nothing(stopper: Any, reason: str | None) -> None:
    assert EarlyStops(stopper).reason("a", {"x": 1.0}, running_view(), None) == reason


def test_a_stopper_of_tune_sees_trial_and_result() -> None:
    stops = EarlyStops(tune.stopper.MaximumIterationStopper(1))
    assert stops.reason("a", {}, None, None) == "MaximumIterationStopper"


@pytest.mark.parametrize("proposer", ["local", "random", "expert"])
def test_every_named_proposer_goes_on_in_verls_space(proposer: str) -> None:
    searcher = make_searcher(space=VERL_SPACE, root={"lr": 1e-4}, proposer=proposer)
    searcher.suggest("a")
    train(searcher, "a", [0.2, 0.3, 0.35])
    next_trial(searcher, "b")
    phase = searcher.search.phases[1]
    assert phase.configuration and phase.lineage()["rationale"]
    if proposer == "random":
        assert VERL_SPACE.diff(searcher.search.trials.root, phase.configuration)


@pytest.mark.parametrize("proposer", ["random", "expert"])
def test_a_failed_root_is_repaired_by_every_named_proposer(proposer: str) -> None:
    searcher = make_searcher(space=VERL_SPACE, root={"lr": 1e-4}, proposer=proposer)
    searcher.suggest("a")
    searcher.on_trial_complete("a", error=True)
    next_trial(searcher, "b")
    assert searcher.search.phases[1].run.kind == "debug"


def test_random_proposals_are_spread_over_the_bounds_on_their_scale() -> None:
    space = {"rate": tune.loguniform(1e-4, 1.0), "kind": tune.choice([1, 2])}
    drawn = []
    for seed in range(40):
        searcher = make_searcher(space=space, root={"rate": 0.5, "kind": 1}, proposer="random", seed=seed)
        searcher.suggest("a")
        train(searcher, "a", [1.0])
        drawn.append(next_trial(searcher, "b"))
    assert all(1e-4 <= one["rate"] <= 1.0 for one in drawn)
    # Of 40 even draws on a logarithmic scale about half lie below the middle, .01.
    assert 8 <= sum(one["rate"] < 0.01 for one in drawn) <= 32
    assert {one["kind"] for one in drawn} == {1, 2}
