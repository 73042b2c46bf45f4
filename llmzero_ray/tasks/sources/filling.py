"""Write a task from a data set into an empty directory: choose, fetch, measure, write, account for every row.

The same files give the same parquet bytes everywhere (of one pyarrow version). Not here: where the directory
is put and when (preparing.py, ../prepare.py).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.making import Progress
from llmzero_ray.tasks.manifest import (
    Manifest,
    SourceEntry,
    SourceFileEntry,
    SplitCounts,
    SplitFile,
    SplitFiles,
    write_manifest,
)
from llmzero_ray.tasks.sources.base import Adapter, Item
from llmzero_ray.tasks.sources.lengths import PromptMeter
from llmzero_ray.tasks.sources.passes import Examined, Passes, Place
from llmzero_ray.tasks.sources.reading import SourceFile, sha256_of
from llmzero_ray.tasks.sources.selection import Facts, Selection, select
from llmzero_ray.tasks.splits import SPLITS, write_parquet

TOO_LONG = "prompt too long"
_MAX_ROUNDS = 20
"""Selections that are tried while prompts turn out to be too long."""
_SHOWN_PROBLEMS = 5


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to make."""

    adapter: Adapter
    files: Sequence[SourceFile]
    sizes: Mapping[str, int]
    recipe: Mapping[str, Any]
    reward_file: Path | None = None
    """The user's reward, to be copied into the task under the name in the adapter's reward."""
    tokenizer: str | None = None
    max_prompt_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    items: Mapping[str, list[Item]]
    dropped: Mapping[str, int]
    max_prompt_tokens: int | None


def fill_from(directory: Path, order: Order, passes: Passes, progress: Progress) -> Examined:
    """Write the task; what the rows were like is returned for people.

    Raises:
        TaskError: no row, or too few for three splits, can be used; a file changed meanwhile.
        OSError: it cannot be written.
    """
    meter = PromptMeter(order.tokenizer, order.max_prompt_tokens) if order.tokenizer is not None else None
    examined = passes.examine(order.adapter, order.files, lambda doing, share: progress(doing, 0.8 * share))
    if len(examined.facts) == 0:
        raise TaskError(f"{order.adapter.name}: no row can be used: {'; '.join(problems_of(examined))}")
    progress("choosing rows", 0.8)
    chosen = _choose(order, examined, passes, meter)
    progress("writing", 0.95)
    files = {split: _write_split(directory, order.adapter, split, chosen.items[split]) for split in SPLITS}
    reward_hash = None
    if order.reward_file is not None and order.adapter.reward.path is not None:
        shutil.copyfile(order.reward_file, directory / order.adapter.reward.path)
        reward_hash = sha256_of(str(directory / order.adapter.reward.path))
    write_manifest(_manifest(order, examined, chosen, SplitFiles(**files), reward_hash), directory)
    return examined


def problems_of(examined: Examined) -> list[str]:
    """What is wrong with files, and an example of each kind of unusable row, in one line each."""
    examples = [places[0] for places in examined.tally.examples.values()]
    return [*examined.tally.notes.values(), *examples][:_SHOWN_PROBLEMS] or ["the files hold no rows"]


def _choose(order: Order, examined: Examined, passes: Passes, meter: PromptMeter | None) -> _Chosen:
    """The items of each split; prompts that are too long are dropped, and others chosen in their place."""
    facts, lengths = examined.facts, dict[Place, int]()
    known: dict[Place, Item] = {}
    for _ in range(_MAX_ROUNDS):
        selection = select(facts, order.sizes, order.adapter.shares)
        _check_not_empty(order, selection, examined)
        places = {split: _places(facts, rows) for split, rows in selection.splits.items()}
        new = [place for each in places.values() for place in each if place not in known]
        known |= passes.collect(order.adapter, order.files, _by_file(new))
        if meter is not None:
            measured = meter.lengths([known[place] for place in new])
            lengths |= dict(zip(new, measured, strict=True))
        limit = meter.limit if meter is not None else None
        long = {place for place in new if limit is not None and lengths[place] > limit}
        if not long:
            longest = max(lengths[place] for each in places.values() for place in each) if meter else None
            items = {split: [known[place] for place in each] for split, each in places.items()}
            return _Chosen(items=items, dropped=selection.dropped, max_prompt_tokens=longest)
        for number, row in sorted(long):
            detail = (
                f"{lengths[number, row]} tokens, at most {limit}; raise max_prompt_tokens if the model can"
            )
            examined.tally.drop(TOO_LONG, f"{order.files[number].name}, row {row}", detail)
        held = zip(facts["file"].tolist(), facts["row"].tolist(), strict=True)
        facts = facts[np.array([place not in long for place in held], dtype=bool)]
    raise TaskError(
        f"{order.adapter.name}: after {_MAX_ROUNDS} rounds prompts are still longer than {limit} tokens: "
        "most of this data set does not fit; raise max_prompt_tokens, or use another model"
    )


def _places(facts: Facts, rows: Any) -> list[Place]:
    return list(zip(facts["file"][rows].tolist(), facts["row"][rows].tolist(), strict=True))


def _by_file(places: Sequence[Place]) -> dict[int, set[int]]:
    wanted: dict[int, set[int]] = {}
    for number, row in places:
        wanted.setdefault(number, set()).add(row)
    return wanted


def _check_not_empty(order: Order, selection: Selection, examined: Examined) -> None:
    empty = [split for split in SPLITS if len(selection.splits[split]) == 0]
    if empty:
        dropped = {**selection.dropped, **examined.tally.dropped}
        listed = ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "none"
        counts = ", ".join(f"{split} {len(rows)}" for split, rows in selection.splits.items())
        raise TaskError(
            f"{order.adapter.name}: {sum(examined.rows.values())} rows leave none for {', '.join(empty)} "
            f"({counts}; dropped: {listed}); each data source needs three rows or more, in three groups"
        )


def _write_split(directory: Path, adapter: Adapter, split: str, items: Sequence[Item]) -> SplitFile:
    rows: list[dict[str, Any]] = [
        {
            "data_source": item.data_source,
            "prompt": item.messages(),
            "ability": adapter.ability,
            "reward_model": {"style": "rule", "ground_truth": item.ground_truth},
            "extra_info": {"index": index, "split": split} | dict(item.extra),
        }
        for index, item in enumerate(items)
    ]
    path = directory / f"{split}.parquet"
    write_parquet(rows, path, adapter.extra)
    return SplitFile(file=path.name, rows=len(rows), sha256=sha256_of(str(path)))


def _manifest(
    order: Order, examined: Examined, chosen: _Chosen, splits: SplitFiles, reward_hash: str | None
) -> Manifest:
    adapter, items = order.adapter, chosen.items
    sources = sorted({item.data_source for each in items.values() for item in each})
    counts = {split: Counter(item.data_source for item in items[split]) for split in SPLITS}
    baselines = _baselines(items["test"])
    n_right = sum(baselines[source] * counts["test"][source] for source in baselines)
    recipe = dict(order.recipe)
    return Manifest(
        name=adapter.name,
        data_sources=tuple(sources),
        splits=splits,
        reward=adapter.reward,
        max_prompt_tokens=chosen.max_prompt_tokens,
        max_answer_tokens=None,
        licence=adapter.licence,
        majority_baseline=n_right / len(items["test"]),
        recipe=recipe,
        recipe_hash=sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest(),
        made_with={"pyarrow": version("pyarrow")},
        source=SourceEntry(
            adapter=adapter.name,
            files=tuple(
                SourceFileEntry(
                    file=file.name, sha256=sha256_of(file.path), rows=examined.rows.get(number, 0)
                )
                for number, file in enumerate(order.files)
            ),
            counts={
                source: SplitCounts(**{split: counts[split][source] for split in SPLITS})
                for source in sources
            },
            dropped=dict(sorted((examined.tally.dropped + Counter(chosen.dropped)).items())),
            majority_baselines=baselines,
            max_prompt_chars=max(len(item.prompt) for each in items.values() for item in each),
            reward_sha256=reward_hash,
        ),
    )


def _baselines(items: Sequence[Item]) -> dict[str, float]:
    """By data source, the share of its most frequent label; 0 where no constant answer can be right."""
    labels: dict[str, Counter[str]] = {}
    totals = Counter(item.data_source for item in items)
    for item in items:
        labels.setdefault(item.data_source, Counter())[item.label] += bool(item.label)
    return {source: max(labels[source].values()) / n for source, n in sorted(totals.items())}
