"""Answers that need no thought, made from the rows' own prompts, and what a reward pays for them.

Paying for an answer that neither is nor contains the truth is a fault of the reward. Paying for one that
happens to be the truth (the digit to echo, the most frequent letter) is not. Not here: the consequence of a
fault (full.py rejects the reward, the other checks warn).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean
from typing import Any

from llmzero_ray.prepared.gold_answers import accepted_answers, as_text
from llmzero_ray.prepared.reward import LoadedReward
from llmzero_ray.prepared.reward_validation.calls import Row, accuracy_of, call_arguments, describe_call
from llmzero_ray.utils.text import collapse_whitespace, json_or_none

MOST_FAULTS = 0.02
"""Largest share of the rows that may be paid for a wrong answer of one kind."""
MAX_ROWS = 100
"""Maximum rows that are tried; of a larger set, rows from its whole length."""
_PAID = 0.5
"""Minimum score that counts as pay for the answer."""
_MAX_LISTED, _MAX_ITEM = 4, 60
"""Maximum answers in a list, and maximum characters of each: the math reward is slow on long lists."""
_LIST_EVERY = 3
"""A list is tried on every third row."""
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?")
_WORDS = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2,}|[?!:;\n$]|[.,](?=\s|$)|\\[()\[\]]")
"""Words and signs between expressions."""
_EXPRESSION = re.compile(r"[\w)}]\s*[-+*/^×÷·−]\s*[\w({\\]|\\[A-Za-z]+\s*[{\d]")
_FULL_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?")
"""A number, but no quotient, because that may be the question."""
_COMMAND = re.compile(r"\\[A-Za-z]+")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One answer without thought to one row."""

    row: Row
    kind: str
    answer: str
    """Text offered as the answer, without the form around it."""
    response: str
    truths: tuple[str, ...]
    """The accepted answers."""
    listed: tuple[str, ...] = ()
    """The answers in a list of several; the list is tried in both orders."""


@dataclass(frozen=True, kw_only=True)
class NoThoughtPay:
    """Earnings of one kind of answer without thought."""

    kind: str
    n_rows: int
    earned: float
    """Mean over the rows."""
    n_faults: int
    """Rows that are paid although the answer neither is nor contains the truth."""
    example: str
    """One such row; empty when there is none."""

    @property
    def is_fault(self) -> bool:
        """Whether more rows are paid for nothing than chance explains."""
        return self.n_faults > max(1, MOST_FAULTS * self.n_rows)

    def text(self) -> str:
        """The fault in a sentence."""
        return (
            f"the reward pays {self.n_faults} of {self.n_rows} rows for {self.kind}, which is not the answer "
            f"({self.example})"
        )


def try_no_thought(
    reward: LoadedReward, rows: Sequence[Row], gold_of: Callable[[Row], str | None]
) -> tuple[NoThoughtPay, ...]:
    """The accuracy of each kind of answer without thought; a call without a usable result earns 0."""
    probes = no_thought_probes(rows, gold_of)
    outcomes = reward.score([call_arguments(probe.row, probe.response) for probe in probes])
    return no_thought_pay(probes, [accuracy_of(outcome) for outcome in outcomes])


def no_thought_probes(rows: Sequence[Row], gold_of: Callable[[Row], str | None]) -> list[Probe]:
    """Answers without thought to up to `MAX_ROWS` of the rows. They take the form of the right response that
    `gold_of` gives for a row, if it gives one."""
    rows = rows[:: max(1, -(-len(rows) // MAX_ROWS))]
    forms = [_form(row["reward_model"]["ground_truth"], gold_of(row)) for row in rows]
    counts = Counter(truths[0] for _, truths in forms if truths and len(truths[0]) <= _MAX_ITEM)
    frequent = [answer for answer, _ in counts.most_common(_MAX_LISTED)]
    return [
        probe
        for number, (row, (form, truths)) in enumerate(zip(rows, forms, strict=True))
        for probe in _probes_of(row, form, truths, frequent)
        if not probe.listed or number % _LIST_EVERY == 0
    ]


def no_thought_pay(probes: Sequence[Probe], earned: Sequence[float]) -> tuple[NoThoughtPay, ...]:
    """Earnings of each kind, in the order of the kinds; `earned` is the score of each probe."""
    kinds: dict[str, dict[int, list[tuple[Probe, float]]]] = {}
    for probe, score in zip(probes, earned, strict=True):
        kinds.setdefault(probe.kind, {}).setdefault(id(probe.row), []).append((probe, score))
    found = []
    for kind, by_row in kinds.items():
        # A list must be paid in both orders: the first or the last answer may rightly count.
        lowest = [min(tried, key=lambda each: each[1]) for tried in by_row.values()]
        faults = [probe for probe, score in lowest if score >= _PAID and _is_wrong(probe)]
        found.append(
            NoThoughtPay(
                kind=kind,
                n_rows=len(lowest),
                earned=fmean(score for _, score in lowest),
                n_faults=len(faults),
                example=describe_call(faults[0].row, faults[0].response) if faults else "",
            )
        )
    return tuple(found)


def _probes_of(
    row: Row, form: Callable[[str], str], truths: tuple[str, ...], frequent: Sequence[str]
) -> Iterator[Probe]:
    def probe(kind: str, answer: str, response: str | None = None, listed: Sequence[str] = ()) -> Probe:
        text = form(answer) if response is None else response
        return Probe(row=row, kind=kind, answer=answer, response=text, truths=truths, listed=tuple(listed))

    def both_orders(kind: str, answers: Sequence[str]) -> Iterator[Probe]:
        if len(answers) > 1:
            for ordered in (answers, answers[::-1]):
                yield probe(kind, ", ".join(ordered), listed=ordered)

    question = _question(row)
    if form("") != "":
        yield probe("the form without an answer", "")
    if frequent:
        yield probe("the most frequent answer", frequent[0])
    yield from both_orders("several answers at once", frequent)
    if question:
        yield probe("the question itself", question, response=question)
        if form("") != "":
            yield probe("the question as the answer", question)
        yield probe("the last word of the question", question.split()[-1].strip(".,:;?!()\"'"))
    if expression := _expression(question):
        sentence = f"To find {expression}, we need to find a way"
        yield probe("an expression of the question, in a sentence", expression, response=sentence)
        yield probe("an expression of the question as the answer", expression)
    if numbers := list(dict.fromkeys(_NUMBER.findall(question))):
        yield probe("the first number of the question", numbers[0])
        yield probe("the last number of the question", numbers[-1])
        yield from both_orders("all numbers of the question", numbers[:_MAX_LISTED])


def _question(row: Row) -> str:
    """Content of the last message; empty when it is not text."""
    messages = row.get("prompt") or [{}]
    content = messages[-1].get("content")
    return content.strip() if isinstance(content, str) else ""


def _expression(question: str) -> str:
    """The longest piece of the question that is an expression; empty without one."""
    pieces = [piece.strip(" .,=") for piece in _WORDS.split(question)]
    return max((piece for piece in pieces if _EXPRESSION.search(piece)), key=len, default="")


def _form(ground_truth: Any, gold: str | None) -> tuple[Callable[[str], str], tuple[str, ...]]:
    """(function from an answer to a response, accepted answers). The response is the bare answer if `gold` is
    None or holds no accepted answer."""
    text = as_text(ground_truth)
    accepted = accepted_answers(text) or (text,)
    truths = accepted
    if accepted == (text,) and text.lstrip().startswith("{"):
        truths = tuple(sorted(_texts_in(text), key=len, reverse=True)) or accepted
    held = next((truth for truth in truths if truth and truth in (gold or "")), None)
    if gold is None or held is None:
        return str, truths
    before, _, after = gold.rpartition(held)
    as_json = before.lstrip().startswith("{")
    form = lambda answer: before + (json.dumps(answer)[1:-1] if as_json else answer) + after  # noqa: E731
    return form, truths if truths == accepted else (held,)


def _texts_in(ground_truth: str) -> list[str]:
    """All texts in a ground truth that is JSON."""
    held = json_or_none(ground_truth)
    if held is None:
        return [ground_truth]
    waiting, texts = [held], []
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
    return texts


def _is_wrong(probe: Probe) -> bool:
    """Whether the answer is certainly not the truth: neither contains the other."""
    if probe.listed:
        return not any(all(_holds(truth, item) for item in probe.listed) for truth in probe.truths)
    return not any(
        _holds(truth, probe.answer) or any(_holds(probe.answer, value) for value in _values(truth))
        for truth in probe.truths
    )


def _values(truth: str) -> Iterable[str]:
    """The truth, and for a sentence also its last number, which is its result."""
    words = re.findall(r"[^\W\d_]{2,}", _COMMAND.sub("", truth))
    return (truth, *(_NUMBER.findall(truth)[-1:] if words else ()))


def _holds(text: str, part: str) -> bool:
    """Whether `text` contains `part` as a whole word, or as a number of the same value."""
    one, other = (collapse_whitespace(each).casefold() for each in (text, part))
    if not other:
        return False
    if _FULL_NUMBER.fullmatch(other):
        found = (number.replace(",", "") for number in [one, *_NUMBER.findall(one)])
        return any(_FULL_NUMBER.fullmatch(each) and Fraction(each) == Fraction(other) for each in found)
    return re.search(rf"(?<!\w){re.escape(other)}(?!\w)", one) is not None
