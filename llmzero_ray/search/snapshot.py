"""A node's own facts as JSON values and back; what follows from them is derived anew by the tree.

The sums of scores are kept although they could be derived: adding in another order would round differently,
and a restored search must decide as the original does to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmzero_ray.search.tree import Node

_FACTS = (
    "id",
    "kind",
    "status",
    "score",
    "best_step",
    "parent",
    "created_on",
    "debug_depth",
    "exempt",
    "pruned",
    "vetoed",
    "fixed",
    "score_sum",
    "shaped_sum",
)


def node_to_dict(node: Node) -> dict[str, Any]:
    """Facts of one node, JSON values only."""
    facts = {name: getattr(node, name) for name in _FACTS}
    return {**facts, "resume_from": None if node.resume_from is None else list(node.resume_from)}


def node_from_dict(entry: Mapping[str, Any], order: int) -> Node:
    """The node of these facts, created as number `order`; its counts are still zero."""
    resume = entry["resume_from"]
    facts = {name: entry[name] for name in _FACTS}
    return Node(**facts, order=order, resume_from=None if resume is None else (resume[0], resume[1]))
