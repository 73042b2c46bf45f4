"""VeRL's synchronous trainer, made repeatable and quick on small steps: prompts named by step and place,
trajectories in one order, whatever order they finished in.

Not here: phases (trainer.py), seeds of requests (rollouts.py).
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils import tensordict_utils as tu

POLL_INTERVAL_S = 0.02
"""VeRL's replay buffer sleeps 2 s between looks, the floor of every small step, and offers no key for it."""


class DeterministicTrainer(PPOTrainerSync):
    """The same data, seeds and weights give the same numbers."""

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = POLL_INTERVAL_S
        return buffer

    def _fetch_one_gen_batch(self) -> Any:
        # VeRL names prompts by uuid4; a name made of step and place lets every later order follow from the
        # data alone.
        batch = super()._fetch_one_gen_batch()
        names = [f"s{self.global_steps:07d}x{i:05d}" for i in range(len(batch))]
        tu.assign_non_tensor_stack(batch, "uid", names)
        return batch

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Trajectories arrive as they finish; sorted, sums over the batch add in the same order every time.
        batch.reorder(sorted(range(len(batch.keys)), key=lambda i: _trajectory_order(batch.keys[i])))
        return super()._balance_batch(batch, metrics, *args, **kwargs)


def _trajectory_order(key: str) -> tuple[str, int, int]:
    uid, session, index = key.rsplit("_", 2)
    return uid, int(session), int(index)
