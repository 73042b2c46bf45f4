"""Validates a reward on rows of its task before any training with it.

`check_reward` takes a few rows and stops at the first defect; it runs whenever a task is opened.
`measure_accuracy` scores right, empty and meaningless answers for `llmzero prepare`. `validate_reward` is the
full validation that code of a user or of a language model must pass before a task is made with it. All of
them try answers that need no thought. A reward that ships runs in this process, others in a sandbox. `rows`
are rows of the task in VeRL's schema.
"""

from llmzero_ray.prepared.reward_validation.accuracy import (
    GoldResponse,
    RewardAccuracy,
    ScoredSample,
    measure_accuracy,
)
from llmzero_ray.prepared.reward_validation.calls import result_problem
from llmzero_ray.prepared.reward_validation.full import GOLD_SHARE, validate_reward
from llmzero_ray.prepared.reward_validation.opened import check_reward
from llmzero_ray.prepared.reward_validation.report import Table, validation_table

__all__ = [
    "GOLD_SHARE",
    "GoldResponse",
    "RewardAccuracy",
    "ScoredSample",
    "Table",
    "check_reward",
    "measure_accuracy",
    "result_problem",
    "validate_reward",
    "validation_table",
]
