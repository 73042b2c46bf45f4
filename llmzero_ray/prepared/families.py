"""The protocol of a task family: problems, a worked answer for each, and the warm start of its tiny model.

Families are entry points of the group llmzero_ray.families; those that ship are in tasks/families.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from llmzero_ray.utils.plugins import make


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One question and its only right answer, both compact text."""

    prompt: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Imitation that brings a fresh tiny model to a partial skill, in a fixed number of steps."""

    n_demonstrations: int
    """Distinct worked answers, drawn from prompts of no split."""
    n_steps: int
    batch_size: int
    """Demonstrations per step."""
    lr: float
    """Peak learning rate. It is reached after `warmup_steps` and then falls linearly to `final_lr_share` of
    the peak."""
    warmup_steps: int
    final_lr_share: float = 0.05
    """Small: with a high final rate, noise in the last steps flips greedy answers."""
    weight_decay: float = 0.01


class Family(Protocol):
    """A procedural task."""

    @property
    def name(self) -> str:
        """Its `data_source`; no slash, as it becomes part of metric names."""
        ...

    @property
    def version(self) -> int:
        """Incremented with every change of problems or demonstrations. Tasks of other versions are
        rejected."""
        ...

    @property
    def licence(self) -> str:
        """SPDX identifier of the data."""
        ...

    @property
    def warm_start(self) -> WarmStart:
        """Hyperparameters of the supervised warm start of its tiny model."""
        ...

    def problems(self, seed: int) -> Iterator[Problem]:
        """Problems number seed, seed + 1, ... The stream may repeat a prompt, and may end.

        Two streams overlap when their seeds are closer than their lengths.

        Raises:
            TaskError: a required library is not installed, or returns something unexpected.
        """
        ...

    def demonstration(self, problem: Problem, rng: random.Random) -> str:
        """A response to imitate. Not always a good one, so that RL has something left to learn."""
        ...


def family_named(name: str) -> Family:
    """The family that is registered under a name.

    Raises:
        ConfigError: no installed package registers it, or the package's cannot be loaded or made.
    """
    family: Family = make(name, field="task.family")
    return family
