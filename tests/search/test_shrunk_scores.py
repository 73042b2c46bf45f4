"""Shrunk scores: the expected true score given the measured ones, and what follows from that."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.search import ShrunkScores

SD = 0.02
scores = st.floats(0.05, 0.95)
errors = st.floats(0.005, 0.1)


@dataclass(frozen=True)
class Step:
    """A phase of a chain: its score, the score's error, the paired error against its start."""

    score: float
    error: float
    paired: float


steps = st.builds(Step, score=scores, error=errors, paired=st.floats(0.0, 0.12))
chains = st.lists(steps, min_size=1, max_size=6)


def shrink(chain: list[Step], gain_sd: float = SD) -> list[float]:
    """The shrunk scores of phases that each resume the best step of the one before; the first from the base
    model, which scores 0.1."""
    search = ShrunkScores(gain_sd)
    found = []
    for node, step in enumerate(chain):
        value = search.tell(
            node,
            step.score,
            start=chain[node - 1].score if node else 0.1,
            error=step.error,
            paired_error=step.paired,
            source=node - 1 if node else None,
        )
        assert value is not None
        found.append(value)
    return found


def expected(chain: list[Step], gain_sd: float) -> float:
    """The last true score given all measured ones, by the joint normal distribution of everything."""
    n = len(chain)
    # Sources of randomness: the first true score (nearly flat), n - 1 gains, n shares of luck.
    true, luck = np.zeros((n, 2 * n)), np.zeros((n, 2 * n))
    true[0, 0], luck[0, n] = 1e3, chain[0].error
    for i, step in enumerate(chain[1:], start=1):
        kept = max(0.0, 1 - step.paired**2 / (2 * step.error**2))
        true[i], luck[i] = true[i - 1], kept * luck[i - 1]
        true[i, i] += gain_sd
        luck[i, n + i] += step.error * math.sqrt(1 - kept**2)
    seen = true + luck
    covariance = seen @ seen.T
    return float(true[-1] @ seen.T @ np.linalg.solve(covariance, [step.score for step in chain]))


@given(chains)
def test_it_is_the_conditional_expectation_of_the_model(chain: list[Step]) -> None:
    apart = [step if step.paired > 0.02 else Step(step.score, step.error, 0.02) for step in chain]
    assert shrink(apart)[-1] == pytest.approx(expected(apart, SD), abs=1e-4)


@given(chains, st.floats(-1, 1))
def test_only_differences_of_scores_count(chain: list[Step], shift: float) -> None:
    moved = [Step(step.score + shift, step.error, step.paired) for step in chain]
    for new, old in zip(shrink(moved), shrink(chain), strict=True):
        assert new == pytest.approx(old + shift, abs=1e-9)


@given(chains, steps, st.floats(0.001, 0.5))
def test_a_higher_score_never_has_a_lower_shrunk_one(chain: list[Step], last: Step, more: float) -> None:
    higher = Step(last.score + more, last.error, last.paired)
    assert shrink([*chain, higher])[-1] > shrink([*chain, last])[-1]


@given(chains)
def test_where_gains_may_be_of_any_size_scores_stay_as_measured(chain: list[Step]) -> None:
    assert shrink(chain, gain_sd=1e4) == pytest.approx([step.score for step in chain], abs=1e-6)


@given(chains, errors, st.floats(-0.2, 0.2))
def test_a_phase_that_keeps_the_luck_of_its_start_gains_what_was_measured(
    chain: list[Step], error: float, gain: float
) -> None:
    *_, before, after = shrink([*chain, Step(chain[-1].score + gain, error, 0.0)])
    assert after - before == pytest.approx(gain, abs=1e-9)


def test_numbers_worked_out_by_hand() -> None:
    # c = 1 - .04² / (2 · .04²) = 1/2; shared .5 · .0016 + .0004 = .0012;
    # spread .5 · .0012 + .5 · .0004 + .0016 · .75 = .002; share .6 of the surprise of .05.
    first, second = shrink([Step(0.70, 0.04, 0.0), Step(0.75, 0.04, 0.04)])
    assert first == 0.70
    assert second == pytest.approx(0.73)


def test_a_phase_from_the_base_model_or_without_a_start_stays_as_measured() -> None:
    search = ShrunkScores(SD)
    assert search.tell(0, 0.7, start=0.2, error=0.03, paired_error=0.03, source=None) == 0.7
    assert search.tell(1, 0.9, start=None, error=0.03, paired_error=0.03, source=0) == 0.9
    assert search.tell(2, 0.8, start=0.2, error=0.03, paired_error=0.03, source=None) == 0.8


def test_a_phase_without_a_score_has_none_and_may_be_resumed() -> None:
    search = ShrunkScores(SD)
    search.tell(0, 0.7, start=0.2, error=0.04, paired_error=0.04, source=None)
    assert search.tell(1, None, start=0.7, error=0.04, paired_error=0.04, source=0) is None
    # One of its checkpoints scored 0.72: believed in part, and so is what the next phase added.
    value = search.tell(2, 0.80, start=0.72, error=0.04, paired_error=0.04, source=1)
    assert value is not None
    assert 0.72 < value < 0.80


def test_an_earlier_checkpoint_of_a_phase_is_judged_by_its_own_score() -> None:
    def from_step(start: float) -> float:
        search = ShrunkScores(SD)
        search.tell(0, 0.70, start=0.2, error=0.04, paired_error=0.04, source=None)
        search.tell(1, 0.80, start=0.70, error=0.04, paired_error=0.04, source=0)
        value = search.tell(2, start, start=start, error=0.04, paired_error=0.0, source=1)
        assert value is not None
        return value

    # Unchanged from there: what is known of that checkpoint itself.
    assert from_step(0.70) == pytest.approx(0.70)
    assert from_step(0.80) == pytest.approx(0.76)


def test_the_winner_is_better_and_its_score_less_inflated_than_the_highest_measured_one() -> None:
    """200 searches of 12 phases whose answers to 128 rows are drawn one by one, with fixed seeds."""
    regret_raw = regret_shrunk = bias_raw = bias_shrunk = 0.0
    for seed in range(200):
        true, measured, shrunk = _search(np.random.default_rng(seed), random.Random(seed))
        top, chosen = max(measured, key=measured.__getitem__), max(shrunk, key=shrunk.__getitem__)
        best = max(true.values())
        regret_raw, regret_shrunk = regret_raw + best - true[top], regret_shrunk + best - true[chosen]
        bias_raw, bias_shrunk = (
            bias_raw + measured[top] - true[top],
            bias_shrunk + shrunk[chosen] - true[chosen],
        )
    assert regret_shrunk < regret_raw
    assert 0 < bias_shrunk < 0.7 * bias_raw


def _search(
    rng: np.random.Generator, choice: random.Random
) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """True, measured and shrunk scores by node; a phase is the best of three validations."""
    n, search = 128, ShrunkScores(SD)
    difficulty, ability = rng.normal(0, 1, n), {0: 0.8}
    habits, answers = {0: rng.normal(0, 1, n)}, {}
    true, measured, shrunk = dict[int, float](), dict[int, float](), dict[int, float]()
    for node in range(12):
        source = None
        if node:
            source = max(measured, key=measured.__getitem__) if node % 3 else choice.randrange(node)
        if source is None:
            answers[0] = ability[0] + difficulty + habits[0] > 0
        else:
            ability[node] = ability[source] + rng.normal(0, 0.08)
            drawn = [0.9 * habits[source] + math.sqrt(0.19) * rng.normal(0, 1, n) for _ in range(3)]
            habits[node] = max(drawn, key=lambda one: float((ability[node] + difficulty + one > 0).mean()))
            answers[node] = ability[node] + difficulty + habits[node] > 0
        score = float(answers[node].mean())
        change = answers[node].astype(float) - answers[source or 0]
        value = search.tell(
            node, score, start=0.2 if source is None else measured[source], source=source,
            error=math.sqrt(score * (1 - score) / n), paired_error=float(change.std(ddof=1)) / math.sqrt(n),
        )  # fmt: skip
        assert value is not None
        true[node] = 0.5 * (1 + math.erf(ability[node] / 2))
        measured[node], shrunk[node] = score, value
    return true, measured, shrunk
