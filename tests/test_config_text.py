"""YAML of a user that is wrong in a way that Python reports with a traceback, or that stands for more than it
looks like: one message with the place. What the program writes it reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmzero_ray.config import parse_config, yaml_text
from llmzero_ray.config.yaml_text import read_yaml, to_yaml
from llmzero_ray.errors import ConfigError
from tests.marks import slow_example

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
        ("a: &a {b: 1}\nc:\n  <<: *a\n  <<: *a\n", "the key '<<' is given twice"),
    ],
)
def test_yaml_that_cannot_be_read_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        read_yaml(path)
    assert str(refused.value).startswith("search.yaml: ")
    assert len(str(refused.value)) < 500


def test_anchors_that_stand_for_little_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "_MAX_VALUES", 1_000)
    path = tmp_path / "search.yaml"
    path.write_text("a: &a {lr: 1e-3}\nb: [*a, *a]\n")
    assert read_yaml(path) == {"a": {"lr": 1e-3}, "b": [{"lr": 1e-3}, {"lr": 1e-3}]}
    path.write_text("a: [" + "1, " * 1_001 + "1]\n")  # long, and written out
    assert len(read_yaml(path)["a"]) == 1_002


def test_merge_keys_fill_in_what_a_block_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    path.write_text("a: &a {x: 1}\nb: &b {<<: *a, x: 2, y: 3}\nc: {<<: *b, y: 4}\nd: {<<: [*a, *b]}\n")
    assert read_yaml(path) == {
        "a": {"x": 1},
        "b": {"x": 2, "y": 3},
        "c": {"x": 2, "y": 4},
        "d": {"x": 1, "y": 3},
    }


def test_a_wrong_value_is_shown_in_part() -> None:
    with pytest.raises(ConfigError, match="name is ") as refused:
        parse_config({"name": ["x" * 40] * 10_000}, source="search.yaml")
    assert len(str(refused.value)) < 700
    with pytest.raises(ConfigError, match="name is ") as refused:
        parse_config({"name": "a\x1b]0;owned\x07b\nc"}, source="search.yaml")
    assert "\x1b" not in str(refused.value)


TEXTS = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.text("0123456789abcdef", min_size=1),  # ids, hashes
    st.text("0123456789eE._+-:", min_size=1),  # what could be read as a number or a time
    st.text(" \n\t#-:'\"a"),
    st.sampled_from(["null", "~", "true", "No", "2026-01-01", "0x1f", "1_000", "=", "<<", ".inf", "|", ""]),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
DATA = st.dictionaries(
    TEXTS,
    st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8),
    max_size=4,
)


@slow_example
@given(DATA)
@example({"trial": "83e72937"})  # the id of a trial; Ray draws hexadecimal digits
@example({"trial": "12345e67", "rate": 1e-06, "1e3": "+.5E-3"})
def test_what_is_written_is_read_back_the_same(data: dict[str, Any]) -> None:
    again = read_yaml(to_yaml(data))
    assert again == data
    assert repr(again) == repr(data)  # equal is not enough: 1, 1.0 and true are


def test_a_text_of_several_lines_stays_readable() -> None:
    assert to_yaml({"description": "one\ntwo: 2\n"}) == "description: |\n  one\n  two: 2\n"
