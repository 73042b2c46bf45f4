"""Protocol of every engine: train one phase, stop it, score a policy, and report why a phase failed.

An engine knows nothing of actors, the journal or the tree. One thread calls `run`, `evaluate` and `close`;
any other thread may call `stop` at any time.

Not here: deciding when to stop (stopping/), writing metrics (the runner), restarting lost engines (the
coordinator).
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from llmzero_ray.errors import NonFiniteError
from llmzero_ray.records import (
    Checkpoint,
    FailureClass,
    ItemOutcome,
    MetricPoint,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
)

OnMetric: TypeAlias = Callable[[MetricPoint], None]
_TAIL_CHARS = 4000
CARD_FAULT = (
    r"uncorrectable (?:ECC|NVLink)|GPU is lost|fallen off the bus|no CUDA-capable device|hardware stack error"
    r"|Xid \("
)
"""Pattern of messages by CUDA and NVIDIA's driver about a failed GPU. A lost process, a lost connection and
full memory do not match."""
_FAULT = re.compile(CARD_FAULT, re.IGNORECASE)
_FAULT_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Reserved hardware that trains one phase at a time.

    One placement group per node of the slot, one bundle `{GPU: 1, CPU: k}` per GPU. `search` and `index`
    make every name, socket and queue namespace of the slot unique on the cluster.
    """

    search: str
    index: int
    placement_groups: tuple[str, ...]
    """Ray placement group ids, hex; one per node."""
    gpus_per_node: int
    cpus_per_gpu: int

    @property
    def n_gpus(self) -> int:
        """GPUs of the whole slot."""
        return self.gpus_per_node * len(self.placement_groups)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Current stage of an engine and its duration, to tell a slow phase from a hanging one."""

    name: str
    """`start`, `rollout`, `update`, `validation` or `save`; other engines may have others."""
    since_s: float
    """Seconds since the stage began."""
    usual_s: float | None
    """Median of the stage's earlier durations in this phase, in seconds. None if there are none."""
    quiet_s: float | None = None
    """Seconds since the stage began or last made progress (an answer, for example). If None, same as
    `since_s`."""


class Engine(Protocol):
    """Engine that trains one phase at a time."""

    def run(self, spec: PhaseSpec, on_metric: OnMetric) -> PhaseResult | PhaseFailure:
        """Train one phase to its end.

        `on_metric` is called on the engine's thread, in order: once for the validation at step 0, and once
        per finished step. If a step is validated, its point includes the score and the per-item outcomes. A
        failed phase is returned as `PhaseFailure`, never raised, and the engine stays usable.

        Raises:
            EngineError: the engine itself cannot start (wrong VeRL version, no capacity).
        """
        ...

    def stop(self, reason: str) -> None:
        """Ask the running phase to write a checkpoint and end at the next step boundary. Thread-safe and
        idempotent.

        `reason` becomes the result's `stop_reason`; a reason that starts with `verdict` makes it
        `early_stopped`. No-op without a running phase.
        """
        ...

    def stage(self) -> Stage | None:
        """Stage of the running phase or evaluation, or None if idle or unknown. Thread-safe."""
        ...

    def evaluate(self, adapter: str | None, parquet: str, max_tokens: int) -> tuple[ItemOutcome, ...]:
        """Outcomes of greedy answers to the rows of `parquet`, in row order. If `adapter` is None, the base
        model is scored.

        Raises:
            EngineError: the rows could not be scored.
        """
        ...

    def close(self) -> None:
        """End every process of the engine. Idempotent."""
        ...


def failure_of(
    node: int, error: Exception, *, steps_done: int, checkpoints: Iterable[Checkpoint]
) -> PhaseFailure:
    """Failed phase for an uncaught exception of an engine."""
    classes: list[tuple[type[Exception], FailureClass]] = [(MemoryError, "oom"), (NonFiniteError, "nan")]
    trace = "".join(traceback.format_exception(error))
    return PhaseFailure(
        node=node,
        failure_class=next((name for kind, name in classes if isinstance(error, kind)), "engine"),
        cause=f"{type(error).__name__}: {error}".splitlines()[0],
        log_tail=trace[-_TAIL_CHARS:],
        steps_done=steps_done,
        checkpoints=tuple(checkpoints),
    )


def card_fault(text: str) -> str | None:
    """Last line of a message or log that reports a failed GPU, at most 300 characters. None if there is
    none."""
    found = [line.strip() for line in text.splitlines() if _FAULT.search(line)]
    return found[-1][:_FAULT_CHARS] if found else None
