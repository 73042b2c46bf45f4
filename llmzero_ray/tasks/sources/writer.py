"""Write a task from a data set into an empty directory: choose, fetch, measure, write, account for every row.

The same files give the same parquet bytes everywhere (of one pyarrow version). Not here: where the directory
is put and when (prepare.py, ../prepare.py).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from llmzero_ray.tasks.sources.prompt_length import PromptMeter
from llmzero_ray.tasks.sources.readers import SourceFile
from llmzero_ray.tasks.sources.scan import Place, Scanner, ScanResult
from llmzero_ray.tasks.sources.selection import Indices, RowKeys, Selection, select, set_aside
from llmzero_ray.utils.files import file_digest, text_digest

TOO_LONG = "prompt too long"
_MAX_ROUNDS = 20
"""Selections that are tried while prompts turn out to be too long."""
_SHOWN_PROBLEMS = 5


@dataclass(frozen=True, kw_only=True)
class WriteRequest:
    """What to make."""

    adapter: DatasetAdapter
    files: Sequence[SourceFile]
    sizes: Mapping[str, int]
    """Most rows of train, val and test, and of what is set aside to confirm winners (absent: none)."""
    recipe: Mapping[str, Any]
    reward_file: Path | None = None
    """The user's reward, to be copied into the task under the name in the adapter's reward."""
    tokenizer: str | None = None
    max_prompt_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    examples: Mapping[str, list[TaskExample]]
    dropped: Mapping[str, int]
    max_prompt_tokens: int | None


def write_source_task(
    directory: Path, request: WriteRequest, scanner: Scanner, progress: Progress
) -> ScanResult:
    """Write the task; returns a summary of its rows.

    Raises:
        TaskError: no row, or too few for three splits, can be used; a file changed meanwhile.
        OSError: it cannot be written.
    """
    meter = (
        PromptMeter(request.tokenizer, request.max_prompt_tokens) if request.tokenizer is not None else None
    )
    scanned = scanner.scan(request.adapter, request.files, lambda doing, share: progress(doing, 0.8 * share))
    if len(scanned.keys) == 0:
        raise TaskError(f"{request.adapter.name}: no row can be used: {'; '.join(problems_of(scanned))}")
    progress("choosing rows", 0.8)
    chosen = _choose(request, scanned, scanner, meter)
    progress("writing", 0.95)
    files = {
        split: write_split(
            directory, split, _to_rows(request.adapter, split, chosen.examples[split]), request.adapter.extra
        )
        for split in chosen.examples
    }
    reward_hash = None
    if request.reward_file is not None and request.adapter.reward.path is not None:
        shutil.copyfile(request.reward_file, directory / request.adapter.reward.path)
        reward_hash = file_digest(str(directory / request.adapter.reward.path))
    write_manifest(_manifest(request, scanned, chosen, SplitFiles(**files), reward_hash), directory)
    return scanned


def problems_of(scanned: ScanResult) -> list[str]:
    """What is wrong with files, and an example of each kind of unusable row, in one line each."""
    examples = [places[0] for places in scanned.statistics.examples.values()]
    return [*scanned.statistics.notes.values(), *examples][:_SHOWN_PROBLEMS] or ["the files hold no rows"]


def _choose(
    request: WriteRequest, scanned: ScanResult, scanner: Scanner, meter: PromptMeter | None
) -> _Chosen:
    """The examples of each split; prompts that are too long are dropped, and others chosen in their place."""
    keys, pool = scanned.keys, _Pool(request, scanner, meter)
    for _ in range(_MAX_ROUNDS):
        selection = select(keys, request.sizes, request.adapter.shares)
        _check_not_empty(request, selection, scanned)
        long = pool.too_long(place for rows in selection.splits.values() for place in _places(keys, rows))
        if not long:
            return _with_spare_rows(request, keys, selection, pool)
        for number, row in sorted(long):
            detail = (
                f"{pool.lengths[number, row]} tokens, at most {pool.limit}; raise max_prompt_tokens if the "
                "model can"
            )
            scanned.statistics.drop(TOO_LONG, f"{request.files[number].name}, row {row}", detail)
        keys = keys[[place not in long for place in _places(keys, np.arange(len(keys)))]]
    raise TaskError(
        f"{request.adapter.name}: after {_MAX_ROUNDS} rounds prompts are still longer than {pool.limit} "
        "tokens: most of this data set does not fit; raise max_prompt_tokens, or use another model"
    )


def _with_spare_rows(request: WriteRequest, keys: RowKeys, selection: Selection, pool: _Pool) -> _Chosen:
    """The selection's examples, and those set aside to confirm winners; what is too long among these is not
    taken, so that the other splits stay as they are."""
    n, without = request.sizes.get(CONFIRM, 0), np.empty(0, dtype=np.int64)
    whole = set_aside(keys, selection, n, request.adapter.shares)
    while long := pool.too_long(_places(keys, whole.splits[CONFIRM])):
        rows: Indices = whole.splits[CONFIRM]
        without = np.concatenate([without, rows[[place in long for place in _places(keys, rows)]]])
        whole = set_aside(keys, selection, n, request.adapter.shares, without)
    places = {split: _places(keys, rows) for split, rows in whole.splits.items() if len(rows)}
    examples = {
        split: [pool.known[place] for place in places[split]]
        for split in (*SPLITS, CONFIRM)
        if split in places
    }
    lengths = [pool.lengths[place] for each in places.values() for place in each] if pool.lengths else []
    return _Chosen(examples=examples, dropped=whole.dropped, max_prompt_tokens=max(lengths, default=None))


class _Pool:
    """The examples that were fetched so far, with the lengths of their prompts where these are measured."""

    def __init__(self, request: WriteRequest, scanner: Scanner, meter: PromptMeter | None) -> None:
        self._request, self._scanner, self._meter = request, scanner, meter
        self.known: dict[Place, TaskExample] = {}
        self.lengths: dict[Place, int] = {}
        self.limit = None if meter is None else meter.limit

    def too_long(self, places: Iterable[Place]) -> set[Place]:
        """Those of the places whose prompts are too long; the examples of all of them are known then."""
        wanted = list(places)
        new = [place for place in wanted if place not in self.known]
        self.known |= self._scanner.fetch(self._request.adapter, self._request.files, _by_file(new))
        if self._meter is not None:
            measured = self._meter.lengths([self.known[place] for place in new])
            self.lengths |= dict(zip(new, measured, strict=True))
        limit = self.limit
        return set() if limit is None else {place for place in wanted if self.lengths[place] > limit}


def _places(keys: RowKeys, rows: Any) -> list[Place]:
    return list(zip(keys["file"][rows].tolist(), keys["row"][rows].tolist(), strict=True))


def _by_file(places: Sequence[Place]) -> dict[int, set[int]]:
    wanted: dict[int, set[int]] = {}
    for number, row in places:
        wanted.setdefault(number, set()).add(row)
    return wanted


def _check_not_empty(request: WriteRequest, selection: Selection, scanned: ScanResult) -> None:
    empty = [split for split in SPLITS if len(selection.splits[split]) == 0]
    if empty:
        dropped = {**selection.dropped, **scanned.statistics.dropped}
        listed = ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "none"
        counts = ", ".join(f"{split} {len(rows)}" for split, rows in selection.splits.items())
        raise TaskError(
            f"{request.adapter.name}: {sum(scanned.rows.values())} rows leave none for {', '.join(empty)} "
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
    request: WriteRequest, scanned: ScanResult, chosen: _Chosen, splits: SplitFiles, reward_hash: str | None
) -> Manifest:
    adapter, examples = request.adapter, chosen.examples
    sources = sorted({example.data_source for split in SPLITS for example in examples[split]})
    counts = {split: Counter(example.data_source for example in each) for split, each in examples.items()}
    baselines = _baselines(examples["test"])
    n_right = sum(baselines[source] * counts["test"][source] for source in baselines)
    recipe = dict(request.recipe)
    return Manifest(
        name=adapter.name,
        data_sources=tuple(sources),
        splits=splits,
        reward=adapter.reward,
        max_prompt_tokens=chosen.max_prompt_tokens,
        max_answer_tokens=None,
        licence=adapter.licence,
        majority_baseline=n_right / len(examples["test"]),
        recipe=recipe,
        recipe_hash=text_digest(json.dumps(recipe, sort_keys=True)),
        made_with={"pyarrow": version("pyarrow")},
        source=SourceEntry(
            adapter=adapter.name,
            files=tuple(
                SourceFileEntry(
                    file=file.name, sha256=file_digest(file.path), rows=scanned.rows.get(number, 0)
                )
                for number, file in enumerate(request.files)
            ),
            counts={
                source: SplitCounts(**{split: n[source] for split, n in counts.items()}) for source in sources
            },
            dropped=dict(sorted((scanned.statistics.dropped + Counter(chosen.dropped)).items())),
            majority_baselines=baselines,
            max_prompt_chars=max(len(example.prompt) for each in examples.values() for example in each),
            reward_sha256=reward_hash,
        ),
    )


def _baselines(examples: Sequence[TaskExample]) -> dict[str, float]:
    """By data source, the share of its most frequent label; 0 where no constant answer can be right."""
    labels: dict[str, Counter[str]] = {}
    totals = Counter(example.data_source for example in examples)
    for example in examples:
        labels.setdefault(example.data_source, Counter())[example.label] += bool(example.label)
    return {source: max(labels[source].values()) / n for source, n in sorted(totals.items())}
