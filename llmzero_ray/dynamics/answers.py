"""Checks of a phase's answers for reasons not to trust its score.

A policy can earn reward without solving the task. Signs of that are cut-off answers that still count, one
text that is right for rows with different gold answers, and right answers that contain no answer. Each sign
is reported with its numbers, together with how similar the answers have become since the phase's start.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmzero_ray.dynamics.features import Dynamics, observe
from llmzero_ray.dynamics.observations import (
    rewarded_when_cut_off,
    right_without_answer,
)
from llmzero_ray.records import Hyperparameters, ItemOutcome
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_curves, load_items
from llmzero_ray.utils.text import one_line

FEW = 10
"""Minimum number of right answers for any statement about them."""
MOST = 0.5
"""Share of the right answers that must have a defect for it to be reported."""
CLOSE = 0.05
"""Relative difference up to which a number counts as the gold answer."""
CONSTANT = 0.8
"""Share of the right answers that must be one text to count as the same answer to everything."""
DIFFERENT = 4
"""Minimum number of different gold answers for which that text was right."""
HELD = 0.8
"""Share of the right answers that must contain their gold answer for cut-off answers to be harmless, or in
which the reward must have found an answer for a low `fmt_ok` to be."""
BY_CHANCE = 0.5
"""Share of the right answers that may also contain another row's gold answer. Beyond it, containing the own
gold answer is no evidence."""
ALIKE = 0.25
"""Share of distinct answers up to which the answers count as similar."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_IN_NUMBERS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d)")


@dataclass(frozen=True, kw_only=True)
class Gold:
    """Question of a validation row, and the accepted wordings of its answer."""

    prompt: str
    wordings: tuple[str, ...]


def phase_doubts(
    storage: SearchStorage,
    node: int,
    hyperparameters: Hyperparameters,
    best_step: int | None,
    golds: Mapping[int, Gold],
) -> tuple[str, ...]:
    """Reasons not to trust the score of a node's best step, from the files on disk. Empty if there are
    none."""
    items = load_items(storage, node)
    now = items.get(best_step, ()) if best_step is not None else ()
    dynamics = observe(load_curves(storage, node), hyperparameters, n_val=len(now) or 500)
    return doubts(dynamics, items.get(0, ()), now, golds)


def doubts(
    d: Dynamics, start: Sequence[ItemOutcome], now: Sequence[ItemOutcome], golds: Mapping[int, Gold]
) -> tuple[str, ...]:
    """Reasons not to trust the score of the answers `now`, each a sentence with its numbers.

    `start` are the answers of the policy from which the phase started; `golds` maps a row's index to its gold
    answer. If either is empty, fewer checks are made.
    """
    if len(golds) != len(now):
        golds = {}  # version 0.1 numbered the rows that follow a prompt left out for its length anew
    unanswered = None if _have_answers(now) else right_without_answer(d)
    if not any(item.response for item in now):
        now = ()  # texts were not kept
    found = [] if unanswered is None else [unanswered]
    found += [*_empty(now), *_without_number(now, golds), *_same_for_all(now, golds)]
    reward = rewarded_when_cut_off(d)
    # If right answers contain the gold answer, only text after it was cut off.
    if reward is not None and not _hold_gold(now, golds):
        found.insert(0, reward)
    return tuple([*found, *_alike(start, now)] if found else ())


# --- signs, each of them sufficient -------------------------------------------------------------------------


def _right(items: Iterable[ItemOutcome]) -> list[ItemOutcome]:
    return [item for item in items if item.acc >= 0.5]


def _empty(now: Sequence[ItemOutcome]) -> list[str]:
    right = _right(now)
    empty = sum(not item.response.strip() for item in right)
    if len(right) < FEW or empty < MOST * len(right):
        return []
    return [f"{empty} of the {len(right)} validation answers scored as right are empty."]


def _without_number(now: Sequence[ItemOutcome], golds: Mapping[int, Gold]) -> list[str]:
    """Defect: right answers do not contain their gold answer, a whole number. Rows whose question contains
    the number are skipped, because they may ask for a way to reach it."""
    pairs = ((item, _whole_number(golds.get(item.index))) for item in _right(now))
    asked = [(item, gold) for item, gold in pairs if gold is not None]
    lacking = [(item, gold) for item, gold in asked if not _holds_number(item.response, gold)]
    # One digit may stand for a choice or a label, which answers may give in words.
    is_label = all(0 <= gold <= 9 for _, gold in asked)
    if len(asked) < FEW or len(lacking) < MOST * len(asked) or is_label:
        return []
    item, gold = lacking[0]
    sample = f"{_quoted(item)} for {gold:g}"
    return [
        f"{len(lacking)} of {len(asked)} validation answers scored as right do not hold the gold answer, a "
        f"number: {sample}."
    ]


def _whole_number(gold: Gold | None) -> float | None:
    if gold is None or not gold.wordings:
        return None
    try:
        values = {float(_IN_NUMBERS.sub("", wording)) for wording in gold.wordings}
    except ValueError:
        return None
    value = values.pop()
    return None if values or value % 1 or _holds_number(gold.prompt, value) else value


def _holds_number(text: str, value: float) -> bool:
    """Whether the text contains this number, up to the tolerance of a typical reward."""
    numbers = map(float, _NUMBER.findall(_IN_NUMBERS.sub("", text)))
    return any(math.isclose(number, abs(value), rel_tol=CLOSE) for number in numbers)


def _same_for_all(now: Sequence[ItemOutcome], golds: Mapping[int, Gold]) -> list[str]:
    """Defect: one text was scored as right for rows with different gold answers."""
    known = [(item.response.strip(), gold) for item in _right(now) if (gold := _plain(golds.get(item.index)))]
    if len(known) < FEW:
        return []
    text, n = Counter(text for text, _ in known).most_common(1)[0]
    answers = {gold for given, gold in known if given == text}
    if not text or n < CONSTANT * len(known) or len(answers) < DIFFERENT:
        return []
    return [
        f"{n} of {len(known)} validation answers scored as right are one text, for {len(answers)} different "
        f'gold answers: "{one_line(text, 80)}".'
    ]


def _plain(gold: Gold | None) -> str:
    """One wording of a gold answer. Empty if there is none, or if it is JSON, which may contain more than the
    answer."""
    wordings = sorted({" ".join(wording.casefold().split()) for wording in gold.wordings}) if gold else []
    return "" if not wordings or wordings[0][:1] in "{[" else wordings[0]


# --- evidence for or against them ---------------------------------------------------------------------------


def _have_answers(now: Sequence[ItemOutcome]) -> bool:
    """Whether the reward found an answer in right ones: then `fmt_ok` judges their format, not an answer."""
    found = [item.pred for item in _right(now)]
    have = sum(pred is not None and pred.strip() != "" for pred in found)
    return len(found) >= FEW and have >= HELD * len(found)


def _hold_gold(now: Sequence[ItemOutcome], golds: Mapping[int, Gold]) -> bool:
    """Whether right answers contain their own gold answer, and those of other rows less often."""
    right = [(item, gold) for item in _right(now) if (gold := _plain(golds.get(item.index)))]
    other = [
        (item, next_gold)
        for (item, gold), (_, next_gold) in zip(right, right[1:] + right[:1], strict=True)
        if next_gold != gold
    ]
    if len(right) < FEW or _share_held(right) < HELD:
        return False
    return not other or _share_held(other) <= BY_CHANCE


def _share_held(pairs: Sequence[tuple[ItemOutcome, str]]) -> float:
    held = sum(
        re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", " ".join(item.response.casefold().split())) is not None
        for item, gold in pairs
    )
    return held / len(pairs)


def _alike(start: Sequence[ItemOutcome], now: Sequence[ItemOutcome]) -> list[str]:
    """Statement that few answers differ apart from their numbers. Empty if many differ. It is no evidence by
    itself, because answers in a fixed form, or to yes/no questions, are just as similar."""
    share = _differing(now) if len(now) >= FEW else 1.0
    if share > ALIKE:
        return []
    before = _differing(start) if any(item.response for item in start) else None
    was = "" if before is None else f", {before:.0%} at the start"
    return [f"{share:.0%} of the validation answers differ apart from their numbers{was}: {_quoted(now[0])}."]


def _differing(items: Sequence[ItemOutcome]) -> float:
    return len({" ".join(_NUMBER.sub("#", item.response).split()) for item in items}) / len(items)


def _quoted(item: ItemOutcome) -> str:
    return f'"{one_line(item.response, 80)}"'
