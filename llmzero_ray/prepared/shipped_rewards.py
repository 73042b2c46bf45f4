"""What the core knows about shipped rewards: their package, and which ones read lists of answers.

Each bounds its own work and raises nothing, so it runs without a sandbox. Which one scores which row:
tasks/shipped_rewards.py.
"""

PACKAGE = "llmzero_ray.tasks.rewards"
READ_WORDINGS = tuple(
    f"{PACKAGE}.{name}" for name in ("exact_match", "math_answer", "regex_match", "papersearchqa")
)
"""Modules that read a ground truth as `gold_answers.accepted_answers` does. The others only read text."""


def is_shipped(module: str) -> bool:
    """Whether a module is one of this package's rewards."""
    return module.startswith(f"{PACKAGE}.")
