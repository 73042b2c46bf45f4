"""Task families that ship, one file each: procedural problems. pyproject.toml registers them."""

REWARD_MODULE = "llmzero_ray.tasks.rewards.marked_answer"
GOLD_RESPONSE = "#{answer}"
"""Shortest response that scores 1 with `REWARD_MODULE`, the reward of all shipped families."""
