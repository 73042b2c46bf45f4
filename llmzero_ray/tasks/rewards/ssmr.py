"""Reward of SSMR-Bench: 1 for the gold letter among A to D, else 0. The ground truth is the letter.

The metric of a test set is the mean of the accuracies of its four subtasks (aggregate.py).
Source: Wang et al. 2025, arXiv 2509.04059.
"""

from __future__ import annotations

from functools import partial

from llmzero_ray.tasks.rewards.mcq import score_offered

compute_score = partial(score_offered, "ABCD")
