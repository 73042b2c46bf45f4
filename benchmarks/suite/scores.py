"""The committed scores of search methods on the suite: which were measured, and what they are together.

    python -m benchmarks.suite.scores                       the table
    python -m benchmarks.suite.scores --add runs/NAME       take over what has ended of a comparison
    python -m benchmarks.suite.scores --of random sum_alpha     one line, for who compares with it

scores.json has one row for each (task, method, seed): the test score of the policy that validation chose, and
what was spent. Its rows may come from several comparisons on one machine or another: the model of a pair
differs between processors. Rows of a task whose definition has changed since are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.suite.plan import CONFIRM, METHODS
from benchmarks.suite.tasks import BASE, HERE, TASKS, digest, settings, task_named
from llmzero_ray.cli.compare.plan import ComparedRun
from llmzero_ray.cli.compare.results import outcome
from llmzero_ray.config_text import read_yaml
from llmzero_ray.errors import ConfigError, LlmzeroError

SCORES = HERE / "scores.json"
Row = dict[str, Any]


def main() -> None:
    """Take over, or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--add", type=Path, help="directory of a comparison (jobs.compare)")
    parser.add_argument("--of", nargs=2, metavar=("METHOD", "TASK"))
    parser.add_argument("--file", type=Path, default=SCORES)
    given = parser.parse_args()
    try:
        rows = read(given.file)
        if given.add is not None:
            rows = merged(rows, ended(given.add))
            text = ",\n".join(" " + json.dumps(row) for row in rows)
            given.file.write_text(f"[\n{text}\n]\n", encoding="utf-8")
        print(table(current(rows)) if given.of is None else line(current(rows), *given.of))
    except LlmzeroError as error:
        sys.exit(f"scores: {error}")


def read(path: Path = SCORES) -> list[Row]:
    """All rows that were kept."""
    found: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return found


def current(rows: list[Row]) -> list[Row]:
    """Those of tasks that are still defined as they were."""
    digests = {task.name: digest(task) for task in TASKS}
    return [row for row in rows if digests.get(row["task"]) == row["digest"]]


def ended(directory: Path) -> list[Row]:
    """A row for each run of a comparison that has ended. A run that failed has the base model's score.

    Raises:
        ConfigError: it is no comparison, or not one of the suite as it is defined now.
    """
    path = directory / "compare.json"
    if not path.is_file():
        raise ConfigError(f"{directory} holds no comparison: there is no compare.json.")
    known = json.loads(path.read_text(encoding="utf-8"))
    plan = known["plan"]
    if read_yaml(Path(plan["base"])) != read_yaml(BASE):
        raise ConfigError(f"{directory} was not made with the suite's default recipe, {BASE.name}.")
    rows = []
    for task in plan["tasks"]:
        one = task_named(task["name"])
        if task["set"] != {**settings(one, Path(task["set"]["task.dir"]).parent), **CONFIRM}:
            raise ConfigError(f"{directory}: {one.name} is not the suite's task of that name as it is now.")
        for method in plan["methods"]:
            if method["set"] != METHODS.get(method["name"]):
                raise ConfigError(f"{directory}: {method['name']} is not the suite's method of that name.")
            for seed in plan["seeds"]:
                run = ComparedRun(one.name, method["name"], seed)
                found = outcome(directory / run.name)
                if found is None or found.base is None:
                    continue
                rows.append(
                    {
                        "task": run.task,
                        "digest": digest(one),
                        "method": run.method,
                        "seed": run.seed,
                        "code": known["code"],
                        "test": found.base if found.test is None else found.test,
                        "problem": found.problem,
                        "base": found.base,
                        "steps": found.steps,
                        "compute": round(found.compute, 1),
                        "hours": round(found.hours, 3),
                    }
                )
    return rows


def merged(rows: list[Row], new: list[Row]) -> list[Row]:
    """Sorted; a new row takes the place of an old one of the same task, method and seed."""
    by_run = {(row["task"], row["method"], row["seed"]): row for row in [*rows, *new]}
    return [by_run[key] for key in sorted(by_run)]


def line(rows: list[Row], method: str, task: str) -> str:
    """What is known of a method on a task, as one sentence.

    Raises:
        ConfigError: nothing is known.
    """
    task_named(task)
    found = [float(row["test"]) for row in rows if (row["method"], row["task"]) == (method, task)]
    if not found:
        raise ConfigError(f"{SCORES.name} has no score of {method} on {task} as it is defined now.")
    n = "one seed" if len(found) == 1 else f"{len(found)} seeds"
    base = read_yaml(BASE)
    steps = base["budget"]["runs"] * base["phase"]["n_steps"]
    return (
        f"not of this run: {method} scored {_figure(found)} on this pair of task and model ({n}; for the "
        f"compute of {steps} steps of the default recipe; benchmarks/suite/{SCORES.name})"
    )


def table(rows: list[Row]) -> str:
    """Test scores by task and method as Markdown: mean, standard error over seeds, number of seeds."""
    methods = [name for name in METHODS if any(row["method"] == name for row in rows)]
    if not methods:
        return "nothing was measured"
    lines = [f"| task | base | {' | '.join(methods)} |", "|---" * (2 + len(methods)) + "|"]
    for task in TASKS:
        own = [row for row in rows if row["task"] == task.name]
        if not own:
            continue
        cells = []
        for method in methods:
            found = [float(row["test"]) for row in own if row["method"] == method]
            cells.append(f"{_figure(found)} ({len(found)})" if found else "")
        base = statistics.mean(float(row["base"]) for row in own)
        lines.append(f"| {task.name} | {base:.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _figure(found: list[float]) -> str:
    mean = statistics.mean(found)
    if len(found) == 1:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {statistics.stdev(found) / math.sqrt(len(found)):.3f}"


if __name__ == "__main__":
    main()
