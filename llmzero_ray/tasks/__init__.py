"""Tasks to train on: data splits, a reward function, and for the shipped families a tiny model.

`load_task` opens a prepared directory, `prepare.prepare` makes one, `check_model_dir` judges a model
directory. Importing this package loads no torch, transformers, pyarrow or reasoning-gym.
"""

from llmzero_ray.tasks.model_dir import check_model_dir
from llmzero_ray.tasks.prepared import PreparedTask, load_task

__all__ = ["PreparedTask", "check_model_dir", "load_task"]
