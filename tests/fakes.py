"""A scripted engine behind the real protocol: trains nothing, reports curves that its script and the lr
decide.

`engine.backend: tests.fakes:make_engine`; the script is in `engine.overrides` under `script.*`, so that it
reaches the runner's process like any configuration:

    script.step_s          seconds per step (default 0); script.slow: of these nodes alone
    script.fail            nodes whose phase fails at step 5 (class engine)
    script.bug             nodes in whose phase the engine raises ValueError
    script.sink            nodes that unlearn what they were given (a hopeless phase for the stopper)
    script.restates        nodes whose answers all restate the question, and are cut off at a cap of 32 tokens
    script.nan             nodes whose loss is NaN from step 4 on
    script.numpy           nodes whose scores and metrics are numpy's float32
    script.nan_score       nodes whose validation score is NaN at step 10
    script.die             nodes under which the runner's process is killed at step 3, in their first attempt
    script.die_always      the same in every attempt; script.die_at: another step for both
    script.hang            nodes that report nothing after step 3 in their first attempt, and sleep for ever
    script.hold            nodes whose first attempt waits after step 3 until it is asked to stop;
                           script.hold_at: another step; script.hold_until: or until this file exists,
                           with {node} in its name; script.hold_attempts: other attempts
    script.deaf            nodes that do not stop when asked
    script.lost            nodes whose first attempt raises EngineLostError
    script.cannot_start    text of an EngineError at every start
    script.version_error   text of an EngineVersionError at every start
    script.unscorable      `evaluate` raises EngineError; script.evaluate_s: seconds that it takes
    script.adapter_kib     size of every adapter (default 0)

Every `rolling_freq` steps a full checkpoint (step, scores, saved steps) goes to `rolling_dir`, once the point
of its step has been reported; a phase with `restore` goes on from it. Steps count in the phase: a repeat that
goes on after the step at which it is to die lives.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.base import OnMetric, Slot, Stage
from llmzero_ray.errors import EngineError, EngineLostError, EngineVersionError
from llmzero_ray.hyperparameters.compute import ComputeClock
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import Checkpoint, ItemOutcome, MetricPoint, PhaseFailure, PhaseResult, PhaseSpec
from llmzero_ray.records.metrics import VAL_TOKENS
from llmzero_ray.storage.manifests import problem_of, write_manifest
from llmzero_ray.utils.failpoints import reach

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
        self.stop_requested: str | None = None
        self.running = threading.Event()
        self.phases = 0
        self.closed = False
        self._began_step = time.monotonic()

    def run(self, spec: PhaseSpec, on_metric: OnMetric) -> PhaseResult | PhaseFailure:
        self._maybe_raise(spec)
        began, cold = time.monotonic(), None if self.phases else "first phase"
        self.phases += 1
        self.stop_requested = None
        self.running.set()
        try:
            return self._train(spec, on_metric, began, cold)
        finally:
            self.running.clear()

    def _train(
        self, spec: PhaseSpec, on_metric: OnMetric, began: float, cold: str | None
    ) -> PhaseResult | PhaseFailure:
        if spec.adapter is not None and (problem := problem_of(Path(spec.adapter))) is not None:
            return PhaseFailure(
                node=spec.node,
                failure_class="config",
                cause=f"{spec.adapter} cannot be used: {problem}",
                log_tail="",
            )
        start = score_of(spec.adapter)
        scores: dict[int, float] = {}
        saved: list[Checkpoint] = []
        reason, step, done = "n_steps", 0, 0
        clock = None if spec.compute is None else ComputeClock(spec.compute, spec.hyperparameters)
        kept = self._restored(spec)
        if kept is None:
            point = self._point(spec, 0, began, start, start)
            on_metric(point)
            if clock is not None:
                clock.take(0, point.metrics)
        else:
            done, start, began = kept["step"], kept["start"], time.monotonic() - kept["wall_s"]
            step = done
            scores = {int(at): score for at, score in kept["scores"].items()}
            saved = [
                Checkpoint(**{**saved, "val_score": scores.get(saved["step"])}) for saved in kept["saved"]
            ]
        die_at = int(self.script.get("die_at", 3))
        last_step = spec.n_steps
        for step in range(done + 1, spec.n_steps + 1):
            self._began_step = time.monotonic()
            if step == 4 and self._is(spec, "hang") and spec.attempt == 0:
                time.sleep(3600)
            if step == int(self.script.get("hold_at", 3)) + 1:
                self._hold(spec)
            if "slow" not in self.script or self._is(spec, "slow"):
                time.sleep(float(self.script.get("step_s", 0.0)))
            score = learn(start, step, float(str(spec.hyperparameters[LR])))
            if self._is(spec, "sink"):
                score = start * math.exp(-0.3 * step)
            if self._is(spec, "numpy"):
                score = np.float32(score)
            validated = step % spec.test_freq == 0 or step == last_step
            if self._is(spec, "nan_score") and step == 10:
                score = type(score)("nan")
            if validated:
                scores[step] = score
            if spec.max_wall_s is not None and time.monotonic() - began >= spec.max_wall_s:
                self.stop("max_hours")
            if spec.stop_after is not None and step >= spec.stop_after.step:
                self.stop(spec.stop_after.reason)
            stopped = self.stop_requested not in (None, "compute") and not self._is(spec, "deaf")
            last = step == last_step or stopped
            if step % spec.save_freq == 0 or validated or last:
                saved.append(self._save(spec, step, score, scores.get(step)))
            point = self._point(spec, step, began, score, score if validated else None)
            on_metric(point)
            following = "go on" if clock is None else clock.take(step, point.metrics)
            if following != "go on" and not last:
                last_step = step + (following == "last step")
                self.stop_requested = "compute"
                last = following == "end"
            if spec.rolling_freq and step % spec.rolling_freq == 0:
                state = {"step": step, "start": start, "wall_s": time.monotonic() - began, "scores": scores}
                self._roll(spec, {**state, "saved": [vars(checkpoint) for checkpoint in saved]})
            dies = self._is(spec, "die_always") or (self._is(spec, "die") and spec.attempt == 0)
            if step == die_at and dies:
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
                reason = self.stop_requested or "?"
                break
        best = max(scores, key=lambda s: (scores[s], -s), default=None)
        wall_s = time.monotonic() - began
        here_s = wall_s - (0.0 if kept is None else kept["wall_s"])
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
            gpu_hours=here_s / 3600 * self.slot.n_gpus,
            warm=cold is None,
            cold_reason=cold,
        )

    def _hold(self, spec: PhaseSpec) -> None:
        released = Path(str(self.script.get("hold_until", "never")).format(node=spec.node))
        while (
            self._is(spec, "hold")
            and spec.attempt in self.script.get("hold_attempts", (0,))
            and self.stop_requested is None
            and not released.exists()
        ):
            self._began_step = time.monotonic()  # it does not count as a hang
            time.sleep(0.02)

    def stop(self, reason: str) -> None:
        if self.running.is_set() and self.stop_requested is None:
            self.stop_requested = reason

    def evaluate(self, adapter: str | None, parquet: str, max_tokens: int) -> tuple[ItemOutcome, ...]:
        if self.script.get("unscorable"):
            raise EngineError("scripted: the rows could not be scored")
        if adapter is not None and (problem := problem_of(Path(adapter))) is not None:
            raise EngineError(f"{adapter} cannot be used: {problem}")
        time.sleep(float(self.script.get("evaluate_s", 0.0)))
        n = pq.read_metadata(parquet).num_rows
        right = round(score_of(adapter) * n)
        return tuple(
            ItemOutcome(index=i, data_source="toy", score=float(i < right), acc=float(i < right))
            for i in range(n)
        )

    def stage(self) -> Stage | None:
        if not self.running.is_set():
            return None
        return Stage(name="rollout", since_s=time.monotonic() - self._began_step, usual_s=None)

    def close(self) -> None:
        self.closed = True

    def _restored(self, spec: PhaseSpec) -> dict[str, Any] | None:
        """The newest full checkpoint that is sound, when the phase is to go on from one."""
        if not spec.restore or spec.rolling_dir is None:
            return None
        for folder in sorted(Path(spec.rolling_dir).glob("step_*.full"), reverse=True):
            if problem_of(folder) is None:
                found: dict[str, Any] = json.loads((folder / "state.json").read_text())
                return found
        return None

    def _roll(self, spec: PhaseSpec, state: dict[str, Any]) -> None:
        assert spec.rolling_dir is not None
        folder = Path(spec.rolling_dir) / f"step_{state['step']:06d}.full"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps(state, default=float))
        write_manifest(folder, {"step": state["step"]})
        for older in sorted(folder.parent.glob("step_*.full")):
            if older.name < folder.name:
                shutil.rmtree(older)

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
        directory = Path(spec.adapter_dir(step))
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "score.json").write_text(json.dumps(float(score)))
        size = int(self.script.get("adapter_kib", 0)) * 1024
        (directory / "adapter_model.safetensors").write_bytes(bytes(size))
        (directory / "adapter_config.json").write_text("{}")
        reach("checkpoint.saved")
        write_manifest(directory, {"step": step})
        return Checkpoint(step=step, path=str(directory), val_score=val_score)

    def _point(
        self, spec: PhaseSpec, step: int, began: float, reward: float, val_score: float | None
    ) -> MetricPoint:
        metrics = {
            "critic/score/mean": reward,
            "actor/entropy": type(reward)(0.5),
            "actor/kl_loss": 0.01 * step,
            "actor/grad_norm": 0.5,
            "actor/pg_loss": math.nan if self._is(spec, "nan") and step >= 4 else 0.01,
            "actor/lr": float(str(spec.hyperparameters[LR])),
            "response_length/mean": 8.0,
            "response_length/clip_ratio": 0.0,
        }
        restates = self._is(spec, "restates")
        if restates:
            metrics |= {"response_length/max": 32.0, "response_length/clip_ratio": 1.0}
        items, sampled = (), {}
        if val_score is not None:
            sampled = {VAL_TOKENS: 8.0 * self.task.n_val}
            right = 0 if math.isnan(val_score) else round(val_score * self.task.n_val)
            items = tuple(
                ItemOutcome(
                    index=i,
                    data_source="toy",
                    score=float(i < right),
                    acc=float(i < right),
                    response=f"To answer question {i}, we need to" if restates else "",
                )
                for i in range(self.task.n_val)
            )
        return MetricPoint(
            node=spec.node,
            attempt=spec.attempt,
            step=step,
            global_step=spec.base_step + step,
            wall_s=time.monotonic() - began,
            metrics=(metrics if step else {}) | sampled,
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
