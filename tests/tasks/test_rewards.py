"""The shipped reward: exact, always the same keys, never an exception."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.tasks.rewards import marked_answer
from llmzero_ray.tasks.rewards.marked_answer import compute_score

KEYS = ["score", "acc", "fmt_ok", "pred"]


@pytest.mark.parametrize(
    ("response", "acc", "fmt_ok", "pred"),
    [
        ("#-10", 1, 1, "-10"),
        ("4,-5,-5,-10#-10", 1, 1, "-10"),
        ("# -10 ", 1, 1, "-10"),
        ("#10", 0, 1, "10"),
        ("#-10.", 0, 1, "-10."),
        ("#-10\nand so on", 0, 1, "-10\nand so on"),
        ("-10", 0, 0, ""),
        ("", 0, 0, ""),
        ("#", 0, 0, ""),
        ("# ", 0, 0, ""),
        ("#-10#-10", 0, 0, ""),
        ("##-10", 0, 0, ""),
        ("<think>#1</think>#-10", 1, 1, "-10"),
        ("<think>#-10", 0, 0, ""),
        ("a</think>b</think>#-10", 1, 1, "-10"),
        ("#-10</think>", 0, 0, ""),
    ],
)
def test_the_text_behind_the_only_mark_must_be_the_answer(
    response: str, acc: int, fmt_ok: int, pred: str
) -> None:
    expected = {"score": acc, "acc": acc, "fmt_ok": fmt_ok, "pred": pred}
    assert compute_score("chain_sum", response, "-10") == expected


@pytest.mark.parametrize(
    ("response", "truth"), [(None, "1"), (b"#1", "1"), (1, "1"), ("#1", 1), ("#", ""), ("#1", None)]
)
def test_what_is_not_text_scores_nothing(response: Any, truth: Any) -> None:
    assert compute_score("x", response, truth)["acc"] == 0


def test_a_long_prediction_is_cut_but_still_judged_whole() -> None:
    long = "9" * 500
    result = compute_score("x", f"#{long}", long)
    assert (result["acc"], result["pred"]) == (1, "9" * 64)


ANYTHING = st.none() | st.text() | st.binary() | st.integers() | st.floats() | st.lists(st.text())


@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_every_call_returns_the_same_keys_and_never_raises(
    source: Any, response: Any, truth: Any, info: Any
) -> None:
    result = compute_score(source, response, truth, info, reward_router_address=None)
    assert list(result) == KEYS
    assert result["acc"] in (0.0, 1.0)
    assert result["score"] == result["acc"] <= float(str(result["fmt_ok"]))


@given(st.text().filter(lambda text: "#" not in text and "think>" not in text and text.strip()))
def test_any_answer_without_a_mark_in_it_can_be_given(answer: str) -> None:
    assert compute_score("x", f"#{answer}", answer)["acc"] == 1


def test_it_loads_by_its_path_without_the_project_and_prints_nothing() -> None:
    code = (
        "import runpy, sys; module = runpy.run_path(sys.argv[1]); module['compute_score']('x', '#1', '1');"
        "assert not [name for name in sys.modules if name.startswith(('llmzero', 'torch', 'numpy', "
        "'pyarrow'))]"
    )
    path = str(Path(str(marked_answer.__file__)))
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
