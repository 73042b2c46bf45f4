"""Time that engine settings save in one run on real VeRL, and the values that they change.

    python -m benchmarks.rollouts [--steps 6] [--warm 1] [--task DIR] [--config FILE] [--before KEY=VALUE ...]

Trains the task of a configuration (default: jobs/configs/local.yaml) as it is (`now`) and with the changes of
`--before` (default: VeRL's own path, `engine.rollout_calls=per_request`): one cold phase, then warm ones, all
with the same seed. Prints a table of wall-clock seconds, of CPU seconds of all child processes, and of their
ratios. It also prints how many values of the last phase are bit-identical: every metric except times and
memory, and the validations item by item. The times depend on other load on the machine (CPU seconds less so)
and on which side runs first.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.slot import local_slot
from llmzero_ray.config import SearchConfig, load_config
from llmzero_ray.engines.registry import make_engine
from llmzero_ray.engines.verl.factory import idle_spec
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import MetricPoint, PhaseResult, PhaseSpec
from llmzero_ray.tasks.prepare import prepare

SIDES = ("before", "now")
SHIPPED = Path(__file__).parent.parent / "jobs" / "configs" / "local.yaml"
NOT_COMPARED = ("timing", "perf/", "global_seqlen/")
"""Metrics of time and memory, which are not compared."""


class Processors:
    """CPU seconds of all child processes, including ended ones that were observed."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], float] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def seconds(self) -> float:
        """CPU seconds so far."""
        with self._lock:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    self._seen[(process.pid, process.create_time())] = times.user + times.system
            return sum(self._seen.values())

    def close(self) -> None:
        """Stop observing."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            self.seconds()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=6, help="training steps of a phase")
    parser.add_argument("--warm", type=int, default=1, help="warm phases of each side")
    parser.add_argument("--task", help="directory of the prepared task; made again without it")
    parser.add_argument("--config", type=Path, default=SHIPPED, help="configuration that is measured")
    parser.add_argument(
        "--before", nargs="+", default=["engine.rollout_calls=per_request"], metavar="KEY=VALUE"
    )
    parser.add_argument("--first", choices=SIDES, default=SIDES[0], help="side that is measured first")
    options = parser.parse_args()
    order = [options.first, *(side for side in SIDES if side != options.first)]
    with tempfile.TemporaryDirectory() as root, local_slot("rollouts") as slot:
        changes = {"before": options.before, "now": []}
        own = ["name=rollouts", f"storage={root}"]
        sides = {side: load_config(options.config, [*own, *changes[side]]) for side in SIDES}
        sizes = sides["now"].task
        task = prepare(
            dir=options.task or (f"{root}/task" if sizes.family else sizes.dir),
            family=sizes.family,
            n_val=sizes.n_val,
            n_test=sizes.n_test,
            seed=1,
        )
        processors = Processors()
        measured = {
            side: measure(sides[side], task, slot, f"{root}/{side}", options, processors) for side in order
        }
        processors.close()
    table = {side: measured[side].row() for side in SIDES}
    print(f"{'':52} {SIDES[0]:>11} {SIDES[1]:>11} {'ratio':>7}")
    for name in table["now"]:
        before, now = (table[side][name] for side in SIDES)
        print(f"{name:52} {before:11.2f} {now:11.2f} {before / now:7.2f}")
    same, different = compared(*(measured[side].points for side in SIDES))
    print(f"values that are the same to the bit: {same} of {same + len(different)}")
    for line in different[:10]:
        print(f"  {line}")
    print(json.dumps({"sides": table, "same": same, "different": len(different)}))


@dataclasses.dataclass
class Measured:
    """Costs of one of the two sides."""

    cold: dict[str, float]
    warm: list[dict[str, float]]
    points: list[MetricPoint]
    """Metric points of the last phase."""

    def row(self) -> dict[str, float]:
        """Name with unit -> value; medians of warm phases."""
        names = self.warm[0]
        return self.cold | {name: statistics.median(one[name] for one in self.warm) for name in names}


def measure(
    config: SearchConfig,
    task: PreparedTask,
    slot: Any,
    root: str,
    options: argparse.Namespace,
    processors: Processors,
) -> Measured:
    """Run a cold phase and warm ones on an engine with these settings; `root` is its directory."""
    engine = make_engine(config, task, slot, root)
    base = dataclasses.replace(
        idle_spec(config, task.n_train, root),
        n_steps=options.steps,
        save_freq=options.steps,
        test_freq=max(1, options.steps // 2),
        seed=1,
    )
    cold: dict[str, float] = {}
    warm: list[dict[str, float]] = []
    try:
        for index in range(1 + options.warm):
            steps = 1 if index == 0 else options.steps
            spec = dataclasses.replace(
                base, node=index, n_steps=steps, checkpoint_dir=f"{root}/checkpoints/{index}"
            )
            figures, points, outcome = run(engine, spec, processors)
            if index == 0:
                cold = {
                    "cold start, s": outcome.setup_s,
                    "cold start to the end of the first validation, s": figures["first point"],
                    "cold phase of one step, processor s": figures["processor"],
                }
                continue
            tests = [p.metrics["timing_s/testing"] for p in points if "timing_s/testing" in p.metrics]
            warm.append(
                {
                    "step, s": of_steps(points, "step"),
                    "of it generation, s": of_steps(points, "gen"),
                    "of it log probabilities, s": of_steps(points, "old_log_prob", "ref"),
                    "of it update, s": of_steps(points, "update_actor"),
                    "validation, s": statistics.median(tests),
                    "start to the end of the validation at step 0, s": figures["first point"],
                    "warm phase, s": figures["phase"],
                    "warm phase, processor s": figures["processor"],
                }
            )
    finally:
        engine.close()
    return Measured(cold=cold, warm=warm, points=points)


def run(
    engine: Any, spec: PhaseSpec, processors: Processors
) -> tuple[dict[str, float], list[MetricPoint], PhaseResult]:
    """Figures, points and outcome of one phase."""
    points: list[MetricPoint] = []
    at: list[float] = []

    def on_metric(point: MetricPoint) -> None:
        at.append(time.monotonic())
        points.append(point)

    before, began = processors.seconds(), time.monotonic()
    outcome = engine.run(spec, on_metric)
    if not isinstance(outcome, PhaseResult):
        raise SystemExit(f"phase {spec.node} failed: {outcome.cause}")
    figures = {
        "phase": time.monotonic() - began,
        "first point": at[0] - began,
        "processor": processors.seconds() - before,
    }
    return figures, points, outcome


def of_steps(points: list[MetricPoint], *stages: str) -> float:
    """Median over the training steps of the seconds that VeRL measured for these stages together."""
    return statistics.median(
        sum(point.metrics[f"timing_s/{stage}"] for stage in stages) for point in points if point.step > 0
    )


def compared(one: list[MetricPoint], other: list[MetricPoint]) -> tuple[int, list[str]]:
    """Number of bit-identical values of two phases, and one line for each value that differs."""
    mine, theirs = values_of(one), values_of(other)
    different = []
    for name in sorted({*mine, *theirs}):
        a, b = mine.get(name), theirs.get(name)
        both_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
        if a != b and not both_nan:
            different.append(f"{name}: {a!r} and {b!r}")
    return len({*mine, *theirs}) - len(different), different


def values_of(points: list[MetricPoint]) -> dict[str, Any]:
    """All values of a phase that must not change, by step and name."""
    found: dict[str, Any] = {}
    for point in points:
        for name, value in point.metrics.items():
            if not name.startswith(NOT_COMPARED) and "perf/" not in name:
                found[f"{point.step} {name}"] = value
        if point.items:
            found[f"{point.step} outcomes"] = [(i.index, i.score, i.acc) for i in point.items]
            found[f"{point.step} answers"] = [i.response for i in point.items]
    return found


if __name__ == "__main__":
    main()
