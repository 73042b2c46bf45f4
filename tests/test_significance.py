"""Arithmetic of scores and differences, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from llmzero_ray.records import ItemOutcome
from llmzero_ray.records.metrics import Score, mean_score, score_without_items
from llmzero_ray.records.significance import Difference, independent, paired, score_interval
from tests.report.builder import items


def graded(*values: float) -> tuple[ItemOutcome, ...]:
    return tuple(ItemOutcome(index=i, data_source="toy", score=v, acc=v) for i, v in enumerate(values))


def test_without_items_answers_count_as_right_or_wrong() -> None:
    assert score_without_items(0.2, 400).standard_error == pytest.approx(0.02)  # sqrt(0.2 * 0.8 / 400)


def test_without_items_and_without_their_number_there_is_no_standard_error() -> None:
    assert score_without_items(0.2, None) == Score(mean=0.2, standard_error=None, n=None)


def test_independent_standard_errors_add_as_squares() -> None:
    new, old = Score(mean=0.8, standard_error=0.03, n=100), Score(mean=0.5, standard_error=0.04, n=100)
    difference = independent(new, old)
    assert difference is not None
    assert difference.standard_error == pytest.approx(0.05)
    assert difference.in_standard_errors == pytest.approx(6.0)


def test_a_paired_difference_takes_each_item_with_itself() -> None:
    difference = paired(graded(1.0, 1.0, 1.0, 0.0), graded(0.0, 1.0, 0.0, 1.0))
    assert difference is not None
    # Gains 1, 0, 1, -1: mean 0.25, squares 3 - 4 * 0.0625 = 2.75, / 3 = 0.91667, / 4 = 0.22917.
    assert difference.gain == pytest.approx(0.25)
    assert difference.standard_error == pytest.approx(math.sqrt(2.75 / 12))
    assert (difference.only_new, difference.only_old) == (2, 1)


def test_shared_difficulty_cancels_in_a_paired_difference() -> None:
    new, old = items(80), items(75)
    whole = paired(new, old)
    apart = independent(*(mean_score([item.acc for item in found]) for found in (new, old)))
    assert whole is not None
    assert apart is not None
    assert whole.gain == pytest.approx(apart.gain)
    assert whole.standard_error < apart.standard_error / 2


def test_items_pair_by_their_index_whatever_order_they_come_in() -> None:
    new, old = items(80), items(75, first=20)
    assert paired(new, tuple(reversed(old))) == paired(new, old)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (items(5, 10), items(5, 11)),
        (items(5, 10), ()),
        (graded(1.0), graded(0.0)),
    ],
)
def test_different_items_are_never_paired(new: tuple[ItemOutcome, ...], old: tuple[ItemOutcome, ...]) -> None:
    assert paired(new, old) is None


def test_graded_answers_have_no_count_of_items_solved() -> None:
    difference = paired(graded(0.5, 1.0), graded(0.0, 1.0))
    assert difference is not None
    assert (difference.only_new, difference.only_old) == (None, None)


@pytest.mark.parametrize(
    ("gain", "error", "z", "noise"),
    [
        (0.019, 0.01, 1.9, True),
        (0.021, 0.01, 2.1, False),
        (-0.021, 0.01, -2.1, False),
        (0.0, 0.0, 0.0, True),
        (0.01, 0.0, math.inf, False),
        (-0.01, 0.0, -math.inf, False),
    ],
)
def test_a_difference_below_two_standard_errors_is_noise(
    gain: float, error: float, z: float, noise: bool
) -> None:
    difference = Difference(gain=gain, standard_error=error, paired=True, n=100)
    assert difference.in_standard_errors == pytest.approx(z)
    assert difference.is_noise is noise


def test_the_interval_of_right_or_wrong_answers_is_wilsons() -> None:
    found = score_interval(Score(mean=0.9, standard_error=0.1, n=10))
    # Wilson (1927) with z = 1.96: (0.9 + 0.19207 ± 1.96 sqrt(0.009 + 0.0096036)) / 1.38415.
    assert found == pytest.approx((0.5958, 0.9821), abs=1e-4)


def test_the_interval_of_graded_answers_is_normal_and_stays_within_0_and_1() -> None:
    assert score_interval(Score(mean=0.505, standard_error=0.1, n=10)) == pytest.approx(
        (0.3090, 0.7010), abs=1e-4
    )
    assert score_interval(Score(mean=0.985, standard_error=0.1, n=10)) == (
        pytest.approx(0.789, abs=1e-4),
        1.0,
    )
    assert score_interval(Score(mean=1.0, standard_error=None, n=1)) is None


def test_the_interval_of_a_paired_gain_is_students() -> None:
    difference = paired(graded(1.0, 1.0, 1.0, 0.0), graded(0.0, 1.0, 0.0, 1.0))
    assert difference is not None
    half = 3.1824 * math.sqrt(2.75 / 12)  # t(0.975) with 3 degrees of freedom
    assert difference.interval == pytest.approx((0.25 - half, 0.25 + half), abs=1e-4)


def test_the_interval_of_independent_scores_is_normal() -> None:
    difference = Difference(gain=0.3, standard_error=0.05, paired=False, n=100)
    assert difference.interval == pytest.approx((0.2020, 0.3980), abs=1e-4)


@pytest.mark.parametrize(
    ("only_new", "only_old", "p"), [(5, 0, 2 / 32), (3, 1, 10 / 16), (0, 0, 1.0), (4, 4, 1.0), (0, 5, 2 / 32)]
)
def test_mcnemars_p_value_is_that_of_a_fair_coin(only_new: int, only_old: int, p: float) -> None:
    difference = Difference(
        gain=0.1, standard_error=0.05, paired=True, n=50, only_new=only_new, only_old=only_old
    )
    assert difference.p_value == pytest.approx(p)


def test_graded_answers_have_no_p_value() -> None:
    assert Difference(gain=0.1, standard_error=0.05, paired=True, n=50).p_value is None
