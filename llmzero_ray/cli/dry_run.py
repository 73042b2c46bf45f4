"""`search --dry-run`: the estimated cost of the search as a table. Nothing is started."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich import box
from rich.table import Table

from llmzero_ray.agents.expected_cost import agent_prices, expected_dollars
from llmzero_ray.cli.gpu_memory import show_memory
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.cli.step_times import measured
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import TaskError
from llmzero_ray.estimate import (
    Cases,
    Estimate,
    EstimateCase,
    MeasuredTimes,
    StageTimes,
    first_limit,
    with_server_sizes,
)
from llmzero_ray.launch.preflight import check_extensions, check_plan
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.search import load_method, plans_its_runs
from llmzero_ray.storage.locate import is_search
from llmzero_ray.utils.text import GIB, plain

_UNKNOWN = "not known"


def show_estimate(
    config: SearchConfig, *, seconds_per_step: float | None = None, like: str | None = None
) -> int:
    """Print the estimate and return the exit code.

    Raises:
        ConfigError: the configuration cannot be trained, it names something that cannot be loaded, or no
            measured step time exists.
        TaskError: the task does not exist.
    """
    check_extensions(config)
    if not is_search(Path(config.storage, config.name)):
        check_plan(config)
    console = TerminalConsole()
    say = partial(print_line, console)
    try:
        task = _task(config)
    except TaskError:
        estimate = Estimate(config)
        show_memory(console, estimate.of(with_server_sizes(estimate, say)))  # needs no data
        raise
    estimate = Estimate(config, task)
    estimate = estimate.of(with_server_sizes(estimate, say))
    config = estimate.config
    show_memory(console, estimate)
    stages = estimate.root_times()
    assumed = None if stages is None else _estimated_times(stages[0])
    seconds = measured(config, seconds_per_step=seconds_per_step, like=like, estimated=assumed)
    prices = agent_prices(config)
    dollars = None if prices is None else partial(expected_dollars, config, prices, seconds.tokens)
    cases = estimate.cases(seconds, dollars)
    console.print(_table(config, cases))
    lines = [*_source_lines(seconds), *_limit_lines(config, cases), *_disk_lines(config, cases)]
    if stages is not None:
        lines += _stage_lines(stages)
    print_lines(console, lines)
    return 0


def _estimated_times(usual: StageTimes) -> MeasuredTimes:
    return MeasuredTimes(
        source="an estimate for these cards with answers of half their cap; `llmzero doctor` measures it",
        step_s=usual.rollout_s + usual.update_s,
        validation_s=usual.validation_s,
    )


def _stage_lines(stages: tuple[StageTimes, StageTimes]) -> list[str]:
    """Seconds of each stage, to compare with `timing_s` of the first steps."""
    usual, longest = stages
    return [
        "estimated seconds of a stage, with answers of half their cap (at their cap): "
        f"rollout {usual.rollout_s:,.0f} ({longest.rollout_s:,.0f}), "
        f"update {usual.update_s:,.0f} ({longest.update_s:,.0f}), "
        f"validation at most {longest.validation_s:,.0f}"
    ]


def _task(config: SearchConfig) -> PreparedTask | None:
    """The prepared task, or None if `prepare` has not created it yet."""
    try:
        return load_task(config.task.dir)
    except TaskError:
        if config.task.family is None or Path(config.task.dir).exists():
            raise
        return None


def _table(config: SearchConfig, cases: Cases) -> Table:
    slots = config.slots
    table = Table(
        title=f"{config.name}: {slots.count} slot(s) of {slots.n_gpus} GPU(s)",
        box=box.SIMPLE,
        title_justify="left",
    )
    for name in ("", "low", "as planned", "high"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    phases = "standard phases" if plans_its_runs(load_method(config.search.method)) else "phases"
    rows: tuple[tuple[str, Callable[[EstimateCase], str]], ...] = (
        (phases, lambda case: str(case.phases)),
        ("training steps", lambda case: f"{case.steps:,}"),
        ("steps of the default recipe", lambda case: f"{case.reference_steps:,}"),
        ("validations", lambda case: f"{case.validations:,}"),
        ("wall-clock hours", lambda case: plain(case.hours)),
        ("GPU hours reserved", lambda case: plain(case.gpu_hours)),
        ("dollars for agents", lambda case: _UNKNOWN if case.dollars is None else f"{case.dollars:,.2f}"),
        (
            "adapters on disk (GiB)",
            lambda case: _UNKNOWN if case.disk_bytes is None else plain(case.disk_bytes / GIB),
        ),
    )
    for name, text in rows:
        table.add_row(name, *(text(case) for case in cases))
    return table


def _source_lines(seconds: MeasuredTimes) -> list[str]:
    assumed = [
        name
        for name, value in (("validation", seconds.validation_s), ("start", seconds.cold_start_s))
        if value is None
    ]
    lines = [f"{seconds.step_s:.3g} s a training step, from {seconds.source}"]
    if assumed:
        lines.append(f"assumed, not measured: seconds of {' and '.join(assumed)}")
    return [*lines, *seconds.notes]


def _limit_lines(config: SearchConfig, cases: Cases) -> list[str]:
    found, budget = [], config.budget
    sooner = "" if budget.compute is None else ", or sooner with budget.compute, which is not estimated"
    for case in cases[1:]:
        limit = first_limit(config, case)
        course = "as planned" if case.course == "planned" else "at the high end"
        if limit is None:
            found.append(f"{course}: ends with budget.runs ({budget.runs}){sooner}")
            continue
        found.append(
            f"{course}: {limit.key} ({limit.limit:g}) ends it after about {limit.share:.0%} of that{sooner}"
        )
    if config.confirm.k:
        found.append(
            f"not counted: the evaluation of confirm.k ({config.confirm.k}) strategies on fresh rows"
        )
    dollars, most = budget.dollars, cases[-1].dollars
    if config.agents.on_cap == "expert" and dollars is not None and most is not None and most > dollars:
        found.append(f"at the high end budget.dollars ({dollars:g}) is used up, and the expert takes over")
    return found


def _disk_lines(config: SearchConfig, cases: Cases) -> list[str]:
    limit, most = config.checkpoints.max_gib, cases[-1].disk_bytes
    if most is None:
        return ["adapters: their size is not known without config.json of a dense model in model.path"]
    if limit is None or most <= limit * GIB:
        return []
    return [f"checkpoints.max_gib ({limit:g}): beyond it the adapters that nothing depends on are deleted"]
