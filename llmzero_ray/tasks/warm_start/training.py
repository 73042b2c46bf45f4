"""Supervised training with DeepSpeed, the same on one CPU and on many GPUs: batch, loss, step.

Every worker calls these functions with the same arguments but its own rank; the process group must exist.
Needs torch and deepspeed, imported when called. Not here: the engine (engine.py), checkpoints
(checkpoints.py), Ray (course.py is called by it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from llmzero_ray.tasks.warm_start.examples import IGNORED, Examples
from llmzero_ray.tasks.warm_start.plan import Plan
from llmzero_ray.tasks.warm_start.sampling import even_shares, shares, step_rows

VERSION = 2
"""Raised whenever the same model, examples and plan come to give other weights."""

AfterStep: TypeAlias = Callable[[int, float], None]
"""Hears, on every worker, each step (from 1) and its mean loss per response token."""


def train(
    engine: Any,
    examples: Examples,
    plan: Plan,
    *,
    pad: int,
    rank: int = 0,
    n_workers: int = 1,
    done: int = 0,
    after_step: AfterStep,
) -> None:
    """Train the engine's model, after `done` steps of the plan, to the plan's end.

    A step's gradient is that of the mean loss over all response tokens of its batch, however the batch is
    divided among micro-batches and workers. The rows of a step, and the random state of its passes, depend
    on seed and step alone: a training that goes on from a checkpoint is the one that was interrupted.
    """
    import torch

    lengths = examples.lengths
    engine.train()
    for step in range(done + 1, plan.n_steps + 1):
        rows = step_rows(len(examples), plan.batch_size, plan.seed, step)
        mine = shares(rows, lengths, n_workers, plan.micro_batch_size)[rank]
        n_scored = examples.n_scored(rows)
        torch.manual_seed(int(np.random.SeedSequence([plan.seed, step, rank]).generate_state(1)[0]))
        for group in engine.optimizer.param_groups:
            group["lr"] = plan.learning_rate(step)
        total = 0.0
        for micro in mine:
            loss = response_loss(engine, *examples.padded(micro, pad)) / n_scored
            # DeepSpeed averages the workers' gradients; the loss is divided by all tokens already.
            engine.backward(loss * n_workers, scale_wrt_gas=False)
            engine.step()
            total += float(loss.detach())
        after_step(step, _summed(engine, [total])[0])


def mean_loss(
    engine: Any,
    examples: Examples,
    *,
    pad: int,
    micro_batch_size: int,
    rank: int = 0,
    n_workers: int = 1,
) -> float:
    """Mean loss per response token over all examples, without training; the same on every worker."""
    import torch

    engine.eval()
    total = 0.0
    with torch.no_grad():
        for micro in even_shares(len(examples), n_workers, micro_batch_size)[rank]:
            inputs, labels = examples.padded(micro or [0], pad)
            if not micro:
                labels.fill_(IGNORED)
            total += float(response_loss(engine, inputs, labels))
    return _summed(engine, [total])[0] / examples.n_scored(range(len(examples)))


def response_loss(engine: Any, inputs: Any, labels: Any) -> Any:
    """Sum of the losses of labelled tokens, as a float32 scalar.

    Padding stands right of everything that is scored, so the causal mask alone hides it.
    """
    from torch.nn.functional import cross_entropy

    device = engine.device
    logits = engine(input_ids=inputs.to(device), use_cache=False).logits[:, :-1]
    return cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(),
        labels[:, 1:].reshape(-1).to(device),
        ignore_index=IGNORED,
        reduction="sum",
    )


def _summed(engine: Any, values: Sequence[float]) -> list[float]:
    """Each value, added up over the workers."""
    import torch
    import torch.distributed as dist

    held = torch.tensor(values, dtype=torch.float64, device=engine.device)
    dist.all_reduce(held)
    return [float(value) for value in held]
