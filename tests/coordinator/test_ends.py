"""Budgets, and how a search ends, by events alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from llmzero_ray.coordinator import (
    build_request,
    check_decisions,
    extension_problem,
    gpu_hours,
    over_budget,
    replay,
)
from llmzero_ray.records import ComputeLimit, PhaseResult, TokenCost, TokenCounts
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.records.metrics import Curves
from tests.builders import ROOT, Driver, make_config, make_failure, make_proposal, make_result
from tests.coordinator.builders import after_root, no_curves, verdict

# --- the end of a search ------------------------------------------------------------------------------------


def test_the_search_ends_when_the_budget_is_spent() -> None:
    search = Driver()
    search.search_to_end([0.5, 0.6, 0.4, 0.3])
    assert (search.core.stage, search.core.end_reason) == ("measuring", "budget")
    assert search.none(cmd.Propose)


def test_the_target_ends_the_search() -> None:
    search = Driver(make_config(budget={"runs": 9, "target": 0.6}))
    search.search_to_end([0.5, 0.6])
    assert search.core.end_reason == "target"


def test_gpu_hours_count_from_the_reservation_of_a_slot_idle_time_included() -> None:
    search = Driver(make_config(budget={"runs": 9, "gpu_hours": 1.0}))
    search.ready()
    search.now = 1800.0
    search.train(0, gpu_hours=0.1)
    assert search.core.end_reason is None
    search.now = 3600.0
    search.propose(1)
    search.train(1, gpu_hours=0.1)
    assert search.core.end_reason == "gpu_hours"
    assert (search.core.gpu_hours, search.core.meter.gpu_hours(3600.0)) == (0.2, 1.0)


def test_machines_of_failed_cards_are_known_again_after_a_replay() -> None:
    search = Driver()
    search.ready()
    search.post(ev.RunnerLost(slot=0, node=None, phase_attempt=0, reason="Xid 79", avoided="ab"))
    search.post(ev.RunnerLost(slot=0, node=None, phase_attempt=0, reason="its process died"))
    search.post(ev.RunnerLost(slot=0, node=None, phase_attempt=0, reason="Xid 79", avoided="cd"))
    assert search.core.avoided_nodes == replay(search.journal, ROOT).avoided_nodes == {"ab", "cd"}


def test_gpu_hours_of_a_lost_attempt_count_as_busy() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    left = dataclasses.replace(make_failure(0), gpu_hours=0.7)
    search.post(ev.RunnerLost(slot=0, node=0, phase_attempt=0, reason="dead", salvaged=left))
    search.ready()
    search.train(0, gpu_hours=0.4)
    assert search.core.gpu_hours == pytest.approx(1.1)


def paused_after(hours: float, *, node: int = 0) -> Driver:
    """A search on two GPUs whose phase was paused after that many hours, and that another coordinator took
    over eight hours later."""
    search = Driver(make_config(budget={"runs": 2}, slots={"gpus_per_node": 2}, final={"test": False}))
    if node == REFERENCE:
        search.search_to_end([0.5, 0.6])
    else:
        search.ready()
    search.start(node)
    search.now += hours * 3600
    search.post(ev.SearchPaused(reason="night"))
    alive, search.now = search.now, search.now + 8 * 3600.0
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2, previous_alive=alive))
    search.ready()
    return search


@pytest.mark.parametrize("node", [0, REFERENCE])
def test_gpu_hours_of_a_paused_phase_count_as_busy(node: int) -> None:
    search = paused_after(1.0, node=node)
    assert gpu_hours(search.core, search.now) == (2.0, 0.0)
    search.start(node)
    search.now += 1800
    assert gpu_hours(search.core, search.now) == (3.0, 0.0)
    search.finish(node, gpu_hours=0.9)
    counted = search.core.gpu_hours, search.core.reference_gpu_hours
    assert counted == ((2.9, 0.0) if node == 0 else (0.0, 2.9))


@pytest.mark.parametrize("started", [False, True])
def test_gpu_hours_of_a_phase_that_had_ended_when_it_was_paused_count_once(started: bool) -> None:
    search = paused_after(1.0)
    if started:
        search.start(0)
    search.finish(0, gpu_hours=1.9)
    assert search.core.gpu_hours == 2.0
    assert search.core.runs[0].outcome is not None
    assert search.core.runs[0].outcome.gpu_hours == 1.9


def test_a_pause_gives_hardware_back_and_its_time_is_not_counted() -> None:
    search = Driver(make_config(slots={"gpus_per_node": 2}))
    search.ready()
    search.now = 3600.0
    search.post(ev.SearchPaused(reason="night"))
    search.now = 9 * 3600.0
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2, previous_alive=3600.0))
    search.ready()
    assert search.core.meter.gpu_hours(10 * 3600.0) == 4.0


def test_the_time_in_which_a_cluster_was_gone_is_not_counted() -> None:
    search = Driver()
    search.ready()
    search.now = 9 * 3600.0
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2, previous_alive=3600.0))
    assert search.core.meter.gpu_hours(10 * 3600.0) == 2.0


def test_the_time_in_which_a_cluster_was_gone_is_no_training_time() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.now = 9 * 3600.0
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2, previous_alive=3600.0))
    assert gpu_hours(search.core, search.now) == (1.0, 0.0)
    search.post(ev.SearchPaused(reason="night"))
    assert search.core.gpu_hours == 1.0


def test_time_under_way_counts_in_gpu_hours_and_a_reached_limit_is_reported_once() -> None:
    search = Driver(
        make_config(budget={"runs": 9, "gpu_hours": 4.0, "wall_clock_hours": 9.0}, slots={"gpus_per_node": 2})
    )
    search.now = 1000.0
    search.ready()
    search.start(0)
    assert gpu_hours(search.core, 1000.0 + 1800.0)[0] == 1.0
    assert list(over_budget(search.core, worked_s=60.0, now=1000.0 + 3600.0)) == []
    (reached,) = over_budget(search.core, worked_s=60.0, now=1000.0 + 2 * 3600.0)
    assert (reached.kind, reached.used, reached.limit) == ("gpu_hours", 4.0, 4.0)
    (late,) = over_budget(search.core, worked_s=9 * 3600.0, now=1000.0)
    assert late.kind == "wall_clock"
    assert len(search.post(reached, reached)) == 1


def test_a_second_stop_does_not_wait_for_the_slot_of_a_phase_that_was_paused_meanwhile() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(ev.UserStop(reason="enough"), ev.SearchPaused(reason="Ctrl-C"))
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    assert search.core.runs[0].active
    search.post(ev.UserStop(reason="enough, really"))
    assert search.core.runs[0].stage == "cancelled"
    assert search.only(cmd.WriteOutcome)


def test_a_phase_that_an_older_version_trained_after_a_second_stop_is_replayed_as_it_ended() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.now = 1800.0
    search.post(ev.UserStop(reason="enough"), ev.SearchPaused(reason="Ctrl-C"))
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    result = make_result(0, gpu_hours=0.5)
    older = (
        ev.UserStop(reason="enough, really", time=1800.0),
        ev.SlotReady(slot=0, time=1800.0),
        ev.PhaseStarted(node=0, slot=0, phase_attempt=1, time=1800.0),
        ev.PhaseFinished(node=0, phase_attempt=1, result=result, time=3600.0),
    )
    core = replay([*search.journal, *older], ROOT)
    assert (core.runs[0].outcome, core.runs[0].status) == (result, "completed")
    assert core.search.node(0).status == "completed"
    assert core.gpu_hours == 0.5 + 0.5
    assert search.only(cmd.Record, core.outstanding()).event.stop_reason == "user"


def test_a_second_stop_leaves_a_paused_phase_to_its_slot_once_that_is_ready() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(ev.UserStop(reason="enough"), ev.SearchPaused(reason="Ctrl-C"))
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    search.ready()
    search.post(ev.UserStop(reason="enough, really"))
    assert search.only(cmd.StopPhase).phase_attempt == 1


def test_a_cap_stops_the_running_phase_as_completed_and_begins_no_other() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    stop = search.only(cmd.StopPhase, search.post(ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0)))
    assert stop.reason == "budget: wall_clock"
    search.finish(0, stop_reason=stop.reason)
    assert search.core.search.node(0).status == "completed"
    assert search.core.end_reason == "wall_clock"


def test_a_cap_does_not_turn_a_phase_with_a_verdict_into_a_completed_one() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(verdict(0))
    assert search.post(ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0)) == []
    assert search.only(cmd.StopPhase).reason.startswith("verdict")


def test_a_cap_drops_a_phase_that_is_still_being_proposed() -> None:
    search = after_root()
    search.post(ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0))
    assert search.core.runs[1].status == "cancelled"
    assert search.propose(1) == []
    assert search.core.end_reason == "wall_clock"


def test_a_cap_ends_a_phase_that_waits_for_its_repeat_with_what_it_left() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.lose()
    search.post(ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0))
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseResult)
    assert outcome.status == "completed"
    assert search.core.end_reason == "wall_clock"


def test_a_person_ends_the_search_without_final_measurements_but_with_its_outcome_written() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    stop = search.only(cmd.StopPhase, search.post(ev.UserStop(reason="Ctrl-C")))
    assert stop.reason == "user"
    assert search.only(cmd.WriteOutcome, search.finish(0, stop_reason="user"))
    end = search.only(cmd.End, search.post(ev.OutcomeWritten()))
    assert (end.reason, end.exit_code) == ("user", 0)
    assert search.core.finished is not None
    assert search.core.finished.best == 0


def test_exhausted_trees_end_the_search() -> None:
    rules = {"max_evolve_children": 1, "max_debug_children": 0, "rho_min": 0.0}
    search = Driver(make_config(budget={"runs": 30}, search=rules))
    search.ready()
    search.train(0, score=0.5)
    search.propose(1)
    search.fail(1)
    assert search.core.end_reason == "exhausted"


# --- compute ------------------------------------------------------------------------------------------------


def computing(**budget: Any) -> Driver:
    """A search with 1,000 tokens, of which each phase of 20 steps reports 300."""
    search = Driver(make_config(budget={"runs": 9, "compute": 1000.0, **budget}))
    search.ready()
    return search


def train_counted(
    search: Driver, node: int, tokens: float = 300.0, *, val_tokens: float | None = None
) -> None:
    search.start(node)
    counted = TokenCounts(rollout=tokens / 2, trained=tokens / 2)
    result = dataclasses.replace(make_result(node), tokens=counted, val_tokens=val_tokens)
    search.post(ev.PhaseFinished(node=node, phase_attempt=0, result=result))


def limit_of(search: Driver, node: int) -> float:
    spec = search.core.runs[node].spec
    assert spec is not None and spec.compute is not None
    return spec.compute.amount


def test_each_phase_may_compute_what_is_left_and_the_search_ends_when_no_step_fits() -> None:
    search = computing()
    for node, left in enumerate([1000.0, 700.0, 400.0, 100.0]):
        if node:
            search.propose(node)
        assert limit_of(search, node) == left
        train_counted(search, node, min(300.0, left))
    assert (search.core.end_reason, search.core.compute) == ("compute", 1000.0)


@pytest.mark.parametrize(("left", "ends"), [(41.0, False), (40.0, True)])
def test_nobody_is_asked_for_a_phase_of_which_no_step_can_be_validated(left: float, ends: bool) -> None:
    """The root took 300: three validations of 30, and 20 steps of 10.5."""
    search = computing(compute=300.0 + left)
    train_counted(search, 0, val_tokens=30.0)
    assert (search.core.end_reason == "compute") == ends == search.none(cmd.Propose)
    reached = [event for event in search.journal if isinstance(event, ev.BudgetReached)]
    assert [(event.kind, event.used) for event in reached] == [("compute", 300.0)] * ends
    assert not any(check.differences for check in check_decisions(search.journal, ROOT))
    assert replay(search.journal, ROOT).end_reason == search.core.end_reason
    if ends:
        refused = extension_problem(search.core, {"budget.compute": 340.2})
        assert refused is not None and "no step with its validation fits" in refused
        assert extension_problem(search.core, {"budget.compute": 700.0}) is None


def test_a_search_that_went_on_with_too_little_for_a_step_is_replayed_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as older:
        older.setattr("llmzero_ray.coordinator.next_commands.a_step_fits", lambda *_: True)
        search = computing(compute=340.0)
        train_counted(search, 0, val_tokens=30.0)
        search.propose(1)
        train_counted(search, 1, 40.0)
    assert search.core.end_reason == "compute"
    again = replay(search.journal, ROOT)
    assert (again.end_reason, list(again.runs)) == ("compute", list(search.core.runs))
    assert not any(check.differences for check in check_decisions(search.journal, ROOT))


def test_a_phase_that_trains_is_not_ended_because_no_further_one_fits() -> None:
    search = Driver(make_config(budget={"runs": 9, "compute": 1000.0}, slots={"count": 2}))
    search.ready(0, 1)
    train_counted(search, 0, val_tokens=30.0)
    search.propose(1)
    search.propose(2)
    search.start(2)
    train_counted(search, 1, 664.0, val_tokens=30.0)
    assert search.none(cmd.Propose) and search.none(cmd.StopPhase)
    assert search.core.ending is None
    train_counted(search, 2, 30.0)
    assert search.core.end_reason == "compute"


def test_a_person_is_told_the_price_in_hours() -> None:
    search = Driver(make_config(budget={"runs": 9, "wall_clock_hours": 1.0}, agents={"approve": True}))
    search.ready()
    search.start(0)
    counted = dataclasses.replace(
        make_result(0), tokens=TokenCounts(rollout=600.0, trained=600.0), cost=TokenCost(rollout=1, trained=1)
    )
    search.post(ev.PhaseFinished(node=0, phase_attempt=0, result=counted))
    search.propose(1, make_proposal(n_steps=40))
    asked = search.core.runs[1].asked
    assert asked is not None
    assert asked.price == "about 40.0 min, 67% of the wall-clock time that is left"


@pytest.mark.parametrize(("left", "action"), [(700.0, "scratch"), (200.0, "evolve")])
def test_no_fresh_start_is_forced_that_cannot_become_as_long_as_the_best_strategy(
    left: float, action: str
) -> None:
    """The best strategy has 20 steps of the root, which cost 300."""
    search = Driver(make_config(budget={"runs": 9, "compute": 400.0 + left}, search={"rho_min": 1.0}))
    search.ready()
    train_counted(search, 0)
    search.propose(1)
    train_counted(search, 1, 100.0)
    assert search.core.runs[2].kind == action


def test_agents_are_told_what_is_left_and_what_each_phase_took_as_it_is_charged() -> None:
    search = computing(token_cost={"rollout": 2.0, "trained": 1.0})
    search.start(0)
    tokens = TokenCounts(rollout=100.0, trained=60.0)
    result = dataclasses.replace(make_result(0), tokens=tokens, val_tokens=10.0)
    search.post(ev.PhaseFinished(node=0, phase_attempt=0, result=result))
    curves = Curves(val_steps=(10, 20), val_scores=(0.4, 0.5))
    request = build_request(search.core, search.only(cmd.Propose), lambda _: curves)
    left = request.budget.compute
    assert left == ComputeLimit(amount=1000.0 - 260.0, cost=TokenCost(rollout=2.0, trained=1.0))
    assert request.budget.whole_compute == 1000.0
    # Three validations of 10 tokens each, the one at step 0 included, are not part of the 20 steps.
    assert request.budget.root_step == TokenCounts(rollout=70.0 / 20, trained=60.0 / 20)
    assert isinstance(request, ProposalRequest)
    assert (request.on.tokens, request.on.step_tokens) == (tokens, request.budget.root_step)
    search.propose(1)
    assert limit_of(search, 1) == left.amount


def test_a_failed_phase_is_asked_about_with_what_is_left_after_it() -> None:
    search = computing()
    search.start(0)
    failure = dataclasses.replace(
        make_failure(0), steps_done=4, tokens=TokenCounts(rollout=40.0, trained=60.0), gpu_hours=0.5
    )
    search.post(ev.PhaseFailed(node=0, phase_attempt=0, failure=failure))
    request = build_request(search.core, search.only(cmd.Analyze), no_curves)
    assert isinstance(request, ErrorRequest)
    assert request.budget.compute is not None and request.budget.compute.amount == 900.0
    assert request.failed.step_tokens == TokenCounts(rollout=10.0, trained=15.0)
    assert request.failed.gpu_hours == 0.5


@pytest.mark.parametrize("on_cap", ["expert", "stop"])
def test_dollars_are_told_by_run_and_whether_they_end_the_search(on_cap: str) -> None:
    search = Driver(make_config(budget={"runs": 4, "dollars": 5.0}, agents={"on_cap": on_cap}))
    search.ready()
    search.train(0, score=0.5)
    search.core.dollars = 0.6
    asked = build_request(search.core, search.only(cmd.Propose), no_curves).budget
    assert (asked.dollars, asked.dollars_per_run, asked.dollars_end_it) == (4.4, None, on_cap == "stop")
    search.propose(1)
    search.train(1, score=0.4)
    assert build_request(search.core, search.only(cmd.Propose), no_curves).budget.dollars_per_run == 0.6


def test_failed_phases_count_and_costs_weigh_tokens() -> None:
    search = computing(token_cost={"rollout": 2.0, "trained": 0.0})
    search.start(0)
    failure = dataclasses.replace(
        make_failure(0), steps_done=20, tokens=TokenCounts(rollout=400.0, trained=1e6)
    )
    search.post(ev.PhaseFailed(node=0, phase_attempt=0, failure=failure))
    assert (search.core.end_reason, search.core.compute) == (None, 800.0)


def test_a_planned_run_gets_its_share_whatever_the_others_spent() -> None:
    """The third of four random recipes may compute a quarter of the budget, though the first two took
    more than theirs."""
    search = Driver(
        make_config(budget={"runs": 8, "compute": 1000.0}, search={"method": "random", "n_trials": 4})
    )
    search.ready()
    for node in range(3):
        search.propose(node, make_proposal(lr=1e-4 * (node + 2), n_steps=60))
        assert limit_of(search, node) == 250.0
        train_counted(search, node, 400.0)
    assert search.core.end_reason is None


def test_a_raised_compute_lets_an_ended_search_go_on() -> None:
    search = computing()
    train_counted(search, 0, 1000.0)
    assert search.core.end_reason == "compute"
    assert extension_problem(search.core, {"budget.compute": 2000.0}) is None


def test_a_search_that_has_finished_cannot_be_interrupted() -> None:
    """An error of what follows the end, or a pause that was on its way."""
    search = Driver()
    search.search_to_end([0.5, 0.6, 0.4, 0.3])
    search.post(ev.UserStop(reason="enough"))
    search.post(ev.OutcomeWritten())
    assert search.core.finished is not None
    for late in (ev.SearchPaused(reason="Ctrl-C"), ev.SearchAborted(reason="EIO", exit_code=3)):
        search.post(late)
        assert search.core.interrupted is None
        assert replay(search.journal, ROOT).interrupted is None
