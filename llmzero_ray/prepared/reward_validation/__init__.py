"""Validates a reward on rows of its task before any training with it. `RewardValidator` is the only entry.

It has three levels. `check` takes a few rows and stops at the first defect; it runs whenever a task is
opened. `accuracy` scores right, empty and meaningless answers for `llmzero prepare`. `validate` is the full
validation that code of a user or of a language model must pass before a task is made with it. All of them try
answers that need no thought.
"""

from llmzero_ray.prepared.reward_validation.accuracy import GoldResponse, RewardAccuracy, ScoredSample
from llmzero_ray.prepared.reward_validation.calls import result_problem
from llmzero_ray.prepared.reward_validation.full import GOLD_SHARE
from llmzero_ray.prepared.reward_validation.report import Table, ValidationReport, validation_table
from llmzero_ray.prepared.reward_validation.validator import RewardValidator

__all__ = [
    "GOLD_SHARE",
    "GoldResponse",
    "RewardAccuracy",
    "RewardValidator",
    "ScoredSample",
    "Table",
    "ValidationReport",
    "result_problem",
    "validation_table",
]
