"""Hyper-parameters that have no effect in a configuration, each with the reason.

VeRL takes them without a word. Not here: values that it refuses (couplings.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from llmzero_ray.hyperparameters.table import (
    ADV_ESTIMATOR,
    ADV_NORM,
    ALGO_KL,
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_RATIO,
    DYNAMIC_BSZ,
    KL_LOSS_COEF,
    LOG_PROB_MICRO,
    MICRO_BATCH,
    MINI_BATCH,
    PPO_EPOCHS,
    REF_MICRO,
    TRAIN_BATCH,
    USE_KL_IN_REWARD,
    USE_KL_LOSS,
    WARMUP_RATIO,
    WARMUP_STEPS,
)
from llmzero_ray.records import Hyperparameters

_CLIPS = (CLIP_RATIO, CLIP_LOW, CLIP_HIGH, "actor_rollout_ref.actor.clip_ratio_c")
_KL_LOSS = (KL_LOSS_COEF, "actor_rollout_ref.actor.kl_loss_type")
_KL_REWARD = (
    ALGO_KL,
    "algorithm.kl_penalty",
    "algorithm.kl_ctrl.type",
    "algorithm.kl_ctrl.horizon",
    "algorithm.kl_ctrl.target_kl",
)
_ADAPTIVE = ("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl")
_PACKED = ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu",)


def clip_is_inert(full: Hyperparameters) -> bool:
    """Whether every step makes one update on its own rollouts: then ratios are 1 and nothing is ever
    clipped."""
    return full.get(MINI_BATCH) == full.get(TRAIN_BATCH) and full.get(PPO_EPOCHS, 1) == 1


def inert_keys(full: Hyperparameters) -> dict[str, str]:
    """Key -> why it has no effect in this configuration, and what gives it one."""
    return {key: why for keys, why in _inert(full) for key in keys}


def _inert(full: Hyperparameters) -> Iterator[tuple[tuple[str, ...], str]]:
    steps = full.get(WARMUP_STEPS)
    if isinstance(steps, int) and steps >= 0:
        yield (WARMUP_RATIO,), "lr_warmup_steps decides; it acts only while that is -1"
    estimator = full.get(ADV_ESTIMATOR, "grpo")
    if estimator != "grpo":
        yield (ADV_NORM,), f"only adv_estimator grpo reads it, and {estimator} is chosen"
    if full.get("algorithm.kl_ctrl.type", "fixed") == "fixed":
        yield _ADAPTIVE, "it acts only while algorithm.kl_ctrl.type is adaptive"
    if not full.get(USE_KL_IN_REWARD):
        yield _KL_REWARD, "it acts only while use_kl_in_reward is true"
    if not full.get(USE_KL_LOSS):
        yield _KL_LOSS, "it acts only while use_kl_loss is true"
    if clip_is_inert(full):
        yield (
            _CLIPS,
            "each step makes one update on its own rollouts, so that nothing is clipped: it acts only while "
            "mini_batch_size < batch_size or ppo_epochs > 1",
        )
    if full.get(DYNAMIC_BSZ):
        yield (
            (MICRO_BATCH, LOG_PROB_MICRO, REF_MICRO),
            "micro batches are packed by tokens (dynamic_bsz): max_token_len_per_gpu decides",
        )
    else:
        yield _PACKED, "it acts only while dynamic_bsz is true"
