"""Failed and lost phases, verdicts, and several slots, by events alone."""

from __future__ import annotations

import dataclasses

from llmzero_ray.records import PhaseFailure, PhaseResult, TokenCounts
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from tests.builders import Driver, make_config, make_failure, make_proposal
from tests.coordinator.builders import after_root, finished, two_slots, verdict

# --- failures and losses ------------------------------------------------------------------------------------


def test_a_failed_phase_is_data_and_gets_a_debug_child() -> None:
    search = Driver()
    search.ready()
    analyze = search.only(cmd.Analyze, search.fail(0))
    assert (analyze.node, analyze.on) == (1, 0)
    assert search.only(cmd.RunPhase, search.propose(1)).spec.kind == "debug"


def test_a_lost_runner_is_not_a_failed_node_and_its_phase_is_repeated_on_the_next_one() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.lose()
    assert search.core.search.node(0).status == "running"
    assert search.none(cmd.RunPhase)
    again = search.only(cmd.RunPhase, search.ready())
    assert (again.spec.node, again.spec.attempt) == (0, 1)


def test_the_same_loss_twice_makes_a_failed_node_of_class_resource() -> None:
    search = Driver()
    search.ready()
    for _ in range(2):
        search.start(0)
        search.lose()
        search.ready()
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseFailure)
    assert outcome.failure_class == "resource"
    assert [saved.step for saved in outcome.checkpoints] == [10]
    assert search.core.search.node(0).status == "failed"
    assert search.only(cmd.Analyze).on == 0


def test_a_runner_lost_before_it_was_handed_the_phase_costs_the_phase_nothing() -> None:
    search = Driver()
    search.ready()
    for _ in range(3):
        search.lose()
        assert search.only(cmd.RunPhase, search.ready()).spec.attempt == 0
    assert search.core.runs[0].losses == 0


def test_what_a_voided_attempt_reports_later_is_ignored() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    late = ev.PhaseFinished(node=0, phase_attempt=0, result=PhaseResult(**{**vars(finished()), "node": 0}))
    search.lose()
    assert search.post(late) == []
    assert search.core.runs[0].outcome is None


def test_a_slot_lost_while_its_next_phase_is_proposed_gets_the_phase_when_it_is_back() -> None:
    search = after_root()
    search.lose()
    assert search.none(cmd.RunPhase)
    search.propose(1)
    assert search.none(cmd.RunPhase)
    assert search.only(cmd.RunPhase, search.ready()).spec.node == 1


def test_a_score_that_is_no_number_counts_as_none() -> None:
    search = Driver()
    search.ready()
    search.train(0, score=float("nan"))
    assert search.core.search.node(0).score is None
    assert search.core.best is None


# --- stopping phases ----------------------------------------------------------------------------------------


def test_a_verdict_stops_the_phase_and_only_a_verdict_makes_it_early_stopped() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    stop = search.only(cmd.StopPhase, search.post(verdict(0)))
    assert stop.reason == "verdict: early_stopper: cannot win"
    search.finish(0, status="early_stopped", stop_reason=stop.reason)
    assert search.core.search.node(0).status == "early_stopped"


def test_a_verdict_to_continue_is_kept_and_stops_nothing() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    assert search.post(verdict(0, stop=False)) == []
    assert len(search.core.runs[0].verdicts) == 1


def test_a_verdict_on_an_earlier_attempt_is_ignored() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.lose()
    search.ready()
    search.start(0)
    search.post(verdict(0, attempt=0))
    assert search.none(cmd.StopPhase)


def test_a_second_verdict_changes_nothing() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(verdict(0))
    assert search.post(verdict(0, source="stopper:v2")) == []


def test_a_phase_lost_after_its_verdict_is_not_repeated_and_ends_early_stopped() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(verdict(0))
    counted = TokenCounts(rollout=700.0, trained=300.0)
    left = dataclasses.replace(make_failure(0, failure_class="resource", saved=(10,)), tokens=counted)
    search.post(ev.RunnerLost(slot=0, node=0, phase_attempt=0, reason="dead", salvaged=left))
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseResult)
    assert (outcome.status, outcome.tokens) == ("early_stopped", counted)
    assert search.core.compute == 1000.0


def test_a_phase_that_had_to_be_killed_because_it_did_not_stop_has_failed() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    search.post(verdict(0))
    killed = make_failure(0, failure_class="timeout")
    search.post(ev.RunnerLost(slot=0, node=0, phase_attempt=0, reason="did not stop", salvaged=killed))
    assert search.core.search.node(0).status == "failed"


def test_the_incumbent_is_pushed_after_every_finish_with_its_path_cut_where_it_was_resumed() -> None:
    search = Driver()
    search.ready()
    assert search.none(cmd.PushIncumbent)
    push = search.only(cmd.PushIncumbent, search.train(0, score=0.5))
    assert (push.node, push.path) == (0, ((0, 20, 0),))
    search.propose(1, make_proposal(resume=(0, 10)))
    push = search.only(cmd.PushIncumbent, search.train(1, score=0.7, best_step=20))
    assert (push.node, push.path) == (1, ((0, 10, 0), (1, 20, 10)))
    search.propose(2)
    push = search.only(cmd.PushIncumbent, search.train(2, score=0.1))
    assert push.node == 1


# --- several slots ------------------------------------------------------------------------------------------


def test_a_second_slot_waits_while_only_the_root_trains() -> None:
    search = two_slots()
    assert [run.slot for run in search.core.runs.values()] == [0]


def test_both_slots_get_work_once_the_root_has_finished() -> None:
    search = two_slots()
    given = search.train(0, score=0.5)
    asked = [(c.node, c.on) for c in given if isinstance(c, cmd.Propose)]
    assert asked == [(1, 0), (2, 0)]
    assert [search.core.runs[node].slot for node in (1, 2)] == [0, 1]


def test_the_second_decision_sees_the_first_ones_run() -> None:
    search = two_slots()
    search.train(0, score=0.5)
    seen = [e.seen["running"] for e in search.journal if isinstance(e, ev.Decided)]
    assert seen == [0, 0, 1]


def test_a_slot_that_is_lost_does_not_disturb_the_other_one() -> None:
    search = two_slots()
    search.train(0, score=0.5)
    search.propose(1)
    search.propose(2)
    search.start(1)
    search.start(2)
    search.lose(1)
    assert search.only(cmd.RunPhase).spec.node == 1
    assert search.only(cmd.RunPhase, search.ready(1)).spec.attempt == 1


def test_the_search_ends_when_the_last_of_several_running_phases_has() -> None:
    search = two_slots(runs=3)
    search.train(0, score=0.5)
    search.propose(1)
    search.propose(2)
    search.train(1, score=0.6)
    assert search.core.end_reason is None
    search.train(2, score=0.4)
    assert search.core.end_reason == "budget"


def test_the_target_reached_in_one_slot_stops_the_other() -> None:
    search = Driver(make_config(budget={"runs": 6, "target": 0.6}, slots={"count": 2}))
    search.ready(0, 1)
    search.train(0, score=0.5)
    search.propose(1)
    search.propose(2)
    search.start(2)
    stop = search.only(cmd.StopPhase, search.train(1, score=0.7))
    assert (stop.node, stop.slot, stop.reason) == (2, 1, "budget: target")
