"""Checks that vLLM serves the trained policy: compares the actor's and a server's log-probabilities of a
fixed text, with and without the adapter.

While an adapter changes little, the log-probabilities of rollouts do not reveal that it is missing. Therefore
the server is compared with the actor's policy both with and without the adapter. The difference between the
two base models shows how much the two programs differ anyway. If a server has no values of its base model,
the nearer one of the actor's two policies decides. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TEXT = "There are 12 apples in a box. Ann takes 5 of them, and 7 are left, because 12 - 5 = 7."
MOST_TOKENS = 64

MAX_NATS = 0.1
"""Maximum mean absolute difference in nats per token, as for rollouts (config_check.MAX_ROLLOUT_KL)."""
_LEAST_NATS = 0.01
_TIMES_BASE = 10.0
"""Allowed difference of the two programs with the adapter / their difference without it."""
_SHARE = 0.01
_VISIBLE = 4.0
"""Effect of an adapter / difference of the two programs, from which the effect must be visible."""
_LEAST_SERVED = 0.5
"""Minimum visible share of a merged adapter's effect. It is checked from twice `_VISIBLE` on."""


@dataclass(frozen=True, kw_only=True)
class LogProbs:
    """Log-probabilities of the fixed text's tokens except the first, in nats."""

    policy: tuple[float, ...]
    """Values with the adapter."""
    base: tuple[float, ...] | None
    """Values without the adapter; actors always have them. A server with merged weights has them only if
    trainer.py asked for them before the first adapter arrived, otherwise None."""


def difference(actor: LogProbs, server: LogProbs, *, merged: bool = False) -> str | None:
    """Evidence that the server does not serve the actor's policy, or None if there is none.

    With `merged` weights, part of the adapter may be missing because of rounding or because tensors did not
    arrive.

    An actor with non-finite values cannot be compared; config_check.check_finite ends its phase.
    """
    if actor.base is None or not all(map(math.isfinite, actor.policy)):
        return None
    off = _distance(server.policy, actor.policy)
    off_base = _distance(server.policy, actor.base)
    limit = MAX_NATS
    if server.base is None:
        noise = min(off, off_base)
    else:
        noise = _distance(server.base, actor.base)
        if noise > MAX_NATS:
            there = f"by {noise:.3g} nats a token (at most {MAX_NATS})"
            return f"vLLM's base model differs from the actor's {there}"
        limit = min(MAX_NATS, max(_LEAST_NATS, _TIMES_BASE * noise))
    effect = _distance(actor.policy, actor.base)
    if effect > _VISIBLE * noise and off_base < off:
        return f"vLLM answers without the adapter, which changes a fixed text by {effect:.3g} nats a token"
    if merged and effect > 2 * _VISIBLE * noise and off > (1 - _LEAST_SERVED) * effect:
        return (
            f"vLLM answers with a part of the adapter: it is off by {off:.3g} nats a token of a fixed text, "
            f"which the adapter changes by {effect:.3g}"
        )
    # A collapsing policy has log-probabilities of tens of nats, with errors in proportion.
    limit = max(limit, _SHARE * _distance(actor.policy, (0.0,) * len(actor.policy)))
    return _too_far(off, limit) if off > limit else None


def summary(actor: LogProbs, server: LogProbs) -> str:
    """Mean absolute differences in nats per token: between the server's and the actor's policy, between the
    two base models, and between the actor's policy and its base model."""
    effect = math.nan if actor.base is None else _distance(actor.policy, actor.base)
    noise = math.nan if actor.base is None or server.base is None else _distance(server.base, actor.base)
    off = _distance(server.policy, actor.policy)
    return f"policy off by {off:.3g}, base model off by {noise:.3g}, effect of the adapter {effect:.3g}"


def _too_far(off: float, limit: float) -> str:
    there = f"by {off:.3g} nats a token of a fixed text (at most {limit:.3g})"
    return f"vLLM's policy differs from the actor's {there}"


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Mean absolute difference, infinite if a value is not finite."""
    found = sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)
    return found if math.isfinite(found) else math.inf
