"""The estimate of memory as text: a table of a training step's stages on a GPU, the verdict, remedies, and
what a machine needs.

Not here: the estimate (llmzero_ray.memory), a doctor's row (doctor/memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from llmzero_ray.cli.output import print_lines
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.launch.server_sizes import assessed, card_gib, is_for_gpus, largest_share
from llmzero_ray.memory import GIB, Assessment, Moment, Range, assess, host_moments
from llmzero_ray.prepared import PreparedTask


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
    share = largest_share((root, demanding), above=root.setup.utilization)
    if share is None:
        return
    more = assess(root.shape, replace(root.setup, utilization=share))
    yield (
        f"engine.gpu_memory_utilization {share:g} would fit too, with a cache of about "
        f"{more.cache_tokens:,.0f} tokens"
    )


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
