"""Cost of a tree search to Ray Tune's controller. Run: python -m benchmarks.tune_overhead

Plays `--trials` trials of `--results` results each through the hooks of search algorithm and scheduler, in
the order in which Tune's controller calls them, with Ray's own trial objects and the search's journal on
disk, but without a cluster. Prints (with `--json` as JSON) milliseconds of CPU time and wall-clock time per
result. They include the hooks at the start and end of a trial, but not waits for a proposal, which is made in
its own thread. Target: <= 10 ms per result at 200 trials.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune

from tests.tune.test_scheduler import Driver


class Stopwatch:
    """CPU seconds of this thread and wall-clock seconds of the calls so far."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def __call__(self, call: Callable[..., Any], *args: Any) -> Any:
        """Result of the call, whose time is added."""
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            return call(*args)
        finally:
            self.cpu.append(time.thread_time() - cpu)
            self.wall.append(time.perf_counter() - wall)


def measure(trials: int, results: int, folder: Path) -> dict[str, float]:
    """Milliseconds per result of one search."""
    driver = Driver(
        folder,
        space={"rate": tune.loguniform(1e-3, 1e3)},
        proposer="local",
        budget=trials,
        phase_steps=results,
    )
    driver.controller.search_alg.total_samples = trials
    scheduler, searcher, controller = driver.scheduler, driver.searcher, driver.controller
    per_result, per_trial, saves, begins = Stopwatch(), Stopwatch(), Stopwatch(), Stopwatch()
    for number in range(trials):
        trial = begins(driver.new_trial)  # waits for the proposal: its processor time counts alone
        for step in range(1, results + 1):
            place = Path(trial.storage.trial_fs_path) / f"checkpoint_{step - 1:06d}"
            place.mkdir(parents=True)
            x = step + (number * 7919 % 100) / 100
            result = {"training_iteration": step, "x": x, "loss": 1 / x, "checkpoint_dir_name": place.name}
            per_result(scheduler.choose_trial_to_run, controller)
            per_result(scheduler.on_trial_result, controller, trial, result)
            trial.run_metadata.last_result = result
        per_trial(scheduler.on_trial_complete, controller, trial, trial.last_result)
        per_trial(searcher.on_trial_complete, trial.trial_id)
        trial.status = "TERMINATED"
        saves(searcher.save, str(folder / "searcher.json"))
    n = trials * results
    hooks = (per_result, per_trial, saves)
    return {
        "trials": trials,
        "results": n,
        "cpu_ms_per_result": round(1e3 * sum(sum(watch.cpu) for watch in (*hooks, begins)) / n, 3),
        "clock_ms_per_result": round(1e3 * sum(sum(watch.wall) for watch in hooks) / n, 3),
        "p99_ms_of_one_hook": round(1e3 * sorted(per_result.wall)[int(0.99 * len(per_result.wall))], 3),
        "begin_ms_last_tenth": round(1e3 * sum(begins.cpu[-(trials // 10) :]) / (trials // 10), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200, help="at least 10")
    parser.add_argument("--results", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.trials, given.results, Path(folder))
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:24} {value:g}")


if __name__ == "__main__":
    main()
