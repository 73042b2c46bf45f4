"""`llmzero compare`: equal budgets, tables worked out by hand, a refusal for everything that has changed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from llmzero_ray.cli.compare import command
from llmzero_ray.cli.compare.plan import ComparedRun, ComparePlan, configs
from llmzero_ray.cli.compare.results import RunOutcome, outcome
from llmzero_ray.cli.compare.tables import lines
from llmzero_ray.cli.main import main
from llmzero_ray.config_text import validated
from llmzero_ray.errors import ConfigError, LlmzeroError
from tests.searches import scripted_search


def write_plan(root: Path, task_dir: Path, **changes: Any) -> Path:
    """compare.yaml of `default` and `random` on the scripted engine, one task, two seeds."""
    content = scripted_search(root, task_dir, {}, budget={"runs": 3})
    (root / "base.yaml").write_text(yaml.safe_dump(content))
    plan = {
        "name": "first",
        "storage": str(root / "runs"),
        "base": str(root / "base.yaml"),
        "tasks": [{"name": "toy", "room": 0.1}],
        "methods": [{"name": "default"}, {"name": "random", "set": {"search.recipes": 3}}],
        "seeds": [1, 2],
    }
    path = root / "compare.yaml"
    path.write_text(yaml.safe_dump({**plan, **changes}))
    return path


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
        ({"tasks": [{"name": "toy"}]}, r"toy has no measured room"),
        ({"seeds": [1, 1]}, r"seeds: 1 stands there twice"),
        ({"methods": [{"name": "pbt"}, {"name": "pbt"}]}, r"methods: pbt stands there twice"),
    ],
)
def test_a_task_without_measured_room_and_names_given_twice_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(write_plan(tmp_path, tmp_path, **change))


# --- going on -----------------------------------------------------------------------------------------------


def test_a_comparison_with_other_seeds_or_code_is_refused_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read(write_plan(tmp_path, tmp_path))
    command._freeze(plan, tmp_path / "first", accept_changes=False)
    command._freeze(plan.model_copy(update={"max_hours": 1.0}), tmp_path / "first", accept_changes=False)
    more = plan.model_copy(update={"seeds": (1, 2, 3)})
    with pytest.raises(ConfigError, match=r"holds this comparison with other seeds: .* --accept-changes"):
        command._freeze(more, tmp_path / "first", accept_changes=False)
    command._freeze(more, tmp_path / "first", accept_changes=True)
    monkeypatch.setattr(command, "code_digest", lambda: "another")
    with pytest.raises(ConfigError, match=r"with other code"):
        command._freeze(more, tmp_path / "first", accept_changes=False)


def test_a_forecast_above_the_limit_ends_the_comparison(tmp_path: Path) -> None:
    plan = read(write_plan(tmp_path, tmp_path, max_hours=1.0))
    pilot = {ComparedRun("toy", "default", 1): RunOutcome(hours=0.3)}
    message = r"4 runs would take 1\.20 h by the 1 that have ended; max_hours is 1"
    with pytest.raises(ConfigError, match=message):
        command._check_hours(plan, pilot, 4, Console())


@pytest.mark.parametrize("code", [3, 4, 130, -9])
def test_what_is_no_fault_of_a_method_ends_the_comparison(tmp_path: Path, code: int) -> None:
    with pytest.raises(LlmzeroError, match=rf"toy-pbt-1 ended with exit code {code}, see .*Run the same"):
        command._check_code(code, ComparedRun("toy", "pbt", 1), tmp_path)
    command._check_code(5, ComparedRun("toy", "pbt", 1), tmp_path)


def test_a_run_that_failed_before_is_not_run_again(tmp_path: Path) -> None:
    run = ComparedRun("toy", "pbt", 1)
    assert command._ended(run, tmp_path) is None
    (tmp_path / "toy-pbt-1.code").write_text("5")
    assert command._ended(run, tmp_path) == RunOutcome(problem="the search ended with exit code 5")


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
    text = command.report(
        plan,
        {
            ComparedRun("toy", "default", 1): RunOutcome(test=0.6, base=0.25, steps=30, tokens=3e4),
            ComparedRun("toy", "random", 1): RunOutcome(problem="the search ended with exit code 5"),
        },
    )
    assert "| random | 0.2500 | one seed | 2.00 | -0.3500 | 0.00 | 1 of 1 | 1 | 0 | 0 |" in text
    assert "| toy | +0.100 | 0.2500 | 0.6000 | 0.2500 |" in text
    assert "- toy-random-1: the search ended with exit code 5" in text


# --- the command --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_runs_to_its_tables_and_a_second_time_trains_nothing(
    head: str,
    task_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    methods = [{"name": "default"}, {"name": "random", "set": {"search.recipes": 2}}]
    path = write_plan(tmp_path, task_dir, methods=methods, seeds=[1])
    monkeypatch.setenv("RAY_ADDRESS", head)
    assert main(["compare", str(path)]) == 0
    first = capsys.readouterr().out
    assert "2 of 2: toy-random-1" in first
    assert (tmp_path / "runs" / "first" / "anytime.png").stat().st_size > 1000
    assert main(["compare", str(path)]) == 0
    again = capsys.readouterr().out
    assert again[again.index("# first") :] == first[first.index("# first") :]
