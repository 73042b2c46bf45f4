"""`search --dry-run`: what the search would take, as a table; nothing is started.

Not here: the arithmetic (llmzero_ray.estimate), where measured seconds come from (step_times.py), GPU memory
(gpu_memory.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from llmzero_ray.adapter_size import adapter_size
from llmzero_ray.cli.gpu_memory import show_memory
from llmzero_ray.cli.output import TerminalConsole, print_line, print_lines
from llmzero_ray.cli.step_times import measured
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import root_hyperparameters
from llmzero_ray.errors import TaskError
from llmzero_ray.estimate import (
    EstimateCase,
    MeasuredTimes,
    Sizes,
    agent_price,
    estimate,
    first_limit,
    validates_every_start,
)
from llmzero_ray.hyperparameters import canonical
from llmzero_ray.launch.server_sizes import is_for_gpus, with_server_sizes
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.stage_times import StageTimes, estimated_stages
from llmzero_ray.utils.files import small_text
from llmzero_ray.utils.text import plain

GIB = 2**30
_UNKNOWN = "not known"


def show_estimate(
    config: SearchConfig, *, seconds_per_step: float | None = None, like: str | None = None
) -> int:
    """Print the estimate; the exit code.

    Raises:
        ConfigError: the configuration cannot be trained, or no measured step time exists.
        TaskError: there is no such task.
    """
    console = TerminalConsole()
    say = partial(print_line, console)
    try:
        task = _task(config)
    except TaskError:
        show_memory(console, with_server_sizes(config, None, say), None)  # that needs no data
        raise
    config = with_server_sizes(config, task, say)
    show_memory(console, config, task)
    stages = _stages(config, task)
    estimated = None if stages is None else _estimated_times(stages)
    seconds = measured(config, seconds_per_step=seconds_per_step, like=like, estimated=estimated)
    adapter = size_of_adapter(config, task)
    price = agent_price(config)
    on_gpus = is_for_gpus(config)

    def estimated_cases(of: SearchConfig) -> tuple[EstimateCase, EstimateCase, EstimateCase]:
        sizes = _sizes(of, task)
        return estimate(of, sizes, seconds, price=price, adapter_bytes=adapter, on_gpus=on_gpus)

    cases = estimated_cases(config)
    console.print(_table(config, cases))
    lines = [*_source_lines(seconds), *_limit_lines(config, cases), *_disk_lines(config, cases)]
    if stages is not None:
        lines += _stage_lines(stages)
    if config.final.default_recipe:
        final = config.final.model_copy(update={"default_recipe": False})
        fewer = config.model_copy(update={"final": final})
        cheaper = estimated_cases(fewer)
        lines.append(
            f"without final.default_recipe: {plain(cheaper[1].gpu_hours)} GPU hours as planned, "
            f"not {plain(cases[1].gpu_hours)}"
        )
    if not validates_every_start(config, on_gpus=on_gpus):
        phase = config.phase.model_copy(update={"validate_start": "always"})
        longer = estimated_cases(config.model_copy(update={"phase": phase}))
        lines.append(
            f"with phase.validate_start always: {plain(longer[1].gpu_hours)} GPU hours as planned, not "
            f"{plain(cases[1].gpu_hours)}; {longer[1].validations - cases[1].validations} validations before "
            "a first step are taken over from the phase before"
        )
    print_lines(console, lines)
    return 0


def _stages(config: SearchConfig, task: PreparedTask | None) -> tuple[StageTimes, StageTimes] | None:
    """Estimated seconds of the root's stages on GPUs with answers of half their cap, and at it; None: the
    search is for the CPU, or its model is not known."""
    if not is_for_gpus(config):
        return None
    root = root_hyperparameters(config, None if task is None else task.n_train)
    model = config.model.path or (task.model_path if task is not None else None)
    rows = (config.task if task is None else task).n_val
    usual, longest = (
        estimated_stages(config, root, model=model, rows=rows, response_share=share) for share in (0.5, 1.0)
    )
    return None if usual is None or longest is None else (usual, longest)


def _estimated_times(stages: tuple[StageTimes, StageTimes]) -> MeasuredTimes:
    usual, _ = stages
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


def size_of_adapter(config: SearchConfig, task: PreparedTask | None) -> int | None:
    """Bytes of one adapter of the search; None without a local `config.json` of the model."""
    path = config.model.path or (task.model_path if task is not None else None)
    try:
        model = json.loads(small_text(Path(path or "") / "config.json"))
    except (OSError, ValueError):
        return None
    return adapter_size(model, rank=config.model.lora_rank, targets=config.model.target_modules)


def _task(config: SearchConfig) -> PreparedTask | None:
    """The prepared task; None when `prepare` is still to make it."""
    try:
        return load_task(config.task.dir)
    except TaskError:
        if config.task.family is None or Path(config.task.dir).exists():
            raise
        return None


def _sizes(config: SearchConfig, task: PreparedTask | None) -> Sizes:
    root = root_hyperparameters(config, None if task is None else task.n_train)
    rollouts = int(str(root[canonical("batch")])) * int(str(root[canonical("n")]))
    data: Any = config.task if task is None else task
    return Sizes(n_val=data.n_val, n_test=data.n_test, rollouts=rollouts)


def _table(config: SearchConfig, cases: tuple[EstimateCase, EstimateCase, EstimateCase]) -> Table:
    slots = config.slots
    table = Table(
        title=f"{config.name}: {slots.count} slot(s) of {slots.n_gpus} GPU(s)",
        box=box.SIMPLE,
        title_justify="left",
    )
    for name in ("", "low", "as planned", "high"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    rows: tuple[tuple[str, Callable[[EstimateCase], str]], ...] = (
        ("phases", lambda case: str(case.phases)),
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


def _limit_lines(config: SearchConfig, cases: tuple[EstimateCase, EstimateCase, EstimateCase]) -> list[str]:
    found = []
    for case in cases[1:]:
        limit = first_limit(config, case)
        course = "as planned" if case.course == "planned" else "at the high end"
        if limit is None:
            found.append(f"{course}: ends with budget.runs ({config.budget.runs})")
            continue
        found.append(f"{course}: {limit.key} ({limit.limit:g}) ends it after about {limit.share:.0%} of that")
    dollars, most = config.budget.dollars, cases[-1].dollars
    if config.agents.on_cap == "expert" and dollars is not None and most is not None and most > dollars:
        found.append(f"at the high end budget.dollars ({dollars:g}) is used up, and the expert takes over")
    return found


def _disk_lines(config: SearchConfig, cases: tuple[EstimateCase, EstimateCase, EstimateCase]) -> list[str]:
    limit, most = config.checkpoints.max_gib, cases[-1].disk_bytes
    if most is None:
        return ["adapters: their size is not known without config.json of a dense model in model.path"]
    if limit is None or most <= limit * GIB:
        return []
    return [f"checkpoints.max_gib ({limit:g}): beyond it the adapters that nothing depends on are deleted"]
