"""Write compare.yaml for tasks of the suite:

    python -m benchmarks.suite.plan NAME --methods default expert pbt --seeds 1 2 3 > compare.yaml
    python -m benchmarks.suite.plan last --last > compare.yaml     the last table: its methods on its seeds
    python -m benchmarks.suite.plan decay --budget steps --methods tenth cosine_tenth --seeds 21 22 23 > ...

The headroom comes from headroom.json. A task without headroom, or whose definition has changed since, is
refused, and so are the seeds of the headroom measurement. `best_of_8` is random search with eight whole runs
at eight times the compute, on a separate line. Missing tasks are made.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.suite.headroom import SEEDS, headrooms
from benchmarks.suite.tasks import BASE, TASKS, prepare, settings, task_named
from llmzero_ray.config.yaml_text import read_yaml, to_yaml
from llmzero_ray.errors import ConfigError, LlmzeroError


def _phases(*changes: dict[str, Any]) -> dict[str, Any]:
    """Equal phases of the default recipe, each with its `changes`; `lr` is a factor on the default's rate."""
    phases = [{"steps": 1, **({"changes": one} if one else {})} for one in changes]
    return {"search.method": "schedule", "search.schedule": {"relative_to": {"lr": 1.0}, "phases": phases}}


def _resumed_with(**changes: Any) -> dict[str, Any]:
    """Eight phases; those that resume another one have `changes`."""
    return _phases({}, *(dict(changes) for _ in range(7)))


METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "unchanged": {},
    **{f"warm_up_{n}": _resumed_with(lr_warmup_steps=n) for n in (3, 6)},
    "slower": _resumed_with(lr=0.8),
    "tenth": _phases({"lr": 0.1}),
    "cosine_third": _phases({"lr": 0.3, "lr_scheduler": "cosine"}),
    "cosine_tenth": _phases({"lr": 0.1, "lr_scheduler": "cosine"}),
    "random": {},
    "grid": {},
    "tpe": {},
    "cmaes": {},
    "asha": {},
    "pbt": {},
    "perturb": {},
    "guidebook": {},
    "expert": {"search.method": "llmzero"},
    "claude": {"search.method": "llmzero", "agents.backend": "claude"},
    "claude_again": {"search.method": "llmzero", "agents.backend": "claude"},
    "skills": {"search.method": "skills", "agents.backend": "claude"},
    "best_of_8": {"search.method": "random", "search.n_trials": 8},
    "one_stage": {"search.method": "llmzero", "search.multi_stage": False},
    "no_stop": {"search.method": "llmzero", "stopper.enabled": False},
    "no_scratch": {"search.method": "llmzero", "search.rho_min": 0},
    **{
        f"as_{name}": {"search.method": "schedule", "search.schedule": name}
        for name in ("chemcot", "papersearchqa", "ssmr", "wildsci")
    },
}
"""Methods of a comparison: name -> keys of search.yaml. `warm_up_3` warms up over the first three steps of
every resumed phase, and `slower` has its mean rate throughout. `tenth` has a tenth of the default's rate in
one phase; the cosines begin at a tenth and at three tenths. `claude_again` is `claude` with later requests.
The ablations are of `expert`. `as_...` are the paper's published strategies, relative to the default."""
PAST_METHODS = ("carried",)
"""Methods that have scores but can no longer be planned: `carried` was `unchanged` with the optimizer state
carried over from phase to phase."""
TIMES = {"best_of_8": 8}
"""Methods that get more than the others' budget, with the factor."""
CHECKED = {"confirm.k": 3, "phase.validate_start": "first"}
"""Settings of every run. The best of many noisy scores is too high, so the best three phases of every method
are confirmed on fresh items. A resumed phase reuses the score of its start, because a method with one long
phase does not pay for that validation either."""
LAST_SEEDS = tuple(range(21, 31))
"""Seeds reserved for the last table; all others are for development. Its runs must not be read before the
rules are final."""
LAST_METHODS = ("expert", "tpe", "pbt", "default")
"""Methods of the last table: the variant of llmzero; the two strongest classical methods of the development
seeds, which three pairs do not tell apart; the default recipe."""
LLM_SEEDS = (104, 105, 106)
"""Seeds of the table with a language model, which answered over a local server of the Messages API."""
LLM_METHODS = ("claude", "expert", "tpe", "pbt", "default")
"""Methods of that table."""
MENDED_SEEDS = (107, 108, 109)
"""Seeds of the next table, whose requests have the additions that the model had asked for in the first."""
MENDED_METHODS = ("claude", "expert")
"""Methods of that table."""
LATER_SEEDS = (110, 111, 112)
"""Seeds of the table with the same methods and requests of at most 8,000 tokens."""
PRESENT_SEEDS = (121, 122, 123)
"""Seeds of the table of `expert` with rules that were changed after the last table."""
PRESENT_METHODS = ("expert",)
"""Methods of that table."""


def main() -> None:
    """Write the plan to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name")
    parser.add_argument("--last", action="store_true", help="methods and seeds of the last table")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--tasks", nargs="+", default=[task.name for task in TASKS])
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--budget", choices=("compute", "steps"), default="compute")
    parser.add_argument("--data", type=Path, default=Path("data/suite"))
    given = parser.parse_args()
    methods, seeds = (LAST_METHODS, LAST_SEEDS) if given.last else (given.methods, given.seeds)
    if (given.last and (given.methods or given.seeds)) or not (methods and seeds):
        parser.error("give either --methods and --seeds, or --last")
    try:
        found = plan(given.name, methods, given.tasks, seeds, headrooms(), given.data)
        for name in given.tasks:
            prepare(task_named(name), given.data)
    except LlmzeroError as error:
        sys.exit(f"plan: {error}")
    found |= {"parallel": given.parallel, "budget": given.budget}
    base = given.data.absolute() / f"{given.name}.base.yaml"
    base.parent.mkdir(parents=True, exist_ok=True)
    base.write_text(to_yaml(read_yaml(BASE)), encoding="utf-8")
    sys.stdout.write(to_yaml({**found, "base": str(base)}))


def plan(
    name: str,
    methods: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int],
    measured: dict[str, float],
    data: Path,
) -> dict[str, Any]:
    """The plan without its base.

    Raises:
        ConfigError: a task is unknown or has no measured headroom, or a seed is one that headroom was
        measured with.
    """
    chosen = [task_named(one) for one in tasks]
    missing = [task.name for task in chosen if task.name not in measured]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)}: no measured headroom. Measure it: python -m benchmarks.suite.headroom "
            f"{' '.join(missing)}"
        )
    used = sorted(set(seeds) & set(SEEDS))
    if used:
        raise ConfigError(f"seeds {used}: headroom was measured with them; take others.")
    return {
        "name": name,
        "tasks": [
            {
                "name": task.name,
                "headroom": round(measured[task.name], 4),
                "set": {**settings(task, data), **CHECKED},
            }
            for task in chosen
        ],
        "methods": [{"name": one, "set": METHODS[one], "times": TIMES.get(one, 1)} for one in methods],
        "seeds": list(seeds),
    }


if __name__ == "__main__":
    main()
