"""Audit of what agents say: checks their numbers against the series, and their words against the changes.

A number is checked if it is part of `a -> b`, `a to b`, `v@step` or `v at the start`. It refers to the last
metric named before it in its sentence, by VeRL's name or by a word such as KL. It agrees if, to the stated
digits, it is a value of that series, a mean over its first or last steps, or an end of its fitted line; with
a step, it must be the value at that step. `audit` also compares `more conservative` and `more aggressive
settings` with the diagnosed run's changes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.dynamics.diagnosis import loosened_and_tightened
from llmzero_ray.hyperparameters import VERL_SPACE, diff, short
from llmzero_ray.records.metrics import ENTROPY, KL, LENGTH, REWARDS, VAL_CORE, Curves
from llmzero_ray.report.facts import SearchFacts

_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?"
_TO = r"\s*(?:->|→|\bto\b)\s*"
_TOKEN = re.compile(
    rf"steps? {_NUMBER}(?:(?:{_TO}|-){_NUMBER})?"
    r"|(?P<name>[a-z][\w-]*(?:/[\w-]+)+(?:@\d+)?|[a-z]\w*)"
    rf"|(?<![\w.@])(?P<value>{_NUMBER})(?P<unit> ?%)?"
    rf"(?:@(?P<step>\d+)|(?P<start> at (?:the )?start))?(?P<to>{_TO}(?={_NUMBER}))?",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.;!?])\s+")
_NODE = re.compile(r"\bnodes? (\d+)", re.IGNORECASE)
_WORDS = re.compile(r"more (?P<kind>conservative|aggressive) settings")
_VALIDATION, _OTHER = "validation", ""
_NAMES = {
    "validation": _VALIDATION, "val": _VALIDATION, "kl": KL, "entropy": ENTROPY, "length": LENGTH,
    "reward": REWARDS[0], "rewards": REWARDS[0],
    **dict.fromkeys((row.alias.lower() for row in VERL_SPACE.by_key.values()), _OTHER),
    **dict.fromkeys(("accuracy", "compute", "cost", "rate", "score"), _OTHER),
}  # fmt: skip
"""Word -> series that it names, or `_OTHER` if the next numbers refer to something else."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One number that a text states about a series."""

    stated: str
    found: str
    """Nearest correct value."""
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One checked statement of a proposal."""

    search: str
    node: int
    """Proposed node."""
    on: int
    """Diagnosed node."""
    stated: str
    found: str
    """Value according to the series or the changes."""
    agrees: bool


def audit(facts: SearchFacts) -> tuple[Audited, ...]:
    """All checked statements of a search, in the order of nodes."""
    return tuple(
        found
        for run in facts.runs.values()
        if run.proposal is not None and run.on is not None and run.on in facts.runs
        for found in _of(facts, run, facts.runs[run.on])
    )


def statements(
    texts: Iterable[str], curves: Mapping[int, Curves], on: int, printed: str = ""
) -> Iterator[Statement]:
    """All numbers that the texts state about a series, each with the result of its check.

    `curves` maps nodes that a text may refer to to their series. A metric may be that of the diagnosed node
    `on` or of a node that the sentence names; a validation score may be that of any node. Numbers that the
    request `printed` for the same series agree too. Numbers about an unknown series are left out.
    """
    quoted = defaultdict[tuple[str, str | None], list[float]](list)
    for line in printed.splitlines():
        for name, token in _numbers(line):
            for at in {token["step"], None}:
                quoted[name, at].append(float(token["value"]))
    for sentence in (part for text in texts for part in _SENTENCE.split(text)):
        nodes = {on, *map(int, _NODE.findall(sentence))} & curves.keys()
        continued = False
        for name, token in _numbers(sentence):
            said = continued or token["to"] or token["step"] or token["start"]
            continued = token["to"] is not None
            if not said or token["unit"] or name == _OTHER:
                continue
            step = 0 if token["start"] else None if token["step"] is None else int(token["step"])
            # A number at a step may be that step's validation score, whatever metric was named before.
            names = (name, _VALIDATION) if token["step"] else (name,)
            values = [value for one in names for value in quoted[one, token["step"]]]
            values += [value for node in nodes for value in _stateable(curves[node], name, step)]
            if _VALIDATION in names:
                values += [value for one in curves.values() for value in _stateable(one, _VALIDATION, step)]
            if values:
                near = min(values, key=lambda value: abs(value - float(token["value"])))
                stated = token[0].removesuffix(token["to"] or "")
                yield Statement(
                    stated=f"{name} {stated}", found=f"{near:.4g}", agrees=_same(near, token["value"])
                )


def _of(facts: SearchFacts, run: PhaseRun, on: PhaseRun) -> Iterator[Audited]:
    assert run.proposal is not None
    said = run.proposal.diagnosis
    texts = (said.summary, *said.evidence)
    curves = {
        node: replace(facts.curves(node), start_score=facts.start_score(other))
        for node, other in facts.runs.items()
        if node < run.node
    }
    found = [(one.stated, one.found, one.agrees) for one in statements(texts, curves, on.node)]
    found += [
        (match[0], _changed(facts, on), _direction(facts, on) == match["kind"])
        for text in texts
        for match in _WORDS.finditer(text)
    ]
    for stated, value, agrees in found:
        yield Audited(
            search=facts.config.name, node=run.node, on=on.node, stated=stated, found=value, agrees=agrees
        )


def _changed(facts: SearchFacts, on: PhaseRun) -> str:
    source = facts.source(on)
    if source is None or source.spec is None or on.spec is None:
        return "it continued no phase"
    moves = diff(source.spec.hyperparameters, on.spec.hyperparameters)
    loosened, tightened = loosened_and_tightened(source.spec.hyperparameters, on.spec.hyperparameters)
    listed = ", ".join(f"{short(key)} {old} -> {new}" for key, (old, new) in moves.items())
    return f"{loosened} loosened, {tightened} tightened: {listed or 'nothing changed'}"


def _direction(facts: SearchFacts, on: PhaseRun) -> str:
    source = facts.source(on)
    if source is None or source.spec is None or on.spec is None:
        return ""
    loosened, tightened = loosened_and_tightened(source.spec.hyperparameters, on.spec.hyperparameters)
    if loosened == tightened:
        return ""
    return "aggressive" if loosened > tightened else "conservative"


def _numbers(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """(series, token) of each number: the last series named before it, or `_OTHER` for none or another
    word."""
    name = _OTHER
    for token in _TOKEN.finditer(text):
        if (word := token["name"]) is not None:
            name = _named(word, name)
        elif token["value"] is not None:
            yield name, token


def _named(word: str, last: str) -> str:
    """Series that a word names, otherwise `last`. VeRL's names are series themselves."""
    if word.lower().startswith(VAL_CORE):
        return _VALIDATION
    return word if "/" in word else _NAMES.get(word.lower(), _OTHER if "_" in word else last)


def _stateable(curves: Curves, name: str, step: int | None) -> list[float]:
    """Correct values for a statement about a series, at this step if one is given. Empty if there are
    none."""
    if name == _VALIDATION:
        steps: tuple[int, ...] = (0, *curves.val_steps)
        series: tuple[float | None, ...] = (curves.start_score, *curves.val_scores)
    else:
        named = name if name in curves.metrics or name != REWARDS[0] else REWARDS[1]
        steps, series = curves.steps, curves.metrics.get(named, ())
    points = [
        (at, value)
        for at, value in zip(steps, series, strict=False)
        if value is not None and np.isfinite(value)
    ]
    if step is None:
        values = [value for _, value in points]
        return values if name == _VALIDATION or not values else _accepted(values)
    return [value for at, value in points if at == step]


def _accepted(values: list[float]) -> list[float]:
    """Correct values for a single number about a series: its values, means of its ends, and ends of its
    line."""
    array, n = np.asarray(values), len(values)
    ends = [float(array[:k].mean()) for k in range(1, n + 1)]
    ends += [float(array[-k:].mean()) for k in range(1, n + 1)]
    if n >= 2:
        slope, level = np.polyfit(np.arange(n), array, 1)
        ends += [float(level), float(level + slope * (n - 1))]
    return [*values, *ends]


def _same(value: float, stated: str) -> bool:
    """Whether a value equals the stated number to that number's digits, up to one in the last place."""
    mantissa, _, exponent = stated.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    last = 10.0 ** (int(exponent or 0) - decimals)
    return abs(value - float(stated)) <= 1.01 * last
