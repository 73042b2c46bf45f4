"""The estimate of memory as text: a table of a training step's stages on a GPU, the verdict, remedies, and
what a machine needs.

Not here: the estimate (llmzero_ray.memory), a doctor's row (doctor/memory.py).
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from llmzero_ray.cli.output import print_lines
from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import root_hyperparameters
from llmzero_ray.errors import ConfigError
from llmzero_ray.memory import GIB, Assessment, Moment, Range, assess, host_moments, read_shape, setup_of
from llmzero_ray.tasks import PreparedTask

_SMI = ("nvidia-smi", "--query-gpu=memory.total,memory.reserved", "--format=csv,noheader,nounits")
_SMI_S = 20.0
_OTHER_TEMPERATURE = 0.9
_MOST_PERCENT, _STEP_PERCENT = 95, 5
"""Shares of a GPU that are tried for the server."""


def is_for_gpus(config: SearchConfig) -> bool:
    """Whether the search trains with VeRL on GPUs, as far as this machine can tell."""
    if config.engine.backend != "verl" or config.engine.platform == "cpu":
        return False
    if config.engine.platform == "gpu" or config.slots.gpu_memory_gib is not None:
        return True
    from llmzero_ray.engines.verl.factory import resolve_platform

    return resolve_platform(config.engine.platform) == "gpu"


def card_gib() -> float | None:
    """Memory of this machine's smallest GPU that processes can use, GiB; None: the driver does not report
    it."""
    try:
        listing = subprocess.run(_SMI, capture_output=True, text=True, timeout=_SMI_S, check=True).stdout
        rows = [[float(part) for part in line.split(",")] for line in listing.splitlines() if line.strip()]
        return min((total - reserved) / 1024 for total, reserved in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def assessed(
    config: SearchConfig, task: PreparedTask | None, *, gpu_gib: float
) -> tuple[Assessment, Assessment]:
    """Estimates of the root, and of the root at its most demanding: with the longest responses that a phase
    may have, and a temperature other than 1, for which VeRL keeps the logits twice.

    Raises:
        ConfigError: the model cannot be estimated, or the root cannot be trained.
    """
    path = config.model.path or (task.model_path if task is not None else None)
    if path is None:
        raise ConfigError("no memory estimate: model.path is null and the task brings no model. Set it.")
    root = root_hyperparameters(config, None if task is None else task.n_train)
    shape, setup = read_shape(path), setup_of(config, root, gpu_gib=gpu_gib)
    response = max(setup.response, config.engine.max_response_length)
    temperature = setup.temperature if setup.temperature != 1.0 else _OTHER_TEMPERATURE
    demanding = replace(setup, response=response, temperature=temperature)
    return assess(shape, setup), assess(shape, demanding)


def memory_table(found: Assessment) -> Table:
    """Table in GiB of one GPU: expected sizes by item and stage, then the totals with their bounds."""
    setup = found.setup
    cards = f"{setup.n_gpus} GPU(s) of {setup.gpu_bytes / GIB:.1f} GiB"
    table = Table(
        title=f"GPU memory of {found.shape.name}, GiB per GPU, a slot of {cards} (estimate)",
        box=box.SIMPLE,
        title_justify="left",
    )
    table.add_column("", no_wrap=True)
    for moment in found.moments:
        # Narrow enough for 80 columns.
        header = moment.name.replace(" ", "\n").replace("-", "-\n")
        table.add_column(header, justify="right", no_wrap=True)
    names = dict.fromkeys(item.name for moment in found.moments for item in moment.items)
    for name in names:
        table.add_row(name, *(_cell(moment.size_of(name)) for moment in found.moments))
    table.add_section()
    for name, of in (("low", "low"), ("likely", "likely"), ("high", "high")):
        table.add_row(name, *(f"{getattr(moment.total, of) / GIB:.1f}" for moment in found.moments))
    table.add_row("limit", *(f"{moment.limit / GIB:.1f}" for moment in found.moments))
    return table


def _cell(size: Range | None) -> str:
    return "" if size is None else f"{size.likely / GIB:.1f}"


def memory_lines(
    root: Assessment, demanding: Assessment, config: SearchConfig | None = None
) -> Iterator[str]:
    """The verdict, its reason, and remedies; with the configuration also what a machine needs."""
    setup = root.setup
    yield f"GPU memory: {root.reason}"
    yield from remedy_lines(root)
    if demanding.status != root.status:
        yield f"{demanding_phase_text(demanding)}: {demanding.reason}"
        yield from remedy_lines(demanding)
    sequences = root.cache_tokens / setup.max_model_len
    yield (
        f"KV cache of one server: about {root.cache_tokens:,.0f} tokens, {sequences:.1f} sequences of "
        f"{setup.max_model_len} tokens at once"
    )
    yield from _larger_share_lines(root, demanding)
    if config is not None:
        yield f"memory of a machine: {host_text(config, root, n_slots=1, total=None)}"


def _larger_share_lines(root: Assessment, demanding: Assessment) -> Iterator[str]:
    """The largest share of a GPU with which both still fit, when the server may take more than it does."""
    now = root.setup.utilization
    for percent in range(_MOST_PERCENT, math.floor(100 * now) + _STEP_PERCENT - 1, -_STEP_PERCENT):
        with_more = [
            assess(found.shape, replace(found.setup, utilization=percent / 100))
            for found in (root, demanding)
        ]
        if all(found.status == "fits" for found in with_more):
            yield (
                f"engine.gpu_memory_utilization {percent / 100:g} would fit too, with a cache of about "
                f"{with_more[0].cache_tokens:,.0f} tokens"
            )
            return


def host_text(config: SearchConfig, root: Assessment, *, n_slots: int, total: float | None) -> str:
    """Memory that `n_slots` slots take of a machine, in one sentence; `total`: bytes that it has, if
    known."""
    worst = host_worst(config, root, n_slots=n_slots, total=total or 0.0)
    need, largest = worst.total, worst.largest
    has = "" if total is None else f" of {total / GIB:.0f} GiB"
    return (
        f"about {need.likely / GIB:.0f} GiB (up to {need.high / GIB:.0f}){has} for {n_slots} slot(s), most "
        f"while {worst.name}; largest: {largest.name}, {largest.size.likely / GIB:.0f} GiB"
    )


def host_worst(config: SearchConfig, root: Assessment, *, n_slots: int, total: float) -> Moment:
    """The moment at which `n_slots` slots take most of a machine of `total` bytes."""
    engine, slots = config.engine, config.slots
    helpers = -(-(engine.agent_workers + engine.reward_workers) // slots.nodes)
    found = host_moments(
        root.shape, root.setup, gpus=slots.gpus_per_node, helpers=helpers, limit=total / n_slots
    )
    worst = max(found, key=lambda moment: moment.total.likely)
    items = tuple(replace(item, size=item.size * float(n_slots)) for item in worst.items)
    return replace(worst, items=items, limit=total)


def demanding_phase_text(demanding: Assessment) -> str:
    """Of the second estimate of `assessed`."""
    return f"a phase with responses of {demanding.setup.response} tokens and a temperature other than 1"


def remedy_lines(found: Assessment) -> Iterator[str]:
    """One line for each change that would help."""
    for remedy in found.remedies:
        yield f"  {remedy.change}: {remedy.saved / GIB:.1f} GiB less there, then {remedy.status}"


def show_memory(console: Console, config: SearchConfig, task: PreparedTask | None) -> None:
    """Print the table and the verdict for a search on GPUs, or why there is none."""
    if not is_for_gpus(config):
        return
    gpu_gib = config.slots.gpu_memory_gib or card_gib()
    if gpu_gib is None:
        lines = ["no memory estimate: set slots.gpu_memory_gib (39.4 for an A100 of 40 GB)"]
    else:
        try:
            root, demanding = assessed(config, task, gpu_gib=gpu_gib)
        except ConfigError as error:
            lines = [str(error)]
        else:
            console.print(memory_table(root))
            lines = list(memory_lines(root, demanding, config))
    print_lines(console, lines)
