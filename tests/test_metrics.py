"""Scores and their standard errors, against numbers worked out by hand, and what engines may report."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from llmzero_ray.errors import NonFiniteError
from llmzero_ray.records import ItemOutcome, MetricPoint
from llmzero_ray.records.metrics import Score, checked_point, mean_score


def point(**fields: Any) -> MetricPoint:
    return MetricPoint(
        **{"node": 1, "attempt": 0, "step": 9, "global_step": 9, "wall_s": 0.0, "metrics": {}, **fields}
    )


def test_a_score_is_the_mean_with_the_deviation_of_the_sample_over_root_n() -> None:
    score = mean_score([1.0, 1.0, 1.0, 0.0])
    assert (score.mean, score.n) == (0.75, 4)
    # Sum of squares 0.75, over n - 1 = 3: variance 0.25; over n = 4: 0.0625.
    assert score.standard_error == pytest.approx(0.25)


def test_a_single_item_tells_nothing_of_the_spread() -> None:
    assert mean_score([1.0]) == Score(mean=1.0, standard_error=None, n=1)


def test_numbers_of_other_libraries_become_pythons_own() -> None:
    item = ItemOutcome(index=np.int64(0), data_source="toy", score=np.float32(0.5), acc=np.float64(1.0))
    metrics = {"loss": np.float32("nan"), "n": np.int64(2)}
    found = checked_point(point(metrics=metrics, val_score=np.float16(0.5), items=(item,)))
    assert type(found.metrics["loss"]) is float and type(found.metrics["n"]) is int
    assert (found.val_score, found.items) == (
        0.5,
        (ItemOutcome(index=0, data_source="toy", score=0.5, acc=1.0),),
    )
    json.dumps([found.val_score, dict(found.metrics), vars(found.items[0])])


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan"), np.array(-math.inf)])
def test_a_validation_score_that_is_not_finite_is_an_error_whatever_its_type(value: Any) -> None:
    with pytest.raises(NonFiniteError, match="step 9: the validation score is"):
        checked_point(point(val_score=value))


@pytest.mark.parametrize(
    ("fields", "name"), [({"metrics": {"a": 1.0, "b": "x"}}, "b"), ({"val_score": "0.5"}, "val_score")]
)
def test_what_is_no_number_is_refused_by_its_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(TypeError, match=f"step 9 reports metrics that are not numbers: {name}"):
        checked_point(point(**fields))
