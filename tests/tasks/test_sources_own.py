"""Tasks of the user's own from task.yaml, and reasoning-gym tasks by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.tasks.rewards.reasoning_gym import compute_score, is_safe
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.sources.summary import Summary
from llmzero_ray.tasks.task_yaml import TaskFile, load_task_file, parse_task_file
from tests.tasks.synthetic import write_jsonl

OWN: dict[str, Any] = {
    "name": "capitals",
    "files": "rows.jsonl",
    "prompt": "Which city is the capital of {country}?",
    "answer": "city",
    "reward": "exact_match",
}
CITIES = [{"country": f"country {n}", "city": f"City {n % 7}", "continent": f"c{n % 2}"} for n in range(40)]


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_task_file({key: value for key, value in {**OWN, **changes}.items() if value is not None})
    return str(caught.value)


def prepared(tmp_path: Path, rows: list[Any], **changes: Any) -> Summary:
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    data = {**OWN, "files": str(path), "dir": str(tmp_path / "task"), "n_train": 20, "n_val": 5, "n_test": 5}
    return prepare_source(parse_task_file({**data, **changes}))


def rows_of(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    return rows


# --- the file -----------------------------------------------------------------------------------------------


def test_a_file_is_read_with_its_places_made_absolute(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(
        "name: sums\nfiles: [a.csv, sub]\nprompt: 'What is {q}?'\nanswer: a\nreward: {python: my.py:score}\n"
    )
    task = load_task_file(path)
    assert task.files == (str(tmp_path / "a.csv"), str(tmp_path / "sub"))
    assert task.reward is not None and task.reward.function == f"{tmp_path / 'my.py'}:score"
    assert (task.n_train, task.n_val, task.n_test) == (5000, 500, 500)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"promt": "x"}, "unknown key 'promt'; did you mean 'prompt'?"),
        (
            {"dataset": "ssmr"},
            "exactly one of prompt, dataset and reasoning_gym must be given; it has prompt, dataset",
        ),
        ({"prompt": None}, "it has none of them"),
        ({"files": None}, "give either files or hub"),
        ({"hub": "someone/set"}, "give either files or hub"),
        ({"answer": None, "reward": None}, "data of your own need answer, reward as well"),
        ({"prompt": "Which capital?"}, "prompt names no column"),
        ({"prompt": "Which {country"}, "braces that are text"),
        ({"prompt": "Which {country!r}?"}, "must hold the name of a column, and nothing else"),
        ({"reward": "mcq"}, "choices belong to reward mcq"),
        ({"reward": "mcq", "choices": "options"}, "write {options} into it"),
        ({"reward": "regex"}, "regex needs a pattern"),
        ({"reward": "python"}, "python needs, and it alone takes, a function"),
        ({"reward": "guess"}, "reward"),
        ({"n_test": 0}, "n_test is 0; must be"),
        ({"max_prompt_tokens": 100}, "name its directory as tokenizer"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(**changes)


# --- own data -----------------------------------------------------------------------------------------------


def test_own_rows_become_a_task(tmp_path: Path) -> None:
    summary = prepared(tmp_path, CITIES, subtask="continent", system="Be brief.", licence="CC0-1.0")
    task = summary.task
    assert (task.name, task.n_train, task.n_val, task.n_test) == ("capitals", 20, 5, 5)
    assert task.data_sources == ("capitals_c0", "capitals_c1")
    row = rows_of(task.train)[0]
    assert row["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert row["prompt"][1]["content"].startswith("Which city is the capital of country ")
    assert summary.trial is not None
    assert (summary.trial.gold, summary.trial.empty, summary.trial.garbage) == (1.0, 0.0, 0.0)
    assert summary.warnings == ()


def test_subtasks_that_a_metric_s_name_cannot_hold_stay_apart(tmp_path: Path) -> None:
    subjects = ["代数", "几何", "C", "C++", "C#", "Number Theory"]
    rows = [{**row, "continent": subjects[n % 6]} for n, row in enumerate(CITIES)]
    summary = prepared(tmp_path, rows, subtask="continent")
    names = {name.removeprefix("capitals_") for name in summary.task.data_sources}
    assert len(names) == 6 and {"c", "number_theory"} < names and not summary.dropped.get("no subtask")
    assert sum(bool(re.fullmatch(r"c_[0-9a-f]{8}", name)) for name in names) == 2
    assert sum(bool(re.fullmatch(r"[0-9a-f]{8}", name)) for name in names) == 2


def test_a_second_call_finds_the_task_and_reads_nothing(tmp_path: Path) -> None:
    first = prepared(tmp_path, CITIES)
    second = prepared(tmp_path, CITIES)
    assert (first.made, second.made) == (True, False)
    assert (second.task, second.counts, second.dropped) == (first.task, first.counts, first.dropped)


def test_other_settings_or_other_rows_are_refused_in_the_same_place(tmp_path: Path) -> None:
    prepared(tmp_path, CITIES)
    with pytest.raises(TaskError, match=r"other settings: adapter.prompt is 'Which city is .*' there, 'Name"):
        prepared(tmp_path, CITIES, prompt="Name the capital of {country}.")
    with pytest.raises(TaskError, match=r"other settings: file.any.rows.jsonl is '"):
        prepared(tmp_path, CITIES[1:])


def test_several_wordings_of_an_answer_are_all_right(tmp_path: Path) -> None:
    rows = [{**row, "city": [row["city"], "the capital"]} for row in CITIES]
    task = prepared(tmp_path, rows).task
    assert json.loads(rows_of(task.val)[0]["reward_model"]["ground_truth"])["target"][1] == "the capital"


MCQ: dict[str, Any] = {"reward": "mcq", "choices": "choices", "prompt": "{country}?\n{options}"}


def mcq_rows(choices: Any, answer: Any) -> list[dict[str, Any]]:
    return [{**row, "choices": choices, "city": answer} for row in CITIES]


@pytest.mark.parametrize(
    ("choices", "answer", "form"),
    [
        (["x", "y", "z"], "B", "letter"),
        (["x", "y", "z"], "y", "text"),
        (["x", "y", "z"], 1, "index"),
        ({"b": "y", "a": "x", "c": "z"}, "b", "letter"),
        ({"A": "x", "B": None, "C": "y", "D": "z"}, "c", "letter"),
        ({"1": "x", "2": "y", "3": "z"}, "2", "letter"),
        ('["x", "y", "z"]', "B", "letter"),
    ],
)
def test_options_are_lettered_and_the_gold_becomes_a_letter(
    tmp_path: Path, choices: Any, answer: Any, form: str
) -> None:
    summary = prepared(tmp_path, mcq_rows(choices, answer), answer_form=form, **MCQ)
    row = rows_of(summary.task.val)[0]
    assert row["reward_model"]["ground_truth"] == "B"
    assert row["prompt"][0]["content"].endswith("?\nA. x\nB. y\nC. z")
    assert json.loads(row["extra_info"]["reward_options"]) == {"letters": "ABC"}
    assert summary.trial is not None and summary.trial.gold == 1.0
    assert summary.task.majority_baseline == 1.0


def test_rows_whose_gold_or_options_are_unusable_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = mcq_rows(["x", "y"], "A")
    rows[3] = {**rows[3], "city": "C"}
    rows[5] = {**rows[5], "choices": ["x", "x"]}
    rows[7] = {**rows[7], "country": ""}
    rows[9] = {**rows[9], "city": None}
    rows[11] = {**rows[11], "choices": {"A": "x", "B": None, "C": "y"}, "city": "B"}
    summary = prepared(tmp_path, rows, **MCQ)
    expected = {
        "gold not among the options": 2,
        "duplicate options": 1,
        "empty country": 1,
        "no gold answer": 1,
    }
    assert {reason: summary.dropped[reason] for reason in expected} == expected
    assert sorted(summary.examples["gold not among the options"]) == [
        f"rows.jsonl, row {row}: city is {given!r} (read as letter), the options are A, B; correct it, or "
        "answer_form"
        for row, given in ((12, "B"), (4, "C"))
    ]


def test_one_column_per_option_does_as_well(tmp_path: Path) -> None:
    rows = [{**row, "right": row["city"], "wrong": "nowhere"} for row in CITIES]
    changes = {**MCQ, "choices": ["wrong", "right"], "answer_form": "text"}
    assert rows_of(prepared(tmp_path, rows, **changes).task.val)[0]["reward_model"]["ground_truth"] == "B"


def test_a_pattern_finds_the_answer_and_travels_with_each_row(tmp_path: Path) -> None:
    task = prepared(tmp_path, CITIES, reward={"regex": {"pattern": "capital: (.*)"}}).task
    assert task.reward_module == "llmzero_ray.tasks.rewards.regex_match"
    options = json.loads(rows_of(task.val)[0]["extra_info"]["reward_options"])
    assert options == {"pattern": "capital: (.*)"}
    with pytest.raises(TaskError, match="is not a regular expression"):
        prepared(tmp_path, CITIES, reward={"regex": {"pattern": "("}})


REWARD = """
def score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right = float(solution_str.strip() == ground_truth)
    return {"score": right, "acc": right}
"""


# --- reasoning-gym ------------------------------------------------------------------------------------------


def gym(tmp_path: Path, task: str, **changes: Any) -> Summary:
    sizes = {"n_train": 40, "n_val": 10, "n_test": 10, "n_confirm": 8}
    return prepare_source(
        parse_task_file({"reasoning_gym": task, "dir": str(tmp_path / task), **sizes, **changes})
    )


@pytest.mark.parametrize("task", ["countdown", "spell_backward", "gcd", "simple_integration", "gsm_symbolic"])
def test_a_reasoning_gym_task_is_made_by_its_name_and_judged_by_its_verifier(
    tmp_path: Path, task: str
) -> None:
    summary = gym(tmp_path, task)
    assert (summary.task.n_train, summary.task.n_val, summary.task.n_test) == (40, 10, 10)
    assert summary.trial is not None
    assert (summary.trial.gold, summary.trial.empty, summary.trial.garbage) == (1.0, 0.0, 0.0)


def test_options_reach_the_generator_and_the_seed_changes_the_problems(tmp_path: Path) -> None:
    one = gym(tmp_path / "1", "chain_sum", options={"min_terms": 2, "max_terms": 2, "max_digits": 2})
    other = gym(
        tmp_path / "2", "chain_sum", options={"min_terms": 2, "max_terms": 2, "max_digits": 2}, seed=5
    )
    prompts = [{row["prompt"][0]["content"] for row in rows_of(each.task.test)} for each in (one, other)]
    assert not prompts[0] & prompts[1]
    truth = json.loads(rows_of(one.task.test)[0]["reward_model"]["ground_truth"])
    assert truth["entry"]["metadata"]["num_terms"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reasoning_gym": "chain_sums"}, r"no task is called 'chain_sums'; did you mean chain_sum"),
        ({"options": {"max_termz": 3}}, r"chain_sum refuses the options \{'max_termz': 3\}"),
        ({"options": {"seed": 3}}, r"options holds seed; use the fields seed and n_train"),
        (
            {"options": {"min_terms": 2, "max_terms": 2, "max_digits": 1}, "n_train": 5000},
            r"too few different prompts",
        ),
    ],
)
def test_what_the_generator_cannot_do_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        gym(tmp_path, "chain_sum", **changes)


def truth_of(task: str, answer: str, **metadata: Any) -> str:
    entry = {"question": "q", "answer": answer, "metadata": metadata}
    return json.dumps({"task": task, "options": {}, "entry": entry})


def test_any_solution_of_a_task_with_many_is_right_and_half_a_solution_is_not() -> None:
    truth = truth_of("countdown", "6*4", numbers=[6, 4], target=24)
    assert compute_score("x", "<answer>4 * 6</answer>", truth)["acc"] == 1.0
    assert compute_score("x", "<answer>4 + 6</answer>", truth)["acc"] == 0.0
    assert compute_score("x", "<answer>24</answer>", truth)["acc"] == 0.0
    assert compute_score("x", "4 * 6", truth)["fmt_ok"] == 0.0


def test_an_answer_that_merely_holds_the_gold_text_pays_nothing() -> None:
    truth = truth_of("spell_backward", "olleh")
    assert compute_score("x", "<answer>olleh</answer>", truth)["score"] == 1.0
    assert compute_score("x", "<answer>ollehx</answer>", truth)["score"] == 0.0


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("countdown", "9**9**9**9"),
        ("countdown", "(9**99)**99"),
        ("countdown", "9**(99)**99"),
        ("countdown", "__import__('os').getcwd()"),
        ("countdown", "x" * 10),
        ("simple_integration", "().__class__"),
        ("simple_integration", "factorial(99999)"),
        ("simple_integration", "x" * 500),
        ("n_queens", "__import__('os').getcwd()"),
        ("n_queens", "[0] * 10**10"),
    ],
)
def test_answers_that_could_run_or_explode_never_reach_a_verifier(task: str, answer: str) -> None:
    assert not is_safe(task, answer, "1")
    assert compute_score("x", f"<answer>{answer}</answer>", truth_of(task, "1"))["acc"] == 0.0


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("countdown", "(6 + 4) * 2**3 - 1/2"),
        ("simple_integration", "3*x**12/4 - x**(1/2) + C"),
        ("n_queens", "[[1, 0]]"),
    ],
)
def test_ordinary_answers_reach_the_verifier(task: str, answer: str) -> None:
    assert is_safe(task, answer, "1")


@pytest.mark.parametrize(
    "truth", [None, 3, "", "[]", "{}", '{"task": "no such", "options": {}, "entry": {"answer": null}}']
)
def test_a_ground_truth_that_says_nothing_pays_nothing(truth: Any) -> None:
    found = compute_score("x", "<answer>1</answer>", truth)
    assert (found["score"], found["acc"], sorted(found)) == (0.0, 0.0, ["acc", "fmt_ok", "pred", "score"])


def test_the_defaults_of_the_file_are_the_sizes_of_the_paper() -> None:
    task = TaskFile(reasoning_gym="gcd")
    assert (task.n_train, task.n_val, task.n_test, task.dir) == (5000, 500, 500, "data/task")
