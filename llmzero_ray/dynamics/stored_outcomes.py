"""Parts of requests that come from stored outcomes: shown answers, scores by kind of question, and
differences between checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from llmzero_ray.records import Answer, ItemOutcome
from llmzero_ray.records.agents import KindScore, OfferedCheckpoint, ProposalRequest
from llmzero_ray.records.significance import paired
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_items, load_sampled, parquet_rows

logger = logging.getLogger(__name__)


def load_answers(storage: SearchStorage, node: int, val_file: str | None) -> tuple[Answer, ...]:
    """Answers of a node's last validation, each to another prompt, and some that its training sampled, read
    from disk. Without those whose outcomes, texts or rows are missing. `val_file` is the parquet file of the
    validation rows."""
    found: list[Answer] = []
    for read in (partial(_validated, storage, node, val_file), partial(load_sampled, storage, node)):
        try:
            found += read()
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("node=%d some of its answers cannot be shown: %s", node, error)
    return tuple(found)


def _validated(storage: SearchStorage, node: int, val_file: str | None) -> tuple[Answer, ...]:
    items = load_items(storage, node)
    chosen = choose(items[max(items)]) if items and max(items) > 0 else ()
    if not chosen or val_file is None:
        return ()
    rows = parquet_rows(Path(val_file), ("prompt", "reward_model"))
    return tuple(_answer(item, rows[item.index]) for item in chosen)


Outcomes: TypeAlias = Mapping[int, tuple[ItemOutcome, ...]]
"""Step -> per-item outcomes of a node's validation at that step."""


def kind_scores(items: Outcomes, val_file: str | None) -> tuple[KindScore, ...]:
    """Scores of a node by kind of question. Empty if there is one kind, or outcomes are missing. `val_file`
    is the parquet file of the validation rows."""
    if not items or not max(items):
        return ()
    last, start = items[max(items)], {item.index: item.acc for item in items.get(0, ())}
    kinds = {item.index: item.data_source for item in last}
    if len(set(kinds.values())) == 1 and val_file is not None:
        with contextlib.suppress(OSError, ValueError, LookupError):
            rows = parquet_rows(Path(val_file), ("ability",))
            kinds = {index: str(rows[index]["ability"]) for index in kinds}
    found = []
    for kind in sorted(set(kinds.values())):
        own = [item for item in last if kinds[item.index] == kind]
        before = [start[item.index] for item in own if item.index in start]
        began = fmean(before) if len(before) == len(own) else None
        found.append(KindScore(kind=kind, n=len(own), start=began, last=fmean(item.acc for item in own)))
    return tuple(found) if 1 < len(found) < len(last) else ()


def wrong_answers(items: Outcomes) -> tuple[int, int] | None:
    """Wrong answers of a node's last validation, and how many of them were cut off. None if it is not known
    which were."""
    wrong = [item.cut for item in items[max(items)] if item.acc < 0.5] if items and max(items) > 0 else []
    return None if not wrong or None in wrong else (len(wrong), sum(map(bool, wrong)))


def choose(items: Sequence[ItemOutcome]) -> tuple[ItemOutcome, ...]:
    """A right, two wrong and a cut-off answer, as far as they exist, or two of a kind if there is no other.
    One answer of a kind has the median length and two have the terciles, because extremes are not typical."""
    if not any(item.response for item in items):
        return ()  # texts were not kept
    right = [item for item in items if item.acc >= 0.5]
    wrong = [item for item in items if item.acc < 0.5 and not item.cut]
    cut = [item for item in items if item.acc < 0.5 and item.cut]
    found = (*_typical(right), *_typical(wrong, 2), *_typical(cut))
    return found if len(found) > 1 else _typical([*right, *wrong, *cut], 2)


def _typical(items: Iterable[ItemOutcome], most: int = 1) -> tuple[ItemOutcome, ...]:
    """Up to `most` items at even distances in the order of length."""
    ordered = sorted(items, key=lambda one: (len(one.response), one.index))
    most = min(most, len(ordered))
    return tuple(ordered[len(ordered) * part // (most + 1)] for part in range(1, most + 1))


def _answer(item: ItemOutcome, row: Mapping[str, Any]) -> Answer:
    return Answer(
        prompt=_text(row["prompt"]),
        response=item.response,
        score=item.score,
        acc=item.acc,
        pred=item.pred,
        expected=expected_of(row),
        cut=bool(item.cut),
    )


def expected_of(row: Mapping[str, Any]) -> str | None:
    """Right answer that a row of a data set gives, or None if it is no text."""
    judged = row.get("reward_model")
    expected = judged.get("ground_truth") if isinstance(judged, Mapping) else None
    return expected if isinstance(expected, str) else None


def _text(prompt: Any) -> str:
    """Messages of a prompt joined by newlines, without their roles."""
    messages = prompt if isinstance(prompt, list) else [{"content": prompt}]
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(one if isinstance(one, str) else json.dumps(one, default=str) for one in contents if one)


def with_outcomes(
    storage: SearchStorage, request: ProposalRequest, val_file: str | None = None
) -> ProposalRequest:
    """The request with what stored outcomes tell: wrong and cut-off answers, scores by kind of question
    (`kind_scores`), and each checkpoint's paired difference to the best-scored one (the latest in a tie).
    Checkpoints without stored outcomes stay as they are."""
    scored = [one for one in request.checkpoints if one.val_score is not None]
    shown = request.on.node
    nodes = {shown, *(one.node for one in scored if len(scored) > 1)}
    items = {node: load_items(storage, node, responses=False) for node in nodes}
    kinds, wrong = kind_scores(items[shown], val_file), wrong_answers(items[shown])
    request = dataclasses.replace(request, on=dataclasses.replace(request.on, kinds=kinds, wrong=wrong))
    if len(scored) < 2:
        return request
    best = max(scored, key=lambda one: (one.val_score or -math.inf, one.global_step))
    reference = items[best.node].get(best.step, ())

    def compared(one: OfferedCheckpoint) -> OfferedCheckpoint:
        own = items.get(one.node, {}).get(one.step, ())
        found = None if one is best else paired(own, reference)
        return one if found is None else dataclasses.replace(one, to_best=(found.gain, found.standard_error))

    return dataclasses.replace(request, checkpoints=tuple(map(compared, request.checkpoints)))
