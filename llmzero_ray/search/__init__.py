"""The search rules with an ask-and-tell interface, as a pure core.

No clock, no file, no randomness: the same outcomes always give the same search.
"""

from llmzero_ray.config.search_rules import MethodRules, SearchRules
from llmzero_ray.search.base import Action, Cut, Decision, SearchMethod, SearchNode, StopReason
from llmzero_ray.search.decision import ChildView, Level, Seen, TreeDecision
from llmzero_ray.search.lineage import nearest_saved_step
from llmzero_ray.search.registry import (
    METHODS,
    MODEL_METHODS,
    PLANNED,
    PROPOSED,
    is_planned,
    make_search,
)
from llmzero_ray.search.run_plan import RunPlan
from llmzero_ray.search.tree import NodeStatus, TreeNode
from llmzero_ray.search.tree_search import TreeSearch

__all__ = [
    "METHODS",
    "MODEL_METHODS",
    "PLANNED",
    "PROPOSED",
    "Action",
    "ChildView",
    "Cut",
    "Decision",
    "Level",
    "MethodRules",
    "NodeStatus",
    "RunPlan",
    "SearchMethod",
    "SearchNode",
    "SearchRules",
    "Seen",
    "StopReason",
    "TreeDecision",
    "TreeNode",
    "TreeSearch",
    "is_planned",
    "make_search",
    "nearest_saved_step",
]
