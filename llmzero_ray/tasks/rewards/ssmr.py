"""Reward of SSMR-Bench: 1 for the gold letter among A to D, else 0. The ground truth is the letter."""

from __future__ import annotations

from typing import Any

from llmzero_ray.tasks.rewards.answers import Result
from llmzero_ray.tasks.rewards.mcq import score_letter

LETTERS = "ABCD"


def compute_score(
    data_source: Any,  # noqa: ARG001  VeRL passes every argument by its name
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,  # noqa: ARG001
    format_bonus: Any = 0.0,
    **_others: Any,
) -> Result:
    """Score one response; `pred` is the letter, or empty. `format_bonus` is the score of a wrong letter."""
    return score_letter(solution_str, ground_truth, LETTERS, format_bonus)
