"""Reward of WildSci: 1 for the gold letter among A to J, else 0. The ground truth is the letter.

The metric of a test set is the mean of the accuracies of its nine disciplines (aggregate.py).
Source: Liu et al. 2026, arXiv 2601.05567.
"""

from __future__ import annotations

from functools import partial

from llmzero_ray.tasks.rewards.mcq import score_offered

compute_score = partial(score_offered, "ABCDEFGHIJ")
