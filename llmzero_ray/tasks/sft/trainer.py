"""Supervised fine-tuning with `transformers.Trainer`: loss on response tokens, rows of a step.

The tiny models of `prepare` and the warm starts on Ray Train are trained by the same class; the latter add a
DeepSpeed configuration. Needs torch, transformers and accelerate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from llmzero_ray.tasks.sft.examples import EncodedExamples

IGNORED = -100
"""Label that transformers ignores in the loss."""


class SftTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose loss is the mean over all response tokens of a step's batch, however the batch is
    divided among micro-batches and workers (transformers counts them: `num_items_in_batch`).

    `pad` is the token id that fills up rows.
    """

    def __init__(
        self, model: Any, args: TrainingArguments, train: EncodedExamples, *, pad: int, **more: Any
    ) -> None:
        self._use_cache = getattr(model.config, "use_cache", True)
        super().__init__(
            model=model, args=args, data_collator=partial(collate, pad=pad), train_dataset=train, **more
        )
        self.remove_callback(PrinterCallback)

    def train(self, *args: Any, **named: Any) -> Any:
        """Train, and restore `use_cache` in the model's configuration, which the Trainer sets to false."""
        try:
            return super().train(*args, **named)
        finally:
            self.model.config.use_cache = self._use_cache

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        del train_dataset  # always self.train_dataset
        args = self.args
        batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        return StepSampler(
            self.train_dataset.lengths, batch_size, n_steps=args.max_steps, seed=args.data_seed or 0
        )


class StepCallback(TrainerCallback):  # type: ignore[misc]
    """Calls `on_step` after every training step with its number, counted from 1, and its loss."""

    def __init__(self, on_step: Callable[[int, float], None]) -> None:
        self._on_step = on_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Report a step."""
        del args, control
        if "loss" in logs:
            self._on_step(state.global_step, logs["loss"])


class StepSampler(Sampler[int]):  # type: ignore[misc]
    """Sampler of the rows of all steps of a training, one batch after another.

    The batches are pieces of an endless sequence of permutations of the examples: every example is drawn once
    before any is drawn again, even if a batch spans two passes. A batch only depends on the seed and the
    step, never on the number of workers. Within a batch rows are sorted by length, so that micro-batches need
    little padding.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, *, n_steps: int, seed: int) -> None:
        self._lengths, self._batch_size, self._n_steps, self._seed = lengths, batch_size, n_steps, seed

    def __len__(self) -> int:
        return self._batch_size * self._n_steps

    def __iter__(self) -> Iterator[int]:
        drawn = self._draws()
        for _ in range(self._n_steps):
            yield from sorted((next(drawn) for _ in range(self._batch_size)), key=self._lengths.__getitem__)

    def _draws(self) -> Iterator[int]:
        epoch = 0
        while True:
            yield from np.random.default_rng([self._seed, epoch]).permutation(len(self._lengths)).tolist()
            epoch += 1


def training_arguments(
    directory: Path,
    *,
    n_steps: int,
    batch_size: int,
    micro_batch_size: int,
    final_lr_share: float,
    warmup_steps: int,
    n_workers: int = 1,
    **more: Any,
) -> TrainingArguments:
    """The settings of a training of `n_steps` steps, `batch_size` examples each, all workers together.

    The learning rate rises linearly to its peak in `warmup_steps` and falls linearly to `final_lr_share` of
    it; it begins at that share too. `more` are fields of TrainingArguments.
    """
    warmup = min(warmup_steps, n_steps - 1)
    decay = {"num_decay_steps": n_steps - warmup, "decay_type": "linear", "min_lr_ratio": final_lr_share}
    return TrainingArguments(
        output_dir=str(directory),
        max_steps=n_steps,
        per_device_train_batch_size=micro_batch_size,
        gradient_accumulation_steps=batch_size // micro_batch_size // n_workers,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs=decay,
        warmup_steps=warmup,
        optim="adamw_torch",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **more,
    )


def collate(rows: Sequence[tuple[Any, int]], pad: int) -> dict[str, Any]:
    """Input ids and labels of (tokens, prompt length) pairs, of shape (rows, longest). Only responses are
    labelled.

    Padding is to the right of all scored tokens, so the causal mask alone hides it.
    """
    ids = [torch.tensor(tokens, dtype=torch.long) for tokens, _ in rows]
    labels = [held.clone() for held in ids]
    for held, (_, n_prompt) in zip(labels, rows, strict=True):
        held[:n_prompt] = IGNORED
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }
