"""A task directory is opened only when a search can rely on it; each defect has one clear message."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from llmzero_ray.dynamics.answers import Gold
from llmzero_ray.errors import TaskError
from llmzero_ray.prepared import load_task
from llmzero_ray.prepared.task import reward_words, task_facts, validation_golds
from llmzero_ray.tasks.rewards import marked_answer
from llmzero_ray.tasks.shipped_rewards import KINDS, reward_module
from tests.tasks.builders import REWARD, row, rows, write_model, write_reward, write_rows, write_task


def refusal(directory: Path) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(directory)
    return str(caught.value)


def test_three_files_and_a_two_entry_manifest_make_a_task(tmp_path: Path) -> None:
    task = load_task(write_task(tmp_path / "mine"))
    assert (task.name, task.family, task.model_path) == ("mine", None, None)
    assert (task.n_train, task.n_val, task.n_test) == (3, 3, 3)
    assert task.data_sources == ("sums",)
    assert task.val == str(tmp_path / "mine" / "val.parquet")
    assert task.reward_path == marked_answer.__file__


def test_files_reward_and_model_may_stand_elsewhere(tmp_path: Path) -> None:
    data, model = write_task(tmp_path / "data"), write_model(tmp_path / "model")
    splits = {split: {"file": str(data / f"{split}.parquet")} for split in ("train", "val", "test")}
    reward = {"path": str(tmp_path / "reward" / "my_reward.py"), "allow_unsandboxed": True}
    write_reward(tmp_path / "reward", "return {'score': 0.0, 'acc': 0.0}")
    directory = write_task(tmp_path / "task", splits=splits, reward=reward, model={"path": "../model"})
    task = load_task(directory)
    assert task.train == str(data / "train.parquet")
    assert task.reward_path == str(tmp_path / "reward" / "my_reward.py")
    assert task.reward_module is None
    assert task.model_path == str(model)


def test_all_paths_are_absolute_even_when_the_given_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    task = load_task("mine")
    assert task.directory == str(tmp_path / "mine")
    assert task.train == str(tmp_path / "mine" / "train.parquet")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('"""Pays for the answer. Not for brevity."""', "Pays for the answer."),
        ('"""Pays for\n    two lines\n\n    and no more"""', "Pays for two lines"),
        ("", ""),
    ],
)
def test_a_reward_of_ones_own_is_told_by_its_docstrings_first_sentence(
    tmp_path: Path, body: str, says: str
) -> None:
    body += "\nright = float(solution_str == ground_truth)\nreturn {'score': right, 'acc': right}"
    task = load_task(write_task(tmp_path, reward=write_reward(tmp_path, body)))
    assert reward_words(task) == {"reward_kind": "", "reward_says": says}
    Path(task.reward_path).write_text("def (")  # changed since: nothing is said, and nothing breaks
    assert reward_words(task) == {"reward_kind": "", "reward_says": ""}


def test_a_reward_that_ships_is_told_by_its_kind_and_what_it_pays_for(tmp_path: Path) -> None:
    facts = task_facts(load_task(write_task(tmp_path)))
    assert (facts["reward_name"], facts["reward_kind"]) == ("compute_score", "marked_answer")
    assert facts["reward_says"] == (
        "Reward 1 when the text after the only `#` is exactly the expected answer, else 0."
    )


@pytest.mark.parametrize(
    "module",
    sorted(
        {
            *KINDS.values(),
            *map(reward_module, ("echo", "papersearchqa", "ssmr_a", "wildsci_a")),
            *(f"llmzero_ray.tasks.rewards.{name}" for name in ("chemcot", "reasoning_gym")),
        }
    ),
)
def test_every_reward_that_ships_says_what_it_pays_for(tmp_path: Path, module: str) -> None:
    file = importlib.util.find_spec(module)
    assert file is not None and file.origin is not None
    task = load_task(write_task(tmp_path))
    said = reward_words(dataclasses.replace(task, reward_module=module, reward_path=file.origin))[
        "reward_says"
    ]
    assert said.startswith("Reward") and said.endswith(".")


# --- the directory and its manifest -------------------------------------------------------------------------


def test_a_missing_directory_says_how_to_make_it(tmp_path: Path) -> None:
    message = f"task directory {tmp_path / 'no'} does not exist; correct task.dir, name a task.family"
    assert refusal(tmp_path / "no").startswith(message)


def test_a_directory_without_a_manifest_says_what_it_holds(tmp_path: Path) -> None:
    (write_task(tmp_path) / "manifest.json").unlink()
    assert "has no manifest.json (it holds test.parquet, train.parquet, val.parquet)" in refusal(tmp_path)


def test_a_file_in_the_place_of_the_directory_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "task").write_text("")
    assert "is a file; task.dir must name a directory" in refusal(tmp_path / "task")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("reward"), "reward: is missing"),
        (lambda m: m["splits"].pop("val"), "splits.val: is missing"),
        (lambda m: m.update(lisence="MIT"), "lisence: unknown key; did you mean licence?"),
        (lambda m: m["splits"]["val"].update(sha="1"), "splits.val.sha: unknown key; did you mean sha256?"),
        (lambda m: m.update(qqqq=1), "qqqq: unknown key"),
        (lambda m: m.update(format=2), "format: must be 1"),
        (
            lambda m: m["splits"]["val"].update(rows=0),
            "splits.val.rows: must be greater than or equal to 1",
        ),
        (lambda m: m.update(reward={}), "reward: Value error, give either module or path"),
        (lambda m: m.update(reward={"module": "a", "path": "b"}), "give either module or path"),
    ],
)
def test_a_malformed_manifest_names_the_entry(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = write_task(tmp_path) / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    assert message in refusal(tmp_path)


def test_a_manifest_that_is_no_json_says_where_it_breaks(tmp_path: Path) -> None:
    (write_task(tmp_path) / "manifest.json").write_text('{"splits": ')
    assert "manifest.json is not JSON: Expecting value: line 1" in refusal(tmp_path)
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    assert "manifest.json is not JSON: maximum recursion depth" in refusal(tmp_path)


def test_several_defects_of_a_manifest_are_reported_at_once(tmp_path: Path) -> None:
    (write_task(tmp_path) / "manifest.json").write_text("{}")
    assert "splits: is missing; reward: is missing" in refusal(tmp_path)


# --- parquet ------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named_with_its_split(tmp_path: Path) -> None:
    (write_task(tmp_path) / "val.parquet").unlink()
    assert f"{tmp_path / 'val.parquet'}, the val split that the manifest names, does not exist" in refusal(
        tmp_path
    )


def test_an_empty_file_is_distinguished_from_an_empty_table(tmp_path: Path) -> None:
    directory = write_task(tmp_path)
    write_rows(directory / "test.parquet", pa.Table.from_pylist(rows("test")).slice(0, 0))
    assert "test.parquet (test) has no rows; every split needs at least one" in refusal(directory)
    (directory / "test.parquet").write_bytes(b"")
    assert "test.parquet (test) is an empty file, not parquet" in refusal(directory)


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    (write_task(tmp_path) / "train.parquet").write_text("question,answer\n1+1,2\n")
    assert "train.parquet (train) cannot be read as parquet:" in refusal(tmp_path)


def test_half_a_parquet_file_is_refused(tmp_path: Path) -> None:
    path = write_task(tmp_path) / "train.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "train.parquet (train) cannot be read as parquet:" in refusal(tmp_path)


def test_a_wrong_column_is_reported_with_those_expected_and_those_found(tmp_path: Path) -> None:
    wrong = [
        {"question": "1+1", "data_source": "sums", "reward_model": {"style": "rule", "ground_truth": "2"}}
    ]
    message = refusal(write_task(tmp_path, val=wrong))
    assert "val.parquet lacks prompt; columns expected: data_source, prompt, reward_model; found: " in message
    assert "found: question, data_source, reward_model" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_source": 3}, "column data_source must be string; it is int64."),
        ({"prompt": "1+1"}, "column prompt must be list of {role: string, content: string}; it is string."),
        ({"prompt": "1+1"}, 'A prompt is a chat: [{"role": "user", "content": "..."}].'),
        ({"prompt": [{"role": "user"}]}, "column prompt must be list of"),
        ({"reward_model": {"style": "rule", "truth": "2"}}, "must be {ground_truth: text, number,"),
        ({"reward_model": {"ground_truth": b"2"}}, "it is struct<ground_truth: binary>"),
        ({"reward_model": {"ground_truth": {"day": date(2026, 1, 1)}}}, "it is struct<ground_truth: struct<"),
        ({"images": ["one.png"]}, "column images holds images; prompts of a search are text alone"),
    ],
)
def test_a_column_of_the_wrong_type_is_reported_with_the_right_one(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    assert message in refusal(write_task(tmp_path, val=[row(0, "1+1", **change)]))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"data_source": ""}, "data_source is empty or null"),
        ({"data_source": None}, "data_source is empty or null"),
        ({"prompt": []}, "prompt is empty or null"),
        ({"prompt": [None]}, "a message of the prompt has no role or no content"),
        (
            {"prompt": [{"role": "user", "content": None}]},
            "a message of the prompt has no role or no content",
        ),
        ({"reward_model": {"style": "rule", "ground_truth": None}}, "reward_model.ground_truth is null"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_its_number(
    tmp_path: Path, bad: dict[str, Any], message: str
) -> None:
    content = [row(0, "one"), row(1, "two", **bad)]
    assert f"val.parquet (val), row 1: {message}" in refusal(write_task(tmp_path, val=content))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("train", "val", "train and in val"),
        ("train", "test", "train and in test"),
        ("val", "test", "val and in test"),
    ],
)
def test_a_prompt_in_two_splits_is_refused_with_an_example(
    tmp_path: Path, first: str, second: str, message: str
) -> None:
    shared = {first: [*rows(first), row(3, "What is 1 + 1?")], second: [row(0, "What  is 1 + 1? ")]}
    text = refusal(write_task(tmp_path, **shared))
    assert f"1 prompts stand both in {message}, e.g. row 3 of {first} is row 0 of {second}" in text


def test_the_same_words_in_another_role_are_another_prompt(tmp_path: Path) -> None:
    system = [{"role": "system", "content": "hi"}, {"role": "user", "content": "x"}]
    swapped = [{"role": "user", "content": "hi"}, {"role": "user", "content": "x"}]
    task = write_task(tmp_path, val=[row(0, "", prompt=system)], test=[row(0, "", prompt=swapped)])
    assert load_task(task).n_val == 1


def test_further_columns_and_a_larger_index_type_are_welcome(tmp_path: Path) -> None:
    content = {split: [{**line, "tokens": 3} for line in rows(split)] for split in ("train", "val", "test")}
    assert load_task(write_task(tmp_path, **content)).n_train == 3


# --- what the manifest promises -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"rows": 4}, "val.parquet (val) has 3 rows, the manifest says 4"),
        ({"sha256": "ab" * 32}, "val.parquet (val) has changed since the task was made: its sha256 is"),
    ],
)
def test_a_file_that_is_not_the_one_described_is_refused(
    tmp_path: Path, entry: dict[str, Any], message: str
) -> None:
    splits = {split: {"file": f"{split}.parquet"} for split in ("train", "val", "test")}
    splits["val"] |= entry
    assert message in refusal(write_task(tmp_path, splits=splits))


def test_data_sources_must_be_those_of_the_rows(tmp_path: Path) -> None:
    message = "the manifest says data_sources ['products'], the rows hold ['sums']"
    assert message in refusal(write_task(tmp_path, data_sources=["products"]))


# --- the reward ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"module": "no_such_module"}, "reward no_such_module cannot be imported: there is no module"),
        (
            {"path": "no_such_file.py", "allow_unsandboxed": True},
            "no_such_file.py cannot be imported: FileNotFoundError: no such file",
        ),
        ({**REWARD, "name": "score"}, "has no function 'score'; it has: compute_score, marked_text, visible"),
        ({**REWARD, "gold_response": "{answer}"}, "gives acc 0.0 to the gold response '0'; it must give 1"),
        ({"module": "sys", "name": "exit"}, "reward sys is not a file that VeRL's workers could load"),
    ],
)
def test_a_reward_that_is_not_there_or_not_right_is_refused(
    tmp_path: Path, reward: dict[str, str], message: str
) -> None:
    assert message in refusal(write_task(tmp_path, reward=reward))


RIGHT = "acc = float(solution_str == ground_truth)\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return float(solution_str == ground_truth)", "returns float; it must return a dict with score and"),
        ("return {'score': 0.0}", "returns no acc; keys expected: score and acc; found: score"),
        ("return {}", "returns no score, acc; keys expected: score and acc; found: none"),
        (f"{RIGHT}return dict(score=acc, acc=acc, reward=acc)", "returns a key named 'reward', which VeRL"),
        (f"{RIGHT}return dict(score=float('nan'), acc=acc)", "returns score = nan; it must be a finite"),
        (f"{RIGHT}return dict(score='1', acc=acc)", "returns score = '1'; it must be a finite number"),
        ("return dict(score=1.0, acc=1.0)", "gives acc 1.0 to an empty response (ground truth '0')"),
        ("return dict(score=0.0, acc=0.0)", "gives acc 0.0 to the gold response '0'; it must give 1"),
        ("return 1 / len(solution_str)", "raises ZeroDivisionError: division by zero; response ''"),
        (
            f"{RIGHT}return dict(score=acc, acc=acc, **({{'n': 1}} if acc else {{}}))",
            "returns the keys ['acc', 'n', 'score'] for a right answer and ['acc', 'score'] for none",
        ),
        (
            f"{RIGHT}return dict(score=acc, acc=acc, **({{'n': 1}} if ground_truth > '1' else {{}}))",
            "returns different keys for different rows",
        ),
    ],
)
def test_a_reward_that_misbehaves_on_a_few_rows_is_refused(tmp_path: Path, body: str, message: str) -> None:
    reward = write_reward(tmp_path, body)
    assert message in refusal(write_task(tmp_path, reward=reward))


def test_an_asynchronous_reward_that_calls_a_service_is_found_but_not_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reward(tmp_path, "raise RuntimeError('asks a service')")
    path = tmp_path / "my_reward.py"
    path.write_text("async " + path.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    reward = {"module": "my_reward", "in_place": True}
    assert load_task(write_task(tmp_path, reward=reward)).reward_path == str(path)
    with pytest.raises(TaskError, match="needs in_place: true"):
        load_task(write_task(tmp_path / "other", reward={"path": str(path), "allow_unsandboxed": True}))


def test_the_model_of_the_manifest_is_checked(tmp_path: Path) -> None:
    write_model(tmp_path / "task" / "model", "tokenizer.json")
    message = refusal(write_task(tmp_path / "task", model={"path": "model"}))
    assert f"model directory {tmp_path / 'task' / 'model'} has no tokenizer" in message


def test_gold_answers_of_the_validation_rows_stand_beside_their_questions(tmp_path: Path) -> None:
    asked = [row(0, "6 - 4?", "2"), row(1, "the capital?", '{"target": ["Rome", "Roma"]}')]
    golds = validation_golds(write_task(tmp_path, val=asked))
    assert golds[0] == Gold(prompt="6 - 4?", wordings=("2",))
    assert golds[1].wordings == ("Rome", "Roma")


@pytest.mark.parametrize("break_it", [Path.unlink, lambda file: file.write_text("no parquet")])
def test_gold_answers_that_cannot_be_read_are_none(tmp_path: Path, break_it: Callable[[Path], Any]) -> None:
    break_it(write_task(tmp_path) / "val.parquet")
    assert validation_golds(tmp_path) == {}
    assert validation_golds(tmp_path / "elsewhere") == {}
