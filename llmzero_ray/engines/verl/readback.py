"""What a phase trains with, read from where it acts and held against its spec; and that it stays finite.

Not here: the comparison itself (effective.py), reading on the workers (workers.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmzero_ray.engines.verl.effective import expected_at_start, mismatches
from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.errors import EffectiveConfigError, PhaseError
from llmzero_ray.records import PhaseSpec

MAX_ROLLOUT_KL = 0.1
"""Nats between vLLM's and the actor's log-probabilities of the same tokens at the first step. Seen: 0.000 in
fp32 on the CPU; beyond this, vLLM samples from another policy than the one that is trained."""

_MUST_BE_FINITE = ("actor/grad_norm", "actor/loss", "actor/pg_loss", "critic/rewards/mean")


class NonFiniteError(PhaseError):
    """A loss, gradient or reward was NaN or infinite: VeRL skips such updates silently, we end the phase."""


def check_start(trainer: Any, spec: PhaseSpec) -> None:
    """After a phase has been set up and before it trains.

    Raises:
        EffectiveConfigError: something acts with another value than the spec's.
    """
    wanted, acting = trainer.actor_rollout_wg.adapter_digest(spec.adapter, derive_seed(spec.seed, "adapter"))[
        0
    ]
    refuse(mismatches({**expected_at_start(spec), "adapter": wanted}, {**_seen(trainer), "adapter": acting}))


def check_restored(trainer: Any, spec: PhaseSpec) -> None:
    """After a full checkpoint has been put back: the optimizer still has the spec's values.

    Raises:
        EffectiveConfigError: it has others, or no state.
    """
    refuse(mismatches({**expected_at_start(spec), "optimizer_state_empty": False}, _seen(trainer)))


def check_rollout_kl(metrics: Mapping[str, float]) -> None:
    """After the first step: vLLM sampled from the policy that is trained.

    Raises:
        EffectiveConfigError: it did not.
    """
    kl = metrics.get("rollout_corr/kl", 0.0)
    if abs(kl) > MAX_ROLLOUT_KL:
        refuse([f"vLLM's policy differs from the actor's by {kl:.3f} nats (at most {MAX_ROLLOUT_KL})"])


def check_finite(metrics: Mapping[str, float], step: int) -> None:
    """After every step.

    Raises:
        NonFiniteError: a loss, gradient norm or reward was NaN or infinite.
    """
    broken = [k for k in _MUST_BE_FINITE if k in metrics and not math.isfinite(metrics[k])]
    if broken:
        raise NonFiniteError(f"step {step}: {', '.join(f'{k} is {metrics[k]}' for k in broken)}")


def refuse(differences: list[str]) -> None:
    """Raises EffectiveConfigError when there are any."""
    if differences:
        raise EffectiveConfigError(
            f"the phase would not train with what it was asked to: {'; '.join(differences)}. "
            "Nothing was trained with it"
        )


def _seen(trainer: Any) -> dict[str, Any]:
    config = trainer.config
    seen = dict(trainer.actor_rollout_wg.read_effective()[0])
    seen["data.train_batch_size"] = trainer.train_dataloader.batch_size
    seen["trainer.total_training_steps"] = trainer.total_training_steps
    seen["algorithm.norm_adv_by_std_in_grpo"] = config.algorithm.get("norm_adv_by_std_in_grpo", True)
    # VeRL's trainer reads these from its configuration at every step and sends them along.
    for key in ("ppo_epochs", "ppo_mini_batch_size"):
        seen[f"actor_rollout_ref.actor.{key}"] = config.actor_rollout_ref.actor[key]
    if config.algorithm.use_kl_in_reward:
        seen["algorithm.kl_ctrl.kl_coef"] = trainer.kl_ctrl_in_reward.value
    return seen
