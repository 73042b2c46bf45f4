"""Scores of a tree as values in [0, 1]: the current values of a node's own score and of its subtree's mean.

The scale runs from the worst to the best score seen, so every new extreme changes all values at once. A mean
of raw scores stays valid. A mean of shaped scores does not, and is rebuilt in one pass over the tree.
"""

from __future__ import annotations

from typing import TypeAlias

from llmzero_ray.search.tree import Tree, TreeNode
from llmzero_ray.search.uct import normalise, shape

Scale: TypeAlias = tuple[float, float]


class Values:
    """Values of one tree's nodes, updated by every finished run."""

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
