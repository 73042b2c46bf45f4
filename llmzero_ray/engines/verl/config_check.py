"""Checks that a phase trains with the requested values: reads them back from where they take effect, and
compares them with its spec.

Values are checked after set-up, after restoring a full checkpoint, and after the first batch of rollouts. At
a phase's start and before evaluations (or after every push of weights, with `canary_every_push`), it is
checked that vLLM serves the trained policy. After every step it is checked that vLLM sampled from that
policy, and that the metrics are finite.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from llmzero_ray.engines.verl.canary import LogProbs, difference, summary
from llmzero_ray.engines.verl.seeds import derive_seed
from llmzero_ray.errors import EffectiveConfigError, NonFiniteError
from llmzero_ray.hyperparameters import is_hot
from llmzero_ray.hyperparameters.verl_keys import ALGO_KL, REF_MICRO, ROLLOUT_N, USE_KL_IN_REWARD
from llmzero_ray.records import Hyperparameters, PhaseSpec
from llmzero_ray.records.metrics import GRAD_NORM, LOSS, PG_LOSS, REWARDS
from llmzero_ray.utils.text import is_number

logger = logging.getLogger(__name__)

_ROLLOUT = "actor_rollout_ref.rollout"

_PER_REQUEST = (
    f"{_ROLLOUT}.temperature",
    f"{_ROLLOUT}.top_p",
    f"{_ROLLOUT}.top_k",
    "data.max_response_length",
)
"""Per-request keys, in the order of the server's record."""

_NOT_AT_START = frozenset({*_PER_REQUEST, ROLLOUT_N, ALGO_KL, REF_MICRO})
"""Hot keys that are not checked at the start: rollouts show them, they act only with another key, or they
have no effect (the reference is the policy without its adapter and uses the policy's micro batches)."""
_COLD = "actor_rollout_ref.actor.policy_loss.loss_mode"
"""Key that is checked at the start although it is not hot."""

MAX_ROLLOUT_KL = 0.1
"""Maximum difference in nats between vLLM's and the actor's log-probabilities of the same tokens. In fp32 on
the CPU it is 0.000. A larger difference means that vLLM samples from another policy than the trained one."""

_ROLLOUT_KL = ("rollout_corr/kl", "actor/ppo_kl")
"""Metrics to check; the first one that exists is used."""

_MUST_BE_FINITE = (GRAD_NORM, LOSS, PG_LOSS, REWARDS[1])


def check_start(trainer: Any, spec: PhaseSpec) -> None:
    """Check a phase after its set-up and before it trains.

    Raises:
        EffectiveConfigError: a value in effect differs from the spec's.
    """
    wanted, acting = trainer.actor_rollout_wg.adapter_digest(spec.adapter, derive_seed(spec.seed, "adapter"))[
        0
    ]
    expected = {**expected_at_start(spec), "adapter": wanted}
    refuse(mismatches(expected, {**_seen(trainer), "adapter": acting}))


def check_restored(trainer: Any, spec: PhaseSpec) -> None:
    """Check after restoring a full checkpoint that the optimizer has the spec's values.

    Raises:
        EffectiveConfigError: it has other values, or no state.
    """
    refuse(mismatches({**expected_at_start(spec), "optimizer_state_empty": False}, _seen(trainer)))


def check_rollout_kl(
    metrics: Mapping[str, float], asked: Hyperparameters, step: int, *, merged: bool = False
) -> None:
    """Check after every step that vLLM sampled from the trained policy.

    If VeRL uses vLLM's log-probabilities as the old ones (`bypass_mode`), it computes none of its own before
    the update. The update's own `actor/ppo_kl` is then the same quantity, provided that a step makes one
    update (overrides.py rejects others).

    With nucleus sampling, vLLM's probabilities are relative to the nucleus' mass, which is at least `top_p`,
    so the limit is wider. The mass of `top_k` tokens is unknown, so nothing is checked. Nor is step 0, the
    validation before training.

    Raises:
        EffectiveConfigError: vLLM sampled from another policy, or no metric shows from which.
    """
    if step == 0:
        return
    kl = next((metrics[name] for name in _ROLLOUT_KL if name in metrics), None)
    if kl is None:
        raise EffectiveConfigError(
            f"step {step}: VeRL reported neither {' nor '.join(_ROLLOUT_KL)}, so that nothing shows whether "
            "vLLM sampled from the policy that is trained"
        )
    top_k = asked.get(f"{_ROLLOUT}.top_k", -1)
    if isinstance(top_k, int) and top_k > 0:
        return
    top_p = asked.get(f"{_ROLLOUT}.top_p", 1.0)
    limit = MAX_ROLLOUT_KL - (math.log(top_p) if isinstance(top_p, float) and 0 < top_p < 1 else 0.0)
    if abs(kl) > limit:
        raise EffectiveConfigError(
            f"step {step}: vLLM's policy differs from the actor's by {kl:.3f} nats (at most {limit:.3g}); "
            f"its rollouts came from another policy than the one that is trained{_cure(merged)}"
        )


def check_canary(actor: LogProbs, servers: Sequence[LogProbs], *, merged: bool = False) -> None:
    """Check after a push of weights that every server serves the trained policy.

    Raises:
        EffectiveConfigError: a server does not.
    """
    for server in servers:
        logger.info("vLLM's answers after a push of weights, nats a token: %s", summary(actor, server))
        if (found := difference(actor, server, merged=merged)) is not None:
            raise EffectiveConfigError(
                f"{found}; its rollouts would come from another policy than is trained{_cure(merged)}"
            )


def _cure(merged: bool) -> str:
    if not merged:
        return ""
    return ". vLLM is given merged weights, rounded to its precision: set engine.serve_merged to false"


def check_finite(metrics: Mapping[str, float], step: int) -> None:
    """Check the metrics after every step.

    Raises:
        NonFiniteError: a loss, gradient norm or reward was NaN or infinite.
    """
    broken = [k for k in _MUST_BE_FINITE if k in metrics and not math.isfinite(metrics[k])]
    if broken:
        raise NonFiniteError(f"step {step}: {', '.join(f'{k} is {metrics[k]}' for k in broken)}")


def refuse(differences: list[str]) -> None:
    """Raise EffectiveConfigError if there are any differences."""
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
    # VeRL's trainer reads these from its configuration at every step and sends them with the batch.
    for key in ("adv_estimator", "use_kl_in_reward"):
        seen[f"algorithm.{key}"] = config.algorithm[key]
    for key in ("ppo_epochs", "ppo_mini_batch_size"):
        seen[f"actor_rollout_ref.actor.{key}"] = config.actor_rollout_ref.actor[key]
    if config.algorithm.use_kl_in_reward:
        seen[ALGO_KL] = trainer.kl_ctrl_in_reward.value
    return seen


# --- expected and seen, as plain values -------------------------------------------------------------------


def expected_at_start(spec: PhaseSpec) -> dict[str, Any]:
    """Values that must be in effect between a phase's set-up and its training, by VeRL key."""
    asked = spec.hyperparameters
    expected: dict[str, Any] = {
        key: value
        for key, value in asked.items()
        if key == _COLD or (is_hot(key) and key not in _NOT_AT_START)
    }
    if asked.get(USE_KL_IN_REWARD):
        expected[ALGO_KL] = asked.get(ALGO_KL)
    return expected | {
        "trainer.total_training_steps": spec.n_steps,
        "optimizer_holds_adapter": True,
        "optimizer_state_empty": True,
    }


def expected_of_rollouts(
    spec: PhaseSpec, records: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(expected, seen) values for the first batch of rollouts. `records` holds what each server received."""
    asked = spec.hyperparameters
    batch, n = asked.get("data.train_batch_size"), asked.get(ROLLOUT_N)
    sampling: dict[str, set[Any]] = {key: set() for key in _PER_REQUEST}
    prompts: Counter[int] = Counter()
    for record in records:
        for *values, _count in record["params"]:
            for key, value in zip(_PER_REQUEST, values, strict=True):
                sampling[key].add(value)
        for digest, count in record["prompts"]:
            prompts[digest] += count
    requests = sum(prompts.values())
    seen = {key: _single(values) for key, values in sampling.items()}
    seen |= {"requests": requests, "distinct seeds": sum(r["seeds"] for r in records)}
    expected: dict[str, Any] = {key: asked[key] for key in _PER_REQUEST if key in asked}
    expected["distinct seeds"] = requests
    if isinstance(batch, int) and isinstance(n, int):
        expected["requests"] = batch * n
        # A prompt may occur twice in a batch, so its requests are a multiple of n.
        seen[ROLLOUT_N] = n if all(c % n == 0 for c in prompts.values()) else _single(set(prompts.values()))
        expected[ROLLOUT_N] = n
    return expected, seen


def mismatches(expected: Mapping[str, Any], seen: Mapping[str, Any]) -> list[str]:
    """One line per key whose seen value is missing or differs from the expected one."""
    lines = []
    for key, want in expected.items():
        if key not in seen:
            lines.append(f"{key} asked {want!r}, not seen")
        elif not _same(want, seen[key]):
            lines.append(f"{key} asked {want!r}, acting {seen[key]!r}")
    return lines


def _single(values: set[Any]) -> Any:
    return next(iter(values)) if len(values) == 1 else sorted(values)


def _same(want: Any, seen: Any) -> bool:
    if isinstance(want, list | tuple) and isinstance(seen, list | tuple):
        return len(want) == len(seen) and all(map(_same, want, seen))
    if is_number(want) and is_number(seen):
        return math.isclose(want, seen, rel_tol=1e-9, abs_tol=0.0)
    return bool(want == seen)
