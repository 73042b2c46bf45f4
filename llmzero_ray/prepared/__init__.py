"""A prepared task: its directory, rows, model and reward.

Importing this package loads no torch, transformers, pyarrow or reasoning-gym.
"""

from llmzero_ray.prepared.model_dir import check_model_dir
from llmzero_ray.prepared.task import PreparedTask, load_task

__all__ = ["PreparedTask", "check_model_dir", "load_task"]
