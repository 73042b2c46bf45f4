"""The content of a prepared task: splits, a warm-started tiny model, the manifest.

The same recipe gives the same parquet bytes everywhere (of one pyarrow version), and the same model on one
machine. Not here: where it is put and when (prepare.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.families import GOLD_RESPONSE, REWARD_MODULE, Family
from llmzero_ray.tasks.manifest import (
    FORMAT,
    Manifest,
    ModelEntry,
    RewardEntry,
    SplitFile,
    SplitFiles,
    write_manifest,
)
from llmzero_ray.tasks.model_process import MadeModel, ModelRequest, make_model_in_process
from llmzero_ray.tasks.splits import (
    MAX_PROBLEMS,
    MAX_SEED,
    SPLITS,
    Splits,
    majority_share,
    make_splits,
    to_rows,
    write_parquet,
)
from llmzero_ray.tasks.tiny_model import SHAPE
from llmzero_ray.tasks.warm_start.training import VERSION as TRAINER

Progress: TypeAlias = Callable[[str, float], None]
"""Hears what is being done, and the finished share of the whole in [0, 1]."""

_MODEL = "model"
_DATA_DONE, _TEACHING_DONE = 0.05, 0.97
"""Share of the whole that is finished then."""


def silent(_doing: str, _share: float) -> None:
    """The `Progress` that nobody hears."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to make."""

    family: Family
    sizes: dict[str, int]
    """Problems by split."""
    seed: int
    make_model: bool

    def check_bounds(self) -> None:
        """Return quietly when sizes and seed can be used.

        Raises:
            TaskError: which one cannot, and what is allowed.
        """
        for split, size in self.sizes.items():
            if not 1 <= size <= MAX_PROBLEMS:
                raise TaskError(f"task: n_{split} is {size}; it must lie between 1 and {MAX_PROBLEMS}")
        if not 0 <= self.seed <= MAX_SEED:
            raise TaskError(f"task: seed is {self.seed}; it must lie between 0 and {MAX_SEED}")

    def as_dict(self) -> dict[str, Any]:
        """Everything that decides the content, flat: equal exactly when the content is."""
        sizes = {f"n_{split}": size for split, size in self.sizes.items()}
        name, made_by = self.family.name, self.family.version
        recipe = {"format": FORMAT, "family": name, "family_version": made_by, **sizes, "seed": self.seed}
        if self.make_model:
            recipe |= {f"model.{key}": value for key, value in SHAPE.items()}
            recipe |= {f"warm_start.{key}": value for key, value in asdict(self.family.warm_start).items()}
            recipe["warm_start.trainer"] = TRAINER
        return recipe


def fill(directory: Path, recipe: Recipe, progress: Progress) -> None:
    """Write a whole task into an empty directory.

    Raises:
        TaskError: too few different problems for these sizes, or a library is missing.
        OSError: it cannot be written.
    """
    progress("making problems", 0.0)
    splits = make_splits(recipe.family, recipe.sizes, recipe.seed)
    files = {split: _write_split(directory, recipe.family, split, splits) for split in SPLITS}
    made = _make_model(directory / _MODEL, recipe, splits, progress) if recipe.make_model else None
    name, flat = recipe.family.name, recipe.as_dict()
    manifest = Manifest(
        name=name,
        family=name,
        data_sources=(name,),
        splits=SplitFiles(**files),
        reward=RewardEntry(module=REWARD_MODULE, gold_response=GOLD_RESPONSE),
        max_prompt_tokens=made.max_prompt_tokens if made else None,
        max_answer_tokens=made.max_answer_tokens if made else None,
        model=_model_entry(made) if made else None,
        licence=recipe.family.licence,
        majority_baseline=majority_share(splits.problems["test"]),
        recipe=flat,
        recipe_hash=sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest(),
        made_with=_versions(),
    )
    write_manifest(manifest, directory)
    progress("done", 1.0)


def _write_split(directory: Path, family: Family, split: str, splits: Splits) -> SplitFile:
    path = directory / f"{split}.parquet"
    rows = to_rows(family, split, splits.problems[split])
    write_parquet(rows, path)
    with path.open("rb") as stream:
        digest = file_digest(stream, "sha256").hexdigest()
    return SplitFile(file=path.name, rows=len(rows), sha256=digest)


def _make_model(directory: Path, recipe: Recipe, splits: Splits, progress: Progress) -> MadeModel:
    """Put a warm-started tiny model into `directory`."""
    plan = recipe.family.warm_start

    def on_step(step: int, loss: float) -> None:
        share = _DATA_DONE + (_TEACHING_DONE - _DATA_DONE) * step / plan.n_steps
        progress(f"warm start: step {step} of {plan.n_steps}, loss {loss:.2f}", share)

    progress("making the tiny model", _DATA_DONE)
    request = ModelRequest(
        directory=str(directory),
        seed=recipe.seed,
        warm_start=plan,
        demonstrations=splits.demonstrations,
        problems=splits.problems["val"],
        prompts=tuple(problem.prompt for split in SPLITS for problem in splits.problems[split]),
    )
    return make_model_in_process(request, on_step)


def _model_entry(made: MadeModel) -> ModelEntry:
    return ModelEntry(path=_MODEL, params=made.params, greedy_val_accuracy=made.greedy_accuracy)


def _versions() -> dict[str, str]:
    found = {}
    for package in ("deepspeed", "pyarrow", "reasoning-gym", "torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
