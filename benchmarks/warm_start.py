"""Time until a phase can take its first step after a cold and a warm start, in one run on real VeRL.

    python -m benchmarks.warm_start [--phases 5]

Prints one JSON line: seconds of the cold start, of each warm start, and their ratio. The validation at step
0, which both have, does not count.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.slot import local_slot, small_phase
from llmzero_ray.config import parse_config
from llmzero_ray.engines.registry import make_engine
from llmzero_ray.engines.verl.factory import idle_spec
from llmzero_ray.records import PhaseResult
from llmzero_ray.tasks.prepare import prepare


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--phases", type=int, default=5, help="warm phases to measure")
    n_warm = parser.parse_args().phases
    with tempfile.TemporaryDirectory() as root, local_slot("warm-start") as slot:
        task = prepare(dir=f"{root}/task", family="echo", n_train=256, n_val=64, n_test=64, seed=1)
        config = parse_config(small_phase("warm-start"))
        engine = make_engine(config, task, slot, root)
        base = dataclasses.replace(
            idle_spec(config, task.n_train, root),
            n_steps=2,
            save_freq=2,
            test_freq=2,
            checkpoint_dir=f"{root}/c",
        )
        seconds: list[float] = []
        adapter: str | None = None
        try:
            for i in range(1 + n_warm):
                spec = dataclasses.replace(
                    base, node=i, seed=i, adapter=adapter, checkpoint_dir=f"{root}/c/{i}"
                )
                outcome = engine.run(spec, lambda _: None)
                if not isinstance(outcome, PhaseResult):
                    raise SystemExit(f"phase {i} failed: {outcome.cause}")
                if outcome.warm is (i == 0):
                    raise SystemExit(f"phase {i}: warm is {outcome.warm} ({outcome.cold_reason})")
                seconds.append(outcome.setup_s)
                adapter = str(Path(outcome.checkpoints[-1].path))
        finally:
            engine.close()
    cold, warm = seconds[0], seconds[1:]
    ratio = statistics.median(warm) / cold
    print(
        json.dumps(
            {
                "cold_s": round(cold, 2),
                "warm_s": [round(w, 2) for w in warm],
                "warm_over_cold": round(ratio, 4),
            }
        )
    )


if __name__ == "__main__":
    main()
