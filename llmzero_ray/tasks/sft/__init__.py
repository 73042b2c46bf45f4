"""Supervised fine-tuning (SFT) of the tiny models that `prepare` makes.

Importing this package loads no torch or transformers.
"""

TRAINER_VERSION = 3
"""Version, raised whenever the same model, examples and settings give other weights than before."""
