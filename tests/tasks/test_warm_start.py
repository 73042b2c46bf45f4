"""Warm starts before any training: configuration, gold responses, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from llmzero_ray.cli.main import main
from llmzero_ray.config.yaml_text import validated
from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.prepared.manifest import Manifest, RewardEntry, SplitFile, SplitFiles
from llmzero_ray.tasks.sft.config import REMOVED, SftConfig, load_sft
from llmzero_ray.tasks.sft.gold import demonstrations, gold_responses
from llmzero_ray.tasks.sft.job import open_job, result_in
from llmzero_ray.tasks.shipped_rewards import KINDS
from llmzero_ray.utils.files import FileLock
from tests.tasks.builders import REWARD, row, write_task

GOLD = {**REWARD, "gold_response": "#{answer}"}
CONFIG = {"task": "task", "output": "out", "n_steps": 4, "batch_size": 8, "micro_batch_size": 2}


def config(**changes: Any) -> SftConfig:
    return validated(SftConfig, {**CONFIG, **changes}, "warm_start.yaml")


def places(task: PreparedTask, output: Path) -> dict[str, str]:
    model = Path(task.directory).with_name("model")
    return {"task": task.directory, "model": str(model), "output": str(output)}


def test_settings_replace_dotted_keys_and_paths_become_absolute(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("{task: t, output: o, n_steps: 1, lora: {rank: 4}}")
    loaded = load_sft(path, {"lora.alpha": 9, "model": "m"})
    assert loaded.lora is not None
    assert (loaded.lora.rank, loaded.lora.alpha) == (4, 9)
    assert [loaded.task, loaded.model, loaded.output] == [str(Path(name).absolute()) for name in "tmo"]


@pytest.mark.parametrize("name", REMOVED)
def test_a_setting_that_went_is_refused_in_one_sentence_with_what_to_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    with pytest.raises(ConfigError) as refused:
        load_sft(path, {name: 1})
    assert str(refused.value) == f"w.yaml: {name} does not exist since 0.2: {REMOVED[name]}"


def test_epochs_become_steps_the_last_batch_filled_up() -> None:
    assert config(n_steps=None, n_epochs=3).steps(n_train=10) == 4  # 30 items in batches of 8


def manifest(**reward: Any) -> Manifest:
    splits = SplitFiles(**{split: SplitFile(file="x") for split in ("train", "val", "test")})
    return Manifest(name="mine", splits=splits, reward=RewardEntry(**reward))


@pytest.mark.parametrize(
    ("reward", "truth", "expected"),
    [
        ({"module": "m", "gold_response": "#{answer}"}, "7", "#7"),
        ({"module": KINDS["math"]}, "7", "\\boxed{7}"),
        ({"module": KINDS["exact_match"]}, "7", "<answer>7</answer>"),
        (
            {"module": "llmzero_ray.tasks.rewards.papersearchqa"},
            '{"target": ["a", "b"]}',
            "<answer>a</answer>",
        ),
    ],
)
def test_right_answers_are_written_as_the_task_or_its_reward_says(
    reward: dict[str, Any], truth: str, expected: str
) -> None:
    assert gold_responses(manifest(**reward))("any", truth) == expected


def test_a_task_without_a_known_form_is_refused_with_what_to_write() -> None:
    with pytest.raises(TaskError, match=r"mine: .*'<answer>\{answer\}</answer>', as reward\.gold_response"):
        gold_responses(manifest(path="own.py"))


def test_rows_without_a_gold_answer_are_left_out() -> None:
    rows = [row(0, "a", "1"), row(1, "b", "2")]
    shown = demonstrations(rows, lambda _, truth: None if truth == "2" else f"#{truth}")
    assert [(prompt[0]["content"], response) for prompt, response in shown] == [("a", "#1")]


def test_long_items_are_left_out_and_counted(untaught_task: PreparedTask, tmp_path: Path) -> None:
    train = [row(0, "short"), row(1, "as short"), row(2, "as long as the limit forbids")]
    task = write_task(tmp_path / "task", reward=GOLD, train=train)
    # Beside its text a prompt has two letters for who speaks, their colons and three marks; the response has
    # two tokens and its mark: ten in all.
    changes = {**places(untaught_task, tmp_path), "task": str(task)}
    job = open_job(config(**changes, max_length=len("question 0 of val") + 10), lambda doing: None)
    assert (len(job.train), len(job.val)) == (2, 3)
    assert job.rows["train"] == {"all": 3, "with a gold answer": 3, "used": 2}


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"batchsize": 3}, 2, "unknown key 'batchsize'; did you mean 'batch_size'?"),
        ({"lora": {"rang": 8}}, 2, "unknown key 'rang' in lora"),
        ({"batch_size": 9}, 2, "must be a multiple of workers x micro_batch_size, which is 1 x 2 = 2"),
        ({"n_epochs": 1}, 2, "n_steps and n_epochs: one of the two must be given; given: 4 and 1"),
        ({"zero_stage": 4}, 2, "zero_stage is 4; must be one of 0, 1, 2, 3"),
        ({"lr": 0}, 2, "lr is 0 (learning rate)"),
        ({"task": "/nowhere"}, 2, "task directory /nowhere does not exist"),
        ({"model": "/nowhere"}, 2, "model directory /nowhere does not exist"),
        ({"model": None}, 2, "brings no model; set model to the directory of a base model"),
        ({"max_length": 2}, 2, "256 rows, 256 with a gold answer, 0 of these within max_length, 2 tokens"),
        ({"output": "/proc/warm"}, 3, "/proc/warm: cannot be written"),
        ({"output": "/tmp/working_dir_files/out"}, 2, "inside the job's temporary copy of the files"),
    ],
    ids=str,
)
def test_wrong_input_is_one_line_and_an_exit_code(
    untaught_task: PreparedTask,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    code: int,
    said: str,
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, **places(untaught_task, tmp_path / "o"), **changes}))
    assert main(["warm-start", str(path)]) == code
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_an_output_is_empty_or_goes_on_with_the_same_settings(
    untaught_task: PreparedTask, tmp_path: Path
) -> None:
    there = places(untaught_task, tmp_path)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"holds thesis\.tex, and no warm start"):
        result_in(config(**there))
    open_job(config(**there), lambda doing: None)
    assert result_in(config(**there)) is None
    with pytest.raises(ConfigError, match=r"lora was None, now \{.*; lr was 1e-05, now 0\.1\. Choose"):
        result_in(config(**there, lr=0.1, lora={"rank": 4}))


def test_two_commands_do_not_share_an_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.yaml").write_text(f"{{task: t, output: {tmp_path}, n_steps: 1}}")
    lock = FileLock(tmp_path / ".lock")
    assert lock.acquire()
    assert main(["warm-start", str(tmp_path / "w.yaml")]) == 3
    assert "another warm start is running" in capsys.readouterr().err
    lock.release()
