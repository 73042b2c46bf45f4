"""Ray Tune's domains as a space."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ray import tune

from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import Parameter, Space
from llmzero_ray.tune.domains import trial_space

SPACE = {
    "lr": tune.loguniform(1e-4, 1e-1),
    "width": tune.choice([16, 32, 64]),
    "depth": tune.randint(1, 5),
    "bias": tune.choice([True, False]),
    "init": tune.choice([None, "zeros"]),
}
ROOT = {"lr": 1e-2, "width": 32, "depth": 2, "bias": True, "init": None}


def test_domains_become_rows_with_bounds_and_scale() -> None:
    space = trial_space(SPACE, ROOT).space
    rows = {row.key: row for row in space.parameters}
    assert (rows["lr"].kind, rows["lr"].low, rows["lr"].high, rows["lr"].scale) == (
        "float",
        1e-4,
        1e-1,
        "log",
    )
    assert (rows["depth"].kind, rows["depth"].low, rows["depth"].high) == ("int", 1.0, 4.0)
    assert rows["width"].choices == ("16", "32", "64")
    assert rows["bias"].kind == "bool"


def test_trials_get_the_values_that_the_user_gave() -> None:
    made = trial_space(SPACE, ROOT)
    assert made.trial_config(made.root) == ROOT
    changed = made.space.complete(made.root, made.named({"width": 64, "init": "zeros"}))
    assert made.trial_config(changed) == {**ROOT, "width": 64, "init": "zeros"}


def test_a_choice_of_one_truth_value_offers_no_other() -> None:
    made = trial_space({"bias": tune.choice([True])}, {"bias": True})
    assert made.space.parameters[0].choices == ("True",)
    assert made.trial_config(made.root) == {"bias": True}


def test_a_space_of_ones_own_is_completed_by_its_defaults() -> None:
    row = Parameter(
        key="lr", alias="lr", kind="float", low=0.0, high=1.0, default=0.1, doc="", group="optimisation"
    )
    space = Space(trainer="mine", parameters=(row,))
    assert trial_space(space, {}).root == {"lr": 0.1}
    with pytest.raises(ConfigError, match="root: lr="):
        trial_space(space, {"lr": 2.0})


@pytest.mark.parametrize(
    ("space", "root", "message"),
    [
        ({"lr": tune.loguniform(1e-4, 1e-1)}, {"lr": 1.0}, "root does not lie in the space: lr=1"),
        ({"lr": tune.loguniform(1e-4, 1e-1)}, {}, "root has no value for lr"),
        ({"lr": tune.uniform(0, 1)}, {"lr": 0.1, "lrr": 1}, "'lrr' is not in the space: did you mean 'lr'"),
        ({"lr": tune.randn()}, {"lr": 0.1}, "lr has no bounds"),
        ({"lr": tune.quniform(0, 1, 0.1)}, {"lr": 0.1}, "lr is quantized"),
        ({"lr": 0.1}, {"lr": 0.1}, "lr is a value, 0.1; must be one of tune.uniform"),
        ({"f": tune.choice([print])}, {"f": print}, "f has the category"),
        ({"f": tune.choice(["1", 1])}, {"f": 1}, "two categories of f read alike"),
        ({"f": tune.choice([])}, {"f": True}, "f has no category"),
        ({"f": tune.choice([True])}, {"f": False}, "root does not lie in the space: f="),
        ({"f": tune.choice([1, 2])}, {"f": 3}, "root does not lie in the space: f="),
        ([], {}, r"space is \[\]; must be"),
        ({"lr": tune.uniform(0, 1)}, None, "root is None; must be a mapping"),
        ({"lr": tune.uniform(0, 1)}, {"lr": math.nan}, "root does not lie in the space: lr=nan"),
        ({"lr": tune.uniform(0, 1)}, {"lr": math.inf}, "root does not lie in the space: lr=inf"),
        ({1: tune.uniform(0, 1)}, {1: 0.5}, "space has the name 1; names must be texts"),
        (Space(trainer="mine", parameters=()), {1: 0.5}, "root has the name 1; names must be texts"),
    ],
)
def test_what_is_no_space_is_one_message(space: Any, root: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trial_space(space, root)
