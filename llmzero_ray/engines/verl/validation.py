"""Inputs of VeRL's validation metrics, taken directly from the answers.

VeRL would put every answer into its queue, object by object, and take it out again, which is most of a small
model's validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmzero_ray.engines.verl.batched_rollouts import Trajectory

_TURNS = 2
"""Turns of a prompt and its answer, as VeRL counts them."""


@dataclass
class ValidatedAnswers:
    """Columns of the scored answers, in order, as VeRL's trainer collects them."""

    data_sources: list[str] = field(default_factory=list)
    uids: list[str] = field(default_factory=list)
    infos: dict[str, list[Any]] = field(default_factory=lambda: {"reward": []})
    """Reward, and every further value of a reward function. None if it gave none."""
    turns: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def validated(samples: Sequence[Trajectory]) -> ValidatedAnswers:
    """Validated answers of the samples that have a score."""
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
