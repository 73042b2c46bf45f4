"""A driver process of one search under Tune: begins it, or goes on with what a killed one left.

python -m tests.tune.driver FOLDER BUDGET PHASE_STEPS WORKERS SLEEP_S
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray import tune

from llmzero_ray.tune import tree_search
from tests.tune.trainables import climb


class NoteFinished(tune.Callback):
    """Writes the id of each trial that the controller finished."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        with open(self.path, "a") as file:
            file.write(f"{trial.trial_id}\n")


def propose(request: Any) -> dict[str, Any]:
    return {"rate": 1.0 + (request.node or 0) / 8}


def main(folder: Path, budget: int, phase_steps: int, workers: int, sleep_s: float) -> None:
    ray.init(log_to_driver=False, logging_level="ERROR")
    place = folder / "exp"
    if tune.Tuner.can_restore(str(place)):
        tuner = tune.Tuner.restore(str(place), trainable=climb)
    else:
        search_alg, scheduler = tree_search(
            metric="x",
            space={"rate": tune.uniform(0.1, 100.0)},
            root={"rate": 1.0},
            proposer=propose,
            budget=budget,
            phase_steps=phase_steps,
        )
        tuner = tune.Tuner(
            climb,
            param_space={"notes": str(folder / "notes.jsonl"), "sleep_s": sleep_s},
            tune_config=tune.TuneConfig(
                search_alg=search_alg,
                scheduler=scheduler,
                num_samples=-1,
                max_concurrent_trials=workers,
            ),
            run_config=tune.RunConfig(
                name="exp",
                storage_path=str(folder),
                verbose=0,
                callbacks=[NoteFinished(folder / "finished.txt")],
            ),
        )
    results = tuner.fit()
    rows = [
        {
            "phase": result.config["llmzero_phase"],
            "path": result.path,
            "x": result.metrics.get("x"),
            "iteration": result.metrics.get("training_iteration"),
        }
        for result in results
    ]
    (folder / "outcome.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
