"""Cost of the adapter canary if it runs after every weight update, in one engine of real VeRL.

    python -m benchmarks.canary_cost [--steps 20] [--pairs 3]

Trains warm phases from the same start, alternately with and without the canary (two forward passes of the
actor over a fixed text of at most 64 tokens, one request to each vLLM server). Prints one JSON line: seconds
per step of each phase, including the one validation at its end; the difference of the medians; its share.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile

from benchmarks.slot import local_slot, small_phase
from llmzero_ray.config import parse_config
from llmzero_ray.engines.verl.engine import VerlEngine
from llmzero_ray.engines.verl.factory import idle_spec, verl_settings
from llmzero_ray.hyperparameters import is_hot
from llmzero_ray.records import PhaseResult, PhaseSpec
from llmzero_ray.tasks.prepare import prepare


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20, help="training steps of a phase")
    parser.add_argument("--pairs", type=int, default=3, help="phases of each kind")
    options = parser.parse_args()
    found: dict[str, list[float]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as root, local_slot("canary") as slot:
        task = prepare(dir=f"{root}/task", family="echo", n_train=256, n_val=16, n_test=16, seed=1)
        config = parse_config(small_phase("canary"))
        settings = dataclasses.replace(verl_settings(config, task, slot, root), canary_every_push=True)
        idle = idle_spec(config, task.n_train, root)
        engine = VerlEngine(settings, task.n_train, idle, is_hot)
        never = options.steps + 1  # one validation, at the end
        spec = dataclasses.replace(idle, n_steps=options.steps, save_freq=never, test_freq=never, seed=1)
        try:
            seconds_a_step(engine, dataclasses.replace(spec, n_steps=1, checkpoint_dir=f"{root}/cold"), ())
            for index in range(2 * options.pairs):
                kind = "with" if index % 2 else "without"
                skip = () if kind == "with" else ("canary",)
                phase = dataclasses.replace(spec, node=1 + index, checkpoint_dir=f"{root}/{index}")
                found[kind].append(seconds_a_step(engine, phase, skip))
        finally:
            engine.close()
    checked, unchecked = (statistics.median(found[kind]) for kind in ("with", "without"))
    rounded = {kind: [round(seconds, 4) for seconds in found[kind]] for kind in found}
    cost = checked - unchecked
    print(json.dumps({**rounded, "canary_s": round(cost, 4), "share": round(cost / checked, 4)}))


def seconds_a_step(engine: VerlEngine, spec: PhaseSpec, skip: tuple[str, ...]) -> float:
    """Seconds per step of a phase's training."""
    outcome = engine.run(spec, lambda _: None, skip)
    if not isinstance(outcome, PhaseResult):
        raise SystemExit(f"phase {spec.node} failed: {outcome.cause}")
    return outcome.train_wall_s / spec.n_steps


if __name__ == "__main__":
    main()
