"""Supervised fine-tuning (SFT) before a search: a base model learns the gold answers of a task.

One trainer (trainer.py, on `transformers.Trainer`) serves the job on Ray Train and the tiny models that
`prepare` makes. Importing this package loads no torch, deepspeed, ray or transformers.
"""

TRAINER_VERSION = 3
"""Version, incremented whenever the same model, examples and settings give other weights than before."""
