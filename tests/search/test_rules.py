"""The parameters of the search: defaults, bounds, and how they are written in text."""

from __future__ import annotations

from typing import Any

import pytest

from llmzero_ray.errors import ConfigError
from llmzero_ray.search import SearchRules


def test_the_defaults_are_the_published_ones() -> None:
    assert SearchRules().model_dump() == {
        "C": 1.414,
        "T": 0.3,
        "w_f": 0.5,
        "w_e": 0.3,
        "o_f": 2,
        "max_evolve_children": 2,
        "max_debug_children": 3,
        "max_debug_depth": 5,
        "rho_min": 0.2,
        "q_aggregate": "f_of_mean",
        "multi_stage": True,
    }


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("C", -0.1, "a number >= 0"),
        ("C", float("nan"), "a number >= 0"),
        ("C", float("inf"), "a number >= 0"),
        ("C", True, "a number >= 0"),
        ("C", "1.0", "a number >= 0"),
        ("T", 0, "a number > 0"),
        ("T", -1.0, "a number > 0"),
        ("w_f", -1, "a number >= 0"),
        ("w_e", -1, "a number >= 0"),
        ("o_f", 1.5, "a whole number >= 0"),
        ("max_evolve_children", 0, "a whole number >= 1"),
        ("max_debug_children", -1, "a whole number >= 0"),
        ("max_debug_depth", -1, "a whole number >= 0"),
        ("rho_min", 1.01, "a number >= 0 and <= 1"),
        ("q_aggregate", "mean", "one of f_of_mean, mean_of_f"),
        ("multi_stage", 1, "true or false"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SearchRules.read({name: value})
    shown = "true" if value is True else repr(value)  # as YAML spells it
    assert f"search rules: {name} is {shown}; must be" in str(refused.value)
    assert allowed in str(refused.value)


def test_zero_is_a_value_like_any_other() -> None:
    rules = SearchRules(C=0, w_f=0, w_e=0, o_f=0, max_debug_children=0, max_debug_depth=0, rho_min=0)
    assert (rules.C, rules.rho_min, rules.max_debug_children) == (0, 0, 0)


def test_every_rule_can_be_set_by_text() -> None:
    settings = ["C=1", "T=0.5", "w_f=0", "w_e=0.0", "o_f=1", "max_evolve_children=4", "max_debug_children=0"]
    settings += ["max_debug_depth=2", "rho_min=0.25", "q_aggregate=mean_of_f", "multi_stage=false"]
    rules = SearchRules().with_settings(settings)
    assert list(rules.model_dump().values()) == [1, 0.5, 0, 0.0, 1, 4, 0, 2, 0.25, "mean_of_f", False]


def test_the_last_of_repeated_settings_counts_and_spaces_do_not() -> None:
    assert SearchRules().with_settings(["C=1", " C = 2.5 "]).C == 2.5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("C", "has no '='"),
        ("max_debug_child=2", "did you mean 'max_debug_children'?"),
        ("zzz=2", "unknown key 'zzz'. Known keys: C, T,"),
        ("C=one", "C is 'one'"),
        ("o_f=1.5", "o_f is 1.5"),
        ("multi_stage=maybe", "multi_stage is 'maybe'"),
        ("C=nan", "C is 'nan'"),
    ],
)
def test_a_wrong_setting_is_refused_and_a_misspelt_rule_gets_the_nearest_one(
    setting: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        SearchRules().with_settings([setting])
    assert message in str(refused.value)


def test_rules_read_from_a_dict_are_the_rules_written_to_it() -> None:
    rules = SearchRules(C=0.5, multi_stage=False)
    assert SearchRules.read(rules.model_dump()) == rules
    assert SearchRules.read({"T": 1.0}) == SearchRules(T=1.0)
    with pytest.raises(ConfigError, match="did you mean 'rho_min'"):
        SearchRules.read({"rho_mim": 0.1})
