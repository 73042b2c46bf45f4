"""Rewards of short texts: PaperSearchQA, exact match, regular expressions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.gold_answers import accepted_answers, normalize_answer
from llmzero_ray.tasks.rewards import exact_match, papersearchqa, regex_match
from llmzero_ray.tasks.rewards.regex_match import check_pattern

GOLD = json.dumps({"target": ["IL-6", "Interleukin 6", "the interleukin-6"]})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("The Beijing", "beijing"),
        ("IL-6", "il6"),
        ("IL 6", "il 6"),
        ("a  an\tthe", ""),
        ("Theory of a Band", "theory of band"),
        ("vitamin A", "vitamin"),
        ("β-catenin", "βcatenin"),
        ("“x”", "“x”"),
        ("...", ""),
    ],
)
def test_short_answers_are_compared_without_case_punctuation_and_articles(text: str, key: str) -> None:
    assert normalize_answer(text) == key


@pytest.mark.parametrize(
    ("response", "acc", "pred"),
    [
        ("<answer> IL-6 </answer>", 1, "il6"),
        ("<answer>Interleukin-6</answer>", 1, "interleukin6"),
        ("<answer>The interleukin 6.</answer>", 1, "interleukin 6"),
        ("<answer>IL-2</answer><answer>IL-6</answer>", 1, "il6"),
        ("<answer>IL-6</answer><answer>IL-2</answer>", 0, "il2"),
        ("<answer>IL-6 or IL-2</answer>", 0, "il6 or il2"),
        ("<answer></answer>", 0, ""),
        ("<answer>the</answer>", 0, ""),
        ("<answer>IL-6", 0, ""),
        ("IL-6", 0, ""),
        (r"\boxed{IL-6}", 0, ""),
        ("<think><answer>IL-6</answer>", 0, ""),
        ("<think><answer>IL-2</answer></think><answer>IL-6</answer>", 1, "il6"),
    ],
)
def test_the_last_answer_must_equal_an_accepted_wording(response: str, acc: int, pred: str) -> None:
    result = papersearchqa.compute_score("papersearchqa", response, GOLD)
    assert result == {"score": acc, "acc": acc, "fmt_ok": float(pred != ""), "pred": pred}


def test_an_empty_wording_is_never_matched() -> None:
    empty = json.dumps({"target": ["", "the", "?"]})
    assert papersearchqa.compute_score("x", "<answer>a</answer>", empty)["acc"] == 0


@pytest.mark.parametrize(("n_tags", "score"), [(1, 1.0), (10, 1.0), (11, 0.25)])
def test_more_than_ten_tags_quarter_the_score_but_not_the_accuracy(n_tags: int, score: float) -> None:
    result = papersearchqa.compute_score("x", "<answer>IL-6</answer>" * n_tags, GOLD)
    assert (result["score"], result["acc"]) == (score, 1.0)


def test_opening_tags_alone_count_as_too_many_as_well() -> None:
    assert papersearchqa.compute_score("x", "<answer>" * 11 + "IL-6</answer>", GOLD)["score"] == 0.25


@pytest.mark.parametrize(
    ("truth", "targets"),
    [
        ('{"target": ["a", "b"]}', ("a", "b")),
        ('{"target": "a"}', ("a",)),
        ('{"target": [["a"], "b", 3, null]}', ("a", "b")),
        ('{"target": []}', ()),
        ('{"other": ["a"]}', ('{"other": ["a"]}',)),
        ("{a}", ("{a}",)),
        ("a", ("a",)),
        (None, ()),
        (["a"], ()),
    ],
)
def test_a_ground_truth_is_one_text_or_a_list_of_targets(truth: Any, targets: tuple[str, ...]) -> None:
    assert accepted_answers(truth) == targets


@pytest.mark.parametrize(
    ("response", "acc"),
    [
        ("New  York\n", 1),
        (r"It is \boxed{New York}.", 1),
        ("It is <answer>New York</answer>.", 1),
        (r"<answer>New York</answer> \boxed{Rome}", 0),
        (r"New York \boxed{", 0),
        ("It is New York", 0),
        ("new york", 0),
        ("", 0),
    ],
)
def test_exact_match_compares_the_marked_answer_or_the_whole_response(response: str, acc: int) -> None:
    assert exact_match.compute_score("x", response, "New York")["acc"] == acc


def test_exact_match_can_ignore_case_or_compare_short_answers() -> None:
    assert exact_match.compute_score("x", "new york", "New York", ignore_case=True)["acc"] == 1
    assert exact_match.compute_score("x", "the new york!", "New York", short_answer=True)["acc"] == 1
    assert exact_match.compute_score("x", "the new york!", "New York", ignore_case=True)["acc"] == 0


def test_an_empty_ground_truth_is_never_matched() -> None:
    assert exact_match.compute_score("x", "", "")["acc"] == 0


@pytest.mark.parametrize(
    ("pattern", "response", "pred"),
    [
        (r"total: (\d+)", "total: 3, total: 42", "42"),
        (r"(total|sum): (?P<answer>\d+)", "sum: 42", "42"),
        (r"\d+", "3 and 42", "42"),
        (r"total: (\d+)?", "total: ", ""),
        (r"total: (\d+)", "<think>total: 42</think> none", ""),
        (r"(", "42", ""),
    ],
)
def test_a_pattern_finds_the_last_answer(pattern: str, response: str, pred: str) -> None:
    result = regex_match.compute_score("x", response, "42", pattern=pattern)
    assert (result["pred"], result["acc"]) == (pred, float(pred == "42"))


def test_a_pattern_may_stand_in_the_row() -> None:
    row = {"reward_options": json.dumps({"pattern": r"=(\w+)", "ignore_case": True})}
    assert regex_match.compute_score("x", "=Yes", "yes", row)["acc"] == 1


def test_without_a_pattern_nothing_is_paid() -> None:
    assert regex_match.compute_score("x", "42", "42")["acc"] == 0


def test_a_pattern_that_never_ends_is_given_up() -> None:
    result = regex_match.compute_score("x", "a" * 40 + "!", "a", pattern=r"(?:(a|aa)+)+b")
    assert result["acc"] == 0


@pytest.mark.parametrize("pattern", [None, "", "(", "a" * 2000, 3])
def test_a_pattern_that_cannot_be_used_is_refused_with_a_cure(pattern: Any) -> None:
    with pytest.raises(TaskError, match="regular expression"):
        check_pattern(pattern)


def test_a_good_pattern_passes() -> None:
    check_pattern(r"answer: (\d+)")
