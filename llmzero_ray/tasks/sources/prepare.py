"""From task.yaml to a prepared task: `prepare_source`."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from llmzero_ray.prepared.gold_answers import gold_response
from llmzero_ray.prepared.manifest import FORMAT, read_manifest, write_manifest
from llmzero_ray.prepared.reward_validation import (
    GoldResponse,
    RewardAccuracy,
    measure_accuracy,
    validate_reward,
)
from llmzero_ray.prepared.splits import SPLITS
from llmzero_ray.prepared.task import PreparedTask, load_task
from llmzero_ray.prepared.verl_rows import read_first_rows
from llmzero_ray.tasks.sources.base import DatasetAdapter
from llmzero_ray.tasks.sources.chemcot import ChemCoT
from llmzero_ray.tasks.sources.custom import CustomTask
from llmzero_ray.tasks.sources.papersearchqa import PaperSearchQA
from llmzero_ray.tasks.sources.readers import SourceFile, fetch_from_hub, find_files, only_split_of
from llmzero_ray.tasks.sources.reasoning_gym import GymTask
from llmzero_ray.tasks.sources.scan import ScannedRows
from llmzero_ray.tasks.sources.ssmr import SSMR
from llmzero_ray.tasks.sources.summary import Summary, summarise
from llmzero_ray.tasks.sources.wildsci import WildSci
from llmzero_ray.tasks.sources.writer import WriteRequest, write_source_task
from llmzero_ray.tasks.task_yaml import OwnReward, TaskFile
from llmzero_ray.utils.files import file_digest

_VALIDATION_ROWS = 500
"""Rows per split on which a reward is validated."""
_VALIDATED_FROM, _VALIDATED = 0.96, 0.99
"""Fraction of the preparation that is done before and after the reward validation."""
_DATASETS: dict[str, Callable[..., DatasetAdapter]] = {
    "chemcot": ChemCoT,
    "papersearchqa": PaperSearchQA,
    "ssmr": SSMR,
    "wildsci": WildSci,
}


def prepare_source(task: TaskFile, *, progress: Progress = no_progress, on_ray: bool = False) -> Summary:
    """Summary of the task in `task.dir`, which is made first if there is none.

    With `on_ray` the rows are read on the cluster of a Ray session, otherwise in this process. Both choose
    the same rows. While a task is made, its usable rows take space next to `task.dir`. An existing task must
    have the same settings, or be written by hand.

    Raises:
        TaskError: files, columns, options or reward cannot be used, a user's reward does not pass the
            validation, too few rows are left, or `task.dir` holds something else.
        StorageError: `task.dir` cannot be written; nothing is left there.
    """
    target, adapter = Path(task.dir).absolute(), adapter_of(task)
    adapter.check()
    given = [] if task.hub or isinstance(adapter, GymTask) else _files(task, adapter)
    spec = _spec(task, adapter, given)
    seen: list[ScannedRows] = []

    def fill(part: Path) -> None:
        with tempfile.TemporaryDirectory(dir=part.parent, prefix=f"{part.name}-source-") as scratch:
            files = given or _fetched(task, adapter, Path(scratch), progress)
            request = WriteRequest(task=task, adapter=adapter, files=files, spec=spec, on_ray=on_ray)
            seen.append(write_source_task(part, request, Path(scratch), progress))
            if task.reward is not None and task.reward_file is not None:
                _validate_reward(part, task.reward, progress)
            progress("done", 1.0)

    create_once(target, fill, progress)
    check_same_spec(target, lambda found: [*spec_differences(found, spec), *_other_function(target, task)])
    prepared = load_task(target)
    accuracy = _reward_accuracy(prepared, adapter)
    return summarise(prepared, task.sizes, accuracy, seen[0] if seen else None)


def _other_function(directory: Path, task: TaskFile) -> list[str]:
    """Description of the difference where a prepared task has another function of the user's reward. The
    recipe does not name the function, but the manifest does."""
    if task.reward is None or task.reward.function is None:
        return []
    found, wanted = read_manifest(directory).reward.name, task.reward.function.rpartition(":")[2]
    return spec_differences({"reward function": found}, {"reward function": wanted})


def _validate_reward(directory: Path, reward: OwnReward, progress: Progress) -> None:
    """Validate the user's reward on the rows of a written task, and write the report into the manifest.

    Raises:
        TaskError: the reward failed; the message lists the failed checks with examples.
        OSError: the manifest cannot be written.
    """
    manifest = read_manifest(directory)
    path = manifest.reward.path
    if path is None or manifest.source is None or manifest.source.reward_sha256 is None:
        raise TaskError(
            f"{directory}: the manifest names no reward file with its sha256; nothing to validate"
        )
    rows = [
        row for split in SPLITS for row in read_first_rows(directory / f"{split}.parquet", _VALIDATION_ROWS)
    ]
    copy = manifest.reward.model_copy(update={"gold_response": reward.gold})
    report = validate_reward(
        copy,
        directory,
        rows,
        progress=lambda doing, share: progress(
            doing, _VALIDATED_FROM + share * (_VALIDATED - _VALIDATED_FROM)
        ),
    )
    if not report.passed:
        # The message names the user's own file, not the copy.
        text = report.text().replace(str(directory / path), str(reward.file))
        if reward.gold is None and not report.found_gold:
            text += (
                "\nNo usual form of a right answer is accepted; correct the reward, or name the form as "
                "reward.gold, such as '<answer>{answer}</answer>'"
            )
        raise TaskError(f"{text}\nNothing was kept; correct the reward and prepare again")
    write_manifest(manifest.model_copy(update={"gate": report.entry()}), directory)


def _reward_accuracy(task: PreparedTask, adapter: DatasetAdapter) -> RewardAccuracy | None:
    """Scores of right, empty and meaningless answers to validation and test rows.

    Right answers have the form with which the reward was validated, or that of the adapter.
    """
    manifest = read_manifest(Path(task.directory))
    gold: GoldResponse = adapter.gold_response
    if manifest.gate is not None:
        form = manifest.gate.gold_response
        gold = lambda _source, ground_truth: gold_response(form, ground_truth)  # noqa: E731
    rows = [row for path in (task.val, task.test) for row in read_first_rows(path, _VALIDATION_ROWS)]
    return measure_accuracy(manifest.reward, Path(task.directory), rows, gold)


def adapter_of(task: TaskFile) -> DatasetAdapter:
    """Adapter that reads the rows of a task.

    Raises:
        TaskError: its options are unknown or out of bounds.
    """
    if task.reasoning_gym is not None:
        return GymTask(task.reasoning_gym, task.options, task.seed)
    if task.dataset is None:
        return CustomTask(task)
    try:
        return _DATASETS[task.dataset](**task.options)
    except TypeError as error:
        raise TaskError(f"{task.dataset}: options are {task.options}: {error}") from error


def _files(task: TaskFile, adapter: DatasetAdapter) -> list[SourceFile]:
    """Files that task.yaml names. In a known data set the file's name says which split it belongs to."""
    found: dict[str, SourceFile] = {}
    if task.files:
        for file in find_files(task.files, adapter.wants):
            only_split = only_split_of(file.name.replace("/", "_").replace(".", "_")) if task.dataset else ""
            found[file.path] = replace(file, only_split=only_split)
    for places, only_split in ((task.val_files, "val"), (task.test_files, "test")):
        if places:
            found |= {file.path: file for file in find_files(places, adapter.wants, only_split)}
    named = _named_apart(list(found.values()))
    return _unbound_if_all_bound(sorted(named, key=lambda file: file.name))


def _named_apart(files: list[SourceFile]) -> list[SourceFile]:
    """The files. Those that share a name get so many of their folders into it that all names differ."""
    while shared := {key for key, n in Counter(file.spec_key for file in files).items() if n > 1}:
        files = [_with_folder(file) if file.spec_key in shared else file for file in files]
    return files


def _with_folder(file: SourceFile) -> SourceFile:
    folder = Path(file.path.removesuffix(file.name)).name
    return replace(file, name=f"{folder}/{file.name}" if folder else file.path)


def _unbound_if_all_bound(files: Sequence[SourceFile]) -> list[SourceFile]:
    """The files, free for any split if all are bound to one: a data set that was published only as a test set
    must also give training rows."""
    bound = all(file.only_split for file in files)
    return [replace(file, only_split="") for file in files] if bound else list(files)


def _fetched(task: TaskFile, adapter: DatasetAdapter, scratch: Path, progress: Progress) -> list[SourceFile]:
    """Files that are generated or downloaded when the task is made."""
    if isinstance(adapter, GymTask):
        progress(f"generating: {adapter.name}", 0.0)
        return adapter.generate(scratch, task.sizes)
    progress(f"downloading: {task.hub}", 0.0)
    files = [
        file for file in fetch_from_hub(str(task.hub), task.hub_revision, scratch) if adapter.wants(file.name)
    ]
    return _unbound_if_all_bound(files)


def _spec(task: TaskFile, adapter: DatasetAdapter, files: Sequence[SourceFile]) -> dict[str, Any]:
    """All values that determine the content, flat and plain."""
    spec: dict[str, Any] = {"format": FORMAT, "adapter": adapter.name, "adapter_version": adapter.version}
    spec |= {f"n_{split}": size for split, size in task.sizes.items()}
    spec |= {f"adapter.{key}": value for key, value in adapter.options().items()}
    if task.tokenizer is not None:
        spec["max_prompt_tokens"] = task.max_prompt_tokens
    if task.hub is not None:
        spec |= {"hub": task.hub, "hub_revision": task.hub_revision}
    if (reward := task.reward_file) is not None and reward.is_file():
        spec["reward_sha256"] = file_digest(str(reward))
    return spec | {file.spec_key: file_digest(file.path) for file in files}
