"""The scripted engine with what a doctor looks at: exact scores, timers as VeRL has them, wrong adapters.

`engine.backend: tests.doctor_engine:make_engine`; in `engine.overrides` besides tests.fakes' own:

    script.flips      validation items whose answer differs when the saved adapter is scored again, by slot
    script.mismatch   slots whose phase fails as one whose effective configuration differs from the asked one
    script.hold_s     seconds for which the engine holds still before it trains; a file `holding-<slot>`
                      beside the task appears meanwhile
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.base import OnMetric, Slot
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import ItemOutcome, MetricPoint, PhaseFailure, PhaseResult, PhaseSpec

from .fakes import ScriptedEngine, score_of

STEP_S, VALIDATION_S, STARTUP_S = (9.0, 2.5), 4.0, 30.0
"""What it says its steps, a validation and its start took."""


def make_engine(config: SearchConfig, task: PreparedTask, slot: Slot) -> DoctoredEngine:
    script = {key.removeprefix("script."): value for key, value in config.engine.overrides.items()}
    return DoctoredEngine(script, task, slot)


class DoctoredEngine(ScriptedEngine):
    """Trains as the scripted engine does and reports the figures above."""

    def run(self, spec: PhaseSpec, on_metric: OnMetric) -> PhaseResult | PhaseFailure:
        if hold_s := float(self.script.get("hold_s", 0.0)):
            (Path(self.task.directory) / f"holding-{self.slot.index}").touch()
            time.sleep(hold_s)
        if self.slot.index in self.script.get("mismatch", ()):
            cause = "actor_rollout_ref.actor.optim.lr asked 0.001, acting 1e-05"
            return PhaseFailure(node=spec.node, failure_class="mismatch", cause=cause, log_tail="a trace")

        def timed(point: MetricPoint) -> None:
            timers = {"timing_s/step": STEP_S[point.step - 1]} if point.step else {}
            if point.step and point.val_score is not None:
                timers["timing_s/testing"] = VALIDATION_S
            on_metric(dataclasses.replace(point, metrics={**point.metrics, **timers}))

        result = super().run(spec, timed)
        if isinstance(result, PhaseFailure):
            return result
        right = sum(item.acc for item in self._outcomes(result.checkpoints[-1].path))
        return dataclasses.replace(result, setup_s=STARTUP_S, final_score=right / self.task.n_val)

    def evaluate(self, adapter: str | None, parquet: str, max_tokens: int) -> tuple[ItemOutcome, ...]:
        flips = self.script.get("flips", (0, 0))[self.slot.index]
        return tuple(
            dataclasses.replace(item, acc=1.0 - item.acc, response="another") if item.index < flips else item
            for item in self._outcomes(adapter)
        )

    def _outcomes(self, adapter: str | None) -> tuple[ItemOutcome, ...]:
        right = round(score_of(adapter) * self.task.n_val)
        return tuple(
            ItemOutcome(index=i, data_source="toy", score=float(i < right), acc=float(i < right))
            for i in range(self.task.n_val)
        )
