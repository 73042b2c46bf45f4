"""The search rules: a pure core that is asked for the next run and told its outcome.

No clock, no file, no randomness: the same outcomes always give the same search.
"""

from llmzero_ray.search.decision import Action, ChildView, Decision, Level, Seen, StopReason
from llmzero_ray.search.recipe import Cut, nearest_saved_step
from llmzero_ray.search.rules import SearchRules
from llmzero_ray.search.tree import Node, NodeStatus
from llmzero_ray.search.tree_search import TreeSearch

__all__ = [
    "Action",
    "ChildView",
    "Cut",
    "Decision",
    "Level",
    "Node",
    "NodeStatus",
    "SearchRules",
    "Seen",
    "StopReason",
    "TreeSearch",
    "nearest_saved_step",
]
