"""What persons ask of a search while it runs, by events alone; slots that come and go; adapters that go."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.coordinator import (
    build_request,
    check_decisions,
    checkpoint_retention,
    over_budget,
    refusal,
    replay,
)
from llmzero_ray.coordinator.proposals import unanswered, waiting
from llmzero_ray.coordinator.runs import INTERRUPTED
from llmzero_ray.coordinator.steering import MAX_HINT, MAX_HINTS
from llmzero_ray.errors import ConfigError
from llmzero_ray.records import Event, PhaseFailure, PhaseResult, ResumeFrom
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.records.metrics import Curves
from tests.builders import LR, ROOT, Driver, make_config, make_failure, make_proposal
from tests.marks import slow_example


def after(scores: tuple[float, ...] = (0.5,), **blocks: Any) -> Driver:
    """A search whose first runs have ended with these scores; the next one is being proposed."""
    search = Driver(make_config(**{"budget": {"runs": 8}, **blocks}))
    search.search_to_end(scores)
    return search


def ask(search: Driver, event: Event, asked_id: str = "1") -> Any:
    """As the coordinator's inbox does it: refused or posted; the event that went into the journal."""
    why = refusal(search.core, event)
    if why is not None:
        event = ev.RequestRefused(kind="test", message=why)
    search.post(dataclasses.replace(event, source=f"user:{asked_id}"))
    return search.journal[-1] if search.journal[-1].source.startswith("user:") else None


# --- hints --------------------------------------------------------------------------------------------------


def test_a_hint_is_part_of_every_later_question_to_the_proposer() -> None:
    search = after()
    ask(search, ev.HintGiven(text="entropy collapses above lr 1e-3"))
    request = build_request(search.core, search.only(cmd.Propose), lambda _: Curves())
    assert isinstance(request, ProposalRequest)
    assert request.hints == ("entropy collapses above lr 1e-3",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "is empty"), ("x" * (MAX_HINT + 1), f"at most {MAX_HINT}"), ("x" * 2**20, "1048576")],
)
def test_an_unusable_hint_is_refused(text: str, expected: str) -> None:
    search = after()
    why = refusal(search.core, ev.HintGiven(text=text))
    assert why is not None
    assert expected in why
    assert len(why) < 200


def test_hints_are_limited_in_number() -> None:
    search = after()
    for i in range(MAX_HINTS):
        ask(search, ev.HintGiven(text=str(i)), str(i))
    assert "hints already" in str(refusal(search.core, ev.HintGiven(text="one more")))


def test_the_same_request_delivered_twice_counts_once() -> None:
    search = after()
    for _ in range(2):
        search.post(ev.HintGiven(text="lower the lr", source="user:7"))
    assert search.core.hints == ["lower the lr"]


# --- veto ---------------------------------------------------------------------------------------------------


def test_a_veto_stops_the_running_phase_charges_no_failure_and_closes_the_subtree() -> None:
    search = after()
    search.propose(1)
    search.start(1)
    ask(search, ev.NodeVetoed(node=1, reason="I know this configuration"))
    stop = search.only(cmd.StopPhase)
    assert (stop.node, stop.reason) == (1, "veto: I know this configuration")
    search.finish(1, score=0.9, stop_reason=stop.reason)
    node = search.core.search.node(1)
    assert (node.status, node.pruned, search.core.search.node(0).v_fail) == ("completed", True, 0)
    assert search.core.runs[2].on == 0


def test_a_vetoed_phase_whose_runner_dies_is_not_repeated() -> None:
    search = after()
    search.propose(1)
    search.start(1)
    ask(search, ev.NodeVetoed(node=1))
    search.lose()
    assert isinstance(search.core.runs[1].outcome, PhaseResult)


def test_a_veto_of_a_run_that_is_still_being_proposed_frees_its_slot() -> None:
    search = after()
    ask(search, ev.NodeVetoed(node=1))
    assert search.core.runs[1].status == "cancelled"
    assert search.propose(1) == []
    assert (search.core.runs[2].on, search.core.runs[2].stage) == (0, "proposing")
    assert search.core.search.running == (2,)


@pytest.mark.parametrize(
    ("node", "expected"), [(9, "unknown; the search has nodes 0, 1"), (0, "is the root")]
)
def test_a_veto_that_cannot_be(node: int, expected: str) -> None:
    assert expected in str(refusal(after().core, ev.NodeVetoed(node=node)))


def test_a_second_veto_is_refused() -> None:
    search = after((0.5, 0.6))
    ask(search, ev.NodeVetoed(node=1))
    assert "pruned already" in str(refusal(search.core, ev.NodeVetoed(node=1)))


# --- clones -------------------------------------------------------------------------------------------------


def clone(of: int, step: int | None = None, n_steps: int | None = None, **changes: Any) -> ev.CloneAsked:
    named = {LR: changes.pop("lr")} if "lr" in changes else {}
    return ev.CloneAsked(of=of, step=step, changes={**named, **changes}, n_steps=n_steps)


def test_a_clone_is_trained_in_the_next_free_slot_exactly_as_asked_without_an_agent() -> None:
    search = after()
    asked = ask(search, clone(0, step=10, lr=2e-4, n_steps=30))
    search.propose(1)
    search.train(1, score=0.6)
    run = search.core.runs[2]
    assert run.spec is not None
    assert (run.kind, run.on, run.spec.resume_from, run.spec.n_steps) == (
        "evolve",
        0,
        ResumeFrom(node=0, step=10),
        30,
    )
    assert run.spec.hyperparameters[LR] == 2e-4
    assert run.proposal is not None
    assert run.proposal.agent == "user"
    assert search.core.search.node(2).exempt
    assert search.core.clones == []
    assert [e.clone for e in search.journal if isinstance(e, ev.Decided)] == ["", "", asked.source]


def test_a_clone_without_a_step_goes_on_from_the_best_one() -> None:
    search = after((0.5, 0.6))
    ask(search, clone(1))
    search.propose(2)
    search.train(2)
    spec = search.core.runs[3].spec
    assert spec is not None
    assert spec.resume_from == ResumeFrom(node=1, step=20)


def test_clones_are_no_decisions_of_the_rules_and_the_others_are_taken_again_the_same() -> None:
    search = after()
    ask(search, clone(0, lr=2e-4))
    search.propose(1)
    search.train(1, score=0.6)
    search.train(2, score=0.4)
    search.propose(3)
    search.train(3, score=0.7)
    assert [check.differences for check in check_decisions(search.journal, ROOT) if check.differences] == []
    assert replay(search.journal, ROOT).search.nodes == search.core.search.nodes


def test_a_clone_begun_while_the_rules_would_wait_is_explained_as_a_persons() -> None:
    search = Driver(make_config(slots={"count": 3}, search={"max_evolve_children": 2}))
    search.ready(0, 1, 2)
    search.train(0, score=0.5)
    assert search.core.search.ask().action == "wait"
    ask(search, clone(0, lr=2e-4))
    checks = list(check_decisions(search.journal, ROOT))
    assert (checks[-1].recorded.clone != "", checks[-1].reason) == (True, "asked for by a person")
    assert [check.differences for check in checks if check.differences] == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (clone(9), "node 9 is unknown"),
        (clone(1), "node 1 is pending; only a node that has ended"),
        (clone(0, step=15), "step 15 of node 0 is not saved; saved are 10, 20"),
        (clone(0, lr=7.0), "must be a number in"),
        (clone(0, n_steps=0), "n_steps is 0 (training steps); must be between 1 and 60"),
        (clone(0, n_steps=1000), "between 1 and 60"),
        (ev.CloneAsked(of=0, step=None, changes={"nonsense": 1}), "nonsense"),
    ],
)
def test_a_clone_that_cannot_be_trained_is_refused(asked: ev.CloneAsked, expected: str) -> None:
    assert expected in str(refusal(after().core, asked))


def test_a_clone_beyond_the_budget_is_refused_until_it_is_raised() -> None:
    search = after((0.5, 0.6), budget={"runs": 3})
    assert "raise budget.runs" in str(refusal(search.core, clone(0)))
    ask(search, ev.SettingsChanged(changes={"budget.runs": 5}, before={"budget.runs": 3}))
    assert refusal(search.core, clone(0)) is None


@pytest.mark.parametrize("method", ["llmzero", "skills"])
def test_a_clone_is_refused_where_every_phase_starts_from_the_base_model(method: str) -> None:
    search = after(search={"method": method, "multi_stage": False})
    assert "search.multi_stage is false" in str(refusal(search.core, clone(0, step=10, lr=2e-4)))


def test_a_clone_that_cannot_be_any_more_when_its_slot_is_free_is_answered_and_the_rules_go_on() -> None:
    search = after((0.5, 0.6))
    ask(search, clone(1))
    ask(search, ev.NodeVetoed(node=1), "2")
    search.propose(2)
    search.train(2)
    (output,) = [e for e in search.journal if isinstance(e, ev.RequestRefused)]
    assert "node 1 is pruned" in output.message
    assert search.core.clones == []
    assert search.core.runs[3].clone is None


def test_a_clone_that_waits_when_the_search_ends_is_answered() -> None:
    search = after()
    ask(search, clone(0))
    search.post(ev.UserStop(reason="enough"))
    assert [e.kind for e in search.journal if isinstance(e, ev.RequestRefused)] == ["clone"]
    assert search.core.end_reason == "user"


# --- settings -----------------------------------------------------------------------------------------------


def change(**changes: Any) -> ev.SettingsChanged:
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return ev.SettingsChanged(changes=named, before=dict.fromkeys(named))


def test_a_raised_budget_lets_the_search_go_on() -> None:
    search = Driver(make_config(budget={"runs": 2}))
    search.search_to_end((0.5,))
    ask(search, change(budget__runs=3))
    search.propose(1)
    search.train(1)
    assert search.core.end_reason is None
    assert search.core.runs[2].stage == "proposing"


def test_an_end_that_a_limit_asked_for_is_off_once_that_limit_is_raised() -> None:
    search = after(budget={"runs": 8, "wall_clock_hours": 1.0})
    search.propose(1)
    search.start(1)
    search.post(*over_budget(search.core, worked_s=3600.0, now=0.0))
    assert search.core.ending == "wall_clock"
    ask(search, change(budget__wall_clock_hours=2.0))
    search.finish(1, stop_reason="budget: wall_clock")
    assert search.core.runs[2].stage == "proposing"
    (again,) = over_budget(search.core, worked_s=7200.0, now=0.0)
    search.post(again)
    assert search.core.ending == "wall_clock"


@pytest.mark.parametrize(
    ("reached", "changes", "expected"),
    [
        ("target", {"budget.target": 0.7}, "would end again: budget.target is 0.7 and the best validation"),
        ("target", {"budget.target": 0.95}, None),
        ("target", {"budget.target": None}, None),
        ("wall_clock", {"budget.wall_clock_hours": 0.5}, "budget.wall_clock_hours is 0.5 and 1 are used"),
        ("wall_clock", {"budget.wall_clock_hours": 2.0}, None),
        ("dollars", {"agents.on_cap": "expert"}, "agents.on_cap does not change that, budget.dollars does"),
        ("dollars", {"budget.dollars": 2.0, "agents.on_cap": "expert"}, None),
        ("dollars", {"budget.runs": 9}, None),
    ],
)
def test_a_limit_that_would_end_the_search_again_is_refused_while_it_ends(
    reached: Any, changes: dict[str, Any], expected: str | None
) -> None:
    budget = {"runs": 8, "target": 0.8, "wall_clock_hours": 1.0, "dollars": 1.0}
    search = Driver(make_config(budget=budget, slots={"count": 2}, agents={"on_cap": "stop"}))
    search.ready(0, 1)
    search.train(0, score=0.5)
    for node in (1, 2):
        search.propose(node)
        search.start(node)
    search.now = 3600.0
    search.finish(1, score=0.9 if reached == "target" else 0.6)
    if reached != "target":
        search.post(ev.BudgetReached(kind=reached, used=1.0, limit=1.0))
    assert search.core.ending == reached
    why = refusal(search.core, ev.SettingsChanged(changes=changes, before={}))
    assert expected in str(why) if expected else why is None


@pytest.mark.parametrize("final", [{"test": False}, {"default_recipe": False}], ids=["trains", "scores"])
def test_a_search_stopped_in_its_final_evaluation_is_extended_only_once_it_has_ended(
    final: dict[str, Any],
) -> None:
    search = after((0.5, 0.6), budget={"runs": 2}, final=final)
    assert refusal(search.core, change(budget__runs=4)) is None
    search.post(ev.UserStop(reason="enough"))
    assert "/storage/demo budget.runs=4` extends it once" in str(refusal(search.core, change(budget__runs=4)))
    search.post(ev.OutcomeWritten())
    changes = {"budget.runs": 4}
    assert refusal(search.core, ev.SearchExtended(changes=changes, before={})) is None
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2), ev.SearchExtended(changes=changes))
    search.ready()
    assert search.core.runs[2].stage == "proposing"


@pytest.mark.parametrize("extended", [False, True])
def test_a_phase_cancelled_while_it_was_handed_over_begins_when_the_search_goes_on(extended: bool) -> None:
    search = Driver(
        make_config(
            budget={"runs": 6, "wall_clock_hours": 1.0},
            slots={"count": 2},
            final={"default_recipe": False, "test": False},
        )
    )
    search.ready(0, 1)
    search.train(0, score=0.5)
    search.propose(2)
    search.start(2)

    def started() -> ev.PhaseStarted:  # the journal takes it once for each attempt
        run = search.core.runs[1]
        event = ev.PhaseStarted(node=1, slot=run.slot, phase_attempt=run.attempt)
        return dataclasses.replace(event, source="phase:1", attempt=run.attempt, sequence=1)

    first = search.only(cmd.RunPhase, search.propose(1))
    search.post(*over_budget(search.core, worked_s=3600.0, now=0.0), started())
    assert search.core.runs[1].status == "cancelled"
    if extended:
        search.finish(2)
        search.post(ev.OutcomeWritten(), ev.CoordinatorStarted(epoch=2, host="here", pid=2))
        search.post(ev.SearchExtended(changes={"budget.wall_clock_hours": 9.0}, before={}))
        search.ready(0, 1)
    else:
        ask(search, change(budget__wall_clock_hours=9.0))
    again = [one for one in search.commands if isinstance(one, cmd.RunPhase) and one.spec.node == 1][-1]
    assert (again.id != first.id, again.spec.attempt) == (True, 1)
    search.post(started())
    assert search.core.runs[1].started
    assert replay(search.journal, ROOT).runs == search.core.runs


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seed": 3}, "seed: cannot be changed once a search has begun"),
        ({"budget.runs": 1}, "budget.runs"),
        ({"budget.rums": 9}, "did you mean 'runs'"),
        ({"slots.count": 0}, "slots.count"),
        ({"slots.count.x": 1}, "slots.count"),
    ],
)
def test_settings_that_cannot_be_changed_like_that_are_refused(
    changes: dict[str, Any], expected: str
) -> None:
    search = after()
    assert expected in str(refusal(search.core, ev.SettingsChanged(changes=changes, before={})))


def test_fewer_runs_than_have_begun_are_refused() -> None:
    assert "3 runs have begun" in str(refusal(after((0.5, 0.6)).core, change(budget__runs=2)))


def test_a_slot_that_is_added_is_reserved_and_used() -> None:
    search = after()
    ask(search, change(slots__count=2))
    assert search.only(cmd.FitSlots).count == 2
    search.propose(1)
    search.start(1)
    search.ready(1)
    assert search.core.runs[2].slot == 1


def test_a_slot_that_is_removed_ends_its_phase_first_and_is_given_back() -> None:
    search = Driver(make_config(budget={"runs": 8}, slots={"count": 2}))
    search.ready(0, 1)
    search.train(0, score=0.5)
    for node in (1, 2):
        search.propose(node)
        search.start(node)
    ask(search, change(slots__count=1))
    assert search.none(cmd.CloseSlot)
    late = next(run.node for run in search.core.runs.values() if run.slot == 1)
    search.finish(late)
    assert search.only(cmd.CloseSlot).slot == 1
    search.post(ev.SlotClosed(slot=1))
    assert search.none(cmd.CloseSlot)
    assert search.none(cmd.Propose)
    ask(search, change(slots__count=2), "2")
    search.ready(1)
    assert any(run.slot == 1 and run.active for run in search.core.runs.values())


def test_nothing_is_taken_from_persons_once_a_search_has_ended() -> None:
    search = Driver(make_config(budget={"runs": 2}, final={"test": False, "default_recipe": False}))
    search.search_to_end((0.5, 0.6))
    search.post(ev.OutcomeWritten())
    for event in (ev.HintGiven(text="x"), change(budget__runs=9), clone(0), ev.UserStop(reason="")):
        assert str(refusal(search.core, event)).startswith(
            "the search has ended. It takes this while it trains"
        )


# --- losses and hangs ---------------------------------------------------------------------------------------


def test_a_phase_is_repeated_from_its_full_checkpoint_as_often_as_it_gets_further() -> None:
    search = Driver(make_config(slots={"max_infra_retries": 3}))
    search.ready()
    for attempt, step in enumerate((5, 10, 15)):
        search.start(0)
        search.lose(restart_step=step)
        spec = search.only(cmd.RunPhase, search.ready()).spec
        assert (spec.attempt, spec.restore, spec.rolling_dir) == (
            attempt + 1,
            True,
            f"{ROOT}/nodes/0000/rolling/attempt_{attempt + 1:03d}",
        )
    search.start(0)
    search.lose(restart_step=20)
    outcome = search.core.runs[0].outcome
    assert isinstance(outcome, PhaseFailure)
    assert outcome.failure_class == "resource"


def test_a_phase_lost_twice_from_the_same_point_has_failed() -> None:
    search = Driver()
    search.ready()
    for _ in range(2):
        assert search.core.runs[0].outcome is None
        search.start(0)
        search.lose(restart_step=10)
        search.ready()
    assert isinstance(search.core.runs[0].outcome, PhaseFailure)


def test_a_first_attempt_begins_at_its_start_and_keeps_full_checkpoints_as_configured() -> None:
    spec = Driver(make_config(checkpoints={"rolling_freq": 3}))
    run = spec.only(cmd.RunPhase, spec.ready())
    assert (run.spec.restore, run.spec.rolling_freq) == (False, 3)
    default = Driver()
    assert default.only(cmd.RunPhase, default.ready()).spec.rolling_freq == 10


def test_a_phase_that_hangs_has_its_runner_killed_once_and_is_repeated() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    silent = ev.RunnerSilent(slot=0, node=0, phase_attempt=0, stage="rollout", since_s=700.0, limit_s=600.0)
    kill = search.only(cmd.KillRunner, search.post(dataclasses.replace(silent, source="watchdog:0")))
    assert (kill.slot, kill.node) == (0, 0)
    assert kill.reason == "no sign of life in stage rollout for 700 s (limit 600 s)"
    assert search.post(dataclasses.replace(silent, source="watchdog:0")) == []
    search.lose(restart_step=5)
    search.ready()
    assert search.none(cmd.KillRunner)
    assert search.only(cmd.RunPhase).spec.attempt == 1


def test_a_stop_with_a_deadline_tells_the_runner_and_a_second_one_shortens_it() -> None:
    search = Driver()
    search.ready()
    search.start(0)
    first = search.only(cmd.StopPhase, search.post(ev.UserStop(reason="enough")))
    assert first.deadline_s is None
    now = search.only(cmd.StopPhase, search.post(ev.UserStop(reason="enough", deadline_s=0.0)))
    assert (now.deadline_s, now.id != first.id) == (0.0, True)


@pytest.mark.parametrize("lost_before", [False, True])
@pytest.mark.parametrize("end", ["user", "wall_clock", "target"])
def test_a_phase_paused_and_not_begun_again_ends_with_what_it_had_saved(end: str, lost_before: bool) -> None:
    search = Driver(
        make_config(budget={"runs": 9, "target": 0.8, "wall_clock_hours": 1.0}, slots={"count": 2})
    )
    search.ready(0, 1)
    search.train(0, score=0.5)
    for node in (1, 2):
        search.propose(node)
        search.start(node)
    if lost_before:
        search.lose(search.core.runs[1].slot)
        search.ready(search.core.runs[1].slot)
        search.start(1)
    search.post(ev.SearchPaused(reason="night"), ev.CoordinatorStarted(epoch=2, host="here", pid=2))
    left = dataclasses.replace(make_failure(1, score=0.6, saved=(10,)), cause=INTERRUPTED, gpu_hours=2.0)
    attempt = search.core.runs[1].attempt
    search.post(ev.PhaseInterrupted(node=1, phase_attempt=attempt, salvaged=left))
    search.ready(search.core.runs[2].slot)
    search.start(2)
    if end == "user":
        search.post(ev.UserStop(reason="enough"))
    elif end == "wall_clock":
        search.post(*over_budget(search.core, worked_s=3600.0, now=0.0))
    search.finish(2, score=0.9)
    run = search.core.runs[1]
    assert (run.status, run.score, [kept.step for kept in run.checkpoints]) == ("completed", 0.6, [10])
    reason = end if end == "user" else f"budget: {end}"
    assert isinstance(run.outcome, PhaseResult)
    assert run.outcome.stop_reason == f"{reason} (the search was interrupted)"
    assert search.core.end_reason == end
    assert replay(search.journal, ROOT).runs == search.core.runs


def test_hours_of_a_lost_phase_that_is_stopped_before_its_repeat_count_once() -> None:
    search = after()
    search.propose(1)
    search.start(1)
    lost = dataclasses.replace(make_failure(1, failure_class="resource", score=0.6), gpu_hours=8.0)
    search.post(ev.RunnerLost(slot=0, node=1, phase_attempt=0, reason="gone", restart_step=10, salvaged=lost))
    assert search.core.gpu_hours == 8.0
    search.post(ev.UserStop(reason="enough"))
    run = search.core.runs[1]
    assert (run.status, search.core.gpu_hours) == ("completed", 8.0)
    assert run.outcome is not None and run.outcome.gpu_hours == 8.0, "the node's own hours"


# --- adapters -----------------------------------------------------------------------------------------------


def sizes_of(search: Driver) -> dict[tuple[int, int], int]:
    return {
        (run.node, saved.step): 100
        for run in search.core.runs.values()
        if run.node >= 0
        for saved in run.checkpoints
    }


def test_a_corrupt_adapter_is_replaced_by_the_nearest_good_one_before_it() -> None:
    search = after()
    search.propose(1, make_proposal(resume=(0, 20)))
    corrupt = ev.CheckpointCorrupt(node=0, step=20, problem="adapter_model.safetensors fails its checksum")
    again = search.only(cmd.RunPhase, search.post(corrupt))
    assert again.spec.resume_from == ResumeFrom(node=0, step=10)
    assert (again.spec.base_step, again.spec.adapter) == (10, f"{ROOT}/checkpoints/0000/step_000010")
    last = search.only(cmd.RunPhase, search.post(ev.CheckpointCorrupt(node=0, step=10, problem="gone")))
    assert (last.spec.resume_from, last.spec.adapter, last.spec.base_step) == (None, None, 0)


def test_a_phase_that_counts_as_started_but_never_began_is_planned_again_when_its_start_is_corrupt() -> None:
    search = after()
    search.propose(1, make_proposal(resume=(0, 20)))
    search.start(1)  # and the coordinator ended before the runner had it
    corrupt = ev.CheckpointCorrupt(node=0, step=20, problem="fails its checksum", found_by=1)
    again = search.only(cmd.RunPhase, search.post(corrupt))
    assert (again.spec.resume_from, again.spec.attempt) == (ResumeFrom(node=0, step=10), 1)
    search.train(1, score=0.6)
    assert search.core.runs[1].outcome is not None


def lost(attempt: int, restart_step: int) -> ev.RunnerLost:
    left = dataclasses.replace(
        make_failure(1, failure_class="resource", score=0.7, saved=[10]), gpu_hours=0.5
    )
    return ev.RunnerLost(
        slot=0, node=1, phase_attempt=attempt, reason="gone", salvaged=left, restart_step=restart_step
    )


def test_a_repeat_whose_start_is_corrupt_begins_at_the_nearest_good_one_and_keeps_nothing_of_before() -> None:
    search = after()
    search.propose(1, make_proposal(resume=(0, 20)))
    search.start(1)
    search.post(lost(0, restart_step=12))
    again = search.only(cmd.RunPhase, search.post(ev.SlotReady(slot=0)))
    assert (again.spec.attempt, again.spec.restore) == (1, True)
    corrupt = ev.CheckpointCorrupt(node=0, step=20, problem="fails its checksum", found_by=1)
    again = search.only(cmd.RunPhase, search.post(corrupt))
    assert (again.spec.resume_from, again.spec.attempt) == (ResumeFrom(node=0, step=10), 1)
    assert not again.spec.restore  # its full checkpoint began at step 20
    search.start(1)
    search.post(lost(1, restart_step=12))  # as far as before, and yet no second loss at the same step
    assert not search.core.runs[1].given_up
    again = search.only(cmd.RunPhase, search.post(ev.SlotReady(slot=0)))
    assert (again.spec.attempt, again.spec.restore) == (2, True)
    search.train(1, score=0.6)
    assert search.core.runs[1].outcome is not None and len(search.core.search.nodes) == 3


def test_a_user_s_stop_after_a_corrupt_start_ends_a_repeat_without_what_began_elsewhere() -> None:
    search = after()
    search.propose(1, make_proposal(resume=(0, 20)))
    search.start(1)
    search.post(lost(0, restart_step=12))
    search.post(ev.CheckpointCorrupt(node=0, step=20, problem="fails its checksum", found_by=2))
    search.post(ev.UserStop(reason="enough"))
    assert search.core.runs[1].status == "cancelled"


def test_a_phase_that_trains_goes_on_when_another_finds_its_start_corrupt() -> None:
    search = after()
    search.propose(1, make_proposal(resume=(0, 20)))
    search.start(1)
    search.post(ev.CheckpointCorrupt(node=0, step=20, problem="fails its checksum", found_by=2))
    run = search.core.runs[1]
    assert (run.attempt, run.started, run.spec.resume_from) == (0, True, ResumeFrom(node=0, step=20))


def test_deleted_adapters_are_not_offered_and_deleted_after_they_are_journalled() -> None:
    search = after((0.5, 0.6, 0.7))
    found = checkpoint_retention.thin(search.core, sizes_of(search), 450)
    assert [(item.node, item.step) for item in found.items] == [(0, 10), (1, 10)]
    assert (found.used_bytes, found.freed_bytes, found.fits) == (600, 200, True)
    event = ev.CheckpointsDeleted(items=found.items, freed_bytes=200, used_bytes=600, limit_bytes=450)
    delete = search.only(cmd.DeleteCheckpoints, search.post(event))
    assert delete.items == found.items
    request = build_request(search.core, search.only(cmd.Propose), lambda _: Curves())
    assert {(c.node, c.step) for c in request.checkpoints} & {(0, 10), (1, 10)} == set()


def test_what_was_planned_since_the_list_was_made_is_kept() -> None:
    search = after()
    items = (ResumeFrom(node=0, step=10),)
    search.propose(1, make_proposal(resume=(0, 10)))
    deleted = ev.CheckpointsDeleted(items=items, freed_bytes=100, used_bytes=200, limit_bytes=100)
    assert search.only(cmd.DeleteCheckpoints, search.post(deleted)).items == ()


def test_what_is_pinned_does_not_fit() -> None:
    search = after((0.5, 0.6))
    assert not checkpoint_retention.thin(search.core, sizes_of(search), 150).fits


@slow_example
@given(st.integers(0, 2**32), st.integers(0, 2000))
def test_nothing_that_is_pinned_is_ever_deleted(seed: int, limit: int) -> None:
    """Random searches: failures, odd checkpoints, losses, clones, vetoes; thinned again and again."""
    chance = random.Random(seed)
    search = Driver(make_config(budget={"runs": 12}, slots={"count": 2}))
    search.ready(0, 1)
    on_disk: set[tuple[int, int]] = set()
    for _ in range(40):
        active = [run for run in search.core.runs.values() if run.active and run.node >= 0]
        if not active:
            break
        run = chance.choice(active)
        if run.stage == "proposing":
            nodes = search.core.offered(run.node)
            places = [(n, c.step) for n in nodes for c in search.core.runs[n].checkpoints]
            resume = chance.choice(places) if places and run.kind != "scratch" else None
            search.propose(run.node, make_proposal(resume=resume), tries=run.tries)
        elif chance.random() < 0.1:
            search.start(run.node)
            search.lose(run.slot, restart_step=chance.randrange(4))
            if run.outcome is not None:  # lost twice from the same point
                on_disk |= {(run.node, saved.step) for saved in run.outcome.checkpoints}
            search.ready(run.slot)
        else:
            saved = tuple(sorted(chance.sample((5, 10, 15, 20), chance.randint(1, 4))))
            search.start(run.node)
            if chance.random() < 0.2:
                search.fail(run.node, saved=saved)
            else:
                best = chance.choice(saved)
                search.finish(run.node, score=chance.random(), saved=saved, best_step=best)
            if search.core.runs[run.node].outcome is not None:
                on_disk |= {(run.node, step) for step in saved}
        if chance.random() < 0.2 and len(search.core.search.nodes) > 1:
            ask(
                search,
                ev.NodeVetoed(node=chance.randrange(1, len(search.core.search.nodes))),
                str(chance.random()),
            )
        thinning = checkpoint_retention.thin(search.core, dict.fromkeys(on_disk, 100), limit)
        items = {(item.node, item.step) for item in thinning.items}
        assert items <= on_disk
        assert not items & checkpoint_retention.pinned(search.core)
        assert thinning.fits == (100 * (len(on_disk) - len(items)) <= limit)
        search.post(
            ev.CheckpointsDeleted(items=thinning.items, freed_bytes=0, used_bytes=0, limit_bytes=limit)
        )
        on_disk -= items
        for other in search.core.runs.values():
            source = None if other.spec is None else other.spec.resume_from
            if source is not None and other.active:
                assert (source.node, source.step) in on_disk
        if search.core.best is not None and search.core.best.outcome is not None:
            assert (search.core.best.node, search.core.best.outcome.best_step) in on_disk
    assert replay(search.journal, ROOT).search.nodes == search.core.search.nodes


def test_unknown_settings_are_named() -> None:
    from llmzero_ray.config.changes import read_settings

    assert read_settings(["budget.runs=9", "checkpoints.max_gib=null"]) == {
        "budget.runs": 9,
        "checkpoints.max_gib": None,
    }
    with pytest.raises(ConfigError, match="is not of the form"):
        read_settings(["budget.runs"])


# --- approval -----------------------------------------------------------------------------------------------


def waits(**agents: Any) -> Driver:
    """A search whose node 1, resumed from step 10 of the root, waits for approval since second 100."""
    search = after(agents={"approve": True, "approve_hours": 2.0, **agents})
    search.now = 100.0
    search.propose(1, make_proposal(lr=5e-4, resume=(0, 10)))
    return search


def answer(node: int = 1, tries: int = 0, **fields: Any) -> ev.ApprovalAnswered:
    return ev.ApprovalAnswered(node=node, tries=tries, **{"accepted": True, **fields})


def test_a_proposal_waits_and_nothing_of_it_trains_while_other_slots_train_on() -> None:
    search = after(agents={"approve": True}, slots={"count": 2})
    search.propose(1)
    assert search.core.runs[1].waits
    assert search.none(cmd.Propose)
    search.ready(1)
    assert search.core.runs[2].stage == "proposing"
    ask(search, answer())
    assert search.only(cmd.RunPhase).spec.node == 1
    search.start(1)
    search.propose(2)
    assert [run.node for run in waiting(search.core)] == [2]
    assert search.core.runs[1].status == "running"


def test_an_accepted_proposal_is_planned_as_it_was_shown() -> None:
    search = waits()
    asked = search.core.runs[1].asked
    assert asked is not None
    ask(search, answer())
    assert search.core.runs[1].spec == asked.spec
    assert search.core.runs[1].note == ""


def test_an_edit_replaces_and_adds_values_and_the_agents_are_told_why() -> None:
    search = waits()
    ask(search, answer(changes={LR: 2e-4}, n_steps=7, reason="it\nwas too hot"))
    run = search.core.runs[1]
    assert run.spec is not None
    assert (run.spec.hyperparameters[LR], run.spec.n_steps, run.spec.base_step) == (2e-4, 7, 10)
    assert run.proposal is not None
    assert [(c.old, c.new, c.reason) for c in run.proposal.changes] == [
        (1e-3, 2e-4, "a person's edit: it was too hot")
    ]
    assert run.note == "edited by a person: it was too hot"
    search.train(1, score=0.6)
    request = build_request(search.core, search.only(cmd.Propose), lambda _: Curves())
    assert isinstance(request, ProposalRequest)
    assert request.hints == (
        "The proposal of node 1 (lr = 0.0005) was edited to lr = 0.0002, 7 steps: it was too hot",
    )


def test_a_refusal_goes_back_with_its_reason_and_the_next_proposal_waits_again() -> None:
    search = waits()
    ask(search, answer(accepted=False, reason="answers grow"))
    again = search.only(cmd.Propose)
    assert (again.node, again.tries) == (1, 1)
    assert again.rejected == "the person who runs this search refused it: answers grow"
    search.propose(1, make_proposal(lr=3e-4, resume=(0, 10)), tries=1)
    assert search.core.runs[1].waits
    why = refusal(search.core, answer(tries=0))
    assert why == "node 1 has another proposal by now; look at it before you answer."
    ask(search, answer(tries=1), "2")
    spec = search.core.runs[1].spec
    assert spec is not None
    assert spec.hyperparameters[LR] == 3e-4


def test_after_three_refusals_the_parents_configuration_is_continued() -> None:
    search = waits()
    for tries in range(3):
        if tries:
            search.propose(1, make_proposal(lr=(5 - tries) * 1e-4, resume=(0, 10)), tries=tries)
        ask(search, answer(tries=tries, accepted=False), str(tries))
    run = search.core.runs[1]
    assert (run.stage, run.proposal) == ("planned", None)
    assert "without a reason; propose another phase" in run.note


def test_the_deadline_accepts_and_is_journalled_once() -> None:
    search = waits()
    assert list(unanswered(search.core, now=100.0 + 7199)) == []
    for _ in range(2):
        search.post(*unanswered(search.core, now=100.0 + 7200))
    (event,) = [one for one in search.journal if isinstance(one, ev.ApprovalAnswered)]
    assert (event.source, event.reason) == ("timer:approval:1:0", "nobody answered within 2 hours")
    assert search.only(cmd.RunPhase).spec.node == 1
    assert search.core.approvals == []


def test_without_a_deadline_it_waits_however_long() -> None:
    assert list(unanswered(waits(approve_hours=None).core, now=1e12)) == []


def test_a_replayed_journal_waits_for_the_same_proposal() -> None:
    search = waits()
    again = replay(search.journal, ROOT)
    assert again.runs[1] == search.core.runs[1]
    assert again.outstanding() == search.core.outstanding()
    ask(search, answer())
    search.train(1, score=0.6)
    assert [check.differences for check in check_decisions(search.journal, ROOT)] == [(), (), ()]


def test_approval_that_is_switched_off_lets_what_waits_train() -> None:
    search = waits()
    ask(search, ev.SettingsChanged(changes={"agents.approve": False}, before={"agents.approve": True}))
    assert search.only(cmd.RunPhase).spec.node == 1


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("cause", ["approval off", "extended"])
def test_of_two_equal_proposals_that_go_on_at_once_the_second_goes_back(cause: str, restarted: bool) -> None:
    approve = cause == "approval off"
    search = Driver(
        make_config(
            budget={"runs": 3, "wall_clock_hours": 1.0},
            slots={"count": 2},
            agents={"approve": approve},
            final={"test": False, "default_recipe": False},
        )
    )
    search.ready(0, 1)
    search.train(0, score=0.5)
    if not approve:
        search.post(*over_budget(search.core, worked_s=3600.0, now=0.0))
    for node in (1, 2):
        search.propose(node, make_proposal(lr=7e-4, resume=(0, 20)))
    goes_on: Event = change(agents__approve=False)
    if not approve:
        search.post(ev.OutcomeWritten(), ev.CoordinatorStarted(epoch=2, host="here", pid=2))
        goes_on = ev.SearchExtended(changes={"budget.wall_clock_hours": 9.0}, before={})
    if restarted:  # killed when the event was in the journal
        search.journal.append(goes_on)
        search.core = replay(search.journal, ROOT)
        search.post(*[one.event for one in search.core.resume() if isinstance(one, cmd.Record)])
    else:
        search.post(goes_on)
    first, second = search.core.runs[1], search.core.runs[2]
    assert (first.stage, second.stage, second.tries) == ("planned", "proposing", 1)
    assert "would be a copy of node 1" in str(second.rejected)
    assert search.only(cmd.Propose).node == 2


def test_a_veto_ends_the_wait_and_an_end_of_the_search_keeps_it_for_an_extension() -> None:
    search = waits()
    ask(search, ev.NodeVetoed(node=1))
    assert (search.core.runs[1].status, waiting(search.core)) == ("cancelled", [])
    search = waits()
    search.post(ev.BudgetReached(kind="gpu_hours", used=1, limit=1, source="timer:gpu_hours:1"))
    assert waiting(search.core) == []
    assert "the search" in str(refusal(search.core, answer()))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer(0), "node 0 is completed; these wait for approval: 1."),
        (answer(9), "node 9 is unknown; these wait for approval: 1."),
        (answer(changes={LR: 5.0}), "must be"),
        (answer(changes={LR: "x"}), "lr"),
        (answer(n_steps=0), "n_steps is 0 (training steps); must be between 1 and"),
        (answer(accepted=False, changes={LR: 1e-4}), "a refusal changes nothing"),
        (answer(reason="x" * (MAX_HINT + 1)), f"the reason has {MAX_HINT + 1} characters"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused_and_it_still_waits(
    given: ev.ApprovalAnswered, expected: str
) -> None:
    search = waits()
    recorded = ask(search, given)
    assert isinstance(recorded, ev.RequestRefused)
    assert expected in recorded.message
    assert search.core.runs[1].waits


def test_where_nothing_waits_an_answer_is_refused() -> None:
    assert refusal(after().core, answer()) == (
        "node 1 is still being proposed; no proposal waits for approval."
    )


def test_fixes_and_forced_fresh_starts_wait_too() -> None:
    search = Driver(make_config(agents={"approve": True}))
    search.ready()
    search.fail(0, saved=(10,))
    assert search.core.runs[1].kind == "debug"
    search.propose(1)
    assert search.core.runs[1].waits
    fresh = after((0.5, 0.6), search={"rho_min": 1.0})
    assert fresh.core.runs[2].kind == "scratch"
    ask(fresh, ev.SettingsChanged(changes={"agents.approve": True}, before={"agents.approve": False}))
    fresh.propose(2)
    assert fresh.core.runs[2].waits


def test_a_clone_waits_for_nobody() -> None:
    search = waits()
    ask(search, ev.CloneAsked(of=0, step=10, changes={LR: 3e-4}))
    ask(search, answer(), "2")
    search.train(1, score=0.6)
    assert search.core.runs[2].clone is not None
    assert search.only(cmd.RunPhase).spec.node == 2


def test_a_waiting_proposal_that_becomes_a_copy_goes_back_by_the_rules() -> None:
    search = after(agents={"approve": True}, slots={"count": 2})
    search.ready(1)
    for node in (1, 2):
        search.propose(node, make_proposal(lr=5e-4, resume=(0, 10)))
    assert [run.node for run in waiting(search.core)] == [1, 2]
    ask(search, answer())
    assert "copy of node 1" in str(search.core.runs[2].rejected)


def test_the_adapter_that_a_waiting_proposal_resumes_from_is_kept() -> None:
    search = waits()
    thinning = checkpoint_retention.thin(search.core, sizes_of(search), 150)
    assert (thinning.items, thinning.fits) == ((), False)
    late = ev.CheckpointsDeleted(  # listed before the proposal came
        items=(ResumeFrom(node=0, step=10),), freed_bytes=100, used_bytes=200, limit_bytes=150
    )
    assert search.only(cmd.DeleteCheckpoints, search.post(late)).items == ()
    ask(search, answer())
    assert search.only(cmd.RunPhase).spec.resume_from == ResumeFrom(node=0, step=10)


def test_a_repeated_search_gives_the_recorded_answers_and_waits_for_nobody() -> None:
    recorded = {"accepted": True, "changes": {LR: 2e-4}, "n_steps": None, "reason": "colder"}
    agents = {"approve": True, "backend": "recorded", "recorded_from": "/runs/earlier"}
    config = make_config(budget={"runs": 8}, agents=agents)
    repeated = Driver(config, agents={"approvals": {"1-0": recorded}})
    repeated.search_to_end((0.5,))
    repeated.propose(1, make_proposal(lr=5e-4, resume=(0, 10)))
    spec = repeated.core.runs[1].spec
    assert spec is not None
    assert spec.hyperparameters[LR] == 2e-4
    repeated.train(1, score=0.6)
    repeated.propose(2)
    assert repeated.core.runs[2].stage == "planned"
