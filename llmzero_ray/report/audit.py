"""Audit of what agents say: checks their numbers against the series, and their words against the changes.

A number is checked where it is part of `a -> b`, `a to b`, `v@step` or `v at the start`. It belongs to the
last metric named before it in its sentence, by VeRL's name or by a word such as KL. It agrees if, to the
stated digits, it is a value of that series, a mean over its first or last steps, or an end of its fitted
line; at a step, the value there. `audit` also holds `more conservative` and `more aggressive settings`
against the diagnosed run's changes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from llmzero_ray.agents.expert.diagnosis import loosened_and_tightened
from llmzero_ray.coordinator.runs import PhaseRun
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
"""Word -> series that it names. `_OTHER` where it names something else, to which the next numbers belong."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One number that is said of a series."""

    stated: str
    found: str
    """Nearest value that may be stated."""
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One statement of one proposal."""

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
    """Every checked statement of a search, by node."""
    return tuple(
        found
        for run in facts.runs.values()
        if run.proposal is not None and run.on is not None and run.on in facts.runs
        for found in _of(facts, run, facts.runs[run.on])
    )


def statements(
    texts: Iterable[str], curves: Mapping[int, Curves], on: int, printed: str = ""
) -> Iterator[Statement]:
    """Every number that some texts state of a series.

    `curves`: node -> its series, of all nodes that may be meant. A metric is that of the diagnosed node `on`
    or of a node that the sentence names, a validation score that of any node. Numbers that the request
    `printed` of the same series agree too. A number of an unknown series is left out.
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
            # What is said at a step may be its validation, whatever was named before.
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
    """(series, token) of each number: the series named last before it, `_OTHER` for none or another thing."""
    name = _OTHER
    for token in _TOKEN.finditer(text):
        if (word := token["name"]) is not None:
            name = _named(word, name)
        elif token["value"] is not None:
            yield name, token


def _named(word: str, last: str) -> str:
    """Series that a word names, otherwise the last one. Names of VeRL stand for themselves."""
    if word.lower().startswith(VAL_CORE):
        return _VALIDATION
    return word if "/" in word else _NAMES.get(word.lower(), _OTHER if "_" in word else last)


def _stateable(curves: Curves, name: str, step: int | None) -> list[float]:
    """Values that may be stated of a series, at this step if one is given. Empty if it has none."""
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
    """Values that may be stated for a series with a single number."""
    array, n = np.asarray(values), len(values)
    ends = [float(array[:k].mean()) for k in range(1, n + 1)]
    ends += [float(array[-k:].mean()) for k in range(1, n + 1)]
    if n >= 2:
        slope, level = np.polyfit(np.arange(n), array, 1)
        ends += [float(level), float(level + slope * (n - 1))]
    return [*values, *ends]


def _same(value: float, stated: str) -> bool:
    """Whether a value equals the stated number to its digits, up to one in the last place."""
    mantissa, _, exponent = stated.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    last = 10.0 ** (int(exponent or 0) - decimals)
    return abs(value - float(stated)) <= 1.01 * last
