"""Asked against acting: does a phase train with its own hyper-parameters? Pure comparison of values read
back.

Not here: the reading itself (workers.py, trainer.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from llmzero_ray.records import PhaseSpec

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"

_PER_REQUEST = (
    f"{_ROLLOUT}.temperature",
    f"{_ROLLOUT}.top_p",
    f"{_ROLLOUT}.top_k",
    "data.max_response_length",
)
"""In the order of the server's record."""

READ_AT_START = (
    f"{_ACTOR}.optim.lr",
    f"{_ACTOR}.optim.weight_decay",
    f"{_ACTOR}.optim.betas",
    f"{_ACTOR}.optim.clip_grad",
    f"{_ACTOR}.use_kl_loss",
    f"{_ACTOR}.kl_loss_coef",
    f"{_ACTOR}.kl_loss_type",
    f"{_ACTOR}.entropy_coeff",
    f"{_ACTOR}.clip_ratio",
    f"{_ACTOR}.clip_ratio_low",
    f"{_ACTOR}.clip_ratio_high",
    f"{_ACTOR}.clip_ratio_c",
    f"{_ACTOR}.loss_agg_mode",
    f"{_ACTOR}.ppo_epochs",
    f"{_ACTOR}.ppo_mini_batch_size",
    f"{_ACTOR}.optim.lr_scheduler_type",
    f"{_ACTOR}.optim.lr_warmup_steps",
    f"{_ACTOR}.optim.lr_warmup_steps_ratio",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "data.train_batch_size",
    "algorithm.norm_adv_by_std_in_grpo",
)


def expected_at_start(spec: PhaseSpec) -> dict[str, Any]:
    """What must be seen once a phase has been set up and before it trains, by VeRL key."""
    asked = spec.hyperparameters
    expected: dict[str, Any] = {key: asked[key] for key in READ_AT_START if key in asked}
    if asked.get("algorithm.use_kl_in_reward"):
        expected["algorithm.kl_ctrl.kl_coef"] = asked.get("algorithm.kl_ctrl.kl_coef")
    return expected | {
        "trainer.total_training_steps": spec.n_steps,
        "optimizer_holds_adapter": True,
        "optimizer_state_empty": True,
    }


def expected_of_rollouts(
    spec: PhaseSpec, records: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(expected, seen) of the first batch of rollouts, as vLLM received it; one record per server."""
    asked = spec.hyperparameters
    batch, n = asked.get("data.train_batch_size"), asked.get(f"{_ROLLOUT}.n")
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
        seen[f"{_ROLLOUT}.n"] = (
            n if all(c % n == 0 for c in prompts.values()) else _single(set(prompts.values()))
        )
        expected[f"{_ROLLOUT}.n"] = n
    return expected, seen


def mismatches(expected: Mapping[str, Any], seen: Mapping[str, Any]) -> list[str]:
    """One line per key whose seen value is not the expected one, or was not seen at all."""
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
    if _is_number(want) and _is_number(seen):
        return math.isclose(want, seen, rel_tol=1e-9, abs_tol=0.0)
    return bool(want == seen)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
