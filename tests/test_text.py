"""Nearest names, numbers, durations and sizes as people write them."""

from __future__ import annotations

import math

import pytest

from llmzero_ray.utils.text import (
    duration,
    nearest,
    nearest_names,
    number,
    one_line,
    plain,
    plural,
    short_duration,
    size,
)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(5.4, "5.4 s"), (59, "59 s"), (89, "1 min 29 s"), (600, "10 min 00 s"), (7200, "2 h 00 min")],
)
def test_durations_are_said_in_fitting_units(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(5.4, "5 s"), (89, "89 s"), (600, "10.0 min"), (7200, "2.0 h")]
)
def test_durations_on_the_terminal_are_one_figure(seconds: float, expected: str) -> None:
    assert short_duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.03124, "0.0312"),
        (1630.4, "1630"),
        (999.7, "1000"),
        (5.23e-5, "5.2e-5"),
        (0, "0"),
        (math.nan, "nan"),
        (2e7, "2.00e+07"),
    ],
)
def test_a_number_has_three_digits_that_count(value: float, expected: str) -> None:
    assert number(value) == expected


@pytest.mark.parametrize(
    ("value", "places", "expected"),
    [(0.01234, 2, "0.0123"), (1.5, 2, "1.50"), (1234.5, 0, "1,234"), (12.34, 0, "12.3"), (0, 0, "0")],
)
def test_a_plain_number_is_never_a_power_of_ten(value: float, places: int, expected: str) -> None:
    assert plain(value, places=places) == expected


def test_sizes_are_gibibytes_from_one_on_and_mebibytes_below() -> None:
    assert [size(n) for n in (1.5 * 2**30, 50 * 2**20, 8200)] == ["1.5 GiB", "50 MiB", "8 KiB"]


def test_the_nearest_name_is_offered_and_none_where_none_is_near() -> None:
    assert nearest("rnus", ["runs", "hours"]) == "runs"
    assert nearest("zebra", ["runs", "hours"]) is None
    assert nearest_names("chain_sums", ["chain_sum", "chain_sun", "zebra"], 3) == ["chain_sum", "chain_sun"]


def test_one_thing_is_not_said_in_the_plural() -> None:
    assert (plural(1, "run"), plural(0, "run")) == ("1 run", "0 runs")


def test_a_long_text_becomes_one_line_that_is_cut() -> None:
    assert one_line("a\n  b\x1b[31mc\x1b[0m", 10) == "a bc"
    assert one_line("x" * 20, 5) == "xxxx…"
    assert one_line("x" * 300, None) == "x" * 300
