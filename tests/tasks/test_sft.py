"""Warm starts without any training: configuration, rows of a step, gold responses, tokens, refusals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmzero_ray.config.yaml_text import validated
from llmzero_ray.errors import ConfigError, StorageError, TaskError
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.prepared.manifest import Manifest, RewardEntry, SplitFile, SplitFiles
from llmzero_ray.tasks.sft.config import SftConfig, load_sft
from llmzero_ray.tasks.sft.examples import EncodedExamples, SftExample, encode
from llmzero_ray.tasks.sft.gold import NO_GOLD, NO_RATIONALE, gold_responses, read_examples
from llmzero_ray.tasks.sft.job import IDENTITY, Job, only_one, open_job
from llmzero_ray.tasks.sft.launch import asked_and_there, n_fitting
from llmzero_ray.tasks.sft.progress import ProgressReader, ProgressWriter
from llmzero_ray.tasks.sft.trainer import IGNORED, StepSampler, collate
from llmzero_ray.tasks.shipped_rewards import GOLD_FORMS, KINDS
from llmzero_ray.tasks.tiny_model import make_tokenizer
from tests.tasks.builders import REWARD, row, write_rows, write_task

ROOT = Path(__file__).parent.parent.parent
SHIPPED = sorted((ROOT / "jobs/configs/warm_start").glob("*.yaml"))


def config(**changes: Any) -> SftConfig:
    base: dict[str, Any] = {
        "task": "task",
        "output": "out",
        "n_steps": 4,
        "batch_size": 8,
        "micro_batch_size": 2,
    }
    return validated(SftConfig, {**base, **changes}, "warm_start.yaml")


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        config(**changes)
    return str(refused.value)


# --- configuration


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_configurations_are_accepted(path: Path) -> None:
    assert load_sft(path).steps(1000) >= 1


def test_a_machine_with_gpus_and_one_without_ship() -> None:
    assert {load_sft(path).use_gpu for path in SHIPPED} == {True, False}


def test_unknown_keys_are_refused_with_a_near_one() -> None:
    assert "unknown key 'learning_rates'" in refusal(learning_rates=1)
    assert "did you mean 'zero_stage'" in refusal(zero_stages=1)
    assert "unknown key 'rang' in lora" in refusal(lora={"rang": 8})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 9}, "must be a multiple of workers x micro_batch_size, which is 1 x 2 = 2"),
        ({"workers": 8}, "which is 8 x 2 = 16"),
        ({"n_epochs": 1}, "given: 4 and 1"),
        ({"n_steps": None}, "given: neither"),
        ({"zero_stage": 4}, "zero_stage is 4; must be one of 0, 1, 2, 3"),
        ({"lr": 0}, "lr is 0 (learning rate)"),
        ({"gold_response": "answer"}, "gold_response"),
        ({"dtype": "float16"}, "dtype is 'float16'; must be one of auto, float32, bfloat16"),
    ],
)
def test_values_that_cannot_be_are_refused_with_what_can(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(**changes)


def test_settings_replace_dotted_keys_and_paths_become_absolute(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("{task: t, output: o, n_steps: 1, lora: {rank: 4}}")
    loaded = load_sft(path, {"lora.alpha": 9, "lora.targets": ["q_proj"], "model": "m"})
    assert loaded.lora is not None
    assert (loaded.lora.rank, loaded.lora.alpha, loaded.lora.targets) == (4, 9, ("q_proj",))
    assert [loaded.task, loaded.model, loaded.output] == [str(Path(name).absolute()) for name in "tmo"]


def test_epochs_become_steps_the_last_batch_filled_up() -> None:
    assert config(n_steps=None, n_epochs=3).steps(n_train=10) == 4  # 30 items in batches of 8


def test_weights_are_bfloat16_on_gpus_and_float32_on_cpus_unless_set() -> None:
    assert (config().torch_dtype, config(use_gpu=True).torch_dtype) == ("float32", "bfloat16")
    assert config(use_gpu=True, dtype="float32").torch_dtype == "float32"


# --- rows of a step


def drawn(n: int, batch_size: int, n_steps: int, seed: int = 3) -> list[int]:
    return list(StepSampler(list(range(n)), batch_size, n_steps=n_steps, seed=seed))


def test_a_pass_draws_every_row_once_across_the_borders_of_batches() -> None:
    sampler = StepSampler([0] * 21, 6, n_steps=7, seed=3)  # equal lengths: the order of the draws stays
    rows = list(sampler)
    assert len(rows) == len(sampler) == 42
    assert sorted(rows[:21]) == sorted(rows[21:]) == list(range(21))
    assert rows[:21] != rows[21:]


def test_the_rows_of_a_step_depend_on_seed_and_step_alone() -> None:
    assert drawn(50, 8, 9)[:40] == drawn(50, 8, 5)
    assert drawn(50, 8, 5) != drawn(50, 8, 5, seed=2)


def test_a_batch_larger_than_the_data_repeats_rows() -> None:
    assert Counter(drawn(3, 9, 1)) == {0: 3, 1: 3, 2: 3}


def test_rows_of_a_batch_stand_in_the_order_of_their_lengths() -> None:
    rows = drawn(100, 16, 2)
    assert rows[:16] == sorted(rows[:16])
    assert rows[16:] == sorted(rows[16:])


# --- gold responses


def manifest(**reward: Any) -> Manifest:
    splits = SplitFiles(**{split: SplitFile(file="x") for split in ("train", "val", "test")})
    return Manifest(name="mine", splits=splits, reward=RewardEntry(**reward))


@pytest.mark.parametrize(
    ("reward", "form", "expected"),
    [
        ({"module": "m", "gold_response": "#{answer}"}, None, "#7"),
        ({"module": "m", "gold_response": "#{answer}"}, "so {answer}.", "so 7."),
        ({"module": KINDS["math"]}, None, "\\boxed{7}"),
        ({"module": KINDS["exact_match"]}, None, "<answer>7</answer>"),
    ],
)
def test_right_answers_are_written_as_the_configuration_says_or_as_the_task_or_its_reward_says(
    reward: dict[str, Any], form: str | None, expected: str
) -> None:
    assert gold_responses(manifest(**reward), form)("any", "7") == expected


def test_the_forms_that_rewards_read_are_those_of_own_data() -> None:
    from llmzero_ray.tasks.sft import gold

    assert {KINDS[kind]: form for kind, form in GOLD_FORMS.items()} == gold._FORMS


def test_data_sets_write_their_own_answers() -> None:
    search = gold_responses(manifest(module="llmzero_ray.tasks.rewards.papersearchqa"), None)
    assert search("papersearchqa", '{"target": ["IL-6", "interleukin 6"]}') == "<answer>IL-6</answer>"


def test_a_task_without_a_known_form_is_refused_with_what_to_write() -> None:
    with pytest.raises(TaskError, match=r"mine: .*gold_response: '<answer>\{answer\}</answer>'"):
        gold_responses(manifest(path="own.py"), None)


def test_a_rationale_stands_before_the_answer_and_rows_without_one_are_left_out(tmp_path: Path) -> None:
    rows = [row(0, "a", "1", why="first"), row(1, "b", "2", why=" "), row(2, "c", "3", why="last")]
    write_rows(tmp_path / "x.parquet", rows)
    examples, dropped = read_examples(
        tmp_path / "x.parquet", lambda _, truth: None if truth == "3" else f"#{truth}", "why"
    )
    assert [(each.messages[0]["content"], each.response) for each in examples] == [("a", "first\n#1")]
    assert dropped == {NO_RATIONALE: 1, NO_GOLD: 1}


def test_a_rationale_may_be_a_key_of_extra_info_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "x.parquet", [row(0, "a", "1", extra_info={"index": 0, "how": "so"})])
    examples, _ = read_examples(tmp_path / "x.parquet", lambda _, truth: truth, "how")
    assert examples[0].response == "so\n1"
    with pytest.raises(
        TaskError, match=r"no rationale 'hwo'; its columns: .*; keys of extra_info: index, how"
    ):
        read_examples(tmp_path / "x.parquet", lambda _, truth: truth, "hwo")


def test_an_unknown_rationale_of_rows_without_extra_info_is_refused_too(tmp_path: Path) -> None:
    bare = {key: value for key, value in row(0, "a", "1").items() if key != "extra_info"}
    pq.write_table(pa.Table.from_pylist([bare]), tmp_path / "x.parquet")
    with pytest.raises(TaskError, match=r"no rationale 'how'.*keys of extra_info: none"):
        read_examples(tmp_path / "x.parquet", lambda _, truth: truth, "how")


# --- tokens


def test_a_response_begins_where_the_template_ends_and_closes_with_the_end_token() -> None:
    tokenizer = make_tokenizer()
    messages = ({"role": "system", "content": "S"}, {"role": "user", "content": "q"})
    [(prompt, response)] = encode(tokenizer, [SftExample(messages=messages, response="#4")])
    assert tokenizer.decode(prompt) == "<|im_start|>s:S<|im_end|><|im_start|>u:q<|im_end|><|im_start|>a:"
    assert tokenizer.decode(response) == "#4<|im_end|>"


@pytest.mark.parametrize(
    ("lacking", "word"), [("chat_template", "chat template"), ("eos_token", "end token")]
)
def test_a_tokenizer_without_template_or_end_token_is_refused(lacking: str, word: str) -> None:
    tokenizer = make_tokenizer()
    setattr(tokenizer, lacking, None)
    with pytest.raises(TaskError, match=f"has no {word}"):
        encode(tokenizer, [SftExample(messages=({"role": "user", "content": "q"},), response="#4")])


def test_padding_stands_right_and_only_responses_are_labelled(tmp_path: Path) -> None:
    examples = EncodedExamples.of([([1, 2], [3]), ([4], [5, 6, 7])])
    examples.save(tmp_path / "e.parquet")
    again = EncodedExamples.load(tmp_path / "e.parquet")
    batch = collate([again[1], again[0]], pad=0)
    assert batch["input_ids"].tolist() == [[4, 5, 6, 7], [1, 2, 3, 0]]
    assert batch["labels"].tolist() == [[IGNORED, 5, 6, 7], [IGNORED, IGNORED, 3, IGNORED]]
    assert (len(again), again.lengths) == (2, [3, 4])


# --- progress


def test_a_reader_gives_whole_lines_that_were_written_after_it_was_made(tmp_path: Path) -> None:
    ProgressWriter(tmp_path).write({"step": 1})
    reader = ProgressReader(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n{"step"')
    assert list(reader.read()) == [{"step": 2}]
    ProgressWriter(tmp_path).write({"step": 3})  # another process, after the first was killed inside a line
    assert list(reader.read()) == [{"step": 3}]


# --- jobs


def job_config(task: PreparedTask, output: Path, **changes: Any) -> SftConfig:
    return config(task=task.directory, output=str(output), **changes)


def opened(task: PreparedTask, output: Path, **changes: Any) -> Job:
    return _open(job_config(task, output, **changes))


def _open(settings: SftConfig) -> Job:
    with only_one(Path(settings.output)):
        return open_job(settings, lambda doing: None)


def test_long_items_are_left_out_and_counted(echo_task: PreparedTask, tmp_path: Path) -> None:
    train = [row(0, "short"), row(1, "as short"), row(2, "as long as the limit forbids")]
    task = write_task(tmp_path / "task", reward={**REWARD, "gold_response": "#{answer}"}, train=train)
    places = {"task": str(task), "model": echo_task.model_path, "output": str(tmp_path / "out")}
    # Beside its text a prompt has two letters for who speaks, their colons and three marks; the response has
    # two tokens and its mark: ten in all.
    job = _open(config(**places, max_length=len("question 0 of val") + 10))
    assert (job.n_train, job.n_val) == (2, 3)
    assert {split: dict(reasons) for split, reasons in job.dropped.items()} == {
        "train": {"too long": 1},
        "val": {},
    }


def test_a_limit_below_every_item_is_refused(echo_task: PreparedTask, tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"\(train\) can be learnt: 64 too long; the longest has \d+ tokens, max"
    ):
        opened(echo_task, tmp_path, max_length=2)


def test_no_more_than_n_val_items_are_measured(echo_task: PreparedTask, tmp_path: Path) -> None:
    assert opened(echo_task, tmp_path, n_val=5).n_val == 5


def test_an_output_goes_on_with_the_same_settings_and_with_other_cadence(
    echo_task: PreparedTask, tmp_path: Path
) -> None:
    opened(echo_task, tmp_path)
    assert opened(echo_task, tmp_path, checkpoint_every=7, max_failures=0).result is None


def test_an_output_of_other_settings_is_refused_with_both_values(
    echo_task: PreparedTask, tmp_path: Path
) -> None:
    opened(echo_task, tmp_path)
    with pytest.raises(ConfigError, match=r"lr was 1e-05, now 0\.1\. Choose"):
        opened(echo_task, tmp_path, lr=0.1)
    with pytest.raises(ConfigError, match=r"lora\.rank was None, now 4"):
        opened(echo_task, tmp_path, lora={"rank": 4})


def test_another_model_under_the_same_path_is_noticed(echo_task: PreparedTask, tmp_path: Path) -> None:
    opened(echo_task, tmp_path)
    found = json.loads((tmp_path / IDENTITY).read_text())
    (tmp_path / IDENTITY).write_text(json.dumps({**found, "sha256 of the model": "0"}))
    with pytest.raises(ConfigError, match="sha256 of the model was '0'"):
        opened(echo_task, tmp_path)


def test_a_directory_with_something_else_is_refused(echo_task: PreparedTask, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"holds thesis\.tex, and no warm start"):
        opened(echo_task, tmp_path)


def test_two_commands_do_not_share_an_output(tmp_path: Path) -> None:
    with (
        only_one(tmp_path),
        pytest.raises(StorageError, match="another warm start is at work"),
        only_one(tmp_path),
    ):
        pass


def test_an_output_that_cannot_be_made_is_a_storage_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"), only_one(tmp_path / "file" / "out"):
        pass


def test_a_task_that_brings_no_model_needs_one_named(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", reward={**REWARD, "gold_response": "#{answer}"})
    with pytest.raises(ConfigError, match=r"model is null and the task in .* brings no model"):
        _open(config(task=str(task), output=str(tmp_path / "out")))
    with pytest.raises(TaskError, match=r"model directory .*nowhere does not exist"):
        _open(config(task=str(task), model=str(tmp_path / "nowhere"), output=str(tmp_path / "out")))


# --- hardware


def test_workers_are_counted_by_machine() -> None:
    machines = [{"CPU": 5.0, "GPU": 1.0}, {"CPU": 2.0, "GPU": 8.0}, {"CPU": 8.0}]
    assert n_fitting(config(cpus_per_worker=2), machines) == 2 + 1 + 4
    assert n_fitting(config(cpus_per_worker=2, use_gpu=True), machines) == 1 + 1


def test_a_cluster_that_is_too_small_is_not_one_that_is_busy() -> None:
    two = config(workers=2, start_timeout_s=5)
    small = asked_and_there(two, [{"CPU": 1.0}])
    assert "2 worker(s) with 1 CPU each, which is more than there is. Machines: 1 CPU, 0 GPU" in small
    assert "not free together within 5 s" in asked_and_there(two, [{"CPU": 2.0}])
