"""Gain of finished searches over the default recipe and over the best of a static sweep.

    python -m benchmarks.compare runs/demo-1 runs/demo-2 runs/demo-3 [--sweep benchmarks/static_sweep.yaml]
    [--out FILE]

Reads the test scores that the searches measured: best strategy, default recipe trained in one phase for the
strategy's compute or steps, base model. Trains the sweep's recipes, one phase each, for the median of the
strategies' total steps, with the searches' task, model, engine and validation intervals; each is scored on
the test split at its best validation step. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.slot import local_slot
from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.base import Engine
from llmzero_ray.engines.registry import make_engine
from llmzero_ray.engines.verl.factory import idle_spec
from llmzero_ray.hyperparameters import complete, normalize
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.records import PhaseResult, PhaseSpec
from llmzero_ray.report.comparison import Policy, policies
from llmzero_ray.report.facts import SearchFacts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("searches", nargs="+", type=Path, help="directories of finished searches on one task")
    parser.add_argument("--sweep", type=Path, default=Path(__file__).parent / "static_sweep.yaml")
    parser.add_argument("--out", type=Path, default=None, help="also write the JSON document here")
    arguments = parser.parse_args()
    facts = [SearchFacts(path) for path in arguments.searches]
    rows = [_row(found) for found in facts]
    steps = [row["best"]["steps"] for row in rows if row["best"]["steps"]]
    if not steps:
        sys.exit("none of these searches has a best strategy; run them to their end first")
    n_steps = round(statistics.median(steps))
    sweep = yaml.safe_load(arguments.sweep.read_text())
    results = {"searches": rows, "static_steps": n_steps, "static": _sweep(facts[0], sweep, n_steps)}
    text = json.dumps(results | {"summary": _summary(results)}, indent=1)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    print(text)


def _row(facts: SearchFacts) -> dict[str, Any]:
    found = {policy.what: policy for policy in policies(facts)}
    return {
        "search": facts.config.name,
        "seed": facts.config.seed,
        "nodes": len(facts.nodes),
        **{what: _scores(found.get(what)) for what in ("base", "reference", "best")},
    }


def _scores(policy: Policy | None) -> dict[str, Any]:
    if policy is None:
        return {"steps": None, "validation": None, "test": None}
    return {
        "steps": policy.steps,
        "validation": None if policy.validation is None else round(policy.validation.mean, 4),
        "test": None if policy.test is None else round(policy.test.mean, 4),
    }


def _sweep(facts: SearchFacts, recipes: list[dict[str, Any]], n_steps: int) -> list[dict[str, Any]]:
    config, task = facts.config, load_task(facts.config.task.dir)
    rows = []
    with tempfile.TemporaryDirectory() as root, local_slot("static-sweep", config.slots.cpus_per_gpu) as slot:
        engine = make_engine(config, task, slot, root)
        try:
            for number, recipe in enumerate(recipes):
                spec = _phase(config, task, recipe, n_steps, number, root)
                rows.append(_train(engine, spec, task, config, recipe))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        finally:
            engine.close()
    return rows


def _phase(
    config: SearchConfig, task: PreparedTask, recipe: dict[str, Any], n_steps: int, number: int, root: str
) -> PhaseSpec:
    idle = idle_spec(config, task.n_train, root)
    return dataclasses.replace(
        idle,
        node=number,
        n_steps=n_steps,
        hyperparameters=complete(idle.hyperparameters, normalize(recipe)),
        seed=config.seed,
        save_freq=n_steps,
        test_freq=config.phase.test_freq,
        checkpoint_dir=f"{root}/checkpoints/{number}",
    )


def _train(
    engine: Engine, spec: PhaseSpec, task: PreparedTask, config: SearchConfig, recipe: dict[str, Any]
) -> dict[str, Any]:
    began = time.monotonic()
    outcome = engine.run(spec, lambda _: None)
    if not isinstance(outcome, PhaseResult) or outcome.best_step is None:
        return {**recipe, "failed": getattr(outcome, "cause", "no validation")}
    best = next(c for c in outcome.checkpoints if c.step == outcome.best_step)
    items = engine.evaluate(best.path, task.test, config.eval.max_response_length)
    return {
        **recipe,
        "best_step": outcome.best_step,
        "validation": outcome.best_score,
        "test": round(sum(item.acc for item in items) / len(items), 4),
        "wall_s": round(time.monotonic() - began, 1),
    }


def _summary(results: dict[str, Any]) -> dict[str, Any]:
    """Mean and range over the searches, and the sweep's recipe with the best validation, which a user would
    choose."""

    def over(what: str) -> dict[str, Any]:
        values = [row[what]["test"] for row in results["searches"] if row[what]["test"] is not None]
        if not values:
            return {"n": 0}
        return {
            "n": len(values),
            "mean": round(statistics.fmean(values), 4),
            "min": min(values),
            "max": max(values),
        }

    static = [row for row in results["static"] if "test" in row]
    chosen = max(static, key=lambda row: row["validation"]) if static else None
    return {
        "base": over("base"),
        "default_recipe": over("reference"),
        "search": over("best"),
        "best_static": chosen,
    }


if __name__ == "__main__":
    main()
