"""The tiny model is a whole model to those who load it, and its warm start is repeatable."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared import PreparedTask, check_model_dir
from llmzero_ray.prepared.families import Problem, WarmStart
from llmzero_ray.tasks.greedy_accuracy import generate, greedy_accuracy
from llmzero_ray.tasks.model_process import ModelRequest, make_model_in_process
from llmzero_ray.tasks.rewards.marked_answer import compute_score
from llmzero_ray.tasks.tiny_model import chat_prompt, make_model, make_tokenizer

PLAN = WarmStart(n_demonstrations=3, n_steps=1, batch_size=2, lr=0.5, warmup_steps=2)
PAIRS = [("say 1", "#1"), ("say 23", "2,3#3"), ("say 4", "#4")]


@pytest.fixture(scope="session")
def tokenizer(echo_task: PreparedTask) -> Any:
    return AutoTokenizer.from_pretrained(echo_task.model_path)


@pytest.fixture(scope="session")
def model(echo_task: PreparedTask) -> Any:
    return AutoModelForCausalLM.from_pretrained(echo_task.model_path)


def test_the_saved_model_is_a_base_model_in_the_eyes_of_the_search(echo_task: PreparedTask) -> None:
    assert echo_task.model_path is not None
    check_model_dir(echo_task.model_path)


def test_the_model_has_as_many_tokens_as_its_tokenizer(
    model: Any, tokenizer: Any, echo_task: PreparedTask
) -> None:
    assert model.config.vocab_size == len(tokenizer) == 100
    assert sum(weights.numel() for weights in model.parameters()) == echo_task.model_params == 616_512
    assert model.dtype is torch.float32


def test_generation_ends_at_the_end_mark(tokenizer: Any, echo_task: PreparedTask) -> None:
    settings = GenerationConfig.from_pretrained(echo_task.model_path)
    assert settings.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id
    assert settings.pad_token_id == tokenizer.pad_token_id == 0


def test_any_user_may_read_the_saved_files(echo_task: PreparedTask) -> None:
    modes = {path.stat().st_mode & 0o777 for path in Path(str(echo_task.model_path)).iterdir()}
    assert modes == {Path(echo_task.train).stat().st_mode & 0o777}


def test_the_chat_template_marks_who_speaks(tokenizer: Any) -> None:
    text = chat_prompt(tokenizer, "say 7")
    assert text == "<|im_start|>u:say 7<|im_end|><|im_start|>a:"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == "u:say 7a:"


def test_printable_text_survives_the_tokenizer_and_other_characters_become_unknown(tokenizer: Any) -> None:
    printable = "".join(chr(code) for code in range(32, 127)) + "\n"
    ids = tokenizer(printable, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(printable)
    assert tokenizer.decode(ids) == printable
    assert tokenizer("é", add_special_tokens=False)["input_ids"] == [tokenizer.unk_token_id]


def test_sampling_finds_far_more_answers_than_the_greedy_model(
    echo_task: PreparedTask, tokenizer: Any
) -> None:
    rows = pq.ParquetFile(echo_task.val).read().to_pylist()[:64]
    problems = [
        Problem(prompt=row["prompt"][0]["content"], answer=row["reward_model"]["ground_truth"])
        for row in rows
    ]
    model = AutoModelForCausalLM.from_pretrained(echo_task.model_path)
    max_new_tokens = echo_task.max_answer_tokens or 0
    greedy = greedy_accuracy(model, tokenizer, problems, max_new_tokens)
    assert greedy == pytest.approx(echo_task.greedy_val_accuracy, abs=1 / 64)
    repeated = [problem for problem in problems for _ in range(8)]
    torch.manual_seed(0)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0}
    prompts = [problem.prompt for problem in repeated]
    responses = generate(model, tokenizer, prompts, max_new_tokens, **sampling)
    right = [
        compute_score("", response, problem.answer)["acc"] == 1.0
        for problem, response in zip(repeated, responses, strict=True)
    ]
    groups = [right[start : start + 8] for start in range(0, len(right), 8)]
    assert sum(map(any, groups)) / len(groups) >= greedy + 0.25
    assert sum(any(group) and not all(group) for group in groups) / len(groups) >= 0.5


def test_making_a_model_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3).tolist()
    torch.manual_seed(7)
    make_model(make_tokenizer(), seed=1)
    assert torch.rand(3).tolist() == expected


def request(directory: Path, **changes: Any) -> ModelRequest:
    body: dict[str, Any] = {
        "directory": str(directory),
        "seed": 0,
        "warm_start": PLAN,
        "demonstrations": tuple(PAIRS),
        "problems": (Problem(prompt="say 1", answer="1"),),
        "prompts": ("say 1", "say 23"),
    }
    return ModelRequest(**{**body, **changes})


def hear_nothing(step: int, loss: float) -> None:
    """Progress is not what these tests are about."""


def test_a_warm_start_that_dies_tells_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('out of luck')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        TaskError, match=r"(?s)ended with code 1 .* its last words: .*RuntimeError: out of luck"
    ):
        make_model_in_process(request(tmp_path / "model"), hear_nothing)


@pytest.mark.slow
def test_a_model_that_does_not_fit_the_disk_is_a_storage_problem(tmp_path: Path) -> None:
    # The limit is inherited by the process that writes; the weights take 2.5 MB.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            make_model_in_process(request(tmp_path / "model"), hear_nothing)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
