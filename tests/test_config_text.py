"""YAML of a user that is wrong in a way that Python reports with a traceback, or that stands for more than it
looks like: one message with the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmzero_ray.config import parse_config
from llmzero_ray.config_text import read_yaml
from llmzero_ray.errors import ConfigError

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
"""900 million values in nine lines."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("? [a, b]\n: c\n", r"line 1, column 3: a key is a list or a mapping"),
        ("? {a: b}\n: c\n", "a key is a list or a mapping"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
        ('task: {dir: "a\\0b"}', r"line 1, column 13: a value holds the character NUL"),
        ("seed: " + "9" * 5000, "a whole number has more than 4300 digits"),
        ("seed: 0x" + "f" * 5000, "line 1, column 7: a whole number has more than 10000 bits"),
        ("seed: " + "1:" * 3000 + "1", "a whole number has more than 10000 bits"),
        ("when: 2026-13-45", "broken YAML"),
        (BOMB, "its aliases stand for more than 100000 values"),
        ("a: &a [*a]", "an alias contains itself"),
        ("a: &a {b: {c: *a}}", "an alias contains itself"),
        ("a: 1\na: 2", "the key 'a' is given twice"),
    ],
)
def test_yaml_that_cannot_be_read_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        read_yaml(path)
    assert str(refused.value).startswith("search.yaml: ")
    assert len(str(refused.value)) < 500


def test_anchors_that_stand_for_little_are_read(tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    path.write_text("a: &a {lr: 1e-3}\nb: [*a, *a]\n")
    assert read_yaml(path) == {"a": {"lr": 1e-3}, "b": [{"lr": 1e-3}, {"lr": 1e-3}]}
    path.write_text("a: [" + "1, " * 100_001 + "1]\n")  # long, and written out
    assert len(read_yaml(path)["a"]) == 100_002


def test_a_wrong_value_is_shown_in_part() -> None:
    with pytest.raises(ConfigError, match="name is ") as refused:
        parse_config({"name": ["x" * 40] * 10_000}, source="search.yaml")
    assert len(str(refused.value)) < 700
    with pytest.raises(ConfigError, match="name is ") as refused:
        parse_config({"name": "a\x1b]0;owned\x07b\nc"}, source="search.yaml")
    assert "\x1b" not in str(refused.value)
