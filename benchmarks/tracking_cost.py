"""Cost of experiment trackers for a search: its duration with trackers against its duration without.

    python -m benchmarks.tracking_cost [--repeats 2] [--runs 6]

Runs the same search alternately on the scripted engine, whose steps always take the same time:

    none      without trackers
    local     with tensorboard, mlflow (file store) and wandb (offline), the real packages through VeRL
    hanging   with mlflow at a server that takes connections and never answers

Prints for each the seconds from the start of the first phase to the end of the last one, the seconds from
there until the command would return (it waits for trackers for at most `tracking.finish_s`, here 60 s), the
number of points sent and of all points, and the ratio of the medians to `none`, with the machine's load.
Trackers send in separate processes at a lower priority: on a busy machine they may finish late, but delay
nothing.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import llmzero_ray
import tests.conftest  # noqa: F401 - the environment that Ray reads once
from llmzero_ray.records import events as ev
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage.metric_files import load_points
from llmzero_ray.tasks.prepare import prepare
from llmzero_ray.tracking.backend_process import last_step
from tests.searches import scripted_search

_STEP_S = 0.25


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=2, help="searches of each kind")
    parser.add_argument("--runs", type=int, default=6, help="phases of a search, 10 steps each")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(256)  # the kernel takes connections, nobody reads them
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        kinds: dict[str, dict[str, Any]] = {
            "none": {},
            "local": {
                "backends": ["tensorboard", "mlflow", "wandb"],
                "variables": {"WANDB_MODE": "offline"},
            },
            "hanging": {
                "backends": ["mlflow"],
                "variables": {"MLFLOW_TRACKING_URI": address},
            },
        }
        root = Path(place)
        prepare(dir=root / "task", family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for repeat in range(given.repeats):
            for kind, tracking in kinds.items():
                search = root / f"{kind}-{repeat}"
                search.mkdir()
                phases, end, sent, points = measure(search, root / "task", given.runs, tracking)
                seconds[kind].append(phases)
                print(
                    f"{kind}: phases {phases:.1f} s, then {end:.1f} s, {sent} of {points} points sent, "
                    f"load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
        usual = statistics.median(seconds["none"])
        for kind, found in seconds.items():
            print(f"{kind}: {statistics.median(found):.1f} s, {statistics.median(found) / usual:.3f} of none")


def measure(root: Path, task: Path, runs: int, tracking: dict[str, Any]) -> tuple[float, float, int, int]:
    """(seconds of the phases, seconds from there to the end, points sent, all points) of a search."""
    data = scripted_search(
        root,
        task,
        {"step_s": _STEP_S},
        budget={"runs": runs},
        final={"test": False, "default_recipe": False},
        tracking=tracking,
    )
    facts = SearchFacts(llmzero_ray.run(data).wait().root)
    returned = time.time()
    started = [event.time for event in facts.events if isinstance(event, ev.PhaseStarted)]
    ended = [event.time for event in facts.events if isinstance(event, ev.PhaseFinished)]
    sent = points = 0
    for node, run in facts.core.runs.items():
        steps = [run.base_step + point.step for point in load_points(facts.storage, node)]
        for backend in tracking.get("backends", ()):
            done = last_step(facts.paths.root / f"tracking/state/node-{node:04d}.{backend}.json")
            sent += sum(step <= done for step in steps)
            points += len(steps)
    return max(ended) - min(started), returned - max(ended), sent, points


if __name__ == "__main__":
    main()
