"""The protocol every engine speaks: train one phase, stop it, score a policy.

An engine knows no actor, no journal and no tree. It is driven by one thread (`run`, `evaluate`, `close`);
`stop` may come from any other thread at any time.

Not here: deciding when to stop (stopping/), writing metrics (the runner does), restarting lost engines (the
coordinator).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from llmzero_ray.records import ItemOutcome, MetricPoint, PhaseFailure, PhaseResult, PhaseSpec

OnMetric: TypeAlias = Callable[[MetricPoint], None]


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
    """What an engine is doing and since when, by which a slow phase is told from a hung one."""

    name: str
    """`start`, `rollout`, `update`, `validation` or `save`; other engines may have others."""
    since_s: float
    """Seconds it has been in this stage."""
    usual_s: float | None
    """Median of the stage's earlier durations in the same phase; None while there are none."""
    quiet_s: float | None = None
    """Seconds since the stage began or showed its last progress, such as an answer; None: as `since_s`."""


class Engine(Protocol):
    """Trains phases one after the other."""

    def run(self, spec: PhaseSpec, on_metric: OnMetric) -> PhaseResult | PhaseFailure:
        """Train one phase to its end.

        `on_metric` is called once per finished step, in order, on the engine's thread, and once for the
        validation at step 0; a validation travels in the point of its step, with its per-item outcomes. A
        phase that fails is a returned `PhaseFailure`, never an exception; the engine is usable again
        afterwards.

        Raises:
            EngineError: the engine itself cannot start (wrong VeRL version, no capacity).
        """
        ...

    def stop(self, reason: str) -> None:
        """Ask the running phase to end at the next step boundary, its last checkpoint written. Thread-safe,
        repeatable.

        `reason` becomes the result's `stop_reason`; one that starts with `verdict` makes it `early_stopped`.
        Without a running phase nothing happens.
        """
        ...

    def stage(self) -> Stage | None:
        """What the running phase or evaluation is doing; None when idle or unknown. Thread-safe."""
        ...

    def evaluate(self, adapter: str | None, parquet: str, max_tokens: int) -> tuple[ItemOutcome, ...]:
        """Greedy outcomes per row of `parquet`, in row order; `adapter` None scores the base model.

        Raises:
            EngineError: the rows could not be scored.
        """
        ...

    def close(self) -> None:
        """End every process of the engine; repeatable."""
        ...
