"""Steps per second of two slots that train at the same time, against one slot alone, on real VeRL on one
machine.

    python -m benchmarks.two_slots [--steps 20]

Prints one JSON line: steps per second of each slot alone and of both together, and the ratio of the latter to
the mean of the former. Only the time in which both train counts, without starts and validations.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.slot import local_slots, small_phase
from llmzero_ray.config import parse_config
from llmzero_ray.engines.base import Slot
from llmzero_ray.engines.registry import make_engine
from llmzero_ray.engines.verl.factory import idle_spec
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.records import MetricPoint, PhaseFailure, PhaseResult, PhaseSpec
from llmzero_ray.tasks.prepare import prepare


class SlotRunner:
    """One slot's engine in its own process, as in the project's runner; `start_runner` makes it a Ray
    actor."""

    def __init__(self, config: dict[str, Any], task_dir: str, slot: Slot, log_dir: str) -> None:
        self._engine = make_engine(parse_config(config), load_task(task_dir), slot, log_dir)
        self._points: list[tuple[float, MetricPoint]] = []

    def run(self, spec: PhaseSpec) -> tuple[PhaseResult | PhaseFailure, list[tuple[float, MetricPoint]]]:
        """The outcome, and every point with its arrival time (`time.monotonic`)."""
        self._points = []
        outcome = self._engine.run(spec, lambda point: self._points.append((time.monotonic(), point)))
        return outcome, self._points

    def state(self) -> dict[str, Any]:
        """Process id, newest step of the running phase, and its stage."""
        step = self._points[-1][1].step if self._points else None
        return {"pid": os.getpid(), "step": step, "stage": self._engine.stage()}

    def close(self) -> None:
        """End the engine's processes."""
        self._engine.close()


def start_runner(config: dict[str, Any], task: PreparedTask, slot: Slot, root: str) -> Any:
    """The actor of a slot."""
    import ray

    made = ray.remote(SlotRunner).options(num_cpus=0, max_concurrency=4)
    return made.remote(config, task.directory, slot, f"{root}/slot{slot.index}")


def make_spec(config: dict[str, Any], task: PreparedTask, root: str, node: int, n_steps: int) -> PhaseSpec:
    """The root's hyper-parameters for `n_steps` steps, validated before and after."""
    return dataclasses.replace(
        idle_spec(parse_config(config), task.n_train, root),
        node=node,
        seed=node + 1,
        n_steps=n_steps,
        save_freq=n_steps,
        test_freq=n_steps,
        checkpoint_dir=f"{root}/checkpoints/{node}",
    )


def rate(points: Sequence[tuple[float, MetricPoint]], begin: float, end: float) -> float:
    """Training steps per second that ended in (begin, end], without the last one, which validates."""
    times = [at for at, point in points[:-1] if point.step > 0 and begin < at <= end]
    return len(times) / (end - begin)


def span(points: Sequence[tuple[float, MetricPoint]]) -> tuple[float, float]:
    """Time from the end of the first step to the end of the last but one."""
    times = [at for at, point in points if point.step > 0]
    return times[0], times[-2]


def main() -> None:
    """Measure and print."""
    import ray

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20, help="training steps of each phase")
    n_steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as root, local_slots("two-slots", 2) as slots:
        task = prepare(dir=f"{root}/task", family="echo", n_train=256, n_val=64, n_test=64, seed=1)
        config = small_phase("two-slots")
        runners = [start_runner(config, task, slot, root) for slot in slots]
        specs = [make_spec(config, task, root, node, n_steps) for node in range(2)]
        alone = []
        for runner, spec in zip(runners, specs, strict=True):
            _check(ray.get(runner.run.remote(dataclasses.replace(spec, n_steps=2)))[0])  # warms the engine
            outcome, points = ray.get(runner.run.remote(spec))
            _check(outcome)
            alone.append(rate(points, *span(points)))
        both = ray.get([runner.run.remote(spec) for runner, spec in zip(runners, specs, strict=True)])
        for outcome, _ in both:
            _check(outcome)
        begins, ends = zip(*(span(points) for _, points in both), strict=True)
        begin, end = max(begins), min(ends)
        together = sum(rate(points, begin, end) for _, points in both)
        ray.get([runner.close.remote() for runner in runners])
    print(
        json.dumps(
            {
                "alone_steps_per_s": [round(one, 3) for one in alone],
                "together_steps_per_s": round(together, 3),
                "together_over_alone": round(together / (sum(alone) / len(alone)), 3),
                "both_trained_s": round(end - begin, 1),
            }
        )
    )


def _check(outcome: PhaseResult | PhaseFailure) -> None:
    if isinstance(outcome, PhaseFailure):
        raise SystemExit(f"a phase failed: {outcome.cause}")


if __name__ == "__main__":
    main()
