"""`prepare`: a task family's splits, its reward and a warm-started tiny model, in one directory.

Equal arguments give equal parquet bytes everywhere (with one version of pyarrow), and an equal model on one
machine. Tasks from data sets are made in sources/prepare.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.directory import (
    Progress,
    check_same_spec,
    create_once,
    no_progress,
    spec_differences,
)
from llmzero_ray.prepared.families import Family, family_named
from llmzero_ray.prepared.manifest import (
    FORMAT,
    Manifest,
    ModelEntry,
    RewardEntry,
    SplitFiles,
    write_manifest,
)
from llmzero_ray.prepared.splits import MAX_PROBLEMS, MAX_SEED, SPLITS, Splits, majority_share, make_splits
from llmzero_ray.prepared.task import PreparedTask, load_task
from llmzero_ray.prepared.verl_rows import to_rows, write_split
from llmzero_ray.tasks.families import GOLD_RESPONSE, REWARD_MODULE
from llmzero_ray.tasks.model_process import MadeModel, ModelRequest, make_model_in_process
from llmzero_ray.tasks.sft import TRAINER_VERSION
from llmzero_ray.tasks.tiny_model import SHAPE
from llmzero_ray.utils.files import text_digest
from llmzero_ray.utils.plugins import installed_versions

_MODEL = "model"
_MADE_WITH = ("accelerate", "pyarrow", "reasoning-gym", "torch", "transformers")
_DATA_DONE, _TRAINING_DONE = 0.05, 0.97
"""Fraction of the work that is done once the splits are written, and once the model is trained."""


def prepare(
    *,
    dir: str | Path,  # noqa: A002  named as in search.yaml
    family: str | None,
    n_train: int = 4096,
    n_val: int = 512,
    n_test: int = 1024,
    seed: int = 0,
    make_model: bool = True,
    progress: Progress = no_progress,
) -> PreparedTask:
    """Task in `dir`, made first if there is none. Sizes count problems; `make_model` adds a tiny base model.

    A task with a hand-written manifest, or any task if `family` is None, is opened unchanged, and the other
    arguments are ignored.

    Raises:
        TaskError: an argument is out of bounds, `dir` holds something else, a library is missing, or
            `load_task` rejects the task.
        StorageError: `dir` cannot be written or the disk is full; nothing is left there.
    """
    target = Path(dir).absolute()
    if family is None:
        return load_task(target)
    sizes = {"train": n_train, "val": n_val, "test": n_test}
    spec = FamilySpec(family=family_named(family), sizes=sizes, seed=seed, make_model=make_model)
    spec.check_bounds()
    create_once(target, lambda part: write_task(part, spec, progress), progress)
    check_same_spec(target, lambda found: _differences(found, spec))
    return load_task(target)


def _differences(found: Mapping[str, Any], spec: FamilySpec) -> list[str]:
    """Fields in which `found` differs from `spec`. A model that `spec` does not require does not count."""
    lacks_model = spec.make_model and not any(key.startswith("model.") for key in found)
    wanted = replace(spec, make_model=spec.make_model and not lacks_model).as_dict()
    return [
        *spec_differences(found, wanted),
        *(["it has no tiny model, one is wanted"] if lacks_model else []),
    ]


@dataclass(frozen=True, kw_only=True)
class FamilySpec:
    """Description of the task to make."""

    family: Family
    sizes: dict[str, int]
    """Problems by split."""
    seed: int
    make_model: bool

    def check_bounds(self) -> None:
        """Check sizes and seed.

        Raises:
            TaskError: a value is out of bounds; the message says what is allowed.
        """
        for split, size in self.sizes.items():
            if not 1 <= size <= MAX_PROBLEMS:
                raise TaskError(f"task: n_{split} is {size}; it must lie between 1 and {MAX_PROBLEMS}")
        if not 0 <= self.seed <= MAX_SEED:
            raise TaskError(f"task: seed is {self.seed}; it must lie between 0 and {MAX_SEED}")

    def as_dict(self) -> dict[str, Any]:
        """All values that determine the content, flat. Two tasks have equal values exactly if their contents
        are equal."""
        sizes = {f"n_{split}": size for split, size in self.sizes.items()}
        name, made_by = self.family.name, self.family.version
        spec = {"format": FORMAT, "family": name, "family_version": made_by, **sizes, "seed": self.seed}
        if self.make_model:
            spec |= {f"model.{key}": value for key, value in SHAPE.items()}
            spec |= {f"warm_start.{key}": value for key, value in asdict(self.family.warm_start).items()}
            spec["warm_start.trainer"] = TRAINER_VERSION
        return spec


def write_task(directory: Path, spec: FamilySpec, progress: Progress) -> None:
    """Write a whole task into an empty directory.

    Raises:
        TaskError: too few different problems for these sizes, or a library is missing.
        OSError: it cannot be written.
    """
    progress("making problems", 0.0)
    splits = make_splits(spec.family, spec.sizes, spec.seed)
    rows = {split: to_rows(spec.family, split, splits.problems[split]) for split in SPLITS}
    files = {split: write_split(directory, split, rows[split]) for split in SPLITS}
    made = _make_model(directory / _MODEL, spec, splits, progress) if spec.make_model else None
    name, flat = spec.family.name, spec.as_dict()
    manifest = Manifest(
        name=name,
        family=name,
        data_sources=(name,),
        splits=SplitFiles(**files),
        reward=RewardEntry(module=REWARD_MODULE, gold_response=GOLD_RESPONSE),
        max_prompt_tokens=made.max_prompt_tokens if made else None,
        max_answer_tokens=made.max_answer_tokens if made else None,
        model=ModelEntry(path=_MODEL, params=made.params, greedy_val_accuracy=made.greedy_accuracy)
        if made
        else None,
        licence=spec.family.licence,
        majority_baseline=majority_share(splits.problems["test"]),
        recipe=flat,
        recipe_hash=text_digest(json.dumps(flat, sort_keys=True)),
        made_with=installed_versions(_MADE_WITH),
    )
    write_manifest(manifest, directory)
    progress("done", 1.0)


def _make_model(directory: Path, spec: FamilySpec, splits: Splits, progress: Progress) -> MadeModel:
    """Put a warm-started tiny model into `directory`."""
    plan = spec.family.warm_start

    def on_step(step: int, loss: float) -> None:
        share = _DATA_DONE + (_TRAINING_DONE - _DATA_DONE) * step / plan.n_steps
        progress(f"warm start: step {step} of {plan.n_steps}, loss {loss:.2f}", share)

    progress("making the tiny model", _DATA_DONE)
    request = ModelRequest(
        directory=str(directory),
        seed=spec.seed,
        warm_start=plan,
        demonstrations=splits.demonstrations,
        problems=splits.problems["val"],
        prompts=tuple(problem.prompt for split in SPLITS for problem in splits.problems[split]),
    )
    return make_model_in_process(request, on_step)
