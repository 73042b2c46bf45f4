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
from llmzero_ray.tasks import quality, tiny_model, warm_start
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

Progress: TypeAlias = Callable[[str, float], None]
"""Hears what is being done, and the finished share of the whole in [0, 1]."""

_MODEL = "model"
_N_THREADS = 2
"""Fixed, not the machine's number: torch's sums depend on how many threads share them."""
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
            recipe |= {f"model.{key}": value for key, value in tiny_model.SHAPE.items()}
            recipe |= {f"warm_start.{key}": value for key, value in asdict(self.family.warm_start).items()}
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
        model=made.entry if made else None,
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


@dataclass(frozen=True, kw_only=True)
class _MadeModel:
    entry: ModelEntry
    max_prompt_tokens: int
    max_answer_tokens: int


def _make_model(directory: Path, recipe: Recipe, splits: Splits, progress: Progress) -> _MadeModel:
    """Put a warm-started tiny model into `directory`."""
    try:
        tokenizer = tiny_model.make_tokenizer()
        with tiny_model.torch_threads(_N_THREADS):
            model = _taught_model(tokenizer, recipe, splits, progress)
            progress("measuring the warm-started model", _TEACHING_DONE)
            prompts, answers = _longest(tokenizer, splits)
            accuracy = quality.greedy_accuracy(model, tokenizer, splits.problems["val"], answers)
    except ImportError as error:
        raise TaskError(
            f"making the tiny model needs torch and transformers, which cannot be imported here ({error}); "
            "install them: pip install 'llmzero-ray[verl]', or give a model directory of your own as "
            "model.path"
        ) from error
    tiny_model.save(model, tokenizer, directory)
    entry = ModelEntry(path=directory.name, params=model.num_parameters(), greedy_val_accuracy=accuracy)
    return _MadeModel(entry=entry, max_prompt_tokens=prompts, max_answer_tokens=answers)


def _taught_model(tokenizer: Any, recipe: Recipe, splits: Splits, progress: Progress) -> Any:
    plan = recipe.family.warm_start

    def on_step(step: int, loss: float) -> None:
        share = _DATA_DONE + (_TEACHING_DONE - _DATA_DONE) * step / plan.n_steps
        progress(f"warm start: step {step} of {plan.n_steps}, loss {loss:.2f}", share)

    progress("making the tiny model", _DATA_DONE)
    model = tiny_model.make_model(tokenizer, recipe.seed)
    warm_start.teach(model, tokenizer, splits.demonstrations, plan, recipe.seed, on_step)
    return model


def _longest(tokenizer: Any, splits: Splits) -> tuple[int, int]:
    """Tokens of the longest prompt and of the longest demonstration, end mark included."""
    problems = [problem for split in SPLITS for problem in splits.problems[split]]
    prompts = [tiny_model.chat_prompt(tokenizer, problem.prompt) for problem in problems]
    answers = [response + tiny_model.END for _, response in splits.demonstrations]

    def longest(texts: list[str]) -> int:
        return max(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])

    return longest(prompts), longest(answers)


def _versions() -> dict[str, str]:
    found = {}
    for package in ("pyarrow", "reasoning-gym", "torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
