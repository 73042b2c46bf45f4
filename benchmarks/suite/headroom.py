"""Measure the headroom of the suite's tasks:

    python -m benchmarks.suite.headroom [TASK ...] [--data DIR] [--out FILE]
    python -m benchmarks.suite.headroom --table     what is measured; nothing is trained

For each task, on one warm engine and with reserved seeds, it trains the default recipe at three seeds; each
static arm of arms.yaml at the first seed, for the same compute; the two best of these by validation at the
other seeds; the default and the best arm at three times the compute. A run's score is that of the test split
at the best validation step. A run that fails midway counts 0; one that trains no step says nothing about its
recipe, and ends the measurement. Each run is one line of headroom_runs/TASK.jsonl next to the table and is
never repeated: an interrupted measurement continues with the next run. A task enters the table
(headroom.json) when it is complete.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.slot import local_slot
from benchmarks.suite.tasks import HERE, TASKS, SuiteTask, config, digest, prepare, task_named
from llmzero_ray.config import SearchConfig
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.coordinator.plan import phase_seed
from llmzero_ray.engines.base import Engine
from llmzero_ray.engines.registry import make_engine
from llmzero_ray.engines.verl.factory import idle_spec
from llmzero_ray.errors import ConfigError, EngineError, LlmzeroError
from llmzero_ray.hyperparameters import complete, normalize
from llmzero_ray.hyperparameters.compute import amount, measured_cost, tokens_of
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import ComputeLimit, MetricPoint, PhaseFailure, PhaseResult, PhaseSpec, TokenCost

SEEDS = (101, 102, 103)
"""Seeds of the headroom measurement; no comparison may use them."""
CEILING = 3
"""Compute of the ceiling runs, in multiples of the budget."""
DEFAULT = "default"
_SECOND = 2
"""Number of arms that are measured at all seeds."""
TABLE = HERE / "headroom.json"
Run = dict[str, Any]


def main() -> None:
    """Measure what is missing, unless only the table is wanted, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tasks", nargs="*", help="names of tasks; none: all")
    parser.add_argument("--data", type=Path, default=Path("data/suite"), help="directory of the tasks")
    parser.add_argument("--out", type=Path, default=TABLE, help="the table")
    parser.add_argument("--table", action="store_true", help="train nothing, print what is measured")
    arguments = parser.parse_args()
    try:
        if arguments.table:
            print(table(known_headroom(arguments.out)))
            return
        tasks = [task_named(name) for name in arguments.tasks] or list(TASKS)
        for task in tasks:
            runs = measure(
                task, arguments.data, arguments.out.parent / "headroom_runs" / f"{task.name}.jsonl"
            )
            _keep(arguments.out, task, runs)
    except LlmzeroError as error:
        sys.exit(f"headroom: {error}")
    print(table(json.loads(arguments.out.read_text(encoding="utf-8"))))


def measure(task: SuiteTask, data: Path, path: Path) -> list[Run]:
    """All runs of a task. Trains those that are missing in the file at `path`."""
    prepared, settings = prepare(task, data), config(task, data)
    known = _read(path, digest(task))
    if next_run(known, arms()) is None:
        return known
    with local_slot(f"headroom-{task.name.replace('_', '-')}", settings.slots.cpus_per_gpu) as slot:
        logs = data / "logs" / task.name
        logs.mkdir(parents=True, exist_ok=True)
        engine = make_engine(settings, prepared, slot, str(logs))
        try:
            while (wanted := next_run(known, arms())) is not None:
                found = _train(engine, settings, prepared, wanted, _budget(known), data / "work")
                known.append({**wanted, "digest": digest(task), **found})
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known[-1]) + "\n")
                print(json.dumps({"task": task.name, **known[-1]}), file=sys.stderr, flush=True)
        finally:
            engine.close()
    return known


def arms() -> dict[str, dict[str, Any]]:
    """Static recipes by name: hyper-parameter -> value that differs from the default."""
    found: dict[str, dict[str, Any]] = {DEFAULT: {}, **read_yaml(HERE / "arms.yaml")}
    return found


def next_run(known: Sequence[Run], arms: Mapping[str, Any]) -> Run | None:
    """The arm, seed and length that come next, or None if the task is complete."""
    done = {(run["arm"], run["seed"], run["times"]) for run in known}
    wanted: list[tuple[str, int, int]] = [(DEFAULT, seed, 1) for seed in SEEDS]
    wanted += [(arm, SEEDS[0], 1) for arm in arms if arm != DEFAULT]
    missing = next((one for one in wanted if one not in done), None)
    if missing is None:
        first = ranked([run for run in known if run["seed"] == SEEDS[0] and run["times"] == 1])
        wanted = [(arm, seed, 1) for arm in first[:_SECOND] for seed in SEEDS[1:]]
        missing = next((one for one in wanted if one not in done), None)
    if missing is None:
        best = best_arm(known)
        wanted = [(arm, SEEDS[0], CEILING) for arm in (DEFAULT, best)]
        missing = next((one for one in wanted if one not in done), None)
    return None if missing is None else dict(zip(("arm", "seed", "times"), missing, strict=True))


def ranked(runs: Sequence[Run]) -> list[str]:
    """Arms except the default by mean validation score, best first; failed runs count 0."""
    scores: dict[str, list[float]] = {}
    for run in runs:
        scores.setdefault(run["arm"], []).append(run["validation"] or 0.0)
    means = {arm: statistics.fmean(found) for arm, found in scores.items() if arm != DEFAULT}
    return sorted(means, key=lambda arm: -means[arm])


def best_arm(known: Sequence[Run]) -> str:
    """Best arm by validation, among those that were measured at all seeds."""
    whole = [run for run in known if run["times"] == 1]
    counted = [arm for arm in ranked(whole) if sum(run["arm"] == arm for run in whole) == len(SEEDS)]
    return counted[0]


def _budget(known: Sequence[Run]) -> tuple[float, TokenCost] | None:
    """(compute of a default run, cost of a token), from the default's first run; None before that."""
    first = next((run for run in known if run["arm"] == DEFAULT), None)
    return None if first is None else (first["compute"], TokenCost(**first["cost"]))


def _train(
    engine: Engine,
    config: SearchConfig,
    task: PreparedTask,
    wanted: Run,
    budget: tuple[float, TokenCost] | None,
    work: Path,
) -> Run:
    began, points = time.monotonic(), list[MetricPoint]()
    spec = _phase(config, task, wanted, budget, work)
    outcome = engine.run(spec, points.append)
    if isinstance(outcome, PhaseFailure) and outcome.steps_done == 0:
        raise EngineError(f"{wanted['arm']}, seed {wanted['seed']}: no step was trained: {outcome.cause}")
    cost = TokenCost() if budget is None else budget[1]
    if budget is None:
        cost = measured_cost((spec.hyperparameters, point.metrics) for point in points) or TokenCost()
    used = sum(amount(tokens_of(spec.hyperparameters, point.metrics), cost) for point in points)
    found = {
        "steps": outcome.steps_done,
        "compute": used,
        "cost": dataclasses.asdict(cost),
        "validation": outcome.best_score,
        "best_step": outcome.best_step,
        "curve": [(point.step, point.val_score) for point in points if point.val_score is not None],
        "test": None,
        "problem": outcome.cause if isinstance(outcome, PhaseFailure) else "",
    }
    if isinstance(outcome, PhaseResult) and outcome.best_step is not None:
        best = next(saved for saved in outcome.checkpoints if saved.step == outcome.best_step)
        items = engine.evaluate(best.path, task.test, config.eval.max_response_length)
        found["test"] = sum(item.acc for item in items) / len(items)
    return {**found, "wall_s": round(time.monotonic() - began, 1)}


def _phase(
    config: SearchConfig,
    task: PreparedTask,
    wanted: Run,
    budget: tuple[float, TokenCost] | None,
    work: Path,
) -> PhaseSpec:
    idle = idle_spec(config, task.n_train, str(work))
    steps = config.budget.runs * config.phase.n_steps
    limit = None if budget is None else ComputeLimit(amount=wanted["times"] * budget[0], cost=budget[1])
    recipe = complete(idle.hyperparameters, normalize(arms()[wanted["arm"]]))
    name = f"{wanted['arm']}-{wanted['seed']}-{wanted['times']}"
    return dataclasses.replace(
        idle,
        node=0,
        n_steps=steps if limit is None else 4 * wanted["times"] * steps,
        hyperparameters=recipe,
        seed=phase_seed(wanted["seed"], 0),
        save_freq=10 * steps,
        test_freq=config.phase.test_freq,
        compute=limit,
        checkpoint_dir=str((work / name).absolute()),
    )


# --- the table ----------------------------------------------------------------------------------------------


def summary(runs: Sequence[Run]) -> Run:
    """Headroom and noise of a complete task."""

    def tests(arm: str, times: int) -> list[float]:
        found = [run for run in runs if (run["arm"], run["times"]) == (arm, times)]
        return [run["test"] or 0.0 for run in found]

    best = best_arm(runs)
    default, static = tests(DEFAULT, 1), tests(best, 1)
    return {
        "default": statistics.fmean(default),
        "noise": statistics.stdev(default),
        "best_arm": best,
        "best": statistics.fmean(static),
        "headroom": statistics.fmean(static) - statistics.fmean(default),
        "error": (statistics.variance(static) / 3 + statistics.variance(default) / 3) ** 0.5,
        "default_at_3": tests(DEFAULT, CEILING)[0],
        "ceiling": max(tests(DEFAULT, CEILING)[0], tests(best, CEILING)[0]),
        "seeds": list(SEEDS),
        "hours": sum(run["wall_s"] for run in runs) / 3600,
    }


def headrooms(path: Path = TABLE) -> dict[str, float]:
    """Task -> headroom, for tasks whose definition has not changed since the measurement."""
    return {name: float(found["headroom"]) for name, found in known_headroom(path).items()}


def known_headroom(path: Path = TABLE) -> dict[str, Run]:
    """Task -> its line of the table, for tasks whose definition has not changed since the measurement."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: found for name, found in known.items() if found["digest"] == digest(task_named(name))}


def table(known: Mapping[str, Run]) -> str:
    """The measured tasks as Markdown."""
    lines = [
        "| task | kind | default | noise of a run | best static | headroom | default at 3x | ceiling at 3x |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in known.items():
        lines.append(
            f"| {name} | {task_named(name).kind} | {found['default']:.3f} | {found['noise']:.3f} "
            f"| {found['best']:.3f} ({found['best_arm']}) | {found['headroom']:+.3f} ± {found['error']:.3f} "
            f"| {found['default_at_3']:.3f} | {found['ceiling']:.3f} |"
        )
    return "\n".join(lines)


def _keep(path: Path, task: SuiteTask, runs: Sequence[Run]) -> None:
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    known[task.name] = {"digest": digest(task), **summary(runs)}
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _read(path: Path, wanted: str) -> list[Run]:
    """The measured runs; an incomplete last line is skipped.

    Raises: ConfigError: they belong to another definition of the task.
    """
    runs: list[Run] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            runs.append(json.loads(line))
        except ValueError:
            break
    if any(run["digest"] != wanted for run in runs):
        raise ConfigError(
            f"{path} holds runs of another definition of the task; move it away to begin again."
        )
    if path.is_file():  # a torn line must not be continued
        path.write_text("".join(json.dumps(run) + "\n" for run in runs), encoding="utf-8")
    return runs


if __name__ == "__main__":
    try:
        main()
    except LlmzeroError as error:
        sys.exit(f"headroom: {error}")
