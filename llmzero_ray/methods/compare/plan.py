"""compare.yaml: tasks, methods and seeds as search configurations of equal budget.

The budget is the compute of `budget.runs` standard phases of the default recipe (pilot.py), or as many steps;
it must be equal for all methods. The actual spending of a method is counted afterwards (results.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

import llmzero_ray
from llmzero_ray.config import SearchConfig, parse_config, presets
from llmzero_ray.config.yaml_text import AS_TUPLE, LocalPath, StrictModel, read_yaml, replace_key, setting
from llmzero_ray.errors import ConfigError
from llmzero_ray.prepared.manifest import MANIFEST, read_manifest
from llmzero_ray.prepared.splits import SPLITS
from llmzero_ray.search import load_method, plans_its_runs
from llmzero_ray.utils.files import file_digest, text_digest

_NAME = r"^[a-z0-9][a-z0-9_]{0,19}$"
_EQUAL = ("runs", "gpu_hours", "wall_clock_hours", "target", "compute", "token_cost")
PILOT = "pilot"
"""Replaces the method in the names of pilots."""


class ComparedTask(StrictModel):
    """One task with its model."""

    name: str = setting(..., pattern=_NAME)
    """Short name, used in the runs' names."""
    headroom: float | None = Field(None, gt=-1, lt=1)
    """Accuracy of the best static recipe minus the default's at the same budget, measured beforehand on other
    seeds, or null. A task without headroom says nothing about methods."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of search.yaml."""


class ComparedMethod(StrictModel):
    """One method."""

    name: str = setting(..., pattern=_NAME)
    """Short name, and `search.method` unless `set` gives that."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys of search.yaml, except the task's and the budget's."""
    times: int = setting(1, "times the budget", ge=1)
    """Multiple of the others' budget: best of eight whole runs at eight times the compute is `random` with 8
    `search.n_trials` and 8 here. Above 1 it has a separate line without a rank."""


class ComparePlan(StrictModel):
    """A whole comparison."""

    name: str = setting(..., pattern=_NAME)
    """Name of its directory."""
    storage: LocalPath = setting("runs", min_length=1)
    """Directory that receives <name>/ with all searches."""
    base: LocalPath = setting(..., min_length=1)
    """search.yaml that tasks and methods modify."""
    tasks: Annotated[tuple[ComparedTask, ...], AS_TUPLE] = Field(min_length=1)
    methods: Annotated[tuple[ComparedMethod, ...], AS_TUPLE] = Field(min_length=1)
    """Methods. The others are compared with the first one."""
    seeds: Annotated[tuple[int, ...], AS_TUPLE] = Field(min_length=1)
    budget: Literal["compute", "steps"] = "compute"
    """Unit of the equal budget. `compute`: the cost of the tokens that the default recipe samples and trains
    on in `budget.runs` standard phases. `steps`: as many training steps, whatever they cost."""
    parallel: int = setting(1, "slots", ge=1)
    """Concurrent searches, each on its own slot. Runs of one task on the same slot share a warm engine."""
    pilot_seed: int = setting(0, ge=0)
    """Seed of each task's pilot, which gives the budget, the costs and the forecast."""
    max_hours: float = setting(12.0, "hours", gt=0)
    """A forecast above this ends the comparison."""

    @model_validator(mode="after")
    def _usable(self) -> ComparePlan:
        for what, names in (
            ("tasks", [one.name for one in self.tasks]),
            ("methods", [PILOT, *(one.name for one in self.methods)]),
            ("seeds", list(self.seeds)),
        ):
            twice = sorted({str(name) for name in names if list(names).count(name) > 1})
            if twice:
                raise ValueError(f"{what}: {', '.join(twice)} stands there twice.")
        if self.methods[0].times > 1:
            raise ValueError(
                f"methods: {self.methods[0].name} is the first, with which the others are compared, and gets "
                f"{self.methods[0].times} times their budget; put a method with times 1 first."
            )
        return self


class ComparedRun(NamedTuple):
    """One search of a comparison."""

    task: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """The search's name."""
        return f"{self.task}-{self.method}-{self.seed}"


def with_keys(config: SearchConfig, changed: Mapping[str, Any]) -> SearchConfig:
    """The configuration with the values in `changed` (dotted key -> value).

    Raises:
        ConfigError: a value is not allowed.
    """
    data = config.to_json()
    for key, value in changed.items():
        replace_key(data, key.split("."), value)
    return parse_config(data, source=config.name)


def configs(plan: ComparePlan, directory: Path) -> dict[ComparedRun, SearchConfig]:
    """Configurations of all searches, seed by seed, each with `budget.runs` standard phases.

    Raises:
        ConfigError: a configuration is wrong, or budgets differ.
    """
    given = read_yaml(presets.path_of(plan.base))
    found: dict[ComparedRun, SearchConfig] = {}
    for seed in plan.seeds:
        for task in plan.tasks:
            for method in plan.methods:
                run = ComparedRun(task.name, method.name, seed)
                found[run] = _config(given, run, task, method, directory)
    _check_equal(found, times_of(plan))
    return found


def times_of(plan: ComparePlan) -> dict[str, int]:
    """Method -> multiple of the budget that it gets."""
    return {method.name: method.times for method in plan.methods}


def _config(
    given: Mapping[str, Any], run: ComparedRun, task: ComparedTask, method: ComparedMethod, directory: Path
) -> SearchConfig:
    data = parse_config(given, source="base").to_json()
    del data["stopper"]["enabled"]  # the method's own default applies
    usual = {"search.method": method.name, "final.default_recipe": False}
    ours = {"name": run.name, "storage": str(directory), "seed": run.seed}
    for key, value in {**usual, **task.set, **method.set, **ours}.items():
        replace_key(data, key.split("."), value)
    data["final"]["test"] = data["final"]["test"] or True  # keeps `all`
    data["budget"]["runs"] *= method.times
    whole = data["budget"]["runs"] * data["phase"]["n_steps"]
    if plans_its_runs(load_method(str(data["search"]["method"]))):  # agents propose phases of any length
        data["phase"]["max_steps"] = max(data["phase"]["max_steps"], whole)
    return parse_config(data, source=f"{run.task}, {run.method}")


def _check_equal(found: Mapping[ComparedRun, SearchConfig], times: Mapping[str, int]) -> None:
    """Check that all methods of a task have the same budget (apart from `times`), root, data and model."""
    first: dict[str, tuple[ComparedRun, dict[str, Any]]] = {}
    for run, config in found.items():
        budget = {f"budget.{key}": getattr(config.budget, key) for key in _EQUAL}
        budget["budget.runs"] //= times[run.method]
        budget |= {
            "phase.n_steps": config.phase.n_steps,
            "root": config.root.overrides,
            "task": config.task,
            "model": config.model,
        }
        other, expected = first.setdefault(run.task, (run, budget))
        for key, value in budget.items():
            if value != expected[key]:
                raise ConfigError(
                    f"{run.task}: {key} is {value} for {run.method} and {expected[key]} for {other.method}; "
                    "all methods of a task must have the same budget, root, data and model."
                )


def input_digests(runs: Mapping[ComparedRun, SearchConfig]) -> dict[str, str]:
    """Input -> its hash. Inputs are each task's search settings without storage locations, and the rows of a
    prepared task."""
    found: dict[str, str] = {}
    seeds = {run.seed for run in runs}
    for task in dict.fromkeys(run.task for run in runs):
        own = [config for run, config in runs.items() if run.task == task and run.seed == min(seeds)]
        settings = [{**config.to_json(), "storage": ""} for config in own]
        found[f"settings of {task} (search.yaml)"] = text_digest(json.dumps(settings, sort_keys=True))
        directory = Path(own[0].task.dir)
        if (directory / MANIFEST).is_file():
            splits = read_manifest(directory).splits
            files = [directory / getattr(splits, split).file for split in SPLITS]
            found[f"rows of {task}"] = text_digest(" ".join(map(file_digest, files)))
    return found


def code_digest() -> str:
    """Hash over the project's own modules, because another version may give other results."""
    root = Path(llmzero_ray.__file__).parent
    digest = hashlib.sha256()
    for folder in (root, root.parent / "actors"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
