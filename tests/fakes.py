"""A scripted engine behind the real protocol: trains nothing, reports curves that its script and the lr
decide.

`engine.backend: tests.fakes:make_engine`; the script is in `engine.overrides` under `script.*`, so that it
reaches the runner's process like any configuration:

    script.step_s          seconds per step (default 0) script.fail            nodes whose phase fails at step
    5 (class engine) script.bug             nodes in whose phase the engine raises ValueError script.sink
    nodes that unlearn what they were given (a hopeless phase for the stopper) script.nan             nodes
    whose loss is NaN from step 4 on script.die             nodes under which the runner's process is killed
    at step 3, in their first attempt script.die_always      the same in every attempt script.deaf
    nodes that do not stop when asked script.lost            nodes whose first attempt raises EngineLostError
    script.cannot_start    text of an EngineError at every start; script.version_error: of an
    EngineVersionError script.unscorable      `evaluate` raises EngineError
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.base import OnMetric, Slot
from llmzero_ray.errors import EngineError, EngineLostError, EngineVersionError
from llmzero_ray.records import Checkpoint, ItemOutcome, MetricPoint, PhaseFailure, PhaseResult, PhaseSpec
from llmzero_ray.tasks import PreparedTask

LR = "actor_rollout_ref.actor.optim.lr"
BASE_SCORE = 0.25
BEST_LR = 5e-4


def make_engine(config: SearchConfig, task: PreparedTask, slot: Slot) -> ScriptedEngine:
    script = {key.removeprefix("script."): value for key, value in config.engine.overrides.items()}
    return ScriptedEngine(script, task, slot)


class ScriptedEngine:
    """Scores rise from the start towards 0.9, fastest at lr 5e-4; an adapter is a directory that remembers
    its score."""

    def __init__(self, script: dict[str, Any], task: PreparedTask, slot: Slot) -> None:
        self.script, self.task, self.slot = script, task, slot
        self.asked: str | None = None
        self.running = threading.Event()
        self.phases = 0
        self.closed = False

    def run(self, spec: PhaseSpec, on_metric: OnMetric) -> PhaseResult | PhaseFailure:
        self._maybe_raise(spec)
        began, cold = time.monotonic(), None if self.phases else "first phase"
        self.phases += 1
        self.asked = None
        self.running.set()
        try:
            return self._train(spec, on_metric, began, cold)
        finally:
            self.running.clear()

    def _train(
        self, spec: PhaseSpec, on_metric: OnMetric, began: float, cold: str | None
    ) -> PhaseResult | PhaseFailure:
        start = score_of(spec.adapter)
        scores: dict[int, float] = {}
        saved: list[Checkpoint] = []
        reason, step = "n_steps", 0
        on_metric(self._point(spec, 0, began, start, start))
        for step in range(1, spec.n_steps + 1):
            time.sleep(float(self.script.get("step_s", 0.0)))
            score = learn(start, step, float(str(spec.hyperparameters[LR])))
            if self._is(spec, "sink"):
                score = start * math.exp(-0.3 * step)
            validated = step % spec.test_freq == 0 or step == spec.n_steps
            if validated:
                scores[step] = score
            last = step == spec.n_steps or (self.asked is not None and not self._is(spec, "deaf"))
            if step % spec.save_freq == 0 or validated or last:
                saved.append(self._save(spec, step, score, scores.get(step)))
            on_metric(self._point(spec, step, began, score, score if validated else None))
            if step == 3 and (self._is(spec, "die_always") or (self._is(spec, "die") and spec.attempt == 0)):
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 5 and self._is(spec, "fail"):
                return PhaseFailure(
                    node=spec.node,
                    failure_class="engine",
                    cause="RuntimeError: scripted failure",
                    log_tail="Traceback ...\nRuntimeError: scripted failure",
                    steps_done=step,
                    checkpoints=tuple(saved),
                    wall_s=time.monotonic() - began,
                )
            if last and step < spec.n_steps:
                reason = self.asked or "?"
                break
        best = max(scores, key=lambda s: (scores[s], -s), default=None)
        wall_s = time.monotonic() - began
        return PhaseResult(
            node=spec.node,
            status="early_stopped" if reason.startswith("verdict") else "completed",
            stop_reason=reason,
            steps_done=step,
            best_score=None if best is None else scores[best],
            best_step=best,
            start_score=start,
            final_score=scores[max(scores)] if scores else None,
            checkpoints=tuple(saved),
            wall_s=wall_s,
            train_wall_s=wall_s,
            gpu_hours=wall_s / 3600 * self.slot.n_gpus,
            warm=cold is None,
            cold_reason=cold,
        )

    def stop(self, reason: str) -> None:
        if self.running.is_set() and self.asked is None:
            self.asked = reason

    def evaluate(self, adapter: str | None, parquet: str, max_tokens: int) -> tuple[ItemOutcome, ...]:
        if self.script.get("unscorable"):
            raise EngineError("scripted: the rows could not be scored")
        n = self.task.n_test
        right = round(score_of(adapter) * n)
        return tuple(
            ItemOutcome(index=i, data_source="toy", score=float(i < right), acc=float(i < right))
            for i in range(n)
        )

    def close(self) -> None:
        self.closed = True

    def _maybe_raise(self, spec: PhaseSpec) -> None:
        if "version_error" in self.script:
            raise EngineVersionError(str(self.script["version_error"]))
        if "cannot_start" in self.script:
            raise EngineError(str(self.script["cannot_start"]))
        if self._is(spec, "lost") and spec.attempt == 0:
            raise EngineLostError("scripted: a process of the engine went away")
        if self._is(spec, "bug"):
            raise ValueError("scripted bug")

    def _is(self, spec: PhaseSpec, name: str) -> bool:
        return spec.node in (self.script.get(name) or ())

    def _save(self, spec: PhaseSpec, step: int, score: float, val_score: float | None) -> Checkpoint:
        directory = Path(spec.checkpoint_dir) / f"step_{step:06d}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "score.json").write_text(json.dumps(score))
        (directory / "adapter_model.safetensors").write_bytes(b"")
        (directory / "adapter_config.json").write_text("{}")
        return Checkpoint(step=step, path=str(directory), val_score=val_score)

    def _point(
        self, spec: PhaseSpec, step: int, began: float, reward: float, val_score: float | None
    ) -> MetricPoint:
        metrics = {
            "critic/score/mean": reward,
            "actor/entropy": 0.5,
            "actor/kl_loss": 0.01 * step,
            "actor/grad_norm": 0.5,
            "actor/pg_loss": math.nan if self._is(spec, "nan") and step >= 4 else 0.01,
            "actor/lr": float(str(spec.hyperparameters[LR])),
            "response_length/mean": 8.0,
            "response_length/clip_ratio": 0.0,
        }
        items = ()
        if val_score is not None:
            right = round(val_score * self.task.n_val)
            items = tuple(
                ItemOutcome(index=i, data_source="toy", score=float(i < right), acc=float(i < right))
                for i in range(self.task.n_val)
            )
        return MetricPoint(
            node=spec.node,
            attempt=spec.attempt,
            step=step,
            global_step=spec.base_step + step,
            wall_s=time.monotonic() - began,
            metrics=metrics if step else {},
            val_score=val_score,
            items=items,
        )


def score_of(adapter: str | None) -> float:
    """The score an adapter remembers; the base model's without one."""
    if adapter is None:
        return BASE_SCORE
    return float(json.loads((Path(adapter) / "score.json").read_text()))


def learn(start: float, step: int, lr: float) -> float:
    """The score after `step` steps: an exponential approach to 0.9, its rate highest at the best lr."""
    rate = 0.0 if lr <= 0 else 0.03 * math.exp(-abs(math.log(lr / BEST_LR)))
    return round(0.9 - (0.9 - start) * math.exp(-rate * step), 6)
