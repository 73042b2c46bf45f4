"""Parts of proposal requests that come from stored outcomes: sample answers, scores by kind of question, and
differences between checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeAlias

from llmzero_ray.records import Answer, ItemOutcome
from llmzero_ray.records.agents import KindScore, NodeView, OfferedCheckpoint, ProposalRequest, TaskView
from llmzero_ray.records.significance import paired
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_items, load_sampled, parquet_rows

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)")


Rows: TypeAlias = Sequence[Mapping[str, Any]]
"""Validation rows, in the order of the items' indices."""
Outcomes: TypeAlias = Mapping[int, tuple[ItemOutcome, ...]]
"""Step -> per-item outcomes of a node's validation at that step."""


def load_rows(val_file: str | None) -> Rows:
    """Validation rows of a parquet file. Empty if there is no file, or it cannot be read."""
    if val_file is None:
        return ()
    try:
        return parquet_rows(Path(val_file), ("prompt", "reward_model", "ability"))
    except (OSError, ValueError) as error:
        logger.warning("the validation rows cannot be read, so no answers to them are shown: %s", error)
        return ()


def load_answers(
    storage: SearchStorage, node: int, items: Mapping[int, Outcomes], rows: Rows, below: int | None = None
) -> tuple[Answer, ...]:
    """A few answers of a node's last validation, each to another prompt, and a few that its training sampled.

    Answers whose outcomes, texts or rows are missing are left out. If `below` is given, each validation
    answer comes with that node's answer to the same prompt. `items` has the outcomes of both nodes.
    """
    found: list[Answer] = []
    for read in (partial(_validated, node, items, rows, below), partial(load_sampled, storage, node)):
        try:
            found += read()
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("node=%d some of its answers cannot be shown: %s", node, error)
    return tuple(found)


def _validated(node: int, items: Mapping[int, Outcomes], rows: Rows, below: int | None) -> tuple[Answer, ...]:
    chosen = choose(_last(items[node]))
    if not chosen or not rows:
        return ()
    beside: dict[int, tuple[int, str, bool]] = {}
    if below is not None:
        after = _last(items[below])
        beside = {item.index: (below, item.response, item.acc >= 0.5) for item in after if item.response}
    return tuple(_answer(item, rows[item.index], beside.get(item.index)) for item in chosen)


def _last(items: Outcomes) -> tuple[ItemOutcome, ...]:
    """Outcomes of the last validation after the start."""
    return items[max(items)] if items and max(items) > 0 else ()


def kind_scores(items: Outcomes, rows: Rows) -> tuple[KindScore, ...]:
    """Scores of a node by kind of question. Empty if there is only one kind, each row is its own kind, or
    outcomes are missing."""
    last, start = _last(items), {item.index: item.acc for item in items.get(0, ())}
    kinds = {item.index: item.data_source for item in last}
    if len(set(kinds.values())) == 1:
        with contextlib.suppress(LookupError):
            kinds = {index: str(rows[index]["ability"]) for index in kinds}
    found = []
    for kind in sorted(set(kinds.values())):
        own = [item for item in last if kinds[item.index] == kind]
        before = [start[item.index] for item in own if item.index in start]
        began = fmean(before) if len(before) == len(own) else None
        found.append(KindScore(kind=kind, n=len(own), start=began, last=fmean(item.acc for item in own)))
    return tuple(found) if 1 < len(found) < len(last) else ()


def wrong_answers(items: Outcomes) -> tuple[int, int, int | None] | None:
    """Counts of wrong answers in a node's last validation (`NodeView.wrong`). None if there are none, or if
    it is not known which were cut off."""
    wrong = [item for item in _last(items) if item.acc < 0.5]
    if not wrong or any(item.cut is None for item in wrong):
        return None
    found = [item.pred for item in wrong if not item.cut]
    unanswered = None if None in found else sum(not pred.strip() for pred in found if pred is not None)
    return len(wrong), len(wrong) - len(found), unanswered


def by_length(items: Outcomes) -> tuple[int, float, float] | None:
    """Accuracy of shorter and of longer answers in a node's last validation (`NodeView.by_length`), split at
    the median. None without texts, or if less than a tenth of the answers are on one side."""
    whole = [item for item in _last(items) if item.cut is False and item.response]
    middle = int(median(len(item.response) for item in whole)) if whole else 0
    for length in (middle, middle + 1):  # answers of the median length may go to either side
        shorter = [item.acc for item in whole if len(item.response) < length]
        longer = [item.acc for item in whole if len(item.response) >= length]
        if 10 * min(len(shorter), len(longer)) >= max(1, len(whole)):
            return length, fmean(shorter), fmean(longer)
    return None


def number_places(items: Outcomes, rows: Rows) -> tuple[float, float, float, float] | None:
    """How often the answers of a node's last validation are the first or last number of their prompt
    (`NodeView.places`)."""
    found = []
    with contextlib.suppress(LookupError):
        for item in _last(items):
            known = _NUMBER.findall(prompt_text(rows[item.index]["prompt"]))
            expected = (expected_of(rows[item.index]) or "").strip()
            if item.pred is None or len(known) < 2 or expected not in known:
                return None
            ends = (known[0], known[-1])
            found.append([float(said == end) for said in (item.pred.strip(), expected) for end in ends])
    if not found:
        return None
    first, last, right_first, right_last = map(fmean, zip(*found, strict=True))
    return first, last, right_first, right_last


def _with_shortcuts(task: TaskView, rows: Rows) -> TaskView:
    """The task with the scores of shortcuts on the validation rows: answering with a random number of the
    prompt, or always with the first or the last one. Unchanged without rows."""
    blind, first, last = [], [], []
    with contextlib.suppress(LookupError):
        for row in rows:
            known = [float(number) for number in _NUMBER.findall(prompt_text(row["prompt"]))] or [math.nan]
            text = (expected_of(row) or "").strip()
            expected = float(text) if _NUMBER.fullmatch(text) else None
            blind.append((expected in known) / len(set(known)))
            first.append(float(known[0] == expected))
            last.append(float(known[-1] == expected))
    if not blind:
        return task
    fixed = max(("first", fmean(first)), ("last", fmean(last)), key=lambda pick: pick[1])
    return dataclasses.replace(task, blind_pick=fmean(blind), fixed_pick=fixed)


def choose(items: Sequence[ItemOutcome]) -> tuple[ItemOutcome, ...]:
    """A right, two wrong and a cut-off answer, as far as they exist, or two of one kind if there is no other.
    A single answer of a kind has the median length, two are at the terciles: extremes are not typical."""
    if not any(item.response for item in items):
        return ()  # texts were not kept
    right = [item for item in items if item.acc >= 0.5]
    wrong = [item for item in items if item.acc < 0.5 and not item.cut]
    cut = [item for item in items if item.acc < 0.5 and item.cut]
    found = (*_typical(right), *_typical(wrong, 2), *_typical(cut))
    return found if len(found) > 1 else _typical([*right, *wrong, *cut], 2)


def _typical(items: Iterable[ItemOutcome], most: int = 1) -> tuple[ItemOutcome, ...]:
    """Up to `most` items, evenly spaced in order of length."""
    ordered = sorted(items, key=lambda one: (len(one.response), one.index))
    most = min(most, len(ordered))
    return tuple(ordered[len(ordered) * part // (most + 1)] for part in range(1, most + 1))


def _answer(item: ItemOutcome, row: Mapping[str, Any], below: tuple[int, str, bool] | None) -> Answer:
    return Answer(
        prompt=prompt_text(row["prompt"]),
        response=item.response,
        score=item.score,
        acc=item.acc,
        pred=item.pred,
        expected=expected_of(row),
        cut=bool(item.cut),
        below=below,
    )


def expected_of(row: Mapping[str, Any]) -> str | None:
    """Right answer according to a row of a data set, or None if it is not text."""
    judged = row.get("reward_model")
    expected = judged.get("ground_truth") if isinstance(judged, Mapping) else None
    return expected if isinstance(expected, str) else None


def prompt_text(prompt: Any) -> str:
    """Contents of a prompt's messages, joined by newlines."""
    messages = prompt if isinstance(prompt, list) else [{"content": prompt}]
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(one if isinstance(one, str) else json.dumps(one, default=str) for one in contents if one)


def with_outcomes(
    storage: SearchStorage, request: ProposalRequest, val_file: str | None = None
) -> ProposalRequest:
    """The request with what can be computed from stored outcomes. What is not stored stays unchanged.

    It adds sample answers and scores by kind of question of the phase `on`, counts of the wrong answers of
    every phase on its path and of its children, and each checkpoint's paired difference to the best-scored
    one (the latest on ties). `val_file` is the parquet file of the validation rows.
    """
    rows = load_rows(val_file)
    shown, scored = request.on, [one for one in request.checkpoints if one.val_score is not None]
    views = (*request.path, *request.siblings, *(() if request.best is None else (request.best,)))
    nodes = {shown.node, *(view.node for view in views), *(one.node for one in scored)}
    below = max((view.node for view in request.siblings if view.curves.val_scores), default=None)
    items = {node: load_items(storage, node, responses=node in (shown.node, below)) for node in nodes}
    best = max(scored, key=lambda one: (one.val_score or -math.inf, one.global_step), default=None)
    reference = () if best is None else items[best.node].get(best.step, ())

    def counted(view: NodeView) -> NodeView:
        return dataclasses.replace(view, wrong=wrong_answers(items[view.node]))

    def compared(one: OfferedCheckpoint) -> OfferedCheckpoint:
        own = items.get(one.node, {}).get(one.step, ())
        found = None if one is best else paired(own, reference)
        return one if found is None else dataclasses.replace(one, to_best=(found.gain, found.standard_error))

    return dataclasses.replace(
        request,
        task=_with_shortcuts(request.task, rows),
        on=dataclasses.replace(
            counted(shown),
            by_length=by_length(items[shown.node]),
            places=number_places(items[shown.node], rows),
            kinds=kind_scores(items[shown.node], rows),
            answers=load_answers(storage, shown.node, items, rows, below),
        ),
        path=tuple(map(counted, request.path)),
        siblings=tuple(map(counted, request.siblings)),
        best=None if request.best is None else counted(request.best),
        checkpoints=tuple(map(compared, request.checkpoints)),
    )
