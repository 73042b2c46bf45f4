"""Whether the search fits on the GPUs that the machines report, and into the machines' memory.

Not here: the estimate (llmzero_ray.estimate), its table (../gpu_memory.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmzero_ray.cli.doctor.rows import CheckFinding, Status, first_few, skipped
from llmzero_ray.cli.gpu_memory import demanding_phase_text, machine_text
from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate import Estimate, card_gib
from llmzero_ray.launch.nodes import Node, NoResult, run_on_nodes
from llmzero_ray.prepared import PreparedTask

_ORDER: tuple[Status, ...] = ("ok", "warn", "FAIL")
_STATUS: Mapping[str, Status] = {"fits": "ok", "tight": "warn", "does not fit": "FAIL"}


def card_of(config: SearchConfig, nodes: Sequence[Node], *, limit_s: float) -> float | None:
    """GiB of the smallest GPU that a machine reports, otherwise the configured size."""
    answers = run_on_nodes([node for node in nodes if node.gpus > 0], card_gib, limit_s=limit_s)
    sizes = [answer for answer in answers.values() if not isinstance(answer, NoResult) and answer is not None]
    return min(sizes, default=config.slots.gpu_memory_gib)


def on_machines(
    estimate: Estimate | None, nodes: Sequence[Node], probed: Mapping[str, Any | NoResult]
) -> CheckFinding:
    """Whether each machine with GPUs has the memory for as many slots as its GPUs allow."""
    if estimate is None:
        return skipped("there is no estimate of the root")
    slots, status = estimate.config.slots, _ORDER[0]
    lines: list[tuple[Status, str]] = []
    for node in nodes:
        n_slots = min(slots.count, int(node.gpus // slots.gpus_per_node))
        answer = probed.get(node.label)
        if n_slots < 1 or answer is None or isinstance(answer, NoResult):
            continue
        total = float(answer["memory"])
        worst = estimate.machine(n_slots=n_slots)
        need = worst.total
        found: Status = "FAIL" if need.likely > total else "warn" if need.high > total else "ok"
        status = max(status, found, key=_ORDER.index)
        lines.append((found, f"{node.label}: {machine_text(worst, n_slots=n_slots, total=total)}"))
    if not lines:
        return skipped("no machine with GPUs for a slot is up")
    shown = [line for found, line in lines if found == status]
    todo = (
        "" if status == "ok" else "fewer slots on a machine, slots.gpus_per_node lower, or no param_offload"
    )
    return CheckFinding(status, f"estimated, {first_few(shown)}", todo)


def on_cards(
    config: SearchConfig, task: PreparedTask | None, gpu_gib: float | None
) -> tuple[CheckFinding, Estimate | None]:
    """(finding on whether the root fits on GPUs of `gpu_gib` GiB, the estimate or None)."""
    if gpu_gib is None:
        why = "no machine says how much memory its GPUs have; set slots.gpu_memory_gib"
        return skipped(why), None
    estimate = Estimate(config, task, gpu_gib=gpu_gib)
    try:
        root, demanding = estimate.gpu_memory
    except ConfigError as error:
        return skipped(str(error)), None
    worse = root if root.status == demanding.status else demanding
    found = worse.reason if worse is root else f"{demanding_phase_text(demanding)}: {demanding.reason}"
    todo = "; ".join(map(str, worse.remedies[:2]))
    return CheckFinding(_STATUS[worse.status], f"estimated, {found}", todo), estimate
