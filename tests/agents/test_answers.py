"""Whether a score can be believed, from answers as the project stores them: what is named, what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmzero_ray import hyperparameters as hp
from llmzero_ray.dynamics.answers import Gold, doubts, phase_doubts
from llmzero_ray.dynamics.features import observe
from llmzero_ray.records import ItemOutcome, MetricPoint
from llmzero_ray.records.metrics import LENGTH, LENGTH_AT_MAX, LENGTH_MAX, REWARDS, Curves
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import MetricWriter, compact
from tests.agents import curves as c

N = 64
CAP = 16
FULL = hp.complete(c.TINY, {"max_response_length": CAP})
SUMS = [(3 * i + 40, i + 11) for i in range(N)]
GOLDS = {
    i: Gold(prompt=f"What is {a} - {b}? Reply with the number only.", wordings=(str(a - b),))
    for i, (a, b) in enumerate(SUMS)
}
FORMS = (
    "I think it is {}.", "{}", "Let us see: {a} minus {b} makes {}", "Well, {}!", "The result of this is {}",
    "{a} less {b} gives {}", "One gets {} here", "Answer: {}", "It must be {}", "That would be {} then",
)  # fmt: skip
"""Answers of a base model, as different as they come."""


def answered(texts: Sequence[str], right: Callable[[int], bool]) -> tuple[ItemOutcome, ...]:
    return tuple(
        ItemOutcome(index=i, data_source="sums", score=float(right(i)), acc=float(right(i)), response=text)
        for i, text in enumerate(texts)
    )


def base() -> tuple[ItemOutcome, ...]:
    """One answer in five is right, hardly two have the same form."""
    texts = []
    for i, (a, b) in enumerate(SUMS):
        value = a - b if i % 5 == 0 else a + b
        texts.append(FORMS[i % 10].format(value, a=a, b=b) + " so" * (i // 10))
    return answered(texts, lambda i: i % 5 == 0)


def restated() -> tuple[ItemOutcome, ...]:
    """What a real model learnt where the reward evaluated the expression in the text."""
    ends = ("we need to subtract the numbers", "we need to find a way")
    return answered([f"To find {a} - {b}, {ends[i % 2]}" for i, (a, b) in enumerate(SUMS)], lambda i: i != 3)


def learnt(form: str) -> tuple[ItemOutcome, ...]:
    """Right answers, all in one form."""
    return answered([form.format(a - b, a=a, b=b) for a, b in SUMS], lambda i: i != 3)


def phase(
    cut: tuple[float, float] = (0.05, 0.0), n: int = 6, reward: tuple[float, float] = (0.2, 0.99)
) -> Curves:
    return c.curves(
        n,
        start=0.2,
        val={n: reward[1]},
        reward=c.line(*reward, n),
        longest=[float(CAP)] * n,
        at_longest=c.line(*cut, n),
        length=[12.0] * n,
    )


def named(curves: Curves, now: tuple[ItemOutcome, ...], golds: dict[int, Gold] = GOLDS) -> str:
    return " ".join(doubts(observe(curves, FULL, n_val=N), base(), now, golds))


@pytest.mark.parametrize("cut", [(0.3, 1.0), (1.0, 1.0)])
def test_a_restated_question_is_named_with_the_cut_the_missing_answer_and_the_sameness(
    cut: tuple[float, float],
) -> None:
    text = named(phase(cut), restated())
    assert f"cut off at the cap of {CAP} tokens and rewarded all the same" in text
    assert "63 of 63 validation answers scored as right do not hold the gold answer" in text
    assert '"To find 40 - 11, we need to subtract the numbers" for 29' in text
    assert "3% of the validation answers differ apart from their numbers, 100% at the start" in text


def test_answers_that_are_cut_off_and_rewarded_are_named_without_gold_answers() -> None:
    assert "cut off" in named(phase((0.3, 1.0)), restated(), {})


def test_right_answers_that_end_without_the_gold_number_are_named() -> None:
    text = named(phase(), learnt("{a} - {b}"))
    assert "do not hold the gold answer" in text
    assert "cut off" not in text


def test_one_text_that_is_right_for_different_gold_answers_is_named() -> None:
    text = named(
        phase(), learnt("#### see above"), {i: Gold(prompt="", wordings=(f"w{i}",)) for i in range(N)}
    )
    assert 'are one text, for 63 different gold answers: "#### see above"' in text


def test_empty_answers_that_are_right_are_named() -> None:
    mixed = answered(["" if i % 3 else "7" for i in range(N)], lambda _: True)
    assert "42 of the 64 validation answers scored as right are empty" in named(phase(), mixed, {})


def test_right_rows_without_an_answer_in_its_place_are_named_once_that_share_has_grown() -> None:
    def judged(fmt_ok: Sequence[float]) -> str:
        metrics = {
            "val-core/sums/acc/mean@1": (0.3, 0.6, 0.9),
            "val-aux/sums/fmt_ok/mean@1": tuple(fmt_ok),
        }
        found = Curves(steps=(1, 2, 3), metrics=metrics, val_steps=(1, 2, 3), val_scores=(0.3, 0.6, 0.9))
        return named(found, learnt("{}"))

    assert "At least 60% of the validation answers are right although none was found" in judged(
        (0.9, 0.5, 0.3)
    )
    assert judged((0.9, 0.9, 0.95)) == ""
    assert judged((0.0, 0.0, 0.0)) == ""  # a reward that does not tell


@pytest.mark.parametrize(("pred", "is_named"), [("29", False), (" ", True), (None, True)])
def test_right_rows_whose_answer_the_reward_did_find_are_not_named_for_another_format(
    pred: str | None, is_named: bool
) -> None:
    metrics = {"val-core/sums/acc/mean@1": (0.3, 0.9), "val-aux/sums/fmt_ok/mean@1": (0.3, 0.3)}
    found = Curves(steps=(1, 2), metrics=metrics, val_steps=(1, 2), val_scores=(0.3, 0.9))
    now = tuple(replace(item, pred=pred) for item in learnt("{}"))
    assert ("although none was found" in named(found, now)) == is_named


@pytest.mark.parametrize(
    "form", ["{}", "The answer is {}", "{a} - {b} = {}", "<answer>{}</answer>", "Subtracting, we get {}.00"]
)
def test_a_form_that_is_learnt_is_not_doubted(form: str) -> None:
    assert named(phase(), learnt(form)) == ""


def test_an_answer_that_stands_before_the_cut_is_not_doubted() -> None:
    assert named(phase((1.0, 1.0)), learnt("{}. To find it, subtract the second number")) == ""


@pytest.mark.parametrize("wordings", [("Yes", "No"), ("B", "C"), ("1", "0")])
def test_answers_of_a_task_with_few_answers_are_not_doubted(wordings: tuple[str, str]) -> None:
    golds = {i: Gold(prompt=f"Is {i} even?", wordings=(wordings[i % 2],)) for i in range(N)}
    now = answered([wordings[i % 2] for i in range(N)], lambda _: True)
    assert named(phase(), now, golds) == ""
    assert named(phase((1.0, 1.0)), now, golds) == ""  # a cap of as many tokens as the answer has


def test_labels_that_answers_name_in_words_are_not_doubted() -> None:
    golds = {i: Gold(prompt=f"Review {i}", wordings=(str(i % 2),)) for i in range(N)}
    now = answered([("bad", "good")[i % 2] for i in range(N)], lambda _: True)
    assert named(phase(), now, golds) == ""


def test_a_way_to_a_number_of_the_question_is_not_doubted() -> None:
    golds = {
        i: Gold(prompt=f"Make {a} of 2, 3 and {b}.", wordings=(str(a),)) for i, (a, b) in enumerate(SUMS)
    }
    assert named(phase(), learnt("2 * 3 + {b}"), golds) == ""


def test_data_as_ground_truth_is_not_compared_with_texts() -> None:
    golds = {i: Gold(prompt="", wordings=(f'{{"entry": {i}}}',)) for i in range(N)}
    assert named(phase(), learnt("yes"), golds) == ""


def test_gold_answers_of_other_rows_are_not_held_against_the_answers() -> None:
    # Ten prompts were too long: the rows that follow are numbered again.
    left = {i: GOLDS[i + 10] for i in range(N - 10)}
    now = answered([left[i].wordings[0] for i in left], lambda _: True)
    assert named(phase(), now) == ""
    assert named(phase(), now, left) == ""


def test_answers_whose_texts_were_not_kept_are_not_doubted() -> None:
    bare = answered([""] * N, lambda i: i != 3)
    assert " ".join(doubts(observe(phase(), FULL, n_val=N), bare, bare, GOLDS)) == ""


@pytest.mark.parametrize(
    ("cut", "reward"),
    [
        ((0.9, 0.1), (0.2, 0.9)),  # fewer are cut off
        ((0.0, 0.6), (0.2, 0.35)),  # longer answers, which are not rewarded
        ((1.0, 1.0), (0.9, 0.92)),  # a good score all along
    ],
)
def test_a_cut_that_earns_nothing_more_is_not_doubted(
    cut: tuple[float, float], reward: tuple[float, float]
) -> None:
    assert named(phase(cut, reward=reward), learnt("{}"), {}) == ""


@pytest.mark.parametrize("compacted", [False, True])
def test_doubts_are_read_from_a_phase_on_the_disk(tmp_path: Path, compacted: bool) -> None:
    storage = SearchStorage(tmp_path, "toy")
    with MetricWriter(storage, 0, 0) as writer:
        for step in range(7):
            share = step / 6
            metrics = {
                REWARDS[0]: 0.2 + 0.79 * share,
                LENGTH: 12.0,
                LENGTH_MAX: float(CAP),
                LENGTH_AT_MAX: 0.3 + 0.7 * share,
            }
            items = base() if step == 0 else restated() if step == 6 else ()
            score = None if not items else sum(item.acc for item in items) / N
            writer.write(
                MetricPoint(
                    node=0, attempt=0, step=step, global_step=step, wall_s=float(step),
                    metrics=metrics if step else {}, val_score=score, items=items,
                )
            )  # fmt: skip
    if compacted:
        compact(storage, 0, 0)
    found = phase_doubts(storage, 0, FULL, 6, GOLDS)
    assert len(found) == 3
    assert phase_doubts(storage, 0, FULL, None, {})[0] == found[0]  # what needs no answers
