"""Real VeRL that trains chosen nodes with an extreme learning rate: real failures, on demand.

Named in a configuration as `tests.faulty_engine:make_engine`; node 1 diverges until it is not finite, node 3
learns nothing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from llmzero_ray.engines.base import Engine, OnMetric, Slot, Stage
from llmzero_ray.engines.registry import make_engine as make_real_engine
from llmzero_ray.records import ItemOutcome, PhaseFailure, PhaseResult, PhaseSpec

LR = "actor_rollout_ref.actor.optim.lr"
INJECTED = {1: 1e30, 3: 0.0}
"""Node -> learning rate it trains with."""


class FaultyEngine:
    """The real engine with another learning rate for some nodes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, spec: PhaseSpec, on_metric: OnMetric) -> PhaseResult | PhaseFailure:
        changed = {LR: INJECTED[spec.node]} if spec.node in INJECTED else {}
        asked = dataclasses.replace(spec, hyperparameters={**spec.hyperparameters, **changed})
        return self._engine.run(asked, on_metric)

    def stop(self, reason: str) -> None:
        self._engine.stop(reason)

    def stage(self) -> Stage | None:
        return self._engine.stage()

    def evaluate(self, adapter: str | None, parquet: str, max_tokens: int) -> tuple[ItemOutcome, ...]:
        return self._engine.evaluate(adapter, parquet, max_tokens)

    def close(self) -> None:
        self._engine.close()


def make_engine(config: Any, task: Any, slot: Slot) -> FaultyEngine:
    real = config.model_copy(update={"engine": config.engine.model_copy(update={"backend": "verl"})})
    return FaultyEngine(make_real_engine(real, task, slot, str(Path(config.storage) / "engine")))
