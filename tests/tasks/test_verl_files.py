"""VeRL's own parquet files are taken as they are, and a reward is given what VeRL would give it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.cli.main import main
from llmzero_ray.errors import TaskError
from llmzero_ray.prepared import load_task
from llmzero_ray.prepared.gold_answers import accepted_answers
from llmzero_ray.prepared.verl_rows import read_first_rows
from tests.tasks import verl_files
from tests.tasks.builders import write_reward, write_rows
from tests.tasks.verl_files import SHAPES, TRUTHS, verl_row, verl_task, with_truth


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_the_rows_is_taken(shape: str, tmp_path: Path) -> None:
    reward = write_reward(tmp_path, verl_files.HOLDS_TRUTH)
    task = load_task(verl_task(tmp_path, SHAPES[shape], reward))
    assert (task.n_train, task.n_val, task.n_test) == (4, 4, 4)


@pytest.mark.parametrize("kind", TRUTHS)
def test_every_kind_of_truth_is_taken(kind: str, tmp_path: Path) -> None:
    reward = write_reward(tmp_path, verl_files.HOLDS_TRUTH)
    task = load_task(verl_task(tmp_path, with_truth(TRUTHS[kind]), reward))
    assert task.data_sources == ("openai/gsm8k",)


@pytest.mark.parametrize("kind", TRUTHS)
def test_a_reward_is_given_the_truth_that_verls_data_set_holds(kind: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    directory = verl_task(tmp_path / "task", with_truth(TRUTHS[kind]), {"module": "unused"})
    file = str(directory / "train.parquet")
    theirs = datasets.load_dataset("parquet", data_files=file, cache_dir=str(tmp_path))["train"]
    ours = read_first_rows(file, None)
    assert [row["reward_model"] for row in ours] == [row["reward_model"] for row in theirs]
    assert {type(row["reward_model"]["ground_truth"]) for row in ours} == {type(TRUTHS[kind](0))}


OF_VERL = {
    "countdown": (
        "paid = float(solution_str == f\"{ground_truth['target']} of {ground_truth['numbers'][0]}\")",
        None,
    ),
    "Search-R1": (
        "paid = float(any(solution_str == f'<answer>{each}</answer>' for each in ground_truth['target'])\n"
        "    and data_source == 'openai/gsm8k')",
        "<answer>{answer}</answer>",
    ),
    "integer": ("paid = float(solution_str.isdigit() and int(solution_str) == ground_truth)", "{answer}"),
}


@pytest.mark.parametrize("kind", OF_VERL)
def test_a_reward_that_reads_an_object_pays_for_a_right_answer(kind: str, tmp_path: Path) -> None:
    body, gold = OF_VERL[kind]
    reward = write_reward(tmp_path, f"{body}\nreturn {{'score': paid, 'acc': paid}}")
    with_gold = {**reward, "gold_response": gold}
    assert load_task(verl_task(tmp_path, with_truth(TRUTHS[kind]), with_gold)).n_train == 4


def test_a_reward_that_cannot_pay_for_an_object_is_refused(tmp_path: Path) -> None:
    reward = write_reward(tmp_path, "paid = float(ground_truth == '1')\nreturn {'score': paid, 'acc': paid}")
    with pytest.raises(TaskError, match=r"gives acc 0\.0 to the gold response"):
        load_task(verl_task(tmp_path, with_truth(TRUTHS["countdown"]), reward))


@pytest.mark.parametrize(
    ("kind", "module", "taken"),
    [
        ("Search-R1", "exact_match", True),
        ("integer", "math_answer", True),
        ("countdown", "exact_match", False),
        ("list of numbers", "exact_match", False),
        ("integer", "mcq", False),
        ("an object with a null", "regex_match", False),
    ],
)
def test_a_reward_that_ships_is_refused_where_it_cannot_read_the_truth(
    kind: str, module: str, taken: bool, tmp_path: Path
) -> None:
    reward = {"module": f"llmzero_ray.tasks.rewards.{module}"}
    directory = verl_task(tmp_path, with_truth(TRUTHS[kind]), reward)
    if taken:
        assert load_task(directory).n_train == 4
    else:
        with pytest.raises(TaskError, match=r"is not text, and the reward .* reads text"):
            load_task(directory)


def test_the_wordings_of_an_object_are_those_of_its_json_text() -> None:
    assert (
        accepted_answers({"target": ["a", "b"]}) == accepted_answers('{"target": ["a", "b"]}') == ("a", "b")
    )
    assert accepted_answers(3) == ("3",) and accepted_answers(True) == ("true",)
    assert accepted_answers({"numbers": [3]}) == ()


def test_categories_of_pandas_are_texts(tmp_path: Path) -> None:
    reward = write_reward(tmp_path, verl_files.HOLDS_TRUTH)
    directory = verl_task(tmp_path, SHAPES["GSM8K"], reward)
    write_rows(directory / "val.parquet", verl_files.categories([verl_row(4, "4")]))
    assert load_task(directory).n_val == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": lambda _: [{"bytes": b"x", "path": None}]}, "column images holds images"),
        ({"videos": lambda _: ["one.mp4"]}, "column videos holds videos; prompts of a search are text alone"),
        ({"prompt": lambda k: f"question {k}"}, "`llmzero draft` makes such rows of a table with texts"),
        ({"extra_info": lambda k: f'{{"index": {k}}}'}, "column extra_info must be an object, such as"),
        ({"data_source": lambda _: ...}, "lacks data_source; columns expected: data_source, prompt, reward_"),
        ({"reward_model": lambda k: {"ground_truth": str(k) if k % 2 else None}}, "ground_truth is null"),
    ],
)
def test_what_a_search_cannot_train_on_is_refused(
    changes: dict[str, Callable[[int], Any]], message: str, tmp_path: Path
) -> None:
    def row(k: int, _split: str) -> dict[str, Any]:
        return verl_row(k, str(k), **{name: of(k) for name, of in changes.items()})

    directory = verl_task(tmp_path, row, write_reward(tmp_path, verl_files.HOLDS_TRUTH))
    with pytest.raises(TaskError) as caught:
        load_task(directory)
    assert message in str(caught.value)


def test_prepare_takes_the_files_and_warns_of_questions_that_train_asks_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(k: int, _split: str) -> dict[str, Any]:
        return verl_row(k, str(k % 2), prompt=[{"role": "user", "content": f"{k}. Is it {'ab'[k % 2]}?"}])

    directory = verl_task(tmp_path / "mine", row, write_reward(tmp_path / "mine", verl_files.HOLDS_TRUTH))
    (tmp_path / "search.yaml").write_text(f"name: mine\ntask: {{dir: {directory}}}\n")
    assert main(["prepare", str(tmp_path / "search.yaml")]) == 0
    out = capsys.readouterr().out
    assert f"task mine in {directory}: 4 train, 4 val, 4 test" in out
    for split in ("val", "test"):
        assert f"4 of 4 rows of {split} are questions of train with another number" in out
    assert "(train: 4 rows, 2 different questions)" in out
