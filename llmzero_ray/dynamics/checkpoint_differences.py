"""Paired differences between the checkpoints that a proposer may resume, from stored outcomes."""

from __future__ import annotations

import dataclasses
import math

from llmzero_ray.records.agents import OfferedCheckpoint, ProposalRequest
from llmzero_ray.records.significance import paired
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_items


def with_differences(storage: SearchStorage, request: ProposalRequest) -> ProposalRequest:
    """The request with each checkpoint's paired difference to the best-scored one (the latest in a tie), read
    from disk. Checkpoints without stored outcomes stay as they are."""
    scored = [one for one in request.checkpoints if one.val_score is not None]
    if len(scored) < 2:
        return request
    items = {
        node: load_items(storage, node, responses=False) for node in dict.fromkeys(one.node for one in scored)
    }
    best = max(scored, key=lambda one: (one.val_score or -math.inf, one.global_step))
    reference = items[best.node].get(best.step, ())

    def compared(one: OfferedCheckpoint) -> OfferedCheckpoint:
        own = items.get(one.node, {}).get(one.step, ())
        found = None if one is best else paired(own, reference)
        return one if found is None else dataclasses.replace(one, to_best=(found.gain, found.standard_error))

    return dataclasses.replace(request, checkpoints=tuple(map(compared, request.checkpoints)))
