"""The command `compare`: pilots, then the searches of a plan, several at once, then the tables.

An interrupted or killed comparison continues where it stopped: every run is an ordinary search, pilot results
are stored, and a failed run is not repeated. If a method crashes, only its run fails. Test scores are printed
once all runs have ended.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from llmzero_ray.agents.backend import lacks_model
from llmzero_ray.cli import options
from llmzero_ray.cli.interrupts import raise_on_termination
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.config import SearchConfig
from llmzero_ray.config.changes import read_settings
from llmzero_ray.config.yaml_text import load_file
from llmzero_ray.errors import ConfigError
from llmzero_ray.launch.preflight import check_backends, check_plan
from llmzero_ray.methods.compare.figure import curves
from llmzero_ray.methods.compare.lanes import cluster, run_all
from llmzero_ray.methods.compare.pilot import Pilot, forecast, pilot_runs, read_pilot, with_budget
from llmzero_ray.methods.compare.plan import (
    ComparedRun,
    ComparePlan,
    code_digest,
    configs,
    input_digests,
    times_of,
)
from llmzero_ray.methods.compare.results import NEEDS_A_MODEL, RunOutcome, ended, outcome
from llmzero_ray.methods.compare.summary import report
from llmzero_ray.utils.files import replace_file


def compare(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="compare.yaml")],
    *,
    settings: Annotated[list[str], options.settings_option("set a key of the plan, such as parallel=2")],
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="continue although the plan or the code has changed")
    ] = False,
) -> int:
    """Compare search methods on tasks and seeds.

    All get one budget. The same command continues a comparison where it was interrupted.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("the curves of a comparison need matplotlib: pip install 'llmzero-ray[report]'.")
    wanted = load_file(ComparePlan, Path(plan), read_settings(settings))
    directory = (Path(wanted.storage) / wanted.name).absolute()
    runs = configs(wanted, directory)
    without = unmodelled(runs)
    for config in {run.method: config for run, config in runs.items() if run.method not in without}.values():
        check_plan(config)
        check_backends(config, 0.0, lambda _: None)
    _freeze(wanted, runs, directory, accept_changes=accept_changes)
    outcomes, pilots = _Comparison(wanted, directory, without).run(runs)
    text = report(wanted, outcomes, pilots)
    replace_file(directory / "compare.md", text)
    curves(wanted, outcomes, pilots, directory / "anytime.png")
    print_line(TerminalConsole(), text)
    return 0


def unmodelled(runs: Mapping[ComparedRun, SearchConfig]) -> frozenset[str]:
    """Methods that need a language model although none is available. They are skipped, and run if the command
    is repeated with a model.

    Raises:
        ConfigError: the first method, with which the others are compared, is one of them.
    """
    found = {run.method for run, config in runs.items() if lacks_model(config)}
    first = next(iter(runs)).method
    if first in found:
        raise ConfigError(
            f"methods: {first} is the first, with which the others are compared, and needs a language model; "
            "put another one first, or set agents.backend and a key for it (ANTHROPIC_API_KEY)."
        )
    return frozenset(found)


def _freeze(
    plan: ComparePlan,
    runs: Mapping[ComparedRun, SearchConfig],
    directory: Path,
    *,
    accept_changes: bool,
) -> None:
    """Store the plan with hashes of code, rows and settings, and check that they equal those stored before.

    Raises:
        ConfigError: something has changed; the message says what.
    """
    path, given, code = directory / "compare.json", plan.model_dump(mode="json"), code_digest()
    inputs = input_digests(runs)
    if path.is_file() and not accept_changes:
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            old, old_code, known = (before[key] for key in ("plan", "code", "inputs"))
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{path} does not say what its runs were made with (damaged, or of version 0.1). Give the "
                "plan another name, or --accept-changes to continue with these runs."
            ) from error
        free = ("max_hours", "parallel")  # neither affects results
        changed = [key for key, value in given.items() if key not in free and old.get(key) != value]
        changed += ["code"] if old_code != code else []
        changed += [what for what, digest in inputs.items() if known.get(what, digest) != digest]
        if changed:
            raise ConfigError(
                f"{directory} holds this comparison with other {', '.join(changed)}: runs of both would "
                "stand in one table. Give the plan another name, or --accept-changes."
            )
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"plan": given, "code": code, "inputs": inputs}, indent=1))


class _Comparison:
    """One invocation of the command: outcomes so far, and printed progress."""

    def __init__(self, plan: ComparePlan, directory: Path, without: frozenset[str] = frozenset()) -> None:
        """`without` names methods that are skipped because there is no language model."""
        self._plan, self._directory, self._without = plan, directory, without
        self._console: Any = TerminalConsole()
        self._outcomes: dict[ComparedRun, RunOutcome] = {}
        self._n_runs = 0

    def run(
        self, runs: Mapping[ComparedRun, SearchConfig]
    ) -> tuple[dict[ComparedRun, RunOutcome], dict[str, Pilot]]:
        """Outcome of every run, in the plan's order, and pilot results by task.

        Raises:
            ConfigError: the forecast exceeds the plan's hours, or a pilot failed.
            LlmzeroError: a run failed for a reason other than its method.
        """
        wanted = pilot_runs(self._plan, runs)
        everything = {**wanted, **runs}
        self._n_runs = len(everything)
        for run in everything:
            found = ended(self._directory / run.name)
            if found is None and run.method in self._without:
                found = RunOutcome(problem=NEEDS_A_MODEL)
            if found is not None:
                self._outcomes[run] = found
        if all(run in self._outcomes for run in everything):
            return self._found(runs), self._pilots(wanted)
        lanes = min(self._plan.parallel, len(everything) - len(self._outcomes))
        with cluster(next(iter(runs.values())), lanes, self._plan.name) as lanes_env:
            self._run(wanted, lanes_env)
            pilots = self._pilots(wanted)
            self._check_forecast(pilots)
            by_task = sorted(runs, key=lambda run: [task.name for task in self._plan.tasks].index(run.task))
            times, by_compute = times_of(self._plan), self._plan.budget == "compute"
            budgeted = {
                run: with_budget(runs[run], pilots[run.task], by_compute=by_compute, times=times[run.method])
                for run in by_task
            }
            self._run(budgeted, lanes_env)
        return self._found(runs), pilots

    def _run(self, runs: Mapping[ComparedRun, SearchConfig], lanes: Sequence[Mapping[str, str]]) -> None:
        left = {run: config for run, config in runs.items() if run not in self._outcomes}
        raise_on_termination(self._console)  # after Ray has set its own handler
        say = partial(print_line, self._console)
        run_all(left, self._directory, lanes=lanes, ended=self._ended_now, say=say)

    def _found(self, runs: Mapping[ComparedRun, SearchConfig]) -> dict[ComparedRun, RunOutcome]:
        return {run: self._outcomes[run] for run in runs}

    def _pilots(self, runs: Mapping[ComparedRun, SearchConfig]) -> dict[str, Pilot]:
        found = {}
        for run in runs:
            ended = self._outcomes[run]
            if ended.problem:
                raise ConfigError(f"the pilot of {run.task} failed: {ended.problem}")
            say = partial(print_line, self._console)
            found[run.task] = read_pilot(run, self._directory, ended.hours, say)
        return found

    def _ended_now(self, run: ComparedRun, code: int) -> None:
        path = self._directory / run.name
        found = outcome(path) or RunOutcome(problem=f"the search ended with exit code {code}")
        self._outcomes[run] = found
        state = found.problem or f"{found.steps} steps, {found.hours * 60:.1f} min"
        print_line(self._console, f"{len(self._outcomes)} of {self._n_runs}: {run.name}: {state}")

    def _check_forecast(self, pilots: Mapping[str, Pilot]) -> None:
        methods = [method.name for method in self._plan.methods if method.name not in self._without]
        hours = forecast(self._plan, pilots, methods)
        print_line(self._console, f"forecast from the pilots: {hours:.2f} h for {self._n_runs} runs")
        if hours > self._plan.max_hours:
            raise ConfigError(
                f"{self._n_runs} runs would take {hours:.2f} h by their pilots; max_hours is "
                f"{self._plan.max_hours:g}. Take fewer seeds or tasks, shorter phases, more slots "
                "(parallel), or raise max_hours."
            )
