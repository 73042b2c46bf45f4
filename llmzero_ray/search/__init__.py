"""Search methods with an ask-and-tell interface, as a pure core.

They use no clock, no files and no randomness: the same outcomes always give the same search.
"""

from llmzero_ray.config.search_rules import MethodRules, SearchRules
from llmzero_ray.search.base import (
    Cut,
    Decision,
    NodeStatus,
    SearchMethod,
    SearchNode,
    needs_model,
    plans_its_runs,
)
from llmzero_ray.search.decision import Seen, TreeDecision
from llmzero_ray.search.registry import load_method, make_search, shipped_method, shipped_methods
from llmzero_ray.search.tree import TreeNode
from llmzero_ray.search.tree_search import TreeSearch

__all__ = [
    "Cut",
    "Decision",
    "MethodRules",
    "NodeStatus",
    "SearchMethod",
    "SearchNode",
    "SearchRules",
    "Seen",
    "TreeDecision",
    "TreeNode",
    "TreeSearch",
    "load_method",
    "make_search",
    "needs_model",
    "plans_its_runs",
    "shipped_method",
    "shipped_methods",
]
