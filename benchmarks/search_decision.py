"""Measure one decision of the search core: ask, begin, tell. Run: python -m benchmarks.search_decision

Prints one table (or `--json`): the time per decision, milliseconds, at 100, 1,000 and 10,000 nodes, for
searches of several shapes. At each size the last tenth of the decisions, at least 50, is measured. Target:
p99 <= 5 ms at 1,000 nodes, and time that grows nearly linearly to 10,000.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from llmzero_ray.search import SearchRules, TreeSearch

SIZES = (100, 1_000, 10_000)
Outcome = tuple[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of search: its rules, how many runners, and the outcome of its n-th run."""

    name: str
    rules: SearchRules
    runners: int
    outcome: Callable[[int, random.Random], Outcome]
    largest: int = SIZES[-1]
    """Nodes beyond which it is not measured."""


def mixed(_n: int, rng: random.Random) -> Outcome:
    """Success half of the time; the rest is stopped early, failed or without a score."""
    status = rng.choices(("completed", "early_stopped", "failed"), (5, 3, 2))[0]
    return status, None if rng.random() < 0.1 else rng.random()


def rising(n: int, rng: random.Random) -> Outcome:
    """Every run is a new best: the scale changes each time, and the tree grows deep."""
    return "completed", n + rng.random()


SHAPES = (
    Shape(name="mixed outcomes", rules=SearchRules(), runners=1, outcome=mixed),
    Shape(name="mixed outcomes, 4 runners", rules=SearchRules(), runners=4, outcome=mixed),
    Shape(
        name="mixed outcomes, mean of f", rules=SearchRules(q_aggregate="mean_of_f"), runners=1, outcome=mixed
    ),
    Shape(name="always a new best", rules=SearchRules(), runners=1, outcome=rising),
    # The worst case: as many levels as nodes. Its decisions cost what they visit, so the search is quadratic.
    Shape(
        name="one chain (worst case)",
        rules=SearchRules(max_evolve_children=1, rho_min=0),
        runners=1,
        outcome=rising,
        largest=1_000,
    ),
)


def decision_times_ms(shape: Shape, n_nodes: int) -> list[float]:
    """Milliseconds of every decision of one search of `n_nodes` runs, in order."""
    rng = random.Random(1)
    search = TreeSearch(shape.rules, budget=n_nodes)
    in_flight: deque[int] = deque()
    times: list[float] = []
    for n in range(n_nodes):
        status, score = shape.outcome(n, rng)
        begin = time.perf_counter()
        decision = search.ask()
        if decision.action == "wait":
            search.tell(in_flight.popleft(), "completed", 0.5)
            decision = search.ask()
        if decision.action == "stop":
            break
        in_flight.append(search.begin(decision))
        if len(in_flight) >= shape.runners:
            search.tell(in_flight.popleft(), status, score)  # type: ignore[arg-type]
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def measure(shape: Shape, n_nodes: int) -> dict[str, float | int | str]:
    """Figures of the last tenth of one search, with the garbage collector running as in real use."""
    gc.collect()
    times = decision_times_ms(shape, n_nodes)
    last = sorted(times[-max(50, n_nodes // 10) :])
    return {
        "search": shape.name,
        "nodes": len(times),
        "p50_ms": round(last[len(last) // 2], 3),
        "p99_ms": round(last[min(len(last) - 1, int(len(last) * 0.99))], 3),
        "whole_search_s": round(sum(times) / 1e3, 2),
    }


def main(argv: list[str] | None = None) -> int:
    """Run all shapes at all sizes; exit code 1 if the target at 1,000 nodes is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of nodes")
    options = parser.parse_args(argv)
    rows = [measure(shape, size) for shape in SHAPES for size in options.sizes if size <= shape.largest]
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    else:
        sys.stdout.write(f"{'search':<28}{'nodes':>7}{'p50 ms':>9}{'p99 ms':>9}{'whole s':>9}\n")
        for row in rows:
            line = f"{row['search']:<28}{row['nodes']:>7}{row['p50_ms']:>9}{row['p99_ms']:>9}"
            sys.stdout.write(f"{line}{row['whole_search_s']:>9}\n")
    missed = [row for row in rows if row["nodes"] == 1_000 and float(row["p99_ms"]) > 5]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
