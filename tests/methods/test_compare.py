"""`llmzero compare`: equal budgets, tables worked out by hand, a refusal for everything that has changed."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ray.util import placement_group_table

from llmzero_ray.cli.main import main
from llmzero_ray.config.yaml_text import validated
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.methods.compare import command, lanes, results
from llmzero_ray.methods.compare.figure import best_so_far
from llmzero_ray.methods.compare.pilot import Pilot, forecast, read_pilot, with_budget
from llmzero_ray.methods.compare.plan import ComparedRun, ComparePlan, configs
from llmzero_ray.methods.compare.results import NEEDS_A_MODEL, RunOutcome, ended, outcome
from llmzero_ray.methods.compare.summary import report
from llmzero_ray.methods.compare.tables import lines
from llmzero_ray.records import TokenCost, TokenCounts
from llmzero_ray.records import events as ev
from llmzero_ray.report.facts import SearchFacts
from tests.builders import make_config
from tests.report.builder import Phase, SearchBuilder
from tests.searches import CHECKOUT, scripted_search
from tests.waiting import wait_until


def write_plan(
    root: Path, task_dir: Path, *, script: Mapping[str, Any] | None = None, **changes: Any
) -> Path:
    """compare.yaml of `default` and `random` on the scripted engine, one task, two seeds."""
    content = scripted_search(root, task_dir, script, budget={"runs": 3})
    (root / "base.yaml").write_text(yaml.safe_dump(content))
    plan = {
        "name": "first",
        "storage": str(root / "runs"),
        "base": str(root / "base.yaml"),
        "tasks": [{"name": "toy", "headroom": 0.1}],
        "methods": [{"name": "default"}, {"name": "random", "set": {"search.n_trials": 3}}],
        "seeds": [1, 2],
    }
    path = root / "compare.yaml"
    path.write_text(yaml.safe_dump({**plan, **changes}))
    return path


def pilot(**changes: Any) -> Pilot:
    """A default recipe of 30 steps that took 100 seconds by its tokens."""
    known: dict[str, Any] = {"compute": 100.0, "cost": TokenCost(rollout=0.5, trained=0.25), "steps": 30}
    return Pilot(**{"hours": 0.1, **known, **changes})


@dataclass(frozen=True)
class Ended:
    """The process of a search that has ended with `code`."""

    code: int

    def wait(self) -> int:
        return self.code


def read(path: Path) -> ComparePlan:
    return validated(ComparePlan, yaml.safe_load(path.read_text()), path.name)


# --- the plan -----------------------------------------------------------------------------------------------


def test_every_method_gets_the_same_steps_and_only_the_tree_search_is_stopped_early(tmp_path: Path) -> None:
    methods = [{"name": name} for name in ("default", "random", "llmzero")]
    plan = read(write_plan(tmp_path, tmp_path, methods=methods))
    found = configs(plan, tmp_path)
    assert [run.name for run in found][:3] == ["toy-default-1", "toy-random-1", "toy-llmzero-1"]
    assert {(one.budget.runs, one.phase.n_steps) for one in found.values()} == {(3, 10)}
    assert [one.stopper.enabled for one in found.values()] == [False, False, True] * 2
    assert [one.seed for one in found.values()] == [1] * 3 + [2] * 3
    assert not any(one.final.default_recipe for one in found.values())


@pytest.mark.parametrize(("wanted", "given"), [("all", "all"), (False, True), (True, True)])
def test_every_run_is_tested_and_every_node_where_that_is_wanted(
    tmp_path: Path, wanted: Any, given: Any
) -> None:
    tasks = [{"name": "toy", "headroom": 0.1, "set": {"final.test": wanted}}]
    found = configs(read(write_plan(tmp_path, tmp_path, tasks=tasks)), tmp_path)
    assert {config.final.test for config in found.values()} == {given}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"budget.runs": 4}, r"toy: budget\.runs is 4 for random and 3 for default; all methods of a task"),
        ({"phase.n_steps": 20}, r"phase\.n_steps is 20 for random"),
        ({"root.overrides": {"lr": 0.5}}, r"root is \{'lr': 0\.5\} for random"),
        ({"budget.gpu_hours": 1.0}, r"budget\.gpu_hours is 1\.0 for random and None"),
    ],
)
def test_unequal_budgets_are_refused(tmp_path: Path, setting: dict[str, Any], message: str) -> None:
    methods = [{"name": "default"}, {"name": "random", "set": setting}]
    with pytest.raises(ConfigError, match=message):
        configs(read(write_plan(tmp_path, tmp_path, methods=methods)), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": [1, 1]}, r"seeds: 1 stands there twice"),
        ({"methods": [{"name": "pbt"}, {"name": "pbt"}]}, r"methods: pbt stands there twice"),
    ],
)
def test_seeds_and_names_given_twice_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(write_plan(tmp_path, tmp_path, **change))


# --- going on -----------------------------------------------------------------------------------------------


def freeze(path: Path, *, accept_changes: bool = False) -> None:
    """As the command does it before anything is run."""
    plan = read(path)
    found = configs(plan, path.parent / "runs" / "first")
    command._freeze(plan, found, path.parent / "runs" / "first", accept_changes=accept_changes)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seeds": [1, 2, 3]}, "seeds"),
        ({"tasks": [{"name": "toy", "headroom": 0.1}, {"name": "other", "headroom": 0.1}]}, "tasks"),
        ({"methods": [{"name": "default"}, {"name": "pbt"}]}, "methods"),
        ({"tasks": [{"name": "toy", "headroom": 0.1, "set": {"phase.n_steps": 20}}]}, "tasks"),
    ],
)
def test_a_comparison_with_other_seeds_tasks_or_methods_is_refused_unless_told(
    tmp_path: Path, task_dir: Path, change: dict[str, Any], named: str
) -> None:
    freeze(write_plan(tmp_path, task_dir))
    freeze(write_plan(tmp_path, task_dir, max_hours=1.0, parallel=2))
    other = write_plan(tmp_path, task_dir, **change)
    with pytest.raises(ConfigError, match=rf"holds this comparison with other {named}.* --accept-changes"):
        freeze(other)
    freeze(other, accept_changes=True)
    freeze(other)


def test_a_comparison_with_other_code_rows_or_settings_is_refused(
    tmp_path: Path, task_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "task"
    shutil.copytree(task_dir, own)
    path = write_plan(tmp_path, own)
    freeze(path)
    base = yaml.safe_load((tmp_path / "base.yaml").read_text())
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({**base, "eval": {"max_response_length": 24}}))
    with pytest.raises(ConfigError, match=r"with other settings of toy \(search\.yaml\): "):
        freeze(path)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    freeze(path)
    rows = (own / "train.parquet").read_bytes()
    (own / "train.parquet").write_bytes((own / "val.parquet").read_bytes())
    with pytest.raises(ConfigError, match=r"with other rows of toy: "):
        freeze(path)
    (own / "train.parquet").write_bytes(rows)
    monkeypatch.setattr(command, "code_digest", lambda: "another")
    with pytest.raises(ConfigError, match=r"with other code: "):
        freeze(path)


@pytest.mark.parametrize("damaged", ["{}", '{"plan": {', "[]", '{"plan": {}, "code": ""}'])
def test_a_comparison_without_a_record_of_its_runs_is_refused(
    tmp_path: Path, task_dir: Path, damaged: str
) -> None:
    path = write_plan(tmp_path, task_dir)
    freeze(path)
    (record,) = tmp_path.rglob("compare.json")
    record.write_text(damaged)
    with pytest.raises(ConfigError, match=r"does not say what its runs were made with.* --accept-changes"):
        freeze(path)
    freeze(path, accept_changes=True)
    freeze(path)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"room": 0.1}, "unknown key 'room' in tasks.0; did you mean 'headroom'? Known keys: name, "),
        ({"headroom": 5}, "tasks.0.headroom is 5; must be a number > -1 and < 1 or null."),
    ],
)
def test_a_wrong_key_of_a_task_is_told_with_the_keys_of_a_task(
    tmp_path: Path, task_dir: Path, task: dict[str, Any], said: str
) -> None:
    path = write_plan(tmp_path, task_dir, tasks=[{"name": "toy", **task}])
    with pytest.raises(ConfigError) as error:
        freeze(path)
    assert str(error.value).startswith(f"{path.name}: {said}") and "\n" not in str(error.value)


@pytest.mark.parametrize(("package", "extra"), [("optuna", "optuna"), ("matplotlib", "report")])
def test_packages_that_are_missing_are_named_with_their_extra_before_anything_is_run(
    tmp_path: Path,
    task_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: str,
    extra: str,
) -> None:
    path = write_plan(tmp_path, task_dir, methods=[{"name": "default"}, {"name": "tpe"}])
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    assert main(["compare", str(path)]) == 2
    assert f"pip install 'llmzero-ray[{extra}]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_plan_that_a_method_cannot_train_is_refused_before_anything_is_run(
    tmp_path: Path, task_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = [{"name": "default"}, {"name": "grid", "set": {"search.grid": "paper_ssmr"}}]
    assert main(["compare", str(write_plan(tmp_path, task_dir, methods=methods))]) == 2
    assert "the grid has 16 cells; set search.n_trials to 16" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_forecast_above_the_limit_ends_the_comparison(tmp_path: Path) -> None:
    """Two methods, two seeds and the pilot: five runs of .3 h on one slot."""
    plan = read(write_plan(tmp_path, tmp_path, max_hours=1.0))
    found = command._Comparison(plan, tmp_path)
    with pytest.raises(ConfigError, match=r"would take 1\.50 h by their pilots; max_hours is 1"):
        found._check_forecast({"toy": pilot(hours=0.3)})
    side_by_side = plan.model_copy(update={"parallel": 2})
    command._Comparison(side_by_side, tmp_path)._check_forecast({"toy": pilot(hours=0.3)})


@pytest.mark.parametrize("code", [3, 4, 130, -9])
def test_what_is_no_fault_of_a_method_ends_the_comparison(tmp_path: Path, code: int) -> None:
    with pytest.raises(LlmzeroError, match=rf"toy-pbt-1 ended with exit code {code}, see .*Run the same"):
        lanes._check_code(code, ComparedRun("toy", "pbt", 1), tmp_path)
    lanes._check_code(5, ComparedRun("toy", "pbt", 1), tmp_path)


def test_a_run_that_failed_before_is_not_run_again(tmp_path: Path) -> None:
    run = ComparedRun("toy", "pbt", 1)
    assert ended(tmp_path / run.name) is None
    (tmp_path / "toy-pbt-1.code").write_text("5")
    assert ended(tmp_path / run.name) == RunOutcome(problem="the search ended with exit code 5")


def test_a_search_that_is_not_there_or_has_not_ended_has_no_outcome(tmp_path: Path) -> None:
    assert outcome(tmp_path / "nothing") is None


# --- tables -------------------------------------------------------------------------------------------------


def test_lines_are_as_worked_out_by_hand() -> None:
    scores = {
        "default": {"a": [0.5, 0.7], "b": [0.2, 0.2]},
        "tree": {"a": [0.7, 0.7], "b": [0.1, 0.4]},
    }
    default, tree = lines(scores)
    assert (default.mean, tree.mean) == (pytest.approx(0.4), pytest.approx(0.475))
    assert (default.rank, tree.rank) == (1.625, 1.375)  # pairs: lost, tied, won, lost
    assert tree.difference == pytest.approx(0.075)
    # Differences .2 and 0, -.1 and .2: variances .02 and .045 over 2, root over 2 tasks.
    assert tree.difference_error == pytest.approx(math.sqrt(0.01 + 0.0225) / 2)
    assert tree.improvement == pytest.approx((0.75 + 0.5) / 2)
    assert (tree.losses, tree.pairs) == (1, 4)
    assert tree.interval is not None
    assert 0.35 <= tree.interval[0] < tree.mean < tree.interval[1] <= 0.55
    assert (default.difference, default.losses, default.improvement) == (0.0, 0, 0.5)


def test_one_seed_has_no_interval_and_equal_ones_an_empty_one() -> None:
    (alone,) = lines({"default": {"a": [0.5]}})
    assert (alone.interval, alone.difference_error) == (None, None)
    (same,) = lines({"default": {"a": [0.5, 0.5]}})
    assert same.interval == (0.5, 0.5)


def test_a_failed_run_counts_with_the_base_model_and_is_named(tmp_path: Path) -> None:
    plan = read(write_plan(tmp_path, tmp_path, seeds=[1]))
    tokens = TokenCounts(rollout=100.0, trained=200.0)
    good = RunOutcome(test=0.6, base=0.25, steps=30, tokens=tokens, compute=100.0, hours=0.1)
    text = report(
        plan,
        {
            ComparedRun("toy", "default", 1): good,
            ComparedRun("toy", "random", 1): RunOutcome(problem="the search ended with exit code 5"),
        },
        {"toy": pilot()},
    )
    assert (
        "| random | 0.2500 | one seed | 2.00 | -0.3500 | 0.00 | 1 of 1 | 1 | 0.00 | 0.00 | 0 | 0 | 0.000 |"
        in text
    )
    assert "| 0 of 1 | 0 | 1.00 | 0.00 | 30 | 300 | 0.100 |" in text
    assert "| toy | +0.100 | 0.2500 | 0.6000 | 0.2500 | 100 engine seconds, 30 steps of the default |" in text
    assert "- toy-random-1: the search ended with exit code 5" in text


# --- equal compute ------------------------------------------------------------------------------------------


def test_every_method_gets_the_compute_of_the_pilot_and_room_for_more_steps(tmp_path: Path) -> None:
    """30 steps of the default recipe are the budget; methods whose steps cost less take more of them."""
    methods = [{"name": "random"}, {"name": "llmzero"}]
    found = configs(read(write_plan(tmp_path, tmp_path, methods=methods, seeds=[1])), tmp_path)
    random, tree = (with_budget(one, pilot(), by_compute=True) for one in found.values())
    for one in (random, tree):
        assert (one.budget.compute, one.budget.token_cost.rollout) == (100.0, 0.5)
    assert (random.budget.runs, random.phase.max_steps) == (3, 120)
    assert (tree.budget.runs, tree.phase.max_steps) == (12, 40)
    by_steps = with_budget(next(iter(found.values())), pilot(), by_compute=False)
    assert (by_steps.budget.compute, by_steps.budget.token_cost.trained) == (None, 0.25)


BEST_OF_8 = {"name": "best_of_8", "set": {"search.method": "random", "search.n_trials": 8}, "times": 8}


def test_best_of_eight_gets_eight_times_the_budget_and_a_line_without_a_rank(tmp_path: Path) -> None:
    methods = [{"name": "default"}, {"name": "random"}, BEST_OF_8]
    plan = read(write_plan(tmp_path, tmp_path, methods=methods, seeds=[1]))
    found = configs(plan, tmp_path)
    eight = with_budget(found[ComparedRun("toy", "best_of_8", 1)], pilot(), by_compute=True, times=8)
    assert (eight.budget.compute, eight.budget.runs, eight.search.n_trials) == (800.0, 24, 8)
    tokens = TokenCounts(rollout=100.0, trained=200.0)
    runs = {
        run: RunOutcome(test=score, base=0.25, tokens=tokens)
        for run, score in zip(found, (0.5, 0.6, 0.9), strict=True)
    }
    text = report(plan, runs, {"toy": pilot()}).splitlines()
    ranks = [row.split("|")[4].strip() for row in text if row.startswith(("| default", "| random", "| best"))]
    assert ranks == ["2.00", "1.00", "–"]
    assert any(row.startswith("| best_of_8, at 8 times the budget | 0.9000 |") for row in text)
    hours = forecast(plan, {"toy": pilot(hours=0.5)}, ["default", "random", "best_of_8"])
    assert hours == pytest.approx(0.5 * (1 + 1 + 8 + 1))


def test_the_first_method_gets_the_budget_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"best_of_8 is the first, .* gets 8 times their budget"):
        read(write_plan(tmp_path, tmp_path, methods=[BEST_OF_8, {"name": "random"}]))


def test_a_method_without_a_language_model_reads_so_and_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    claude = {"search.method": "llmzero", "agents.backend": "claude"}
    methods = [{"name": "default"}, {"name": "skills"}, {"name": "claude", "set": claude}]
    plan = read(write_plan(tmp_path, tmp_path, methods=methods, seeds=[1]))
    found = configs(plan, tmp_path)
    assert [one.stopper.enabled for one in found.values()] == [False, True, True]
    assert command.unmodelled(found) == {"skills", "claude"}
    outcomes = {run: RunOutcome(problem=NEEDS_A_MODEL) for run in found}
    outcomes[ComparedRun("toy", "default", 1)] = RunOutcome(test=0.5, base=0.25)
    text = report(plan, outcomes, {"toy": pilot()})
    assert "| skills | needs a model |" in text
    assert "| claude | needs a model |" in text
    assert "Without a score" not in text
    table = [row for row in text.splitlines() if row.startswith("|")]
    assert len({row.count("|") for row in table[:5]}) == 1
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert command.unmodelled(found) == {"skills"}
    first = read(write_plan(tmp_path, tmp_path, methods=methods[::-1], seeds=[1]))
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ConfigError, match=r"claude is the first, .* needs a language model"):
        command.unmodelled(configs(first, tmp_path))


def test_runs_that_need_a_model_are_left_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written for them, so that the same command runs them once there is one."""
    plan = read(write_plan(tmp_path, tmp_path, methods=[{"name": "default"}, {"name": "skills"}], seeds=[1]))
    found = configs(plan, tmp_path)
    known = RunOutcome(test=0.5, base=0.25, hours=0.1)
    monkeypatch.setattr(command, "ended", lambda path: None if "skills" in path.name else known)
    monkeypatch.setattr(command, "read_pilot", lambda *_: pilot())
    outcomes, _ = command._Comparison(plan, tmp_path, frozenset({"skills"})).run(found)
    assert outcomes[ComparedRun("toy", "skills", 1)].problem == NEEDS_A_MODEL
    assert not list(tmp_path.glob("toy-skills-1*"))


def test_a_lane_stays_with_its_task_and_a_lost_search_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine of a lane is warm for its task; the runs that are left are not begun."""
    plan = read(write_plan(tmp_path, tmp_path, tasks=[{"name": t, "headroom": 0.1} for t in ("a", "b")]))
    order: list[str] = []

    def start(config: Any, path: Path, env: Any) -> Ended:
        order.append(path.stem)
        return Ended(-9 if path.stem == "b-default-1" else 0)

    monkeypatch.setattr(lanes, "_start", start)
    runs = configs(plan, tmp_path)
    with pytest.raises(LlmzeroError, match=r"b-default-1 ended with exit code -9"):
        lanes.run_all(runs, tmp_path, lanes=[{}], ended=lambda run, code: None, say=print)
    assert order == ["a-default-1", "a-random-1", "a-default-2", "a-random-2", "b-default-1"]


def test_an_interrupt_pauses_the_searches_at_work_and_begins_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read(write_plan(tmp_path, tmp_path))
    paused, said = tmp_path / "paused", list[str]()
    obeys = f"""
import pathlib, signal, sys, time
def pause(*_):
    pathlib.Path({str(paused)!r}).touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, pause)
pathlib.Path({str(tmp_path / "begun")!r}).touch()
time.sleep(600)
"""
    started = list[str]()

    def start(config: Any, path: Path, env: Any) -> subprocess.Popen[bytes]:
        started.append(path.stem)
        return subprocess.Popen([sys.executable, "-c", obeys])

    def interrupt() -> None:
        wait_until((tmp_path / "begun").exists)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(lanes, "_start", start)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        lanes.run_all(configs(plan, tmp_path), tmp_path, lanes=[{}], ended=lambda *_: None, say=said.append)
    assert paused.exists() and started == ["toy-default-1"]
    assert said == ["pausing; the same command continues this comparison"]
    assert not list(tmp_path.glob("*.code"))  # it counts as not run


def test_a_second_interrupt_kills_a_search_that_does_not_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, begun = read(write_plan(tmp_path, tmp_path)), tmp_path / "begun"
    deaf = f"""
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path({str(begun)!r}).unlink())
pathlib.Path({str(begun)!r}).touch()
while True:
    time.sleep(1)
"""
    children = list[subprocess.Popen[bytes]]()

    def start(config: Any, path: Path, env: Any) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen([sys.executable, "-c", deaf]))
        return children[-1]

    def interrupt_twice() -> None:
        wait_until(begun.exists)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: not begun.exists())
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(lanes, "_start", start)
    threading.Thread(target=interrupt_twice).start()
    with pytest.raises(KeyboardInterrupt):
        lanes.run_all(configs(plan, tmp_path), tmp_path, lanes=[{}], ended=lambda *_: None, say=print)
    assert [child.returncode for child in children] == [-signal.SIGKILL]


def test_a_search_whose_process_cannot_start_ends_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[str]()

    def start(config: Any, path: Path, env: Any) -> Ended:
        tried.append(path.stem)
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(lanes, "_start", start)
    runs = configs(read(write_plan(tmp_path, tmp_path)), tmp_path)
    with pytest.raises(OSError, match="No space left"):
        lanes.run_all(runs, tmp_path, lanes=[{}], ended=lambda *_: None, say=print)
    assert len(tried) == 1


def test_a_method_that_crashes_fails_alone_and_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on; a failed pilot, without which there is no budget, ends the comparison."""
    plan = read(write_plan(tmp_path, tmp_path, seeds=[1, 2]))
    runs, begun = configs(plan, tmp_path), list[str]()
    crashing = {"toy-random-1"}

    def start(config: Any, path: Path, env: Any) -> Ended:
        begun.append(path.stem)
        return Ended(5 if path.stem in crashing else 0)

    def found(path: Path) -> RunOutcome | None:
        return RunOutcome(test=0.5) if path.name in begun and path.name not in crashing else None

    monkeypatch.setattr(lanes, "_start", start)
    for module in (command, results):
        monkeypatch.setattr(module, "outcome", found)
    monkeypatch.setattr(command, "cluster", lambda config, n, name: nullcontext([{}]))
    monkeypatch.setattr(command, "read_pilot", lambda *_: pilot())
    outcomes, _ = command._Comparison(plan, tmp_path).run(runs)
    failed = [run.name for run, one in outcomes.items() if one.problem]
    assert failed == ["toy-random-1"]
    assert begun == ["toy-pilot-0", "toy-default-1", "toy-random-1", "toy-default-2", "toy-random-2"]
    command._Comparison(plan, tmp_path).run(runs)
    assert len(begun) == 5
    crashing.add("toy-pilot-0")
    with pytest.raises(ConfigError, match=r"the pilot of toy failed: the search ended with exit code 0"):
        command._Comparison(plan, tmp_path).run(runs)


def test_a_pilot_that_fails_on_the_way_gives_the_budget_of_all_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(
        name="toy-pilot-0",
        budget={"runs": 2, "compute": None},
        phase={"n_steps": 10, "max_steps": 20, "test_freq": 5, "save_freq": 5},
        search={"method": "default"},
    )
    failed = SearchBuilder(tmp_path, config=config)
    failed.phases[0] = Phase(val={5: 40}, steps=8, fails="oom")
    outcome = failed.outcome
    counts = TokenCounts(rollout=300, trained=100)
    monkeypatch.setattr(failed, "outcome", lambda *given: replace(outcome(*given), tokens=counts))
    failed.ready().play()
    said: list[str] = []
    for _ in range(2):  # the second time from its file
        found = read_pilot(ComparedRun("toy", "pilot", 0), tmp_path, 0.2, said.append)
        assert (found.compute, found.steps, found.hours) == (1000.0, 20, 0.5)
    (line,) = said
    assert line.startswith("the pilot of toy ended after 8 of 20 steps (oom); the budget is that of 20 steps")


def test_a_curve_keeps_its_last_value_until_the_next_point() -> None:
    curve = [(0.0, 0.2), (10.0, 0.5), (20.0, 0.4)]
    assert best_so_far(curve, np.array([0.0, 9.9, 10.0, 25.0])).tolist() == [0.2, 0.2, 0.5, 0.4]


# --- the command --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_runs_to_its_tables_and_a_second_time_trains_nothing(
    head: str,
    task_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    methods = [{"name": "default"}, {"name": "random", "set": {"search.n_trials": 2}}]
    path = write_plan(tmp_path, task_dir, methods=methods, seeds=[1])
    monkeypatch.setenv("RAY_ADDRESS", head)
    assert main(["compare", str(path)]) == 0
    first = capsys.readouterr().out
    assert "3 of 3: toy-random-1" in first
    assert "forecast from the pilots:" in first
    spent = [row.split("|")[9] for row in first.splitlines() if row.startswith(("| default", "| random"))]
    assert [abs(float(share) - 1) <= 0.15 for share in spent] == [True, True], first
    warm = SearchFacts(tmp_path / "runs" / "first" / "toy-random-1").runs[0].outcome
    assert warm is not None and warm.warm  # the pilot's engine, two searches before
    assert (tmp_path / "runs" / "first" / "anytime.png").stat().st_size > 1000
    groups = [group for group in placement_group_table().values() if "first-lane" in group["name"]]
    assert groups and {group["state"] for group in groups} == {"REMOVED"}  # nothing stays reserved
    assert main(["compare", str(path)]) == 0
    again = capsys.readouterr().out
    assert again[again.index("# first") :] == first[first.index("# first") :]


@pytest.mark.slow
@pytest.mark.long
def test_a_comparison_that_is_paused_or_killed_goes_on_where_it_was(
    task_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a head of its own, two slots side by side; what had ended is not run again. No runner counts as lost
    by a pause."""
    methods = [{"name": "default"}, {"name": "random", "set": {"search.n_trials": 3}}]
    path = write_plan(tmp_path, task_dir, methods=methods, parallel=2, script={"step_s": 0.3})
    found = tmp_path / "runs" / "first"
    command_line = [sys.executable, "-m", "jobs.compare", str(path)]
    first = subprocess.Popen(command_line, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: list(found.glob("toy-pilot-0/nodes/*/spec.yaml")), patience_s=300)
    first.terminate()
    output, _ = first.communicate()
    assert (first.returncode, "pausing; the same command" in output) == (130, True), output
    events = SearchFacts(found / "toy-pilot-0").events
    assert not [event for event in events if isinstance(event, ev.RunnerLost)]
    assert [event.reason for event in events if isinstance(event, ev.SearchPaused)] == ["SIGTERM"]
    first = subprocess.Popen(command_line, cwd=CHECKOUT, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(list(found.glob("toy-*.code"))) >= 2, patience_s=300)
    first.kill()
    first.wait()
    ended = {code.name: code.stat().st_mtime_ns for code in found.glob("toy-*.code")}
    assert 2 <= len(ended) < 5
    done = subprocess.run(command_line, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| random |" in done.stdout and "Without a score" not in done.stdout
    assert {name: (found / name).stat().st_mtime_ns for name in ended} == ended
    assert all(outcome(found / run.name) for run in configs(read(path), found))
