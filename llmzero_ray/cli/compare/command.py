"""The command `compare`: run the searches of a plan one after the other, then print its tables.

Every run is an ordinary search in a process of its own, so that a killed comparison goes on where it was, and
a method that crashes is that run's failure. Hours are forecast from the runs that have ended, the first one
being the pilot. Test scores are printed once all runs have ended. Not here: the tables (tables.py).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from llmzero_ray.cli.compare.plan import ComparedRun, ComparePlan, code_digest, configs
from llmzero_ray.cli.compare.results import RunOutcome, outcome
from llmzero_ray.cli.compare.tables import lines
from llmzero_ray.cli.output import TerminalConsole, print_line
from llmzero_ray.config import SearchConfig
from llmzero_ray.config_text import load_file, to_yaml
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.files import replace_file
from llmzero_ray.preflight import check_backends

_NO_FAULT = (3, 4)
"""Exit codes of storage and capacity."""
_SEARCH = "import sys; from llmzero_ray.cli.main import main; sys.exit(main(['search', *sys.argv[1:]]))"


def compare(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="compare.yaml")],
    *,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="go on although the plan or the code has changed")
    ] = False,
) -> int:
    """Compare search methods on tasks and seeds at one budget; goes on where it was interrupted."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("the curves of a comparison need matplotlib: pip install 'llmzero-ray[report]'.")
    wanted = load_file(ComparePlan, Path(plan))
    directory = (Path(wanted.storage) / wanted.name).absolute()
    runs = configs(wanted, directory)
    for config in {run.method: config for run, config in runs.items()}.values():
        check_backends(config, 0.0, lambda _: None)
    _freeze(wanted, directory, accept_changes=accept_changes)
    console = TerminalConsole()
    outcomes = _run_all(wanted, runs, directory, console)
    text = report(wanted, outcomes)
    replace_file(directory / "compare.md", text)
    curves(wanted, outcomes, directory / "anytime.png")
    print_line(console, text)
    return 0


def _freeze(plan: ComparePlan, directory: Path, *, accept_changes: bool) -> None:
    """Keep the plan and the code's hash with the first run; refuse others later.

    Raises:
        ConfigError: what has changed.
    """
    path, given, code = directory / "compare.json", plan.model_dump(mode="json"), code_digest()
    if path.is_file() and not accept_changes:
        before = json.loads(path.read_text(encoding="utf-8"))
        old = before["plan"]
        changed = [key for key, value in given.items() if key != "max_hours" and old.get(key) != value]
        changed += ["code"] if before["code"] != code else []
        if changed:
            raise ConfigError(
                f"{directory} holds this comparison with other {', '.join(changed)}: runs of both would "
                "stand in one table. Give the plan another name, or --accept-changes."
            )
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({"plan": given, "code": code}, indent=1))


def _run_all(
    plan: ComparePlan, runs: Mapping[ComparedRun, SearchConfig], directory: Path, console: Any
) -> dict[ComparedRun, RunOutcome]:
    """The outcome of every run.

    Raises:
        ConfigError: the forecast is above the plan's hours.
    """
    found: dict[ComparedRun, RunOutcome] = {}
    for number, (run, config) in enumerate(runs.items(), start=1):
        ended = _ended(run, directory)
        if ended is None:
            _check_hours(plan, found, len(runs), console)
            code = _search(config, directory / f"{run.name}.yaml")
            _check_code(code, run, directory)
            ended = outcome(directory / run.name) or RunOutcome(
                problem=f"the search ended with exit code {code}"
            )
            replace_file(directory / f"{run.name}.code", str(code))
        found[run] = ended
        state = ended.problem or f"{ended.steps} steps, {ended.hours * 60:.1f} min"
        print_line(console, f"{number} of {len(runs)}: {run.name}: {state}")
    return found


def _ended(run: ComparedRun, directory: Path) -> RunOutcome | None:
    """The outcome of a run that ended, or failed, before; None: it is to be run."""
    known, code = outcome(directory / run.name), directory / f"{run.name}.code"
    if known is not None or not code.is_file():
        return known
    return RunOutcome(problem=f"the search ended with exit code {code.read_text(encoding='utf-8')}")


def _check_hours(
    plan: ComparePlan, ended: Mapping[ComparedRun, RunOutcome], n_runs: int, console: Any
) -> None:
    hours = [one.hours for one in ended.values() if one.hours]
    if not hours:
        return
    spent, left = sum(hours), (n_runs - len(ended)) * sum(hours) / len(hours)
    if len(ended) == 1:
        print_line(console, f"forecast from the pilot: {spent + left:.2f} h for {n_runs} runs")
    if spent + left > plan.max_hours:
        raise ConfigError(
            f"{n_runs} runs would take {spent + left:.2f} h by the {len(hours)} that have ended; max_hours "
            f"is {plan.max_hours:g}. Take fewer seeds or tasks, shorter phases, or raise max_hours."
        )


def _check_code(code: int, run: ComparedRun, directory: Path) -> None:
    """Tell what is no fault of a method: a signal, storage, capacity.

    Raises:
        LlmzeroError: the comparison cannot go on now.
    """
    if code in _NO_FAULT or code < 0 or code > 128:
        raise LlmzeroError(
            f"{run.name} ended with exit code {code}, see {directory / run.name}.log. Run the same command "
            "again: it goes on there."
        )


def _search(config: SearchConfig, path: Path) -> int:
    """Run one search to its end; the exit code of its process."""
    replace_file(path, to_yaml(config.to_json()))
    with path.with_suffix(".log").open("a", encoding="utf-8") as log:
        done = subprocess.run(
            [sys.executable, "-c", _SEARCH, str(path)], stdout=log, stderr=subprocess.STDOUT, check=False
        )
    return done.returncode


# --- what is printed ----------------------------------------------------------------------------------------


def report(plan: ComparePlan, outcomes: Mapping[ComparedRun, RunOutcome]) -> str:
    """The tables as Markdown. A run without a score counts with the base model's."""
    bases = {
        task.name: next(
            (one.base for run, one in outcomes.items() if run.task == task.name and one.base), 0.0
        )
        for task in plan.tasks
    }
    scores = {
        method.name: {
            task.name: [
                bases[task.name] if score is None else score
                for seed in plan.seeds
                for score in (outcomes[ComparedRun(task.name, method.name, seed)].test,)
            ]
            for task in plan.tasks
        }
        for method in plan.methods
    }
    first = plan.methods[0].name
    text = [
        f"# {plan.name}: test accuracy of the policy that validation chose",
        "",
        f"{len(plan.tasks)} tasks, {len(plan.seeds)} seeds. The budget is the same number of training steps; "
        "what they cost stands beside it, rollout and trained tokens together, without validations. "
        "Intervals: 95 %, bootstrap over the seeds of each task.",
        "",
        f"| method | mean | interval | rank | to {first} | P(better than {first}) | losses | failed "
        "| steps a run | tokens a run |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines(scores):
        own = [one for run, one in outcomes.items() if run.method == line.method]
        interval = (
            "one seed" if line.interval is None else f"{line.interval[0]:.4f} to {line.interval[1]:.4f}"
        )
        error = "" if line.difference_error is None else f" ± {line.difference_error:.4f}"
        text.append(
            f"| {line.method} | {line.mean:.4f} | {interval} | {line.rank:.2f} "
            f"| {line.difference:+.4f}{error} | {line.improvement:.2f} "
            f"| {line.losses} of {line.pairs} | {sum(bool(o.problem) for o in own)} "
            f"| {sum(o.steps for o in own) / len(own):.0f} | {sum(o.tokens for o in own) / len(own):.3g} |"
        )
    text += ["", f"| task | room | base | {' | '.join(scores)} |", "|---|---|---|" + "---|" * len(scores)]
    for task in plan.tasks:
        means = [sum(own[task.name]) / len(plan.seeds) for own in scores.values()]
        cells = " | ".join(f"{mean:.4f}" for mean in means)
        text.append(f"| {task.name} | {task.room or 0.0:+.3f} | {bases[task.name]:.4f} | {cells} |")
    failed = [f"- {run.name}: {one.problem}" for run, one in outcomes.items() if one.problem]
    return "\n".join([*text, *(["", "Without a score:", *failed] if failed else []), ""])


def curves(plan: ComparePlan, outcomes: Mapping[ComparedRun, RunOutcome], path: Path) -> None:
    """Best validation score so far against training steps, one line for each run, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(plan.tasks), figsize=(5 * len(plan.tasks), 4), squeeze=False, layout="constrained"
    )
    for axis, task in zip(axes[0], plan.tasks, strict=True):
        for number, method in enumerate(plan.methods):
            own = [outcomes[ComparedRun(task.name, method.name, seed)].curve for seed in plan.seeds]
            for at, points in enumerate(one for one in own if one):
                label = method.name if at == 0 else None
                axis.step(*zip(*points, strict=True), where="post", color=f"C{number}", label=label)
        axis.set(title=task.name, xlabel="training steps", ylabel="best validation score so far")
        axis.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
