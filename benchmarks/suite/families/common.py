"""Parts that the families share: the odds of worked answers, and the plan of a warm start."""

from __future__ import annotations

from llmzero_ray.prepared.families import WarmStart

Mix = tuple[float, float, float]
"""Odds of a bare answer, every second intermediate result, and all of them."""


def plan_of(*, n_steps: int, batch_size: int, lr: float) -> WarmStart:
    """A warm start on 20,000 demonstrations."""
    return WarmStart(n_demonstrations=20_000, n_steps=n_steps, batch_size=batch_size, lr=lr, warmup_steps=50)
