"""The tiny model is a whole model to those who load it, and its warm start is repeatable."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks import PreparedTask, check_model_dir, load_task
from llmzero_ray.tasks.families import Problem, WarmStart
from llmzero_ray.tasks.model_process import ModelRequest, make_model_in_process
from llmzero_ray.tasks.quality import measure_task
from llmzero_ray.tasks.tiny_model import chat_prompt, make_model, make_tokenizer
from llmzero_ray.tasks.warm_start import learning_rate, teach
from tests.tasks.builders import write_task

PLAN = WarmStart(n_demonstrations=3, n_steps=3, batch_size=70, lr=0.5, warmup_steps=2, final_lr_share=0.1)
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


def test_sampling_finds_far_more_answers_than_the_greedy_model(echo_task: PreparedTask) -> None:
    found = measure_task(echo_task, n_items=64)
    assert found.greedy == pytest.approx(echo_task.greedy_val_accuracy, abs=1 / 64)
    assert found.any_of_samples >= found.greedy + 0.25
    assert found.mixed >= 0.5


def test_a_task_without_a_model_has_no_quality(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no model of its own to measure"):
        measure_task(load_task(write_task(tmp_path)))


def test_making_a_model_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3).tolist()
    torch.manual_seed(7)
    make_model(make_tokenizer(), seed=1)
    assert torch.rand(3).tolist() == expected


def test_the_learning_rate_rises_then_falls_to_its_share() -> None:
    # rise 1/2, 1, 1; fall 1 - 0.9 * step / 3
    assert [learning_rate(PLAN, step) for step in (1, 2, 3)] == pytest.approx(
        [0.5 * 0.5 * 0.7, 0.5 * 0.4, 0.5 * 0.1]
    )


def taught(
    pairs: list[tuple[str, str]], plan: WarmStart, seed: int = 0
) -> tuple[Mapping[str, Any], list[float]]:
    tokenizer, losses = make_tokenizer(), []
    model = make_model(tokenizer, seed)
    teach(model, tokenizer, pairs, plan, seed, lambda step, loss: losses.append(loss))
    return model.state_dict(), losses


def test_the_same_warm_start_gives_the_same_weights() -> None:
    plan = replace(PLAN, lr=1e-3)
    (one, losses), (other, again) = taught(PAIRS, plan), taught(PAIRS, plan)
    assert losses == again
    assert all(torch.equal(one[name], other[name]) for name in one)
    different, _ = taught(PAIRS, plan, seed=1)
    assert not torch.equal(one["model.norm.weight"], different["model.norm.weight"])


def test_the_loss_is_the_mean_over_response_tokens_however_a_batch_is_cut() -> None:
    # Without a learning rate every step sees the same model; 70 pairs are cut into parts of different length.
    still = replace(PLAN, lr=0.0, n_steps=1)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 0)
    losses: list[float] = []
    teach(model, tokenizer, [PAIRS[1]], still, 0, lambda step, loss: losses.append(loss))
    prompt = chat_prompt(tokenizer, PAIRS[1][0])
    ids = tokenizer(prompt + PAIRS[1][1] + "<|im_end|>", add_special_tokens=False, return_tensors="pt")[
        "input_ids"
    ]
    start = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    log_probabilities = torch.log_softmax(model(ids).logits[0, start - 1 : -1], dim=-1)
    expected = -log_probabilities.gather(1, ids[0, start:, None]).mean().item()
    assert losses == [pytest.approx(expected, rel=1e-5)]


def request(directory: Path, **changes: Any) -> ModelRequest:
    body: dict[str, Any] = {
        "directory": str(directory),
        "seed": 0,
        "warm_start": replace(PLAN, batch_size=2, n_steps=1),
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


def test_a_model_that_does_not_fit_the_disk_is_a_storage_problem(tmp_path: Path) -> None:
    # The limit is inherited by the process that writes; the weights take 2.5 MB.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            make_model_in_process(request(tmp_path / "model"), hear_nothing)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
