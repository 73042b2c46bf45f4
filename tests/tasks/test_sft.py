"""Supervised training of a tiny model: tokens, rows of a step, gradients against plain torch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from llmzero_ray.tasks.sft.examples import EncodedExamples, encode
from llmzero_ray.tasks.sft.trainer import (
    IGNORED,
    SftTrainer,
    StepCallback,
    StepSampler,
    collate,
    training_arguments,
)
from llmzero_ray.tasks.tiny_model import make_model, make_tokenizer

# Prompts and responses of many lengths, so that every wrong mean shows.
EXAMPLES = EncodedExamples([([1, 2] + [5] * (i % 4), [10 + i] * (1 + i % 3) + [2]) for i in range(11)])
N_STEPS, BATCH, LR, DECAY = 3, 8, 1e-3, 0.01


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


# --- tokens


def test_a_response_begins_where_the_template_ends_and_closes_with_the_end_token() -> None:
    tokenizer = make_tokenizer()
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}]
    [(prompt, response)] = encode(tokenizer, [(messages, "#4")])
    assert tokenizer.decode(prompt) == "<|im_start|>s:S<|im_end|><|im_start|>u:q<|im_end|><|im_start|>a:"
    assert tokenizer.decode(response) == "#4<|im_end|>"


def test_padding_stands_right_and_only_responses_are_labelled() -> None:
    examples = EncodedExamples([([1, 2], [3]), ([4], [5, 6, 7])])
    batch = collate([examples[1], examples[0]], pad=0)
    assert batch["input_ids"].tolist() == [[4, 5, 6, 7], [1, 2, 3, 0]]
    assert batch["labels"].tolist() == [[IGNORED, 5, 6, 7], [IGNORED, IGNORED, 3, IGNORED]]
    assert (len(examples), examples.lengths) == (2, [3, 4])


# --- steps


def reference(max_grad_norm: float) -> tuple[list[float], list[float], dict[str, Any]]:
    """Losses, gradient norms and final weights by plain torch, one example at a time."""
    model = make_model(make_tokenizer(), seed=0)
    decayed, others = ([w for w in model.parameters() if (w.ndim > 1) is matrix] for matrix in (True, False))
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    rows = list(StepSampler(EXAMPLES.lengths, BATCH, n_steps=N_STEPS, seed=5))
    losses, norms = [], []
    for step, rate in enumerate((0.5, 1.0, 0.75)):  # a share of 0.5, one step of warm-up, two of decay
        for group in optimizer.param_groups:
            group["lr"] = LR * rate
        optimizer.zero_grad()
        batch = rows[step * BATCH : (step + 1) * BATCH]
        loss = torch.cat([token_losses(model, row) for row in batch]).mean()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, model.state_dict()


def token_losses(model: Any, row: int) -> Any:
    """Loss of each response token of an example."""
    batch = collate([EXAMPLES[row]], pad=0)
    logs = torch.log_softmax(model(input_ids=batch["input_ids"]).logits[0], dim=-1)
    labels = batch["labels"][0].tolist()
    return torch.stack([-logs[place - 1, label] for place, label in enumerate(labels) if label >= 0])


def trained(
    tmp_path: Path, *, micro_batch_size: int = 4, max_grad_norm: float = 1e9
) -> tuple[list[tuple[int, float]], SftTrainer]:
    """Reported steps with their losses, and the trainer afterwards."""
    model = make_model(make_tokenizer(), seed=0)
    steps = list[tuple[int, float]]()
    arguments = training_arguments(
        tmp_path, n_steps=N_STEPS, batch_size=BATCH, micro_batch_size=micro_batch_size, final_lr_share=0.5,
        warmup_steps=1, learning_rate=LR, weight_decay=DECAY, max_grad_norm=max_grad_norm, data_seed=5,
        use_cpu=True, save_strategy="no",
    )  # fmt: skip
    report = StepCallback(lambda step, loss: steps.append((step, loss)))
    trainer = SftTrainer(model, arguments, EXAMPLES, pad=0, callbacks=[report])
    trainer.train()
    return steps, trainer


@pytest.mark.parametrize(
    "micro_batch_size", [1, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_a_gradient_is_that_of_the_mean_loss_over_all_response_tokens(
    micro_batch_size: int, tmp_path: Path
) -> None:
    losses, norms, _ = reference(1e9)
    steps, trainer = trained(tmp_path, micro_batch_size=micro_batch_size)
    assert [step for step, _ in steps] == [1, 2, 3]
    assert [loss for _, loss in steps] == pytest.approx(losses, rel=1e-4)
    logged = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
    assert logged == pytest.approx(norms, rel=1e-3)


@pytest.mark.parametrize("max_grad_norm", [0.01, pytest.param(1e9, marks=pytest.mark.slow)])
def test_the_steps_are_those_of_plain_adamw(max_grad_norm: float, tmp_path: Path) -> None:
    losses, _, weights = reference(max_grad_norm)
    steps, trainer = trained(tmp_path, max_grad_norm=max_grad_norm)
    assert [loss for _, loss in steps] == pytest.approx(losses, rel=1e-4)
    after = trainer.model.state_dict()
    moved = torch.cat([(weights[name] - after[name]).abs().flatten() for name in weights])
    assert float(moved.mean()) < 1e-3 * LR
    assert trainer.model.config.use_cache is True
