"""What values mean together: batches that divide, lengths that fit, switches that make a coefficient act.

`complete` is the one way from "these changes" to a full configuration; `validate` refuses what VeRL would
refuse minutes later, or worse, silently read as something else. Not here: single values (values.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters.table import (
    ADAPTER,
    ALGO_KL,
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_RATIO,
    DYNAMIC_BSZ,
    KL_LOSS_COEF,
    LOG_PROB_MICRO,
    MAX_MODEL_LEN,
    MAX_PROMPT,
    MAX_RESPONSE,
    MICRO_BATCH,
    MINI_BATCH,
    REF_MICRO,
    ROLLOUT_N,
    TENSOR_PARALLEL,
    TRAIN_BATCH,
    USE_KL_IN_REWARD,
    USE_KL_LOSS,
)
from llmzero_ray.hyperparameters.values import AUTO, defaults, diff, format_value, normalize, short
from llmzero_ray.records import Hyperparameters, HyperparameterValue

MICRO_BATCHES: Mapping[str, str] = {
    MICRO_BATCH: MINI_BATCH,
    LOG_PROB_MICRO: TRAIN_BATCH,
    REF_MICRO: TRAIN_BATCH,
}
"""Micro batch (sequences per GPU) -> the batch (prompts) that it cuts up."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the slot and the task allow; None = not limited here."""

    max_model_len: int | None = None
    """Prompt + response that the rollout server has room for, tokens."""
    max_response_length: int | None = None
    """Longest response of any phase of the search, tokens."""
    n_train: int | None = None
    """Training items: a larger batch would make an epoch of zero steps."""


def complete(
    base: Hyperparameters, changes: Mapping[str, Any], *, n_gpus: int = 1, limits: Limits | None = None
) -> dict[str, HyperparameterValue]:
    """A full configuration with changes applied and validated.

    Names may be aliases. Values that hang on a changed one follow where that does no harm: `clip_ratio` moves
    both sides, the mini batch keeps the number of updates per step, micro batches become a divisor no larger
    than before, a KL coefficient above 0 switches its term on. A value named in `changes` is never touched.

    Raises:
        HyperparameterError: unknown key, wrong value, or a broken coupling.
    """
    asked = normalize(changes)
    full = {**base, **asked}
    _follow_clip(full, asked)
    _follow_kl(full, asked)
    _follow_mini_batch(full, base, asked)
    _follow_micro_batches(full, asked, n_gpus)
    validate(full, n_gpus=n_gpus, limits=limits or Limits())
    return full


def _follow_clip(full: dict[str, HyperparameterValue], asked: Hyperparameters) -> None:
    # VeRL reads clip_ratio only where low or high is null, and both default to 0.2: alone it would change
    # nothing.
    if CLIP_RATIO in asked:
        for key in (CLIP_LOW, CLIP_HIGH):
            if key not in asked:
                full[key] = asked[CLIP_RATIO]


def _follow_kl(full: dict[str, HyperparameterValue], asked: Hyperparameters) -> None:
    for coefficient, switch in ((KL_LOSS_COEF, USE_KL_LOSS), (ALGO_KL, USE_KL_IN_REWARD)):
        if switch not in asked and _number(asked.get(coefficient)) > 0:
            full[switch] = True
    if USE_KL_IN_REWARD not in asked and asked.get(ALGO_KL) == 0:
        full[USE_KL_IN_REWARD] = False


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _follow_mini_batch(
    full: dict[str, HyperparameterValue], base: Hyperparameters, asked: Hyperparameters
) -> None:
    if TRAIN_BATCH not in asked or MINI_BATCH in asked:
        return
    train, old_mini = int(_number(asked[TRAIN_BATCH])), _number(base.get(MINI_BATCH))
    updates = max(1, round(_number(base.get(TRAIN_BATCH)) / old_mini)) if old_mini else 1
    full[MINI_BATCH] = nearest_divisor(train, train / updates)


def _follow_micro_batches(full: dict[str, HyperparameterValue], asked: Hyperparameters, n_gpus: int) -> None:
    for micro in MICRO_BATCHES:
        rows, size = _rows_per_gpu(full, micro, n_gpus), full.get(micro)
        if micro not in asked and isinstance(size, int) and rows:
            full[micro] = largest_divisor(rows, size)


def _rows_per_gpu(full: Hyperparameters, micro: str, n_gpus: int) -> int:
    """Sequences of one GPU in the batch that `micro` cuts up; 0 when the batch itself does not divide."""
    rows = int(_number(full.get(MICRO_BATCHES[micro])) * _number(full.get(ROLLOUT_N)))
    return rows // n_gpus if rows % n_gpus == 0 else 0


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` (>= 1) that is <= `limit`; at least 1."""
    return next(d for d in range(max(1, min(number, limit)), 0, -1) if number % d == 0)


def nearest_divisor(number: int, target: float) -> int:
    """The divisor of `number` (>= 1) whose ratio to `target` is nearest to 1; the smaller one of two."""
    divisors = (d for d in range(1, number + 1) if number % d == 0)
    return min(divisors, key=lambda d: max(d / target, target / d))


def resolve(
    full: Hyperparameters, *, n_gpus: int = 1, micro_batch_limit: int = 16
) -> dict[str, HyperparameterValue]:
    """The configuration with each "auto" micro batch replaced by the largest divisor of its batch <= the
    limit.

    `micro_batch_limit` counts sequences per GPU. Specs keep "auto", so that a batch may change between phases
    without leaving behind a number that no longer divides it.
    """
    found = dict(full)
    for micro in MICRO_BATCHES:
        if full.get(micro) == AUTO:
            found[micro] = largest_divisor(max(1, _rows_per_gpu(full, micro, n_gpus)), micro_batch_limit)
    return found


# --- what is refused --------------------------------------------------------------------------------------


def validate(full: Hyperparameters, *, n_gpus: int = 1, limits: Limits | None = None) -> None:
    """Refuse a configuration that is incomplete, out of bounds or inconsistent.

    Raises:
        HyperparameterError: what is wrong, with the values at hand.
    """
    limits = limits or Limits()
    missing = [key for key in defaults() if key not in full]
    if missing:
        raise HyperparameterError(
            f"the configuration is not complete, it lacks {', '.join(short(k) for k in missing)}; apply "
            "changes to a full configuration (`complete(defaults(), ...)`)."
        )
    full = normalize(full)
    _check_batches(full, n_gpus)
    _check_lengths(full, limits)
    if limits.n_train is not None and _number(full[TRAIN_BATCH]) > limits.n_train:
        raise _broken(
            full, [TRAIN_BATCH], f"with {limits.n_train} training items an epoch would have no step"
        )
    if n_gpus % int(_number(full[TENSOR_PARALLEL])):
        raise _broken(full, [TENSOR_PARALLEL], f"must divide the {n_gpus} GPUs of a slot")


def _check_batches(full: Hyperparameters, n_gpus: int) -> None:
    train, mini, n = (int(_number(full[key])) for key in (TRAIN_BATCH, MINI_BATCH, ROLLOUT_N))
    if train % mini:
        raise _broken(
            full, [TRAIN_BATCH, MINI_BATCH], "the batch must be a multiple of the mini batch (prompts)"
        )
    if mini * n % n_gpus:
        why = f"mini batch x n = {mini * n} sequences must divide over {n_gpus} GPUs"
        raise _broken(full, [MINI_BATCH, ROLLOUT_N], why)
    if full[DYNAMIC_BSZ]:
        return
    for micro, batch in MICRO_BATCHES.items():
        rows = _rows_per_gpu(full, micro, n_gpus)
        if full[micro] != AUTO and rows % int(_number(full[micro])):
            why = f"must divide the {rows} sequences of one GPU; write auto to let it fit"
            raise _broken(full, [micro, batch, ROLLOUT_N], why)


def _check_lengths(full: Hyperparameters, limits: Limits) -> None:
    prompt, response = int(_number(full[MAX_PROMPT])), int(_number(full[MAX_RESPONSE]))
    room = [v for v in (limits.max_model_len, full.get(MAX_MODEL_LEN)) if isinstance(v, int)]
    if room and prompt + response > min(room):
        why = f"together {prompt + response} tokens, but the rollout server has room for {min(room)}"
        raise _broken(full, [MAX_PROMPT, MAX_RESPONSE], why)
    if limits.max_response_length is not None and response > limits.max_response_length:
        raise _broken(full, [MAX_RESPONSE], f"the search allows at most {limits.max_response_length} tokens")


def _broken(full: Hyperparameters, keys: list[str], why: str) -> HyperparameterError:
    given = ", ".join(f"{short(key)}={format_value(key, full[key])}" for key in keys)
    return HyperparameterError(f"{given}: {why}.")


def check_transition(parent: Hyperparameters, child: Hyperparameters, *, resumed: bool) -> None:
    """Refuse a child that resumes from a parent's checkpoint with another adapter shape.

    Raises:
        HyperparameterError: LoRA rank, alpha or target modules differ; a phase from the base model may change
        them.
    """
    if not resumed:
        return
    for key, (old, new) in diff(parent, child).items():
        if key in ADAPTER:
            change = f"{short(key)} changes from {format_value(key, old)} to {format_value(key, new)}"
            raise HyperparameterError(
                f"{change} at a resume: the adapter of a checkpoint keeps its shape. Keep the old value, or "
                "start from the base model."
            )
