"""Formulas of the tree search, and the values of a tree's nodes.

Values count only finished runs as visits; exploration also counts running ones. The caller passes the right
number. Source: the paper's App. D.2, equations 5 to 8; running runs as in WU-UCT (arXiv 1810.11755). Values
are scaled from the worst to the best score seen, so every new extreme changes all values.
"""

from __future__ import annotations

import math

from llmzero_ray.config.search_rules import SearchRules
from llmzero_ray.search.tree import Tree, TreeNode

TIE = 1e-12
"""Difference up to which two UCT values count as equal. It covers rounding errors."""


def normalise(score: float, s_min: float, s_max: float) -> float:
    """`score` on a scale from the worst (0) to the best (1) one seen. 1 if all scores seen are equal."""
    return 1.0 if s_max == s_min else (score - s_min) / (s_max - s_min)


def shape(x: float, temperature: float) -> float:
    """Shaping (e^(x/T) - 1) / (e^(1/T) - 1) of x in [0, 1], which lowers all values between 0 and 1.

    It is computed in a form that does not overflow for any temperature > 0.
    """
    return math.exp((x - 1) / temperature) * math.expm1(-x / temperature) / math.expm1(-1 / temperature)


def q_value(value: float, v_val: int, v_fail: int, v_early: int, v_total: int, rules: SearchRules) -> float:
    """Exploitation term of a visited child. It is not clipped, so many failures make it negative.

    `value` is the shaped mean of the `v_val` validated runs, and ignored if there are none. `v_total` must be
    at least 1.
    """
    gained = v_val / v_total * value if v_val else 0.0
    failures = rules.w_f * max(0, v_fail - rules.o_f) / v_total
    return gained - failures - rules.w_e * v_early / v_total


def exploration(parent_visits: float, visits: float, c: float) -> float:
    """Exploration term C * sqrt(ln N(p) / N(c)). Inside the logarithm, N(p) counts as at least 1."""
    return c * math.sqrt(math.log(parent_visits) / visits) if parent_visits > 1 else 0.0


def fair_visits(parent_visits: float, attached_children: int) -> float:
    """Visits of a new child if it and the attached children shared the parent's visits equally."""
    return parent_visits / (attached_children + 1)


def own_value(tree: Tree, node: TreeNode) -> float:
    """Shaped value, in [0, 1], of the node's own score, even if its run failed. 0 without a score."""
    if node.score is None:
        return 0.0
    return shape(normalise(node.score, *tree.scale), tree.rules.T)


def mean_value(tree: Tree, node: TreeNode) -> float:
    """Shaped value, in [0, 1], of the validated runs in the node's subtree. 0 if there are none."""
    if not node.v_val:
        return 0.0
    if tree.rules.q_aggregate == "mean_of_f":
        return sum(own_value(tree, one) for one in tree.subtree(node) if one.is_validated) / node.v_val
    # Shift the scale instead of the mean, so that large scores with a small spread keep their precision.
    low, high = (end - tree.scores[0] for end in tree.scale)
    x = normalise(node.score_sum / node.v_val, low, high)
    # Rounding may put the mean just outside the scale, which a tiny temperature would amplify.
    return shape(x if 0.0 <= x <= 1.0 else float(x > 0.5), tree.rules.T)
