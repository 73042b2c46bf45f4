"""Audit of diagnoses: checks their numbers against the series, and their words against the changes.

It checks `metric a -> b` and `v@step` in the evidence of proposals against the diagnosed run, and `more
conservative` and `more aggressive settings` against that run's changes. A number agrees if, to the stated
digits, it is a value of the series, a mean over its first or last steps, or an end of its fitted line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llmzero_ray.agents.expert.diagnosis import loosened_and_tightened
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.hyperparameters import diff, short
from llmzero_ray.records.metrics import Curves
from llmzero_ray.report.facts import SearchFacts

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_MOVED = re.compile(rf"(?P<name>[\w./-]+/[\w./-]+) (?P<old>{_NUMBER}) -> (?P<new>{_NUMBER})")
_AT = re.compile(rf"(?P<value>{_NUMBER})@(?P<step>\d+)")
_START = re.compile(rf"validation (?P<value>{_NUMBER}) at the start")
_WORDS = re.compile(r"more (?P<kind>conservative|aggressive) settings")


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


def _of(facts: SearchFacts, run: PhaseRun, on: PhaseRun) -> Iterator[Audited]:
    assert run.proposal is not None
    curves, said = facts.curves(on.node), run.proposal.diagnosis
    start = facts.start_score(on)

    def checked(stated: str, found: str, *, agrees: bool) -> Audited:
        return Audited(
            search=facts.config.name, node=run.node, on=on.node, stated=stated, found=found, agrees=agrees
        )

    for text in (said.summary, *said.evidence):
        for match in _MOVED.finditer(text):
            values = _values(curves, match["name"])
            for stated in (match["old"], match["new"]) if values else ():
                near = min(_accepted(values), key=lambda value: abs(value - float(stated)))
                agrees = _same(near, stated)
                yield checked(f"{match['name']} {stated}", f"{near:.4g}", agrees=agrees)
        scores = dict(zip(curves.val_steps, curves.val_scores, strict=True))
        for match in _AT.finditer(text):
            score = scores.get(int(match["step"]))
            if score is not None:
                yield checked(match[0], f"{score:.4g}", agrees=_same(score, match["value"]))
        for match in _START.finditer(text):
            if start is not None:
                yield checked(match[0], f"{start:.4g}", agrees=_same(start, match["value"]))
        for match in _WORDS.finditer(text):
            yield checked(match[0], *_changed(facts, on), agrees=_direction(facts, on) == match["kind"])


def _changed(facts: SearchFacts, on: PhaseRun) -> tuple[str, ...]:
    source = facts.source(on)
    if source is None or source.spec is None or on.spec is None:
        return ("it continued no phase",)
    moves = diff(source.spec.hyperparameters, on.spec.hyperparameters)
    loosened, tightened = loosened_and_tightened(source.spec.hyperparameters, on.spec.hyperparameters)
    listed = ", ".join(f"{short(key)} {old} -> {new}" for key, (old, new) in moves.items())
    return (f"{loosened} loosened, {tightened} tightened: {listed or 'nothing changed'}",)


def _direction(facts: SearchFacts, on: PhaseRun) -> str:
    source = facts.source(on)
    if source is None or source.spec is None or on.spec is None:
        return ""
    loosened, tightened = loosened_and_tightened(source.spec.hyperparameters, on.spec.hyperparameters)
    if loosened == tightened:
        return ""
    return "aggressive" if loosened > tightened else "conservative"


def _values(curves: Curves, name: str) -> list[float]:
    return [value for value in curves.metrics.get(name, ()) if value is not None and np.isfinite(value)]


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
