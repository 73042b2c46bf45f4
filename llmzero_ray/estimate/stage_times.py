"""Seconds that rollouts, updates and validations of a phase take on GPUs, and time limits based on them.

They are computed from the model's shape, for the slowest GPU of the given memory, with every answer at its
cap. Limits are for phases that hang, so they are well above what any phase needs. Not here: what happens when
a limit is exceeded (actors/monitor.py, actors/executor.py), hours of a whole search (search_time.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmzero_ray.estimate.model_shape import ModelShape
from llmzero_ray.estimate.setup import Setup
from llmzero_ray.estimate.stages import cache_bytes, cache_per_token
from llmzero_ray.utils.text import GIB

LEAST_S = 600.0
"""Lower bound of every time limit, in seconds. Enough for any stage of a small model."""
UNKNOWN_S = 3600.0
"""Time limit on GPUs for models of unknown shape, in seconds."""
_MARGIN = 2.0
"""Limit as a multiple of the estimated seconds."""
_CARDS = (
    # below GiB, FLOP/s of bf16, bytes/s read while decoding
    (30.0, 70e12, 0.3e12),  # A10G and L4, the slower of the two for each figure
    (42.0, 312e12, 1.3e12),  # A100 40 GB
    (60.0, 150e12, 0.6e12),  # A40, A6000
    (100.0, 312e12, 1.3e12),  # A100 80 GB; H100, which is faster, has the same memory
    (math.inf, 900e12, 3.9e12),  # H200
)
_BUSY = 0.3
"""Share of a GPU's FLOP/s that training reaches."""
_TAIL = 1.3
"""Factor on decoding for waiting for the longest answer."""
_DECODING = 1.6
"""Factor for decoding with an adapter's kernels, which merged weights do not need."""


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Estimated seconds of one pass through each stage."""

    rollout_s: float
    update_s: float
    """Seconds of an update, including old and reference log-probs."""
    validation_s: float

    @property
    def longest_s(self) -> float:
        """Seconds of the longest stage."""
        return max(self.rollout_s, self.update_s, self.validation_s)


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Limits of one phase, in seconds."""

    hang_s: float
    """Seconds that one stage may last without a sign of progress."""
    stop_s: float
    """Seconds from the request of a stop to the end of the phase."""


def stage_times(
    shape: ModelShape,
    setup: Setup,
    hyperparameters: Mapping[str, Any],
    *,
    rows: int,
    eval_response: int,
    response: int | None = None,
) -> StageTimes:
    """Seconds of a phase's stages if `rows` are validated with answers of `eval_response` tokens.

    `hyperparameters` must be complete. `response` is the mean number of tokens of an answer in rollouts; if
    None, all answers reach their cap.
    """
    length = setup.response if response is None else response
    n_rollouts = int(hyperparameters["data.train_batch_size"])
    n_rollouts *= int(hyperparameters["actor_rollout_ref.rollout.n"])
    forwards = 1 + bool(hyperparameters.get("actor_rollout_ref.actor.use_kl_loss"))
    # With frozen weights: a forward pass, its recomputation for the activations, and a backward pass through
    # it.
    passes = forwards + 3 * int(hyperparameters.get("actor_rollout_ref.actor.ppo_epochs") or 1)
    flops, _ = _speed(setup)
    tokens = n_rollouts * (setup.prompt + length) / setup.n_gpus
    return StageTimes(
        rollout_s=_decoding_s(shape, setup, n_rollouts, length),
        update_s=passes * tokens * _forward_flops(shape, setup.prompt + length) / (flops * _BUSY),
        validation_s=_decoding_s(shape, setup, rows, eval_response),
    )


def _speed(setup: Setup) -> tuple[float, float]:
    return next((flops, read) for below, flops, read in _CARDS if setup.gpu_bytes < below * GIB)


def _forward_flops(shape: ModelShape, length: int) -> float:
    """FLOPs per token of a forward pass over a sequence of this length: for the weights, and for attention to
    half of the sequence on average."""
    return 2 * shape.parameters + 4 * shape.layers * shape.queries * length / 2


def _decoding_s(shape: ModelShape, setup: Setup, n_answers: int, length: int) -> float:
    """Seconds to sample `n_answers` answers of `length` tokens. Every decoding step reads the weights and the
    KV cache of the running sequences; the cache limits their number."""
    _, read = _speed(setup)
    servers = max(1, setup.n_gpus // setup.tensor_parallel)
    on_one = math.ceil(n_answers / servers)
    per_token = cache_per_token(shape, setup)
    held = cache_bytes(shape, setup).likely / (per_token * (setup.prompt + length))
    at_once = max(1, min(on_one, setup.max_num_seqs, int(held)))
    weights = 2 * shape.parameters / setup.tensor_parallel
    cached = at_once * per_token * (setup.prompt + length / 2)
    factor = _TAIL if setup.serves_merged else _DECODING
    return math.ceil(on_one / at_once) * length * (weights + cached) / read * factor


def limits_of(times: StageTimes | None) -> TimeLimits:
    """Time limits: twice the seconds of the longest stage, and of a rollout with its update, but at least
    `LEAST_S` each."""
    if times is None:
        return TimeLimits(hang_s=UNKNOWN_S, stop_s=UNKNOWN_S)
    return TimeLimits(hang_s=_limit(times.longest_s), stop_s=_limit(times.rollout_s + times.update_s))


def _limit(estimated_s: float) -> float:
    return max(LEAST_S, float(math.ceil(_MARGIN * estimated_s)))
