"""What people see of a search: a line per event, a tree, an outcome."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rich.console import Console

import llmzero_ray
from llmzero_ray.cli.event_text import event_line
from llmzero_ray.cli.main import main
from llmzero_ray.cli.terminal import Display
from llmzero_ray.cli.view import live_view, outcome_lines
from llmzero_ray.config import parse_config
from llmzero_ray.coordinator import apply_recorded, time_left
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters.compute import amount, tokens_of
from llmzero_ray.journal import Journal
from llmzero_ray.records import ComputeLimit, Event, MetricPoint, Saving, StopDecision, TokenCost
from llmzero_ray.records import events as ev
from llmzero_ray.records.metrics import LENGTH
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import MetricWriter
from llmzero_ray.storage.presence import SearchLock, being_started
from tests.builders import Driver, make_config, make_proposal, make_scored


def written(storage: SearchStorage, search: Driver) -> Follower:
    journal = Journal(storage.paths.journal)
    for number, event in enumerate(search.journal):
        journal.append(event, now=1000.0 + 10 * number)
    return Follower.of(storage)


def shown(follower: Follower) -> str:
    console = Console(file=StringIO(), width=200, force_terminal=False)
    console.print(live_view(follower, now=2000.0))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.fixture
def storage(tmp_path: Path) -> SearchStorage:
    return SearchStorage(tmp_path / "runs", "demo")


def half_way() -> Driver:
    """The root has .5, node 1 has .7, node 2 has failed, node 3 is training."""
    search = Driver(make_config(budget={"runs": 8}))
    search.ready()
    search.train(0, score=0.5)
    search.propose(1, make_proposal(resume=(0, 10)))
    search.train(1, score=0.7)
    search.propose(2, make_proposal(resume=(1, 20), lr=9e-4, temperature=1.2))
    search.start(2)
    search.fail(2)
    search.propose(3)
    search.start(3)
    return search


def test_the_tree_shows_every_run_with_its_score_its_changes_and_how_it_ended(storage: SearchStorage) -> None:
    text = shown(written(storage, half_way()))
    assert "demo  searching  run 4 of 8  best 0.7000 (node 1)" in text
    assert "✓ 0 root  0.5000@20  completed  the root's configuration" in text
    assert "✓ 1 evolve  0.7000@30  completed  from 0@10: lr 0.001 → 0.0005" in text
    assert (
        "✗ 2 evolve  failed (engine): something broke  from 1@20: lr 0.0005 → 0.0009, temperature 1 → 1.2"
        in text
    )
    assert "▶ 3" in text


def reported(
    storage: SearchStorage, node: int, scores: Mapping[int, float | None], metrics: Mapping[str, float]
) -> None:
    """Metric points of a node: step -> validation, each with the same metrics."""
    with MetricWriter(storage, node, 0) as writer:
        for step, score in scores.items():
            at = {"step": step, "global_step": step, "wall_s": 1.0}
            writer.write(MetricPoint(node=node, attempt=0, metrics=dict(metrics), val_score=score, **at))


def test_a_training_phase_shows_its_step_its_reward_and_its_best_validation(storage: SearchStorage) -> None:
    follower = written(storage, half_way())
    reported(storage, 3, {5: None, 10: 0.61, 11: None}, {"critic/score/mean": 0.44})
    text = shown(follower)
    assert "node 3 in slot 0" in text
    assert "step 11/20" in text
    assert "reward 0.440" in text
    assert "validation 0.6100" in text


@pytest.mark.parametrize("counted", [0.0, 0.5])
def test_phases_that_count_no_gpu_hours_are_shown_without(storage: SearchStorage, counted: float) -> None:
    search = Driver(make_config(budget={"runs": 8}))
    search.ready()
    search.train(0, score=0.5, gpu_hours=counted)
    text = shown(written(storage, search))
    assert ("0.50 GPU hours" in text) == ("GPU hours" in text) == (counted > 0)


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (0.0, "check the answers' format, the reward, and the response cap"),
        (1.0, "nothing is left to learn"),
        (0.3, ""),
    ],
)
def test_a_base_model_from_which_nothing_can_be_learnt_is_told_from_its_validation_on(
    storage: SearchStorage, score: float, said: str
) -> None:
    search = Driver(make_config(budget={"runs": 8}))
    search.ready()
    search.start(0)
    follower = written(storage, search)
    lines = Console(file=StringIO(), width=200)
    display = Display(follower, lines)
    display.show()
    reported(storage, 0, {0: score}, {})
    display.show()
    assert said in shown(follower)
    reported(storage, 0, {0: score, 1: None, 2: None}, {})
    display.show()
    assert said in shown(follower)
    assert ("the base model is" in shown(follower)) == bool(said)
    assert isinstance(lines.file, StringIO)
    assert lines.file.getvalue().count("the base model is") == bool(said)  # once in a log


def test_a_search_at_work_shows_shares_of_its_limits_and_about_how_long_it_takes(
    storage: SearchStorage,
) -> None:
    follower = written(storage, half_way())
    core = follower.core
    text = shown(follower)
    assert "budget: runs 4 of 8 (50%)" in text
    ended = [run.outcome.wall_s for run in core.runs.values() if run.outcome is not None]
    started = core.runs[3].started_at
    assert started is not None
    seconds, kind = time_left(core, worked_s=100.0, now=started)
    assert kind == "runs"
    assert seconds == pytest.approx(5 * median(ended))  # four runs to begin, and the whole of the one begun
    core.runs[3].started_at = None
    assert time_left(core, worked_s=100.0, now=started)[0] == seconds  # also while it waits for its start
    hour = core.config.budget.model_copy(update={"wall_clock_hours": 0.1})
    core.config = core.config.model_copy(update={"budget": hour})
    assert time_left(core, worked_s=350.0, now=started) == (pytest.approx(10.0), "wall_clock")


def test_a_phase_that_ends_by_its_compute_shows_about_how_long_it_will_be(storage: SearchStorage) -> None:
    follower = written(storage, half_way())
    run = follower.core.runs[3]
    assert run.spec is not None
    limit = ComputeLimit(amount=640.0, cost=TokenCost())
    run.spec = dataclasses.replace(run.spec, compute=limit)
    assert "starting" in shown(follower)
    reported(storage, 3, {1: None, 2: None}, {LENGTH: 1.0})
    tokens = tokens_of(run.spec.hyperparameters, {LENGTH: 1.0})
    assert f"step 2 of about {round(640 / amount(tokens, limit.cost))}" in shown(follower)


def test_a_phase_that_ends_before_its_compute_does_shows_its_own_length(storage: SearchStorage) -> None:
    follower = written(storage, half_way())
    run = follower.core.runs[3]
    assert run.spec is not None
    run.spec = dataclasses.replace(run.spec, compute=ComputeLimit(amount=1e9, cost=TokenCost()))
    reported(storage, 3, {1: None, 2: None}, {LENGTH: 1.0})
    assert f"step 2/{run.spec.n_steps}" in shown(follower)


@pytest.mark.parametrize(
    ("cost", "unit"), [({}, "tokens"), ({"token_cost": {"rollout": 2e-4, "trained": 1e-4}}, "seconds")]
)
def test_the_unit_of_compute_is_that_of_the_cost_of_a_token(
    storage: SearchStorage, cost: dict[str, Any], unit: str
) -> None:
    search = Driver(make_config(budget={"runs": 8, "compute": 5000.0, **cost}))
    search.ready()
    search.train(0, score=0.5)
    follower = written(storage, search)
    console = Console(file=StringIO(), width=200)
    console.print(live_view(follower, now=2000.0, stage="searching"))
    assert f"{unit} of compute 0 of 5000" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("agents", "warned"), [({}, True), ({"backend": "own:agents"}, False), ({"proposer": "own:one"}, False)]
)
def test_who_brings_agents_of_their_own_is_not_told_that_they_read_no_hints(
    storage: SearchStorage, capsys: pytest.CaptureFixture[str], agents: dict[str, str], warned: bool
) -> None:
    search = Driver(make_config(agents=agents))
    search.ready()
    written(storage, search)
    assert main(["hint", str(storage.paths.root), "try a higher rate"]) == 0
    assert ("only a language model reads hints" in capsys.readouterr().out) == warned


def journal_cut_short(storage: SearchStorage) -> None:
    """A search whose journal ends in the middle of node 3's phase, three hours ago."""
    journal = Journal(storage.paths.journal)
    events = half_way().journal
    for number, event in enumerate(events):
        journal.append(event, now=time.time() - 3 * 3600 + number - len(events))
    storage.write_config(make_config(name="demo", budget={"runs": 8}))


def test_a_search_that_ended_without_a_word_is_interrupted_and_nothing_of_it_trains(
    storage: SearchStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    journal_cut_short(storage)
    root = str(storage.paths.root)
    assert main(["status", root]) == 0
    printed = capsys.readouterr().out
    assert "demo  interrupted  run 4 of 8" in printed
    assert "node 3 was interrupted" in printed
    assert "running" not in printed.replace("it is not running", "")
    assert f"it is not running (last sign of life 3.0 h ago): `llmzero resume {root}` continues it" in printed
    moved = storage.paths.root.parent / "my runs" / "demo"
    shutil.copytree(root, moved)
    assert main(["status", str(moved)]) == 0
    assert f"`llmzero resume '{moved}'` continues it" in capsys.readouterr().out
    assert main(["status", root, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stage"], found["training"]) == ("interrupted", [])
    assert [node["status"] for node in found["nodes"] if node["node"] == 3] == ["interrupted"]
    assert main(["list", "--storage", str(storage.paths.root.parent)]) == 0
    printed = capsys.readouterr().out
    assert "interrupted" in printed
    assert "last 3.0 h ago" in printed
    assert main(["status", root, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stage"], found["training"], found["at_work"]) == ("interrupted", [], None)
    assert time.time() - found["last_alive"] == pytest.approx(3 * 3600, abs=60)
    assert llmzero_ray.open(root).stage == "interrupted"


def test_a_search_at_work_is_searching(storage: SearchStorage, capsys: pytest.CaptureFixture[str]) -> None:
    journal_cut_short(storage)
    lock = SearchLock(storage.paths.root)
    lock.acquire(private_head=True)
    try:
        assert main(["status", str(storage.paths.root), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["stage"], found["training"]) == ("searching", [3])
        assert llmzero_ray.open(storage.paths.root).stage == "searching"
    finally:
        lock.release()


def test_the_journal_alone_says_what_it_ends_with(
    storage: SearchStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    journal_cut_short(storage)
    assert main(["status", str(storage.paths.root), "--offline"]) == 0
    assert "demo  searching" in capsys.readouterr().out


@pytest.mark.parametrize("given", [["runs/demo"], ["demo"], ["runs/demo/"], ["./runs/demo"]])
def test_a_search_that_is_being_started_is_told_with_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with being_started(tmp_path / "runs" / "demo", lambda _: None) as say:
        say("preparing the task: warm start (5%)")
        assert main(["status", *given]) == 0
        printed = capsys.readouterr().out
        assert f"{tmp_path}/runs/demo: the search has not begun: process {os.getpid()} on " in printed
        assert "preparing the task: warm start (5%)" in printed
        assert main(["status", *given, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["stage"] == "starting"
        assert main(["show", *given, "0"]) == 2
        assert "the search has not begun" in capsys.readouterr().err
        assert main(["list"]) == 0
        assert "starting" in capsys.readouterr().out
    assert main(["status", *given]) == 2
    assert f"{tmp_path}/runs/demo: there is no search here" in capsys.readouterr().err


def test_a_search_that_never_began_is_called_that_with_its_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], storage: SearchStorage
) -> None:
    storage.write_config(make_config(name="demo"))
    then = time.time() - 7200
    os.utime(storage.paths.config, (then, then))
    root = storage.paths.root
    assert main(["status", str(root)]) == 0
    told = f"{root}: the search never began: its configuration was written 2.0 h ago and nothing after it"
    assert f"{told}. `llmzero resume {root}` starts it." in capsys.readouterr().out
    assert main(["list", "--storage", str(root.parent)]) == 0
    assert "never begun" in capsys.readouterr().out


def test_a_path_to_nothing_is_named_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for given, place in (
        ("runs/demo", "runs/demo"),
        ("demo", "runs/demo"),
        ("other/x", "other/x"),
        (f"{tmp_path}/away/y", "away/y"),
    ):
        assert main(["status", given]) == 2
        assert f"llmzero: {tmp_path}/{place}: there is no search here" in capsys.readouterr().err


def test_a_search_that_has_not_begun_is_waited_for(storage: SearchStorage) -> None:
    assert "waiting for the coordinator" in shown(Follower(storage))


def test_a_directory_without_a_search_is_named(storage: SearchStorage) -> None:
    with pytest.raises(ConfigError, match="there is no search here"):
        Follower.of(storage)


def test_the_outcome_names_the_strategy_the_test_scores_and_the_files(storage: SearchStorage) -> None:
    search = Driver()
    search.search_to_end([0.5, 0.6, 0.4, 0.3])
    search.train(-1, score=0.6)
    search.post(make_scored("base", 0.25), make_scored("best", 0.75))
    search.post(ev.FinalFailed(what="reference", reason="lost twice"), ev.OutcomeWritten(problem="no plots"))
    follower = written(storage, search)
    storage.paths.report.write_text("")
    storage.paths.page.write_text("")
    text = "\n".join(outcome_lines(follower))
    assert "search demo has ended (budget) after 4 runs" in text
    assert "best: node 1, validation 0.6000; strategy: node 1 to global step 20" in text
    assert "test  best strategy   0.7500 ± 0.0200 (512 items)" in text
    assert "test  default recipe  not measured: lost twice" in text
    assert "could not be written in full: no plots" in text
    assert f"report.md:      {storage.paths.report}" in text
    assert f"report.html:    {storage.paths.root}/report.html" in text
    assert "strategy.yaml" not in text


def test_a_search_that_found_nothing_says_so(storage: SearchStorage) -> None:
    search = Driver(make_config(budget={"runs": 2}, final={"test": False}))
    search.ready()
    search.fail(0)
    search.propose(1)
    search.fail(1)
    search.post(ev.OutcomeWritten())
    text = "\n".join(outcome_lines(written(storage, search)))
    assert "no phase has a validation score, so there is no strategy" in text


STOP = StopDecision(stop=True, reason="too low", rule="early_stopper")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (ev.SlotReady(slot=0), None),
        (ev.CoordinatorStarted(epoch=1, host="h", pid=1), None),
        (ev.CoordinatorStarted(epoch=2, host="h", pid=1), "a new coordinator runs (number 2)"),
        (
            ev.ProposalRefused(node=1, message="lr too high", tries=1),
            "node=1 proposal refused (1): lr too high",
        ),
        (ev.ProposalFailed(node=1, reason="away"), "node=1 no proposal: away"),
        (
            ev.PhaseStarted(node=0, slot=0, phase_attempt=1),
            "node=0 training in slot 0 (attempt 1)",
        ),
        (
            ev.RunnerLost(slot=0, node=0, phase_attempt=0, reason="killed"),
            "slot 0: runner lost while it trained node=0: killed",
        ),
        (
            ev.VerdictPosted(node=0, phase_attempt=0, step=9, decision=STOP),
            "node=0 verdict at global step 9: STOP, early_stopper: too low",
        ),
        (
            ev.VerdictPosted(
                node=0, phase_attempt=0, step=9, decision=STOP, saves=Saving(steps=11, share=0.05)
            ),
            "node=0 verdict at global step 9: STOP, early_stopper: too low "
            "(a stop saves 11 steps, 5.0% of the budget)",
        ),
        (ev.BudgetReached(kind="wall_clock", used=2.0, limit=2.0), "budget reached: wall_clock 2.00 of 2"),
        (ev.UserStop(reason="enough"), "stopped by a person: enough"),
        (ev.SearchPaused(reason="Ctrl-C"), "paused: Ctrl-C"),
        (ev.SearchPaused(reason=""), "paused"),
        (ev.SearchAborted(reason="disk full", exit_code=3), "aborted: disk full"),
        (ev.FinalFailed(what="base", reason="no"), "test: base model not measured: no"),
        (ev.OutcomeWritten(problem=""), None),
    ],
)
def test_events_are_described_in_one_line_or_not_at_all(event: Event, line: str | None) -> None:
    search = Driver()
    search.ready()
    assert event_line(search.core, event) == line


def test_every_event_of_a_search_can_be_described() -> None:
    search = half_way()
    lines = [event_line(search.core, event) for event in search.journal]
    texts = [line for line in lines if line is not None]
    assert (
        "node=1 planned: 20 steps from node 0 step 10, lr 0.001 → 0.0005; plateau: flat since step 10"
        in texts
    )
    assert (
        "node=0 completed: validation 0.5000 at global step 20 (from 0.2000), 20 steps, 60 s (warm), n_steps"
        in texts
    )
    assert "node=2 failed (engine): something broke" in texts


def test_a_phase_with_many_changes_shows_the_first_ones() -> None:
    search = Driver(parse_config(make_config().to_json()))
    search.ready()
    search.train(0)
    search.propose(
        1,
        make_proposal(
            lr=2e-3,
            temperature=1.1,
            n=2,
            weight_decay=0.1,
            grad_clip=0.5,
            entropy_coeff=0.01,
            kl_loss_coef=0.1,
        ),
    )
    planned = next(e for e in search.journal if isinstance(e, ev.PhasePlanned) and e.node == 1)
    line = event_line(search.core, planned)
    assert line is not None
    assert "and 2 more" in line


def test_a_reading_that_ctrl_c_ends_loses_no_event(
    storage: SearchStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(storage, half_way())
    follower, n_applied = Follower(storage), 0

    def interrupted(*arguments: object) -> None:
        nonlocal n_applied
        n_applied += 1
        if n_applied == 5:
            raise KeyboardInterrupt
        apply_recorded(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("llmzero_ray.coordinator.follow.apply_recorded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        follower.poll()
    follower.poll()
    assert follower.events == whole.events
    assert shown(follower) == shown(whole)
