"""Which letter a response chooses, and what multiple-choice rewards pay for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmzero_ray.tasks.rewards import mcq, ssmr, wildsci
from llmzero_ray.tasks.rewards.extraction import last_boxed, last_tagged, visible
from llmzero_ray.tasks.rewards.mcq import bare_letter, chosen_letter


@pytest.mark.parametrize(
    ("response", "seen"),
    [
        ("A", "A"),
        ("<think>B</think>A", "A"),
        ("<think>B</think>C</think>A", "A"),
        ("B</think>A", "A"),
        ("<think>A", ""),
        ("<think>B</think>A<think>C", ""),
        ("<think></think>", ""),
        ("", ""),
        (None, ""),
        (b"A", ""),
        (3, ""),
    ],
)
def test_thoughts_are_not_part_of_the_answer(response: Any, seen: str) -> None:
    assert visible(response) == seen


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{A}", "A"),
        (r"\boxed {A}", "A"),
        (r"\boxed{A} and \boxed{B}", "B"),
        (r"\boxed{\text{A}}", r"\text{A}"),
        (r"\boxed{\boxed{A}}", "A"),
        (r"\boxed{A} then \boxed{B", "A"),
        (r"\boxed{ \boxed{B}", "B"),
        (r"{ } } \boxed{A}", "A"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{}", ""),
        (r"\boxed{A", None),
        (r"\boxed A", None),
        ("A", None),
    ],
)
def test_the_balanced_box_that_begins_last_counts(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer>A</answer>", "A"),
        ("<answer>A</answer><answer>B</answer>", "B"),
        ("<answer>A</answer><answer>B", "A"),
        ("<answer>A<answer>B</answer>", "B"),
        ("</answer>A<answer>", None),
        ("<answer>A", None),
        ("A", None),
    ],
)
def test_the_last_closed_answer_tag_counts(text: str, content: str | None) -> None:
    assert last_tagged(text) == content


@pytest.mark.parametrize(
    "text",
    [
        *(
            "C",
            "c",
            " C ",
            "C.",
            "(C)",
            "[C]",
            "{C}",
            "$C$",
            "**C**",
            r"\text{C}",
            r"\mathrm{C}",
            r"$\mathbf{C}$",
        ),
        *(r"\textbf{(C)}", "C. 6/8", "C) 6/8", "C: 6/8", "(C) 6/8", "**C.** 6/8", "C. B", r"\text{C. }6/8"),
    ],
)
def test_decoration_and_the_text_of_the_option_do_not_hide_a_letter(text: str) -> None:
    assert bare_letter(text, "ABCD") == "C"


@pytest.mark.parametrize(
    "text",
    ["", "E", "AB", "A, B", "A or B", "A and C", "none", "6/8", "C..", "C 6/8", "C.6/8", "a tie", "Ç", "."],
)
def test_anything_else_is_no_letter(text: str) -> None:
    assert bare_letter(text, "ABCD") is None


@pytest.mark.parametrize(
    "text",
    [
        "A. B. C. D.",
        "A. 6/8 B. 3/4 C. 2/4 D. 4/4",
        "A) 6/8\nB) 3/4\nC) 2/4\nD) 4/4",
        "(A) 6/8 (B) 3/4 (C) 2/4",
        "A: 6/8, B: 3/4, C: 2/4",
        r"\text{A. 6/8 B. 3/4 C. 2/4}",
    ],
)
def test_a_list_of_the_options_chooses_none(text: str) -> None:
    assert bare_letter(text, "ABCD") is None
    assert ssmr.compute_score("x", f"\\boxed{{{text}}}", "A")["acc"] == 0


def test_a_list_of_two_options_chooses_none_and_a_species_is_part_of_its_option() -> None:
    assert bare_letter("A. yes B. no", "AB") is None
    assert bare_letter("A. yes", "A") == "A"
    assert bare_letter("B. E. coli", "ABCDE") == "B"
    assert bare_letter("A. vitamin D: low", "ABCD") == "A"


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        (r"so \boxed{B}", "B"),
        (r"<answer>A</answer> \boxed{B}", "B"),
        (r"\boxed{B} <answer>A</answer>", "B"),
        (r"The answer is A. \boxed{A or B}", None),
        (r"The answer is A. \boxed{", None),
        (r"<answer>A</answer> \boxed{}", None),
        ("The answer is A. <answer>B</answer>", "B"),
        ("The answer is A. <answer>both</answer>", None),
        ("The answer is B", "B"),
        ("The answer is: B", "B"),
        ("the ANSWER IS (B).", "B"),
        ("Answer: B", "B"),
        ("**Answer:** B", "B"),
        ("**Answer**: B", "B"),
        ("The answer is **B**. It has two flats.", "B"),
        ("The answer is A, no, the answer is B", "B"),
        ("The answer is\nB\nas shown", "B"),
        ("The answer is A or B", None),
        ("The answer is a", None),
        ("The answer is a good question", None),
        ("The answer is not B", None),
        ("The answer isn't B", None),
        ("The answer is E", None),
        ("The answer is", None),
        ("B", "B"),
        ("(B).", "B"),
        ("b", "B"),
        ("B...?", None),
        ("I choose B", None),
        ("Option B is right", None),
        ("", None),
    ],
)
def test_the_strongest_mark_decides_and_a_box_never_falls_through(response: str, letter: str | None) -> None:
    assert chosen_letter(response, "ABCD") == letter


def test_the_right_letter_pays_one_and_any_other_nothing() -> None:
    assert ssmr.compute_score("ssmr_beat", r"\boxed{B}", "B") == {
        "score": 1.0,
        "acc": 1.0,
        "fmt_ok": 1.0,
        "pred": "B",
    }
    assert ssmr.compute_score("ssmr_beat", r"\boxed{A}", "B") == {
        "score": 0.0,
        "acc": 0.0,
        "fmt_ok": 1.0,
        "pred": "A",
    }
    assert ssmr.compute_score("ssmr_beat", "perhaps B", "B") == {
        "score": 0.0,
        "acc": 0.0,
        "fmt_ok": 0.0,
        "pred": "",
    }


def test_an_answer_cut_off_inside_its_thoughts_pays_nothing() -> None:
    assert ssmr.compute_score("ssmr_beat", r"<think>\boxed{B}", "B")["acc"] == 0


def test_ssmr_offers_four_letters_and_wildsci_ten() -> None:
    assert ssmr.compute_score("ssmr_beat", r"\boxed{E}", "E")["fmt_ok"] == 0
    assert wildsci.compute_score("wildsci_physics", r"\boxed{J}", "J")["acc"] == 1
    assert wildsci.compute_score("wildsci_physics", r"\boxed{K}", "K")["fmt_ok"] == 0


def test_the_format_bonus_pays_wrong_letters_only_and_is_off_by_default() -> None:
    scored = [
        mcq.compute_score("x", response, "B", format_bonus=0.1)["score"]
        for response in (r"\boxed{B}", r"\boxed{A}", "neither")
    ]
    assert scored == [1.0, 0.1, 0.0]
    assert mcq.compute_score("x", r"\boxed{A}", "B")["score"] == 0


@pytest.mark.parametrize(("bonus", "score"), [(7, 1.0), (-(10**400), 0.0), (float("nan"), 0.0), ("0.5", 0.0)])
def test_a_format_bonus_outside_zero_and_one_is_clipped(bonus: Any, score: float) -> None:
    assert mcq.compute_score("x", r"\boxed{A}", "B", format_bonus=bonus)["score"] == score


def test_letters_come_from_the_call_or_from_the_row() -> None:
    row = {"index": 0, "reward_options": json.dumps({"letters": "abcdef"})}
    assert mcq.compute_score("x", r"\boxed{F}", "F")["acc"] == 0
    assert mcq.compute_score("x", r"\boxed{F}", "F", row)["acc"] == 1
    assert mcq.compute_score("x", r"\boxed{F}", "F", row, letters="AB")["acc"] == 0


@pytest.mark.parametrize("options", ["", "{", "[]", "null", '{"letters": 3}', "[" * 5000, None, 4])
def test_options_that_cannot_be_read_leave_the_defaults(options: Any) -> None:
    assert mcq.compute_score("x", r"\boxed{B}", "B", {"reward_options": options})["acc"] == 1
