"""Reward of WildSci: 1 for the gold letter among A to J, else 0. The ground truth is the letter."""

from __future__ import annotations

from functools import partial

from llmzero_ray.tasks.rewards.mcq import score_offered

compute_score = partial(score_offered, "ABCDEFGHIJ")
