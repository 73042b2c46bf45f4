"""A search that has ended goes on with higher limits, by events alone: its runs stay, its end is new."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from llmzero_ray.config.changes import read_settings, with_changes
from llmzero_ray.coordinator import check_decisions, extension_problem, over_budget, refusal, replay
from llmzero_ray.records import PhaseResult
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from tests.builders import LR, ROOT, Driver, make_config, make_proposal, make_scored

SCORES = (0.5, 0.7, 0.4, 0.6, 0.65, 0.3)


def trained(search: Driver, scores: Sequence[float], *, first: int = 0) -> None:
    """Train runs with these scores, each resumed from the node that it was created on."""
    for node, score in enumerate(scores, start=first):
        run = search.core.runs[node]
        if node > 0:
            resume = None if run.kind == "scratch" or run.on is None else (run.on, 20)
            search.propose(node, make_proposal(resume=resume, lr=5e-4 + 1e-6 * node))
        search.train(node, score=score)


def measured(search: Driver) -> list[str]:
    """Train and score what the final evaluation asks for, and write the outcome; what was scored."""
    scored: list[str] = []
    while search.core.finished is None:
        command = search.core.outstanding()[-1]
        if isinstance(command, cmd.RunPhase):
            search.train(REFERENCE, score=0.55)
        elif isinstance(command, cmd.Evaluate):
            scored.append(command.what)
            search.post(make_scored(command.what))
        else:
            assert isinstance(command, cmd.WriteOutcome)
            search.post(ev.OutcomeWritten())
    return scored


def finished(n_runs: int = 3, **blocks: Any) -> Driver:
    """A search of that many runs that has finished."""
    search = Driver(make_config(**{"budget": {"runs": n_runs}, **blocks}))
    search.ready()
    trained(search, SCORES[:n_runs])
    measured(search)
    return search


def extended(search: Driver, **limits: Any) -> Driver:
    """As the next coordinator does it with the settings that the command left for it."""
    changes = {f"budget.{name}": value for name, value in limits.items()}
    event = ev.SearchExtended(changes=changes, before=dict.fromkeys(changes))
    assert refusal(search.core, event) is None
    epoch = search.core.n_extensions + 2
    search.post(ev.CoordinatorStarted(epoch=epoch, host="here", pid=2), event)
    search.ready()
    return search


def decisions(search: Driver) -> list[tuple[str, int | None, int | None]]:
    found = [event for event in search.journal if isinstance(event, ev.Decided)]
    return [(event.action, event.on, event.node) for event in found if event.action != "stop"]


def test_an_extended_search_has_the_tree_of_one_that_was_started_with_its_budget() -> None:
    search = extended(finished(3), runs=6)
    trained(search, SCORES[3:], first=3)
    whole = finished(6)
    assert decisions(search) == decisions(whole)
    assert search.core.search.nodes == whole.core.search.nodes
    assert [run.spec for node, run in search.core.runs.items() if node != REFERENCE] == [
        run.spec for node, run in whole.core.runs.items() if node != REFERENCE
    ]


def test_an_extended_search_ends_again_and_scores_only_policies_that_are_new() -> None:
    search = extended(finished(2), runs=4)
    assert (search.core.stage, search.core.finished, search.core.final.jobs) == ("searching", None, {})
    node = search.core.runs[2].on
    search.propose(2, make_proposal(resume=(1, 20) if node == 1 else (0, 10), lr=7e-4))
    search.train(2, score=0.9)
    search.propose(3)
    search.train(3, score=0.3)
    assert search.core.end_reason == "budget"
    assert measured(search) == ["best", "reference"]
    again = search.core.runs[REFERENCE]
    assert (again.attempt, again.first_attempt, again.status) == (1, 1, "completed")
    jobs = search.core.final.jobs
    assert {what: (job.node, job.score is not None) for what, job in jobs.items()} == {
        "base": (None, True),
        "best": (2, True),
        "reference": (REFERENCE, True),
    }
    ends = [event for event in search.journal if isinstance(event, ev.SearchFinished)]
    assert [(event.reason, event.best) for event in ends] == [("budget", 1), ("budget", 2)]


def test_a_best_that_stays_is_neither_scored_nor_compared_with_a_new_default_recipe() -> None:
    search = extended(finished(3), runs=4)
    trained(search, (0.1,), first=3)
    assert measured(search) == []
    assert search.core.runs[REFERENCE].attempt == 0
    assert all(job.score is not None for job in search.core.final.jobs.values())


def test_a_search_is_extended_as_often_as_one_likes() -> None:
    search = finished(2, final={"default_recipe": False})
    for n_runs in (3, 4, 6):
        extended(search, runs=n_runs)
        begun = len(search.core.search.nodes) - 1
        trained(search, SCORES[begun:n_runs], first=begun)
        assert measured(search) == []  # node 1 stays the best
    assert search.core.n_extensions == 3
    assert decisions(search) == decisions(finished(6))


def test_the_journal_of_an_extended_search_replays_with_the_same_decisions() -> None:
    search = extended(finished(3), runs=6)
    trained(search, SCORES[3:5], first=3)
    again = replay(search.journal, ROOT)
    assert again.outstanding() == search.core.outstanding()
    assert again.runs == search.core.runs
    trained(search, SCORES[5:], first=5)
    measured(search)
    checks = list(check_decisions(search.journal, ROOT))
    assert [check.recorded.action for check in checks].count("stop") == 2
    assert [check.differences for check in checks if check.differences] == []


@pytest.mark.parametrize(
    ("blocks", "changes", "expected"),
    [
        ({}, {"budget.runs": 3}, "budget.runs is 3 and 3 runs have begun"),
        ({}, {"budget.runs": 2}, "budget.runs is 2 and 3 runs have begun"),
        ({}, {"budget.gpu_hours": 9}, "budget.runs is 3 and 3 runs have begun. Higher limits do"),
        ({}, {"slots.count": 2}, "such as budget.runs=7, together or with other settings"),
        ({}, {"seed": 7}, "seed: cannot be changed once a search has begun"),
        ({}, {f"root.overrides.{LR}": 7}, f"{LR}: cannot be changed once a search has begun"),
        ({}, {"budget.runs": 0}, "budget.runs"),
        ({}, {"budget.runs": 8, "budget.target": 0.6}, "best validation score is 0.7000"),
        ({}, {"budget.runs": 8, "budget.wall_clock_hours": 1e-9}, "wall_clock_hours is 1e-09"),
        ({"budget": {"runs": 3, "gpu_hours": 1.0}}, {"budget.runs": 8}, ""),
    ],
)
def test_settings_that_do_not_extend_a_search_are_refused_with_what_would(
    blocks: dict[str, Any], changes: dict[str, Any], expected: str
) -> None:
    search = Driver(make_config(**{"budget": {"runs": 3}, **blocks}))
    search.ready()
    trained(search, SCORES[:2])
    search.now = 60.0
    trained(search, SCORES[2:3], first=2)
    measured(search)
    problem = extension_problem(search.core, changes)
    assert (expected in problem) if problem else expected == ""


FINAL = {"test": False, "default_recipe": False}


def ended_by(reason: str) -> Driver:
    """A search of at most 6 runs that has ended for that reason, after its root."""
    limits: dict[str, Any] = {"target": {"target": 0.4}, "gpu_hours": {"gpu_hours": 0.5}}
    limits |= {"wall_clock": {"wall_clock_hours": 1.0}, "compute": {"compute": 10.0}, "budget": {"runs": 2}}
    search = Driver(make_config(budget={"runs": 6, **limits.get(reason, {})}, final=FINAL))
    search.ready()
    if reason == "user":
        search.post(ev.UserStop(reason="enough"))
    search.now = 5400.0 if reason == "wall_clock" else 1800.0
    search.train(0, score=0.5, gpu_hours=0.6)
    if reason == "wall_clock":
        search.post(*over_budget(search.core, worked_s=3600.0, now=search.now))
    elif reason == "budget":
        search.propose(1)
        search.train(1, score=0.6)
    elif reason == "compute":
        search.post(ev.BudgetReached(kind="compute", used=10.0, limit=10.0))
    search.post(ev.OutcomeWritten())
    assert search.core.finished is not None and search.core.finished.reason == reason
    return search


@pytest.mark.parametrize("reason", ["budget", "target", "gpu_hours", "wall_clock", "compute", "user"])
@pytest.mark.parametrize(
    "asked", [{"slots.count": 2}, {"checkpoints.max_gib": 5.0, "agents.deadline_s": 9.0}]
)
def test_what_a_refused_extension_suggests_extends_the_search(reason: str, asked: dict[str, Any]) -> None:
    search = ended_by(reason)
    problem = extension_problem(search.core, asked)
    assert problem is not None
    suggested = read_settings(shlex.split(problem.split("such as ")[1].split(", together")[0]))
    for changes in (suggested, {**asked, **suggested}):
        assert extension_problem(search.core, changes) is None
        assert with_changes(search.core.config, changes) != search.core.config
    said = str(refusal(search.core, ev.HintGiven(text="x")))
    command = shlex.split(said.split("`")[1])
    assert command[:3] == ["llmzero", "resume", str(ROOT)]
    assert extension_problem(search.core, read_settings(command[3:])) is None
    extended(search, **{key.removeprefix("budget."): value for key, value in suggested.items()})
    assert (search.core.end_reason, search.core.ending) == (None, None)
    assert any(run.active for run in search.core.runs.values())


def test_a_search_whose_nodes_are_all_closed_cannot_be_extended() -> None:
    rules = {"max_evolve_children": 1, "max_debug_depth": 1, "max_debug_children": 1}
    search = Driver(
        make_config(budget={"runs": 9}, search=rules, final={"test": False, "default_recipe": False})
    )
    search.ready()
    while search.core.end_reason is None:
        node = len(search.core.search.nodes) - 1
        if node > 0:
            search.propose(node)
        search.start(node)
        search.fail(node)
    search.post(ev.OutcomeWritten())
    assert search.core.finished is not None and search.core.finished.reason == "exhausted"
    problem = extension_problem(search.core, {"budget.runs": 99})
    assert problem is not None and "no node can get another child" in problem
    assert "Higher limits" not in problem and "Start a search of another name" in problem
    assert refusal(search.core, ev.HintGiven(text="x")) == "the search has ended."


def test_a_search_that_is_at_work_is_not_extended() -> None:
    search = Driver()
    assert "has not ended" in str(refusal(search.core, ev.SearchExtended(changes={"budget.runs": 9})))


def test_a_run_that_the_end_cancelled_is_trained_when_the_search_is_extended() -> None:
    final = {"test": False, "default_recipe": False}
    search = Driver(make_config(budget={"runs": 6, "wall_clock_hours": 1.0}, final=final))
    search.ready()
    search.train(0, score=0.5)
    search.post(*over_budget(search.core, worked_s=3600.0, now=0.0))
    assert search.core.runs[1].status == "cancelled"
    search.propose(1)  # the agent answers after all
    search.post(ev.OutcomeWritten())
    assert search.core.finished is not None
    extended(search, wall_clock_hours=2.0)
    command = search.only(cmd.RunPhase)
    assert (command.spec.node, command.slot) == (1, 0)
    search.train(1, score=0.6)
    assert search.core.runs[2].stage == "proposing"
    (again,) = over_budget(search.core, worked_s=7200.0, now=0.0)
    search.post(again)
    assert search.core.ending == "wall_clock"


def test_an_end_that_is_revoked_in_time_trains_what_it_cancelled() -> None:
    search = Driver(make_config(budget={"runs": 6, "wall_clock_hours": 1.0}, slots={"count": 2}))
    search.ready(0, 1)
    search.train(0, score=0.5)
    search.propose(1)
    search.start(1)
    search.post(*over_budget(search.core, worked_s=3600.0, now=0.0))
    assert search.core.runs[2].status == "cancelled"
    search.post(ev.SettingsChanged(changes={"budget.wall_clock_hours": 2.0}, before={}))
    assert [command.node for command in search.core.outstanding() if isinstance(command, cmd.Propose)] == [2]
    search.finish(1, score=0.6)
    search.propose(2)
    search.train(2, score=0.6)
    assert search.core.search.running == (3, 4)


def test_a_limit_raised_during_the_final_evaluation_extends_the_search_after_it() -> None:
    search = Driver(make_config(budget={"runs": 2}, final={"default_recipe": False}))
    search.ready()
    trained(search, SCORES[:2])
    assert search.only(cmd.Evaluate).what == "base"
    search.post(ev.SettingsChanged(changes={"budget.runs": 3}, before={"budget.runs": 2}))
    search.post(ev.SettingsChanged(changes={"slots.timeout_s": 9.0}, before={}))
    search.post(make_scored("base"), make_scored("best"), ev.OutcomeWritten())
    assert (search.core.stage, search.core.n_extensions) == ("searching", 1)
    assert [event for event in search.journal if isinstance(event, ev.SearchFinished)] == []
    trained(search, (0.9,), first=2)
    assert measured(search) == ["best"]


def test_a_stop_during_the_final_evaluation_ends_a_search_that_was_to_go_on() -> None:
    search = Driver(make_config(budget={"runs": 2}, final={"default_recipe": False}))
    search.ready()
    trained(search, SCORES[:2])
    search.post(ev.SettingsChanged(changes={"budget.runs": 3}, before={"budget.runs": 2}))
    search.post(ev.UserStop(reason="enough"), ev.OutcomeWritten())
    assert search.core.finished is not None


def test_the_hours_of_every_default_recipe_are_counted() -> None:
    search = Driver(make_config(budget={"runs": 2}, final={"test": False}))
    search.ready()
    search.train(0, score=0.5, gpu_hours=1.0)
    search.propose(1)
    search.train(1, score=0.4, gpu_hours=1.0)
    search.train(REFERENCE, gpu_hours=0.5)
    search.post(ev.OutcomeWritten())
    extended(search, runs=3)
    search.propose(2, make_proposal(resume=(0, 20)))
    search.train(2, score=0.6, gpu_hours=1.0)
    search.train(REFERENCE, gpu_hours=0.75)
    assert isinstance(search.core.runs[REFERENCE].outcome, PhaseResult)
    assert (search.core.gpu_hours, search.core.reference_gpu_hours) == (3.0, 1.25)


def test_another_default_recipe_is_measured_once_a_search_has_ended_and_nothing_is_searched() -> None:
    search = finished(3)
    nodes = dict(search.core.search.nodes)
    change = ev.SearchExtended(
        changes={"final.default_recipe": True}, before={"final.default_recipe": "compute"}
    )
    assert refusal(search.core, ev.SearchExtended(changes={"final.default_recipe": "no"})) is not None
    assert refusal(search.core, change) is None
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2), change)
    search.ready()
    assert (search.core.end_reason, search.core.finished) == ("budget", None)
    assert measured(search) == []  # by steps both times: there is nothing new
    off = ev.SearchExtended(changes={"final.default_recipe": False}, before={})
    search.post(ev.CoordinatorStarted(epoch=3, host="here", pid=2), off)
    search.ready()
    assert measured(search) == []
    assert set(search.core.final.jobs) == {"base", "best"}
    assert search.core.search.nodes == nodes
    assert replay(search.journal, ROOT).outstanding() == search.core.outstanding()
    extended(search, runs=4)
    assert search.core.end_reason is None


def test_what_a_stop_cancelled_is_measured_when_the_search_is_resumed() -> None:
    search = Driver(make_config(budget={"runs": 2}))
    search.ready()
    trained(search, SCORES[:2])
    search.train(REFERENCE, score=0.55)
    search.post(make_scored("base"), ev.UserStop(reason="enough"), ev.OutcomeWritten())
    assert search.core.finished is not None
    assert search.core.final.dropped
    same = {"final.test": True}
    search.post(
        ev.CoordinatorStarted(epoch=2, host="here", pid=2), ev.SearchExtended(changes=same, before=same)
    )
    search.ready()
    assert measured(search) == ["best", "reference"]
    assert not search.core.final.dropped
    assert search.core.runs[REFERENCE].attempt == 0


def test_every_phase_is_tested_once_a_search_has_ended_and_what_was_scored_is_not_scored_again() -> None:
    search = finished(3)
    change = ev.SearchExtended(changes={"final.test": "all"}, before={"final.test": True})
    assert refusal(search.core, ev.SearchExtended(changes={"final.test": "some"})) is not None
    assert refusal(search.core, change) is None
    search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=2), change)
    search.ready()
    best = search.core.final.winner
    others = [f"node-{node}" for node in range(3) if node != best]
    assert sorted(measured(search)) == others
    jobs = search.core.final.jobs
    assert jobs["base"].score is not None and jobs["best"].score is not None
    assert search.core.end_reason == "budget" and len(search.core.search.nodes) == 3


def test_what_is_compared_is_not_changed_while_it_is_measured() -> None:
    search = Driver(make_config(budget={"runs": 2}))
    change = ev.SettingsChanged(changes={"final.default_recipe": "whole"}, before={})
    assert refusal(search.core, change) is None
    search.ready()
    trained(search, SCORES[:2])
    assert "once it has ended" in str(refusal(search.core, change))


def test_a_search_without_a_score_has_nothing_to_compare() -> None:
    search = Driver(make_config(budget={"runs": 2}, final={"test": False, "default_recipe": False}))
    search.ready()
    for node in range(2):
        if node:
            search.propose(node)
        search.start(node)
        search.fail(node)
    search.post(ev.OutcomeWritten())
    problem = extension_problem(search.core, {"final.default_recipe": "compute"})
    assert problem == "no phase has a score, so there is nothing to measure."
