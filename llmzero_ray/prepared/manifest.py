"""The manifest of a prepared task: splits, reward, model and origin of the rows.

People may write one by hand for data of their own; only `splits` and `reward` must be there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from llmzero_ray.config import presets
from llmzero_ray.errors import TaskError
from llmzero_ray.utils.text import nearest

MANIFEST = "manifest.json"
FORMAT = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SplitFile(_Strict):
    """One parquet file of VeRL rows."""

    file: str
    """Relative to the manifest, or absolute."""
    rows: int | None = Field(None, ge=1)
    sha256: str | None = None
    """SHA-256 of the file, checked if given."""


class SplitFiles(_Strict):
    """Files of the three splits, and of rows for confirmation."""

    train: SplitFile
    val: SplitFile
    test: SplitFile
    confirm: SplitFile | None = None
    """Further rows, to confirm the winners of a search (`confirm.k`). None if a family generates them, or a
    data set had none left."""


class RewardEntry(_Strict):
    """Location of the reward function: an importable module, or a file next to the manifest or elsewhere."""

    module: str | None = None
    path: str | None = None
    name: str = "compute_score"
    gold_response: str | None = None
    """A perfect response, `{answer}` standing for the ground truth; when given, it must score 1."""
    allow_unsandboxed: bool = False
    """Whether code that does not ship may run, when it is tried and in training, on machines that have no
    sandbox."""
    in_place: bool = False
    """Whether to import a `module` where it is used, outside of the sandbox, because it must call a service.
    It can do whatever the user can."""

    @model_validator(mode="after")
    def _one_place(self) -> RewardEntry:
        if (self.module is None) == (self.path is None):
            raise ValueError("give either module or path")
        if self.in_place and self.module is None:
            raise ValueError("in_place is for a module; code of a path runs in the sandbox alone")
        return self


class ModelEntry(_Strict):
    """The base model that was made for the task."""

    path: str
    """Directory, relative to the manifest, or absolute."""
    params: int | None = None
    greedy_val_accuracy: float | None = None
    """Greedy accuracy on the validation split, before any RL."""


class SplitCounts(_Strict):
    """Rows by split."""

    train: int = Field(ge=0)
    val: int = Field(ge=0)
    test: int = Field(ge=0)
    confirm: int = Field(0, ge=0)


class SourceFileEntry(_Strict):
    """A file that rows were taken from."""

    file: str
    """Its name in the data set."""
    sha256: str
    rows: int = Field(ge=0)


class SourceEntry(_Strict):
    """Origin of the rows of a task, and statistics of the rows that were dropped."""

    adapter: str
    files: tuple[SourceFileEntry, ...]
    counts: dict[str, SplitCounts]
    """data_source -> its rows."""
    dropped: dict[str, int]
    """Rows by reason; with those of `counts` they are all rows of the files."""
    majority_baselines: dict[str, float]
    """data_source -> test accuracy of always giving its most frequent answer."""
    max_prompt_chars: int = Field(ge=0)
    """Longest prompt over all splits, without chat template."""
    reward_sha256: str | None = None
    """SHA-256 of a reward file that was validated and copied into the task. It is checked when the task is
    opened, and whenever the reward is started."""


class ValidationCheckEntry(_Strict):
    """One check of a reward."""

    name: str
    found: str
    needed: str
    passed: bool


class ValidationEntry(_Strict):
    """Result of the reward's validation."""

    isolation: str
    """Its sandbox: bubblewrap, or less where the user allowed that."""
    gold_response: str
    """The form of the right answers, `{answer}` standing for the answer."""
    checks: tuple[ValidationCheckEntry, ...]


class Manifest(_Strict):
    """manifest.json."""

    format: Literal[1] = 1
    name: str | None = None
    """Default: the directory's name."""
    family: str | None = None
    """Shipped family that made it, or None for the user's own data."""
    data_sources: tuple[str, ...] | None = None
    """Checked against the rows when given."""
    splits: SplitFiles
    reward: RewardEntry
    max_prompt_tokens: int | None = Field(None, ge=1)
    """Longest prompt over all splits, chat template included, in tokens of the task's own model, or of the
    model that a prepared data set was measured with."""
    max_answer_tokens: int | None = Field(None, ge=1)
    """Longest demonstration, end mark included."""
    model: ModelEntry | None = None
    licence: str | None = None
    majority_baseline: float | None = Field(None, ge=0, le=1)
    """Test accuracy of always giving the most frequent answer, of the row's data_source if there are many."""
    source: SourceEntry | None = None
    """How a data set became this task. None if the task was generated, or assembled by hand."""
    gate: ValidationEntry | None = None
    """`prepare`'s validation of a reward that the user wrote."""
    recipe: dict[str, Any] | None = None
    """All values that determine the content, flat. Two directories with the same values hold the same
    task."""
    recipe_hash: str | None = None
    made_with: dict[str, str] | None = None
    """Versions of the libraries that made it; informational."""


def read_manifest(directory: Path) -> Manifest:
    """Manifest of a task directory.

    Raises:
        TaskError: the directory or the manifest is missing, unreadable, or has unknown content.
    """
    path = directory / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(_why_unreadable(directory, error)) from error
    try:
        return Manifest.model_validate(json.loads(text))
    except ValidationError as error:
        raise TaskError(f"{path} is not a task manifest: {_problems(error)}") from error
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path} is not JSON: {error}") from error


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Write manifest.json.

    Raises:
        OSError: it cannot be written.
    """
    absent: dict[str, Any] = {name: True for name in ("source", "gate") if getattr(manifest, name) is None}
    if manifest.splits.confirm is None:
        absent["splits"] = {"confirm"}
        if manifest.source is not None:
            absent["source"] = {"counts": {"__all__": {"confirm"}}}
    held = manifest.model_dump(mode="json", exclude=absent)
    text = json.dumps(held, indent=1, sort_keys=True)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _why_unreadable(directory: Path, error: OSError) -> str:
    if not directory.exists() and directory.name in presets.task_names():
        return (
            f"task directory {directory} does not exist; `llmzero prepare {directory.name}` makes it in "
            "data/ of the shell's directory"
        )
    if not directory.exists():
        return (
            f"task directory {directory} does not exist; correct task.dir, name a task.family that is made "
            "there, or make it of your data with `llmzero prepare task.yaml` (`llmzero draft` writes "
            "that file)"
        )
    if not directory.is_dir():
        return f"task directory {directory} is a file; task.dir must name a directory with manifest.json"
    if not (directory / MANIFEST).exists():
        held = ", ".join(sorted(entry.name for entry in directory.iterdir())[:8]) or "nothing"
        return (
            f"task directory {directory} has no {MANIFEST} (it holds {held}); make the task "
            "of your data with `llmzero prepare task.yaml`, or write one"
        )
    return f"{directory / MANIFEST} cannot be read: {error}"


def _problems(error: ValidationError) -> str:
    """All problems, each with its field, in one line."""
    return "; ".join(_problem(item["loc"], item["type"], item["msg"]) for item in error.errors()[:5])


def _problem(place: tuple[int | str, ...], kind: str, message: str) -> str:
    where = ".".join(str(part) for part in place) or "top level"
    if kind != "extra_forbidden":
        words = message.replace("Field required", "is missing").replace("Input should be", "must be")
        return f"{where}: {words}"
    parts = (Manifest, SplitFiles, SplitFile, RewardEntry, ModelEntry, SourceEntry, ValidationEntry)
    known = sorted({name for part in parts for name in part.model_fields})
    near = nearest(str(place[-1]), known)
    return f"{where}: unknown key" + (f"; did you mean {near}?" if near else "")
