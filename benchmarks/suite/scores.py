"""The committed scores of search methods on the suite, as tables.

    python -m benchmarks.suite.scores                       the tables
    python -m benchmarks.suite.scores --tasks sum_long codes_alpha      of some pairs only
    python -m benchmarks.suite.scores --methods expert tpe --seeds 1 2 3      the first against the others
    python -m benchmarks.suite.scores --add runs/NAME       add the finished runs of a comparison
    python -m benchmarks.suite.scores --of random sum_alpha     one line, to compare with

scores.json has one row for each (task, method, seed): the test score of the policy that validation chose, and
the compute spent. Rows may come from several comparisons. Rows of a task are left out if its definition,
including its model, has changed since.

Six tables are printed. The first has the development seeds, on which the search was developed. The second
compares the chosen methods on the last seeds, over the (task, seed) pairs that all of them have: all
together, and pair by pair with the lead of the search over each other method. It says if rows come from
different versions of the code; compute is compared only if they do not, because each comparison prices
compute by its own pilot. The third adds a language model to the rules; the fourth and the fifth repeat that
with later requests. The sixth has the present rules.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.suite.plan import (
    CHECKED,
    LAST_METHODS,
    LAST_SEEDS,
    LATER_SEEDS,
    LLM_METHODS,
    LLM_SEEDS,
    MENDED_METHODS,
    MENDED_SEEDS,
    METHODS,
    PAST_METHODS,
    PRESENT_METHODS,
    PRESENT_SEEDS,
)
from benchmarks.suite.tasks import BASE, HERE, TASKS, SuiteTask, digest, settings, task_named
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.methods.compare import results
from llmzero_ray.methods.compare.plan import ComparedRun
from llmzero_ray.methods.compare.tables import lines as method_lines

SCORES = HERE / "scores.json"
SCORED = (*METHODS, *PAST_METHODS)
"""Methods in the order of the tables."""
Row = dict[str, Any]


def main() -> None:
    """Add scores, or print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--add", type=Path, help="directory of a comparison (jobs.compare)")
    parser.add_argument("--of", nargs=2, metavar=("METHOD", "TASK"))
    parser.add_argument("--methods", nargs="+", choices=SCORED, help="of one table, with --seeds")
    parser.add_argument("--seeds", nargs="+", type=int, help="of one table, with --methods")
    parser.add_argument("--tasks", nargs="+", default=[task.name for task in TASKS], help="of the tables")
    parser.add_argument("--file", type=Path, default=SCORES)
    given = parser.parse_args()
    if (given.methods is None) != (given.seeds is None):
        parser.error("give --methods and --seeds together, or neither")
    try:
        rows = read(given.file)
        if given.add is not None:
            rows = merged(rows, ended(given.add))
            text = ",\n".join(" " + json.dumps(row) for row in rows)
            given.file.write_text(f"[\n{text}\n]\n", encoding="utf-8")
        wanted = {task_named(name).name for name in given.tasks}
        chosen = [row for row in current(rows) if row["task"] in wanted]
        if given.of is not None:
            print(line(current(rows), *given.of))
        elif given.methods is not None:
            print(compared(chosen, given.methods, given.seeds))
        else:
            print(tables(chosen))
    except LlmzeroError as error:
        sys.exit(f"scores: {error}")


def read(path: Path = SCORES) -> list[Row]:
    """All rows of scores.json."""
    found: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return found


def current(rows: list[Row]) -> list[Row]:
    """The rows of tasks whose definition has not changed."""
    digests = {task.name: digest(task) for task in TASKS}
    return [row for row in rows if digests.get(row["task"]) == row["digest"]]


def ended(directory: Path) -> list[Row]:
    """A row for each finished run of a comparison. A failed run has the base model's score.

    Raises: ConfigError: it is not a comparison, or not one of the suite as it is now defined.
    """
    path = directory / "compare.json"
    if not path.is_file():
        raise ConfigError(f"{directory} holds no comparison: there is no compare.json.")
    known = json.loads(path.read_text(encoding="utf-8"))
    plan = known["plan"]
    if read_yaml(Path(plan["base"])) != read_yaml(BASE):
        raise ConfigError(f"{directory} was not made with the suite's default recipe, {BASE.name}.")
    rows: list[Row] = []
    for task in plan["tasks"]:
        rows += _rows_of(task_named(task["name"]), known, directory)
    return rows


def _rows_of(task: SuiteTask, known: Row, directory: Path) -> list[Row]:
    plan = known["plan"]
    made = next(one["set"] for one in plan["tasks"] if one["name"] == task.name)
    if made != {**settings(task, Path(made["task.dir"]).parent), **CHECKED}:
        raise ConfigError(f"{directory}: {task.name} is not the suite's task of that name as it is now.")
    for method in plan["methods"]:
        own = {key: value for key, value in method["set"].items() if key != "agents.base_url"}
        if own != METHODS.get(method["name"]):
            raise ConfigError(f"{directory}: {method['name']} is not the suite's method of that name.")
    wanted = [ComparedRun(task.name, one["name"], seed) for one in plan["methods"] for seed in plan["seeds"]]
    found = {run: one for run in wanted if (one := results.ended(directory / run.name)) is not None}
    base = next((one.base for one in found.values() if one.base is not None), None)
    if found and base is None:
        raise ConfigError(f"{directory}: no run has scored the base model of {task.name} yet.")
    definition = digest(task)
    return [
        {
            "task": run.task,
            "digest": definition,
            "method": run.method,
            "seed": run.seed,
            "code": known["code"],
            "test": base if one.test is None else one.test,
            "problem": one.problem,
            "base": base,
            "steps": one.steps,
            "compute": round(one.compute, 1),
            "hours": round(one.hours, 3),
        }
        for run, one in found.items()
    ]


def merged(rows: list[Row], new: list[Row]) -> list[Row]:
    """Sorted rows; a new row replaces an old one of the same task, method and seed."""
    by_run = {(row["task"], row["method"], row["seed"]): row for row in [*rows, *new]}
    return [by_run[key] for key in sorted(by_run)]


def line(rows: list[Row], method: str, task: str) -> str:
    """Results of a method on a task, as one sentence.

    Raises: ConfigError: there are no such scores.
    """
    task_named(task)
    own = [row for row in rows if (row["method"], row["task"]) == (method, task)]
    found = [float(row["test"]) for row in own]
    if not found:
        raise ConfigError(f"{SCORES.name} has no score of {method} on {task} as it is defined now.")
    n = "one seed" if len(found) == 1 else f"{len(found)} seeds"
    base = read_yaml(BASE)
    steps = base["budget"]["runs"] * base["phase"]["n_steps"]
    before = statistics.mean(float(row["base"]) for row in own)
    return (
        f"not of this run: {method} scored {_figure(found)} on this pair of task and model, from "
        f"{before:.3f} of the base model where it was measured ({n}; for the "
        f"compute of {steps} steps of the default recipe; benchmarks/suite/{SCORES.name})"
    )


def tables(rows: list[Row]) -> str:
    """All tables as Markdown."""
    last = (*LAST_SEEDS, *LLM_SEEDS, *MENDED_SEEDS, *LATER_SEEDS, *PRESENT_SEEDS)
    text = ["Development seeds:", "", table([row for row in rows if row["seed"] not in last])]
    text += ["", "Last table:", "", compared(rows)]
    for what, methods, seeds in (
        ("A language model", LLM_METHODS, LLM_SEEDS),
        ("A language model, its requests mended", MENDED_METHODS, MENDED_SEEDS),
        ("A language model, at most 8,000 tokens", MENDED_METHODS, LATER_SEEDS),
        ("The present rules", PRESENT_METHODS, PRESENT_SEEDS),
    ):
        text += ["", f"{what} (seeds {seeds[0]} to {seeds[-1]}):", "", compared(rows, methods, seeds)]
    return "\n".join(text)


def compared(
    rows: list[Row], methods: Sequence[str] = LAST_METHODS, seeds: Sequence[int] = LAST_SEEDS
) -> str:
    """Comparison of the named methods on the (task, seed) pairs that all of them have; a difference is the
    lead of the first one."""
    by_run = {(row["method"], row["task"], row["seed"]): row for row in rows if row["method"] in methods}
    common = {
        task.name: [seed for seed in seeds if all((method, task.name, seed) in by_run for method in methods)]
        for task in TASKS
    }
    common = {task: found for task, found in common.items() if found}
    if not common:
        return "nothing was measured"
    used = [by_run[method, task, seed] for method in methods for task in common for seed in common[task]]
    scores = {
        method: {
            task: [float(by_run[method, task, seed]["test"]) for seed in found]
            for task, found in common.items()
        }
        for method in methods
    }
    n = sum(len(found) for found in common.values())
    codes = {row["code"] for row in used}
    text = [
        f"{n} pairs: {', '.join(f'{task} {len(found)}' for task, found in common.items())}.",
        "",
        f"| method | mean | 95 % interval | mean rank | lead of {methods[0]} | P(better than {methods[0]}) "
        f"| above {methods[0]} | compute | failed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in method_lines(scores):
        interval = "" if found.interval is None else f"{found.interval[0]:.3f} to {found.interval[1]:.3f}"
        error = "" if found.difference_error is None else f" ± {found.difference_error:.3f}"
        above = _times_above(scores[found.method], scores[methods[0]])
        failed = sum(bool(row["problem"]) for row in used if row["method"] == found.method)
        lead = f"{0.0 - found.difference:+.3f}{error}"
        text.append(
            f"| {found.method} | {found.mean:.3f} | {interval} | {found.rank:.2f} | {lead} "
            f"| {found.improvement:.2f} | {above} of {found.pairs} "
            f"| {_compute(by_run, found.method, common) if len(codes) == 1 else ''} | {failed} |"
        )
    text += ["", table(used), "", leads(scores)]
    if len(codes) > 1:
        text += ["", f"Rows of {len(codes)} versions of the code: {', '.join(sorted(codes))}."]
    return "\n".join(text)


def _compute(
    by_run: Mapping[tuple[str, str, int], Row], method: str, common: Mapping[str, Sequence[int]]
) -> str:
    """Compute of a method as a multiple of the default recipe's run at the same seed, averaged over pairs.

    Empty if the default recipe is not among the methods.
    """
    shares = [
        float(by_run[method, task, seed]["compute"]) / float(by_run["default", task, seed]["compute"])
        for task, seeds in common.items()
        for seed in seeds
        if ("default", task, seed) in by_run
    ]
    return f"{statistics.mean(shares):.2f} x" if shares else ""


def leads(scores: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Lead of the first method over each other method on each task, as Markdown.

    Each figure is the mean of the differences at the same seeds ± its standard error.
    """
    (first, own), *others = scores.items()
    lines = [
        f"| lead of {first} over | {' | '.join(method for method, _ in others)} |",
        "|---" * (1 + len(others)) + "|",
    ]
    for task, found in own.items():
        cells = [
            _figure([a - b for a, b in zip(found, other[task], strict=True)], "+") for _, other in others
        ]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _times_above(own: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]]) -> int:
    return sum(a > b for task in own for a, b in zip(own[task], other[task], strict=True))


def table(rows: list[Row]) -> str:
    """Test scores by task and method as Markdown: mean, standard error over seeds, number of seeds."""
    methods = [name for name in SCORED if any(row["method"] == name for row in rows)]
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


def _figure(found: list[float], sign: str = "") -> str:
    mean = statistics.mean(found)
    if len(found) == 1:
        return f"{mean:{sign}.3f}"
    return f"{mean:{sign}.3f} ± {statistics.stdev(found) / math.sqrt(len(found)):.3f}"


if __name__ == "__main__":
    main()
