"""The estimate of memory as text: a table of a training step's stages on a GPU, whether they fit, remedies,
and what a machine needs.

Not here: the estimate (llmzero_ray.estimate), a doctor's row (doctor/memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from llmzero_ray.cli.output import print_lines
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate import Assessment, Estimate, StageMemory
from llmzero_ray.utils.text import GIB


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
    for stage in found.stages:
        # Narrow enough for 80 columns.
        header = stage.name.replace(" ", "\n").replace("-", "-\n")
        table.add_column(header, justify="right", no_wrap=True)
    names = dict.fromkeys(item.name for stage in found.stages for item in stage.items)
    for name in names:
        sizes = (stage.size_of(name) for stage in found.stages)
        table.add_row(name, *("" if size is None else f"{size.likely / GIB:.1f}" for size in sizes))
    table.add_section()
    for bound in ("low", "likely", "high"):
        table.add_row(bound, *(f"{getattr(stage.total, bound) / GIB:.1f}" for stage in found.stages))
    table.add_row("limit", *(f"{stage.limit / GIB:.1f}" for stage in found.stages))
    return table


def memory_lines(estimate: Estimate) -> Iterator[str]:
    """Whether root and later phases fit, remedies, the cache, and what a machine needs.

    Raises:
        ConfigError: there is no estimate of the memory.
    """
    root, demanding = estimate.gpu_memory
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
    yield f"memory of a machine: {machine_text(estimate.machine())}"


def machine_text(worst: StageMemory, *, n_slots: int = 1, total: float | None = None) -> str:
    """Memory that `n_slots` slots take of a machine at their largest stage, in one sentence.

    `total`: bytes that the machine has, or None if unknown.
    """
    need, largest = worst.total, worst.largest
    has = "" if total is None else f" of {total / GIB:.0f} GiB"
    return (
        f"about {need.likely / GIB:.0f} GiB (up to {need.high / GIB:.0f}){has} for {n_slots} slot(s), most "
        f"while {worst.name}; largest: {largest.name}, {largest.size.likely / GIB:.0f} GiB"
    )


def demanding_phase_text(demanding: Assessment) -> str:
    """Description of the phase that the second assessment of `Estimate.gpu_memory` is about."""
    return f"a phase with responses of {demanding.setup.response} tokens and a temperature other than 1"


def remedy_lines(found: Assessment) -> Iterator[str]:
    """One line for each change that would help."""
    return (f"  {remedy}" for remedy in found.remedies)


def show_memory(console: Console, estimate: Estimate) -> None:
    """Print whether a search on GPUs fits, with the table, or why there is no estimate."""
    if not estimate.on_gpus:
        return
    try:
        lines = list(memory_lines(estimate))
    except ConfigError as error:
        lines = [str(error)]
    else:
        console.print(memory_table(estimate.gpu_memory[0]))
    print_lines(console, lines)
