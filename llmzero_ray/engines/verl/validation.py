"""What VeRL's trainer computes validation metrics from, taken from the answers themselves.

VeRL puts every answer into its queue, object by object, and takes it out again, which is most of a small
model's validation. Not here: asking and scoring (batched_rollouts.py), the metrics (VeRL's, trainer.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmzero_ray.engines.verl.batched_rollouts import Trajectory

_TURNS = 2
"""Of a prompt and its answer, as VeRL counts them."""


@dataclass
class ValidatedAnswers:
    """The columns of the answers that have a score, in order, as VeRL's trainer collects them."""

    data_sources: list[str] = field(default_factory=list)
    uids: list[str] = field(default_factory=list)
    infos: dict[str, list[Any]] = field(default_factory=lambda: {"reward": []})
    """Reward, and every value that a reward function gave beside it; None where it gave none."""
    turns: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def validated(samples: Sequence[Trajectory]) -> ValidatedAnswers:
    """Of the samples that have a score."""
    found = ValidatedAnswers()
    scored = [sample for sample in samples if sample.error is None and sample.score is not None]
    given = [sample.extra_fields.get("reward_extra_info") or {} for sample in scored]
    names = dict.fromkeys(name for info in given for name in info)
    for sample in scored:
        found.data_sources.append(sample.row.get("data_source", "unknown"))
        found.uids.append(sample.row["uid"])
        found.infos["reward"].append(float(np.float32(sample.score)))  # as the queue keeps it
        found.turns.append(_TURNS)
        found.texts.append(sample.text)
    found.infos |= {name: [info.get(name) for info in given] for name in names if name != "reward"}
    return found
