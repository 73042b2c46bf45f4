"""Try a reward on rows of its task before anything is trained with it: `RewardValidator`, the only entry.

It offers three levels. `check` takes a few rows and stops at the first fault: every task that is opened goes
through it. `accuracy` scores right, empty and meaningless answers: what `llmzero prepare` shows. `validate`
is the gate that code of the user's own, or of a language model, must pass before a task is made with it. All
of them try answers that need no thought.

Not here: the sandbox in which files are tried (../sandbox), loading a reward (../rewards/loading.py).
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
