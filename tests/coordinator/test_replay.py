"""Interruptions and replays of the journal, by events alone."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.coordinator import CoordinatorCore, check_decisions, extension_problem, replay
from llmzero_ray.coordinator.replay import DecisionChecks
from llmzero_ray.errors import JournalError
from llmzero_ray.records import Event, from_json, to_json
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.commands import Command
from llmzero_ray.storage import SearchPaths
from tests.builders import ROOT, Driver, make_config, make_failure, make_proposal, make_result, make_scored
from tests.coordinator.builders import after_root, ended, finished, verdict
from tests.marks import slow_example

# --- interruptions ------------------------------------------------------------------------------------------


def next_coordinator(search: Driver) -> list[Command]:
    return search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2))


def test_a_pause_ends_the_work_and_its_phase_begins_again_at_no_charge() -> None:
    search = Driver()
    search.ready()
    for _ in range(3):
        search.start(0)
        assert search.only(cmd.End, search.post(ev.SearchPaused(reason="Ctrl-C"))).exit_code == 0
        assert search.core.stage == "interrupted"
        next_coordinator(search)
        assert search.only(cmd.RunPhase, search.ready())
    assert (search.core.runs[0].losses, search.core.runs[0].attempt) == (0, 3)


def test_an_abort_carries_its_exit_code_and_can_be_resumed() -> None:
    search = after_root()
    end = search.only(cmd.End, search.post(ev.SearchAborted(reason="wrong VeRL", exit_code=5)))
    assert (end.reason, end.exit_code) == ("wrong VeRL", 5)
    next_coordinator(search)
    assert search.only(cmd.Propose).node == 1


def test_a_pause_during_scoring_repeats_it_at_no_charge() -> None:
    search = ended(final={"default_recipe": False})
    for _ in range(3):
        search.post(ev.SearchPaused(reason="Ctrl-C"))
        next_coordinator(search)
        assert search.only(cmd.Evaluate, [*search.ready(), *search.core.resume()][-1:]).what == "base"


# --- replay -------------------------------------------------------------------------------------------------


def play(seed: int, n_slots: int, n_events: int) -> Driver:
    """A search in which agents, runners, hardware and the stopper do whatever the dice say."""
    dice = random.Random(seed)
    search = Driver(make_config(budget={"runs": dice.randint(2, 8)}, slots={"count": n_slots}))
    for _ in range(n_events):
        moves: list[Event] = [ev.SlotReady(slot=s.index) for s in search.core.slots if not s.ready]
        for command in search.core.outstanding():
            moves += answers(search, command, dice)
        if search.core.finished is not None:
            more = {"budget.runs": len(search.core.search.nodes) + 2}
            if search.core.n_extensions == 2 or extension_problem(search.core, more) is not None:
                break
            search.post(next_start(search), ev.SearchExtended(changes=more))
        elif moves:
            search.post(dice.choice(moves))
        else:
            break
    return search


def answers(search: Driver, command: Command, dice: random.Random) -> list[Event]:
    """What may happen in reply to a command."""
    if isinstance(command, cmd.Propose | cmd.Analyze):
        resume = dice.choice([None, (command.on, dice.choice([5, 10, 17])), (99, 1)])
        proposal = make_proposal(resume=resume, lr=dice.choice([1e-3, 5e-4, 9.0]))
        return [
            ev.Proposed(node=command.node, proposal=proposal, tries=command.tries),
            ev.Proposed(node=command.node, proposal=make_proposal(), tries=command.tries),
            ev.ProposalFailed(node=command.node, reason="away", tries=command.tries),
        ]
    if isinstance(command, cmd.RunPhase):
        return run_answers(search, command, dice)
    if isinstance(command, cmd.Evaluate):
        return [
            make_scored(command.what),
            ev.FinalFailed(what=command.what, reason="no"),
            ev.RunnerLost(slot=command.slot, node=None, phase_attempt=0, reason="dead"),
        ]
    if isinstance(command, cmd.WriteOutcome):
        return [ev.OutcomeWritten()]
    if isinstance(command, cmd.End):
        return [next_start(search)]
    return []


def next_start(search: Driver) -> ev.CoordinatorStarted:
    return ev.CoordinatorStarted(epoch=len(search.journal), host="h", pid=1)


def run_answers(search: Driver, command: cmd.RunPhase, dice: random.Random) -> list[Event]:
    node, attempt = command.spec.node, command.spec.attempt
    if not search.core.runs[node].started:
        return [ev.PhaseStarted(node=node, slot=command.slot, phase_attempt=attempt)] * 3
    score = dice.choice([None, dice.random()])
    result = dataclasses.replace(
        finished(), node=node, best_score=score, best_step=None if score is None else 10
    )
    return [
        *[ev.PhaseFinished(node=node, phase_attempt=attempt, result=result)] * 3,
        ev.PhaseFailed(node=node, phase_attempt=attempt, failure=make_failure(node, saved=(10,))),
        ev.RunnerLost(
            slot=command.slot, node=node, phase_attempt=attempt, reason="dead", salvaged=make_failure(node)
        ),
        verdict(node, attempt=attempt, source=f"stopper:{node}-{attempt}-{dice.random()}"),
        *dice.choice([[], [], [ev.BudgetReached(kind="wall_clock", used=1.0, limit=1.0)]]),
        *dice.choice([[], [], [], [ev.UserStop(reason="u")], [ev.SearchPaused(reason="p")]]),
    ]


@slow_example
@given(seed=st.integers(0, 10**6), n_slots=st.integers(1, 3))
def test_replaying_the_journal_rebuilds_the_same_search_with_the_same_work_outstanding(
    seed: int, n_slots: int
) -> None:
    search = play(seed, n_slots, n_events=60)
    again = replay(search.journal, ROOT)
    assert again.outstanding() == search.core.outstanding()
    assert again.search.nodes == search.core.search.nodes
    assert again.runs == search.core.runs
    assert again.slots == search.core.slots


@slow_example
@given(seed=st.integers(0, 10**6), n_slots=st.integers(1, 3))
def test_every_decision_taken_again_is_the_recorded_one(seed: int, n_slots: int) -> None:
    journal, growing = play(seed, n_slots, n_events=60).journal, DecisionChecks(ROOT)
    checks = check_decisions(journal, ROOT)
    assert [check.differences for check in checks if check.differences] == []
    for n in range(len(journal) + 1):
        assert growing.of(journal[:n]) == [check for check in checks if check.number <= n]


@slow_example
@given(seed=st.integers(0, 10**6), n_slots=st.integers(1, 3))
def test_whatever_happens_a_search_ends_and_never_exceeds_its_budget(seed: int, n_slots: int) -> None:
    search = play(seed, n_slots, n_events=3000)
    assert search.core.finished is not None
    assert len(search.core.search.nodes) <= search.core.config.budget.runs
    trained = [run for run in search.core.runs.values() if run.stage == "planned"]
    assert trained == []


def test_a_crash_between_a_finish_and_its_decision_loses_neither() -> None:
    search = Driver()
    search.ready()
    search.train(0, score=0.5)
    cut = next(i for i, e in enumerate(search.journal) if isinstance(e, ev.PhaseFinished)) + 1
    core = replay(search.journal[:cut], ROOT)
    record = next(command for command in core.resume() if isinstance(command, cmd.Record))
    assert isinstance(record.event, ev.Decided)
    assert (record.event.action, record.event.on) == ("evolve", 0)


def test_a_restarted_coordinator_is_given_running_phases_again_by_the_same_name() -> None:
    search = Driver()
    before = search.only(cmd.RunPhase, search.ready())
    search.start(0)
    assert search.only(cmd.RunPhase, replay(search.journal, ROOT).resume()) == before


def test_what_was_decided_is_what_the_journal_says_even_where_the_rules_would_decide_otherwise() -> None:
    search = Driver(make_config(budget={"runs": 8}))
    search.ready()
    search.train(0, score=0.5)
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.9)
    index, decided = next(
        (i, e) for i, e in enumerate(search.journal) if isinstance(e, ev.Decided) and e.node == 2
    )
    other = dataclasses.replace(decided, on=0 if decided.on == 1 else 1)
    journal = [*search.journal[:index], other]
    assert replay(journal, ROOT).runs[2].on == other.on
    differences = [check.differences for check in check_decisions(journal, ROOT) if check.differences]
    assert differences == [(f"on: recorded {other.on!r}, now {decided.on!r}",)]


def test_a_moved_search_trains_in_its_new_place() -> None:
    search = after_root()
    search.propose(1, make_proposal(resume=(0, 20)))
    moved = replay(search.journal, Path("/new/demo"))
    spec = search.only(cmd.RunPhase, moved.outstanding()).spec
    assert spec.adapter == "/new/demo/checkpoints/0000/step_000020"
    assert spec.checkpoint_dir == "/new/demo/checkpoints/0001"


def test_a_journal_that_does_not_begin_with_its_search_is_refused() -> None:
    with pytest.raises(JournalError, match="must be SearchStarted"):
        replay([ev.SlotReady(slot=0)], ROOT)


def test_two_searches_in_one_journal_are_refused() -> None:
    journal = Driver().journal
    with pytest.raises(JournalError, match="second SearchStarted"):
        replay([*journal, journal[0]], ROOT)


def test_an_event_the_core_does_not_know_is_refused() -> None:
    core = CoordinatorCore(SearchPaths(root=ROOT))
    core.handle(Driver().journal[0])
    with pytest.raises(JournalError, match="not an event of a search"):
        core.handle(Event())


def test_a_journal_without_gains_is_read_as_ever() -> None:
    data = to_json(make_result(0))
    del data["gain"], data["gain_error"]
    assert from_json(data) == make_result(0)
