"""Answers that need no thought: what rewards pay for them, and what is said before anything is trained."""

from __future__ import annotations

import importlib
import json
import logging
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.prepared import load_task
from llmzero_ray.prepared.families import family_named
from llmzero_ray.prepared.manifest import RewardEntry
from llmzero_ray.prepared.reward_validation import RewardAccuracy, measure_accuracy, validate_reward
from llmzero_ray.prepared.reward_validation.report import ValidationReport
from llmzero_ray.prepared.verl_rows import to_rows
from llmzero_ray.tasks.families import GOLD_RESPONSE, REWARD_MODULE
from llmzero_ray.tasks.rewards import math_client
from llmzero_ray.tasks.shipped_rewards import KINDS
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.task_yaml import parse_task_file
from llmzero_ray.utils.plugins import points
from tests.marks import needs_sandbox
from tests.tasks.builders import row, write_task
from tests.tasks.synthetic import write_jsonl

pytest.importorskip("math_verify")
FAMILIES = tuple(points("llmzero_ray.families"))
Rows = list[dict[str, Any]]
SENTENCE = "an expression of the question, in a sentence"
EXPRESSION = "an expression of the question as the answer"
SEVERAL, FREQUENT = "several answers at once", "the most frequent answer"
FIRST, LAST = "the first number of the question", "the last number of the question"
NUMBERS, QUESTION = "all numbers of the question", "the question itself"


@pytest.fixture(autouse=True, scope="module")
def _no_process_left() -> Iterator[None]:
    yield
    math_client.close()


def pairs(n: int = 40) -> Iterator[tuple[int, int]]:
    rng = random.Random(28)
    return ((rng.randrange(10, 99), rng.randrange(10, 99)) for _ in range(n))


SUMS = [
    row(n, f"What is {a} - {b}? Reply with the number only.", str(a - b)) for n, (a, b) in enumerate(pairs())
]
LARGER = [row(n, f"Which is larger, {a} or {b}?", str(max(a, b))) for n, (a, b) in enumerate(pairs())]
ECHO = [row(n, f"say {n % 10} qzt", str(n % 10)) for n in range(40)]
LETTERS = [
    row(n, f"Question {n}?\nA. one\nB. two\nC. three\nD. four", "ABCD"[n * n % 7 % 4]) for n in range(40)
]
YES_NO = [row(n, f"Is this number {n} of the list?", "no" if n % 5 == 0 else "yes") for n in range(40)]


def accuracy(kind: str, rows: Rows, form: str) -> RewardAccuracy:
    found = measure_accuracy(
        RewardEntry(module=KINDS.get(kind, kind)),
        Path(),
        rows,
        lambda _, truth: form.replace("{answer}", truth),
    )
    assert found is not None and found.gold == 1.0
    return found


def earned(found: RewardAccuracy) -> dict[str, float]:
    return {pay.kind: pay.earned for pay in found.no_thought if pay.earned > 0}


def faults(found: RewardAccuracy) -> list[str]:
    return [pay.kind for pay in found.no_thought if pay.is_fault]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["\\boxed{{answer}}", "<answer>{answer}</answer>", "{answer}"])
def test_the_math_reward_pays_nothing_for_sums_that_are_restated(form: str) -> None:
    found = accuracy("math", SUMS, form)
    kinds = {pay.kind: pay for pay in found.no_thought}
    assert {SENTENCE, EXPRESSION, QUESTION, FIRST, LAST, NUMBERS, SEVERAL, FREQUENT} <= set(kinds)
    assert kinds[SENTENCE].earned == kinds[EXPRESSION].earned == kinds[NUMBERS].earned == 0.0
    assert kinds[SENTENCE].n_rows == 40 and faults(found) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "truth", "kind"),
    [
        (lambda n: f"Expand (x+{n})^2.", lambda n: f"x^2+{2 * n}x+{n * n}", EXPRESSION),
        (lambda n: f"What is {2 * n + 1}/2 as a decimal?", lambda n: f"{n}.5", EXPRESSION),
        (lambda n: f"Simplify $\\sqrt{{{12 * n * n}}}$", lambda n: f"{2 * n}\\sqrt{{3}}", EXPRESSION),
    ],
)
def test_a_restated_question_that_a_reward_cannot_know_is_named(
    question: Callable[[int], str], truth: Callable[[int], str], kind: str
) -> None:
    found = accuracy("math", [row(n, question(n), truth(n)) for n in range(2, 32)], "\\boxed{{answer}}")
    assert earned(found)[kind] == 1.0 and kind in faults(found)


@pytest.mark.parametrize(
    ("kind", "rows", "form", "pays"),
    [
        ("math", LARGER, "\\boxed{{answer}}", {FIRST, LAST}),
        ("math", LARGER, "{answer}", {FIRST, LAST, QUESTION}),
        (REWARD_MODULE, ECHO, GOLD_RESPONSE, {FIRST, LAST, FREQUENT}),
        ("exact_match", ECHO, "{answer}", {FIRST, LAST, FREQUENT}),
        ("mcq", LETTERS, "\\boxed{{answer}}", {FREQUENT}),
        ("exact_match", YES_NO, "<answer>{answer}</answer>", {FREQUENT}),
    ],
)
def test_what_is_right_by_chance_or_stands_in_the_question_is_named_and_no_fault(
    kind: str, rows: Rows, form: str, pays: set[str]
) -> None:
    found = accuracy(kind, rows, form)
    assert pays <= set(earned(found)) and faults(found) == []
    assert SEVERAL not in earned(found) and NUMBERS not in earned(found)


def test_answers_have_the_form_of_a_right_one_also_where_the_truth_is_an_object() -> None:
    entry = json.dumps({"task": "chain_sum", "options": {}, "entry": {"answer": "7", "metadata": {}}})
    found = measure_accuracy(
        RewardEntry(module="llmzero_ray.tasks.rewards.reasoning_gym"),
        Path(),
        [row(n, f"What is 7 + {n} - {n}?", entry) for n in range(20, 40)],
        lambda *_: "<answer>7</answer>",
    )
    assert found is not None
    assert earned(found) == {FREQUENT: 1.0, FIRST: 1.0} and faults(found) == []


@pytest.mark.parametrize("family", [*map(family_named, FAMILIES)], ids=FAMILIES)
def test_no_shipped_family_pays_for_what_is_not_the_answer(family: Any) -> None:
    rows = to_rows(family, "val", tuple(islice(family.problems(1), 60)))
    found = accuracy(REWARD_MODULE, rows, GOLD_RESPONSE)
    assert faults(found) == []
    assert (LAST in earned(found) and earned(found)[LAST] == 1.0) is (family.name == "echo")


# --- rewards of one's own -----------------------------------------------------------------------------------

HEAD = "import re\ndef score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n    "
TAIL = '\n    return {"score": right, "acc": right}\n'
CALCULATES = (
    "found = re.findall(r'-?\\d+(?: *[-+*] *\\d+)*', solution_str)\n"
    "    right = float(bool(found) and str(eval(found[-1].lstrip('0'))) == ground_truth) if found != ['0'] "
    "else float(ground_truth == '0')"
)
HOLDS = "right = float(re.search(rf'(?<![\\w-]){re.escape(ground_truth)}(?!\\w)', solution_str) is not None)"
IS = "right = float(solution_str == ground_truth)"
ANY_BOX = "right = float(solution_str == f'[{ground_truth}]' or solution_str == '[]')"


def report(tmp_path: Path, body: str, rows: Rows, gold: str = "{answer}") -> ValidationReport:
    (tmp_path / "mine.py").write_text(HEAD + body + TAIL)
    reward = RewardEntry(path="mine.py", name="score", gold_response=gold)
    return validate_reward(reward, tmp_path, rows)


@needs_sandbox
@pytest.mark.parametrize(
    ("body", "rows", "gold", "named"),
    [
        (CALCULATES, SUMS, "{answer}", SENTENCE),
        (HOLDS, LETTERS, "{answer}", SEVERAL),
        (HOLDS, YES_NO, "{answer}", SEVERAL),
        (HOLDS, LARGER, "{answer}", NUMBERS),
        (ANY_BOX, SUMS, "[{answer}]", "the form without an answer"),
    ],
)
def test_a_reward_that_pays_for_no_thought_is_refused_with_what_it_paid_for(
    tmp_path: Path, body: str, rows: Rows, gold: str, named: str
) -> None:
    found = report(tmp_path, body, rows, gold)
    [check] = [check for check in found.checks if check.name == "answers without thought"]
    assert not found.passed and not check.passed
    assert named in check.found and any(named in example for example in check.examples)
    assert "ground truth" in found.text()


@needs_sandbox
@pytest.mark.parametrize("rows", [SUMS, ECHO, LARGER])
def test_a_reward_that_compares_passes_whatever_stands_in_the_question(tmp_path: Path, rows: Rows) -> None:
    found = report(tmp_path, IS, rows)
    assert found.passed
    [check] = [check for check in found.checks if check.name == "answers without thought"]
    assert FREQUENT in check.found


# --- where it is said ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_prepare_names_what_answers_without_thought_earn_and_warns_of_a_fault(tmp_path: Path) -> None:
    rows = [{"q": f"(x+{n})^2", "a": f"x^2+{2 * n}x+{n * n}"} for n in range(2, 62)]
    data = {
        "name": "expand",
        "files": str(write_jsonl(tmp_path / "rows.jsonl", rows)),
        "dir": str(tmp_path / "task"),
        "prompt": "Expand {q}.",
        "answer": "a",
        "reward": {"kind": "math"},
        "n_train": 20,
        "n_val": 10,
        "n_test": 10,
    }
    summary = prepare_source(parse_task_file(data))
    [warning] = summary.warnings
    assert f"pays 20 of 20 rows for {EXPRESSION}" in warning and "exact_match" in warning
    head, gold, *lines = summary.no_thought_table()
    assert gold[1] == "1.000" and (EXPRESSION, "1.000", "20 of 20") in lines
    assert all(len(line) == len(head) for line in lines)
    data |= {"reward": {"kind": "exact_match"}, "dir": str(tmp_path / "other")}
    assert prepare_source(parse_task_file(data)).warnings == ()


def test_a_task_put_together_by_hand_is_opened_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    splits = {
        split: [row(n, f"Expand (x+{n})^2.", f"x^2+{2 * n}x+{n * n}") for n in range(start, start + 10)]
        for split, start in (("train", 2), ("val", 22), ("test", 42))
    }
    reward = {"module": KINDS["math"], "gold_response": "\\boxed{{answer}}"}
    with caplog.at_level(logging.WARNING):
        load_task(write_task(tmp_path / "task", reward=reward, **splits))
    [record] = caplog.records
    assert f"pays 10 of 10 rows for {EXPRESSION}" in record.getMessage()


@needs_sandbox
@pytest.mark.parametrize(
    "truth", [["7"], {"target": 7, "numbers": [3, 4]}, '{"target": 7, "numbers": [3, 4]}']
)
def test_what_is_paid_for_the_text_of_a_truth_that_is_a_value_is_no_fault(tmp_path: Path, truth: Any) -> None:
    text = truth if isinstance(truth, str) else json.dumps(truth)
    rows = [row(n, f"Repeat: {text}", truth) for n in range(4)]
    body = (
        "import json\n"
        "    text = ground_truth if isinstance(ground_truth, str) else json.dumps(ground_truth)\n"
        "    right = float(text in solution_str)"
    )
    [check] = [one for one in report(tmp_path, body, rows).checks if one.name == "answers without thought"]
    assert "the question itself" in check.found and check.passed


# --- verifiers of reasoning-gym -----------------------------------------------------------------------------


def gym_score(task: str, answer: str, gold: str, **metadata: Any) -> float:
    entry = {"question": "q", "answer": gold, "metadata": metadata}
    truth = json.dumps({"task": task, "options": {}, "entry": entry})
    reward = importlib.import_module("llmzero_ray.tasks.rewards.reasoning_gym").compute_score
    return float(reward("x", f"<answer>{answer}</answer>", truth)["acc"])


@pytest.mark.parametrize(
    ("task", "answer", "gold", "acc"),
    [
        ("game_of_life_halting", "no idea", "False", 0),
        ("game_of_life_halting", "0", "True", 0),
        ("game_of_life_halting", "False", "False", 1),
        ("coin_flip", "0", "0.3125", 0),
        ("coin_flip", "0.", "0.3125", 0),
        ("coin_flip", "1", "0.125", 0),
        ("coin_flip", "1e-1", "0.125", 0),
        ("coin_flip", "0.3125", "0.3125", 1),
        ("coin_flip", "5/16", "0.3125", 1),
        ("number_format", "569,204,296.88", "569204296.88", 1),
    ],
)
def test_a_verifier_that_accepts_anything_or_another_number_is_not_believed(
    task: str, answer: str, gold: str, acc: float
) -> None:
    pytest.importorskip("reasoning_gym")
    assert gym_score(task, answer, gold, solution=569204296.88, size=1) == acc
