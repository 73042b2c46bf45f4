"""Write a task from a data set into an empty directory: read, choose, measure, write, account for every row.

The same files give the same parquet bytes everywhere (of one pyarrow version). Prompts are measured in tokens
of a model, chat template included, by transformers, which is imported when called. Not here: where the
directory is put and when (prepare.py, ../prepare.py).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.directory import Progress
from llmzero_ray.prepared.manifest import (
    Manifest,
    SourceEntry,
    SourceFileEntry,
    SplitCounts,
    SplitFiles,
    write_manifest,
)
from llmzero_ray.prepared.splits import CONFIRM, SPLITS
from llmzero_ray.prepared.verl_rows import verl_row, write_split
from llmzero_ray.tasks.sources.base import DatasetAdapter, TaskExample
from llmzero_ray.tasks.sources.readers import SourceFile
from llmzero_ray.tasks.sources.scan import ScannedRows, scan
from llmzero_ray.tasks.sources.selection import Indices, Selection, select, set_aside
from llmzero_ray.tasks.task_yaml import TaskFile
from llmzero_ray.utils.files import file_digest, small_text, text_digest

TOO_LONG = "prompt too long"
_MAX_ROUNDS = 20
"""Maximum selections that are tried while some prompts turn out to be too long."""
_SHOWN_PROBLEMS = 5
_BATCH = 512
"""Prompts that are measured at a time."""


@dataclass(frozen=True, kw_only=True)
class WriteRequest:
    """Description of the splits to write."""

    task: TaskFile
    adapter: DatasetAdapter
    files: Sequence[SourceFile]
    spec: Mapping[str, Any]
    on_ray: bool
    """Whether the rows are read on the cluster of a Ray session."""


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    examples: Mapping[str, list[TaskExample]]
    dropped: Mapping[str, int]
    max_prompt_tokens: int | None


def write_source_task(
    directory: Path, request: WriteRequest, scratch: Path, progress: Progress
) -> ScannedRows:
    """Write the task, and return what became of its rows. `scratch` is a directory for the usable rows, which
    is not needed afterwards.

    Raises:
        TaskError: no row, or too few for three splits, can be used; a file changed meanwhile.
        OSError: it cannot be written.
    """
    prompts = _Prompts(request.task.tokenizer, request.task.max_prompt_tokens)
    scanned = scan(
        request.adapter,
        request.files,
        scratch / "rows.jsonl",
        lambda doing, share: progress(doing, 0.8 * share),
        on_ray=request.on_ray,
    )
    if len(scanned.keys) == 0:
        raise TaskError(f"{request.adapter.name}: no row can be used: {'; '.join(problems_of(scanned))}")
    progress("choosing rows", 0.8)
    chosen = _choose(request, scanned, prompts)
    progress("writing", 0.95)
    files = {
        split: write_split(directory, split, _to_rows(request.adapter, split, chosen.examples[split]))
        for split in chosen.examples
    }
    reward_hash = None
    if request.task.reward_file is not None and request.adapter.reward.path is not None:
        shutil.copyfile(request.task.reward_file, directory / request.adapter.reward.path)
        reward_hash = file_digest(str(directory / request.adapter.reward.path))
    write_manifest(_manifest(request, scanned, chosen, SplitFiles(**files), reward_hash), directory)
    return scanned


def problems_of(scanned: ScannedRows) -> list[str]:
    """Problems of files, and an example of each kind of unusable row, in one line each."""
    examples = [places[0] for places in scanned.dropped_examples.values()]
    return [*scanned.notes.values(), *examples][:_SHOWN_PROBLEMS] or ["the files hold no rows"]


def _choose(request: WriteRequest, scanned: ScannedRows, prompts: _Prompts) -> _Chosen:
    """The examples of each split. Prompts that are too long are dropped and replaced by others."""
    usable: Indices = np.arange(len(scanned.keys))
    for _ in range(_MAX_ROUNDS):
        selection = select(scanned.keys[usable], request.task.sizes, request.adapter.shares)
        _check_not_empty(request, selection, scanned)
        long = prompts.too_long(scanned, usable[np.concatenate(list(selection.splits.values()))])
        if not len(long):
            return _with_spare_rows(request, scanned, usable, selection, prompts)
        for place in sorted(long.tolist()):
            file, row = scanned.keys[["file", "row"]][place].item()
            detail = (
                f"{prompts.lengths[place]} tokens, at most {prompts.limit}; raise max_prompt_tokens if the "
                "model can"
            )
            scanned.drop(TOO_LONG, file, row, detail)
        usable = np.setdiff1d(usable, long)
    raise TaskError(
        f"{request.adapter.name}: after {_MAX_ROUNDS} rounds prompts are still longer than {prompts.limit} "
        "tokens: most of this data set does not fit; raise max_prompt_tokens, or use another model"
    )


def _with_spare_rows(
    request: WriteRequest, scanned: ScannedRows, usable: Indices, selection: Selection, prompts: _Prompts
) -> _Chosen:
    """The selection's examples, and those set aside to confirm winners. Prompts that are too long are left
    out of the latter, so that the other splits stay as they are."""
    n, without = request.task.n_confirm, np.empty(0, dtype=np.int64)
    keys, shares = scanned.keys[usable], request.adapter.shares
    whole = set_aside(keys, selection, n, shares)
    while len(long := prompts.too_long(scanned, usable[whole.splits[CONFIRM]])):
        without = np.concatenate([without, np.searchsorted(usable, long)])
        whole = set_aside(keys, selection, n, shares, without)
    rows = {split: usable[whole.splits[split]] for split in (*SPLITS, CONFIRM) if len(whole.splits[split])}
    chosen = np.concatenate(list(rows.values())).tolist()
    return _Chosen(
        examples={split: scanned.examples(each) for split, each in rows.items()},
        dropped=whole.dropped,
        max_prompt_tokens=max((prompts.lengths[row] for row in chosen if prompts.lengths), default=None),
    )


class _Prompts:
    """The lengths of prompts in tokens of a model, if one is named.

    Raises:
        TaskError: its tokenizer cannot be loaded, or has no chat template.
    """

    def __init__(self, directory: str | None, max_tokens: int | None) -> None:
        self._tokenizer = None if directory is None else _load(directory)
        self.limit = None if directory is None else _limit(Path(directory), max_tokens)
        """Maximum tokens of a prompt. None if unknown."""
        self.lengths: dict[int, int] = {}
        """Position of a row among the usable ones -> its tokens."""

    def too_long(self, scanned: ScannedRows, rows: Indices) -> Indices:
        """Rows whose prompts are too long. The lengths of all `rows` are measured first."""
        if self._tokenizer is not None:
            new = np.array([row for row in rows.tolist() if row not in self.lengths], dtype=np.int64)
            for start in range(0, len(new), _BATCH):
                part = new[start : start + _BATCH]
                chats = [example.messages() for example in scanned.examples(part)]
                texts = self._tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
                tokens = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
                self.lengths |= dict(zip(part.tolist(), map(len, tokens), strict=True))
        limit = self.limit
        return rows[[limit is not None and self.lengths[row] > limit for row in rows.tolist()]]


def _load(directory: str) -> Any:
    if not Path(directory).is_dir():
        raise TaskError(
            f"tokenizer: {directory} is not a directory; name one that holds a model or tokenizer"
        )
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of many kinds
        raise TaskError(
            f"tokenizer: {directory} cannot be loaded ({type(error).__name__}: {error}); name the directory "
            "of the base model"
        ) from error
    if not tokenizer.chat_template:
        raise TaskError(f"tokenizer: {directory} has no chat template; use the instruct variant of the model")
    return tokenizer


def _limit(directory: Path, limit: int | None) -> int | None:
    """The smaller of the configured limit and the longest prompt that leaves the model one token to
    respond."""
    try:
        positions = json.loads(small_text(directory / "config.json"))["max_position_embeddings"]
    except (OSError, ValueError, KeyError, TypeError):
        return limit
    held = positions - 1 if isinstance(positions, int) and positions > 1 else limit
    return held if limit is None else min(limit, held or limit)


def _check_not_empty(request: WriteRequest, selection: Selection, scanned: ScannedRows) -> None:
    empty = [split for split in SPLITS if len(selection.splits[split]) == 0]
    if empty:
        dropped = {**selection.dropped, **scanned.dropped}
        listed = ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "none"
        counts = ", ".join(f"{split} {len(rows)}" for split, rows in selection.splits.items())
        raise TaskError(
            f"{request.adapter.name}: {scanned.rows.total()} rows leave none for {', '.join(empty)} "
            f"({counts}; dropped: {listed}); each data source needs three rows or more, in three groups"
        )


def _to_rows(adapter: DatasetAdapter, split: str, examples: Sequence[TaskExample]) -> list[dict[str, Any]]:
    return [
        verl_row(
            data_source=example.data_source,
            prompt=example.messages(),
            ability=adapter.ability,
            ground_truth=example.ground_truth,
            index=index,
            split=split,
            extra=example.extra,
        )
        for index, example in enumerate(examples)
    ]


def _manifest(
    request: WriteRequest, scanned: ScannedRows, chosen: _Chosen, splits: SplitFiles, reward_hash: str | None
) -> Manifest:
    adapter, examples = request.adapter, chosen.examples
    sources = sorted({example.data_source for split in SPLITS for example in examples[split]})
    counts = {split: Counter(example.data_source for example in each) for split, each in examples.items()}
    baselines = _baselines(examples["test"])
    n_right = sum(baselines[source] * counts["test"][source] for source in baselines)
    spec = dict(request.spec)
    return Manifest(
        name=adapter.name,
        data_sources=tuple(sources),
        splits=splits,
        reward=adapter.reward,
        max_prompt_tokens=chosen.max_prompt_tokens,
        max_answer_tokens=None,
        licence=adapter.licence,
        majority_baseline=n_right / len(examples["test"]),
        recipe=spec,
        recipe_hash=text_digest(json.dumps(spec, sort_keys=True)),
        made_with={"pyarrow": version("pyarrow")},
        source=SourceEntry(
            adapter=adapter.name,
            files=tuple(
                SourceFileEntry(
                    file=file.name, sha256=_unchanged_digest(request, file), rows=scanned.rows[number]
                )
                for number, file in enumerate(request.files)
            ),
            counts={
                source: SplitCounts(**{split: n[source] for split, n in counts.items()}) for source in sources
            },
            dropped=dict(sorted((scanned.dropped + Counter(chosen.dropped)).items())),
            majority_baselines=baselines,
            max_prompt_chars=max(len(example.prompt) for each in examples.values() for example in each),
            reward_sha256=reward_hash,
        ),
    )


def _unchanged_digest(request: WriteRequest, file: SourceFile) -> str:
    found = file_digest(file.path)
    if request.spec.get(file.spec_key, found) != found:
        raise TaskError(f"{file.name} was changed while it was being prepared; prepare again")
    return found


def _baselines(examples: Sequence[TaskExample]) -> dict[str, float]:
    """Data source -> share of its most frequent label, or 0 if no constant answer can be right."""
    labels: dict[str, Counter[str]] = {}
    totals = Counter(example.data_source for example in examples)
    for example in examples:
        labels.setdefault(example.data_source, Counter())[example.label] += bool(example.label)
    return {source: max(labels[source].values()) / n for source, n in sorted(totals.items())}
