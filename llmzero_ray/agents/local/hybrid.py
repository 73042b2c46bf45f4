"""Local search whose directions a diagnosis gives on a share of the nodes.

The diagnosis is that of the agents of `agents.backend`: the expert's rules, or a language model. On its nodes
it decides what moves, in which direction and from where; the local search decides how far. Which nodes these
are follows from the search's seed and the node's number.
"""

from __future__ import annotations

import random

from llmzero_ray.agents.base import ProposalRequest, Proposer
from llmzero_ray.agents.local.proposer import LocalProposer
from llmzero_ray.records import Proposal


class HybridProposer:
    """`guide` decides the direction on a share `share` of the nodes, `local` proposes the others."""

    def __init__(self, local: LocalProposer, guide: Proposer, *, share: float, seed: int) -> None:
        self._local, self._guide, self._share, self._seed = local, guide, share, seed

    def guides(self, node: int | None) -> bool:
        """Whether the diagnosis decides this node's direction."""
        return random.Random(f"guide:{self._seed}:{node}").random() < self._share

    def propose(self, request: ProposalRequest) -> Proposal:
        """The guide's direction with the local search's step, or a local proposal."""
        if not self.guides(request.node):
            return self._local.propose(request)
        return self._local.along(request, self._guide.propose(request))
