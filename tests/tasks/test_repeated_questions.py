"""Rows that repeat a question under another number are told from rows whose numbers are the question."""

from __future__ import annotations

import pytest

from llmzero_ray.prepared.repeated_questions import questions_of, shared_with_train

SIX = {
    "What is the capital of France?": "Paris",
    "Who wrote Faust?": "Goethe",
    "Which gas do plants take in?": "carbon dioxide",
    "What is the largest planet?": "Jupiter",
    "Which metal is liquid?": "mercury",
    "Where is Mount Fuji?": "Japan",
}


@pytest.mark.parametrize(
    "form",
    [
        "{k}. {q}", "{k}) {q}", "{k}: {q}", "{k} - {q}", "({k}) {q}", "[{k}] {q}", "#{k} {q}", "{k} {q}",
        "Exercise {k}: {q}", "Q{k}) {q}", "No. {k}: {q}", "Problem No. {k} - {q}", "第{k}题：{q}",
        "Question {k} of 400: {q}", "{q} (variant {k})", "{k}.  {q} ", "QUESTION {k}: {q}",
    ],
)  # fmt: skip
def test_400_rows_that_are_6_questions_under_a_number_are_6(form: str) -> None:
    asked = list(SIX.items())
    rows = [(form.format(k=k, q=asked[k % 6][0]), asked[k % 6][1]) for k in range(400)]
    assert len(set(questions_of(rows))) == 6


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("What is {a} + {b}?", lambda a, b: a + b),
        ("{a} + {b} = ?", lambda a, b: a + b),
        ("{a}. What is {a} + {b}?", lambda a, b: a + b),
        ("{a} apples cost {b} dollars. How much do 3 cost?", lambda a, b: round(3 * b / a, 2)),
        ("Exercise {a}: compute the product.\n\n{a} and {b}", lambda a, b: a * b),
        ("Is {a} even?", lambda a, _b: a % 2 == 0),
        ("Puzzle {a}: A says B lies, B says {b} is even. Who is honest?", lambda _a, b: [True, b % 2 == 0]),
    ],
)
def test_numbers_that_change_the_answer_make_another_question(prompt: str, answer: object) -> None:
    pairs = [(k + 1, k * 31 % 97) for k in range(90)]
    rows = [(prompt.format(a=a, b=b), str(answer(a, b))) for a, b in pairs]  # type: ignore[operator]
    assert len(set(questions_of(rows))) == len(set(rows))


def test_two_rows_with_other_numbers_in_the_text_are_two_questions() -> None:
    rows = [("Tom has 3 pens and gets 2. How many?", "5"), ("Tom has 4 pens and gets 1. How many?", "5")]
    assert len(set(questions_of(rows))) == 2


def test_each_split_is_told_how_much_of_it_train_asks_as_well() -> None:
    train = [(f"{k}. Who wrote Faust?", "Goethe") for k in range(3)] + [("9. Where is Mount Fuji?", "Japan")]
    val = [("20. Who wrote Faust?", "Goethe"), ("21. Which metal is liquid?", "mercury")]
    test = [("30. What is the largest planet?", "Jupiter")]
    [line] = shared_with_train({"train": train, "val": val, "test": test})
    assert line.startswith("near-duplicates: 1 of 2 rows of val are questions of train with another number")
    assert "(train: 4 rows, 2 different questions)" in line and "`group` in task.yaml" in line


@pytest.mark.parametrize("piece", ["x", "1", "x1", "# ", "#\n", "\n", "1.", ". "])
def test_a_long_row_of_any_kind_is_read_in_linear_time(piece: str) -> None:
    """80,000 letters without a space, such as DNA, took more than eight minutes; these would take a day."""
    assert len(questions_of([((piece * 1_000_000)[:1_000_000], "5")])) == 1
