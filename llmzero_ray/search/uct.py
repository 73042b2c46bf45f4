"""Formulas of the search, as functions of numbers, and the values of a tree's nodes.

Visits count finished runs for values, and finished plus running ones for exploration; the caller chooses.
Source: the paper's App. D.2, equations 5 to 8; running runs as in WU-UCT (arXiv 1810.11755).

The scale of values runs from the worst to the best score seen, so every new extreme changes all values at
once. A mean of raw scores stays valid. A mean of shaped scores does not, and is rebuilt in one pass over the
tree.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from llmzero_ray.config.search_rules import SearchRules
from llmzero_ray.search.tree import Tree, TreeNode

TIE = 1e-12
"""Tolerance within which two UCT values are equal; it covers rounding."""
Scale: TypeAlias = tuple[float, float]


def normalise(score: float, s_min: float, s_max: float) -> float:
    """`score` on a scale from the worst (0) to the best (1) seen, or 1 while all seen scores are equal."""
    return 1.0 if s_max == s_min else (score - s_min) / (s_max - s_min)


def shape(x: float, temperature: float) -> float:
    """Shaping (e^(x/T) - 1) / (e^(1/T) - 1) of x in [0, 1]: 0 stays 0, 1 stays 1, and values between sink.

    The form does not overflow for any temperature > 0.
    """
    return math.exp((x - 1) / temperature) * math.expm1(-x / temperature) / math.expm1(-1 / temperature)


def q_value(value: float, v_val: int, v_fail: int, v_early: int, v_total: int, rules: SearchRules) -> float:
    """Exploitation term of a visited child. It is not clipped, so many failures make it negative.

    `value` is the shaped mean of the `v_val` validated runs, ignored when there are none. `v_total` >= 1.
    """
    gained = v_val / v_total * value if v_val else 0.0
    failures = rules.w_f * max(0, v_fail - rules.o_f) / v_total
    return gained - failures - rules.w_e * v_early / v_total


def exploration(parent_visits: float, visits: float, c: float) -> float:
    """Exploration term C * sqrt(ln N(p) / N(c)). Inside the logarithm visits count as at least 1."""
    return c * math.sqrt(math.log(parent_visits) / visits) if parent_visits > 1 else 0.0


def fair_visits(parent_visits: float, attached_children: int) -> float:
    """Visits of a new child if the parent's visits were shared equally among it and the attached children."""
    return parent_visits / (attached_children + 1)


class Values:
    """Values in [0, 1] of one tree's nodes, of their own scores and of their subtrees' means. Every finished
    run updates them."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._temperature = tree.rules.T
        self._of_mean = tree.rules.q_aggregate == "f_of_mean"
        self._shaped_scale: Scale | None = None
        """(s_min, s_max) for which the nodes' `shaped_sum` holds."""

    def own(self, node: TreeNode) -> float:
        """Shaped value of the node's own score, also for a failed run. 0 without one."""
        low, high = self._tree.s_min, self._tree.s_max
        if node.score is None or low is None or high is None:
            return 0.0
        return shape(normalise(node.score, low, high), self._temperature)

    def mean(self, node: TreeNode) -> float:
        """Shaped value of the validated runs in the node's subtree. 0 without one."""
        low, high, first = self._tree.s_min, self._tree.s_max, self._tree.first_score
        if not node.v_val or low is None or high is None or first is None:
            return 0.0
        if not self._of_mean:
            return node.shaped_sum / node.v_val
        # Shift the scale, not the mean, so that large scores with a small spread keep all their digits.
        x = normalise(node.score_sum / node.v_val, low - first, high - first)
        # Rounding may carry the mean just past an end of the scale, which a tiny temperature would blow up.
        return shape(x if 0.0 <= x <= 1.0 else float(x > 0.5), self._temperature)

    def record(self, node: TreeNode) -> None:
        """Count a run that has just finished."""
        if self._of_mean or not node.is_validated or self._shaped_scale != self._scale():
            return
        value = self.own(node)
        for above in self._tree.path_up(node):
            above.shaped_sum += value

    def bring_up_to_date(self) -> None:
        """Rebuild the shaped sums if the scale has changed since they were built; call it before `mean`."""
        scale = self._scale()
        if self._of_mean or scale is None or scale == self._shaped_scale:
            return
        nodes = self._tree.nodes
        for node in nodes.values():
            node.shaped_sum = self.own(node) if node.is_validated else 0.0
        # Children are younger than their parents, so each sum is complete before it is handed up.
        for node in reversed(nodes.values()):
            if node.parent is not None:
                nodes[node.parent].shaped_sum += node.shaped_sum
        self._shaped_scale = scale

    def _scale(self) -> Scale | None:
        low, high = self._tree.s_min, self._tree.s_max
        return None if low is None or high is None else (low, high)
