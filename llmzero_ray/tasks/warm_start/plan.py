"""The numbers of a supervised training, and the learning rate that follows from them.

Not here: the file they are read from (config.py), the training (training.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long, how much at a time, how fast."""

    n_steps: int
    batch_size: int
    """Examples per step, all workers together."""
    micro_batch_size: int
    """Examples that pass one worker's model together."""
    lr: float
    """Peak; reached after `warmup_steps`, while it falls linearly to `final_lr_share` of itself."""
    warmup_steps: int
    final_lr_share: float
    weight_decay: float
    max_grad_norm: float = 1.0
    seed: int

    def learning_rate(self, step: int) -> float:
        """Learning rate at `step` (from 1): a linear rise times a linear fall over the whole training."""
        rise = min(1.0, step / self.warmup_steps) if self.warmup_steps else 1.0
        return self.lr * rise * (1 - (1 - self.final_lr_share) * step / self.n_steps)
