"""The mean of items and its standard error, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from llmzero_ray.metrics import Score, mean_score


def test_a_score_is_the_mean_with_the_deviation_of_the_sample_over_root_n() -> None:
    score = mean_score([1.0, 1.0, 1.0, 0.0])
    assert (score.mean, score.n) == (0.75, 4)
    # Sum of squares 0.75, over n - 1 = 3: variance 0.25; over n = 4: 0.0625.
    assert score.standard_error == pytest.approx(0.25)


def test_a_single_item_tells_nothing_of_the_spread() -> None:
    assert mean_score([1.0]) == Score(mean=1.0, standard_error=None, n=1)
