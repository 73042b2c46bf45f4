"""Search tree: its nodes, their counters, and which of them can still be selected. It makes no choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmzero_ray.config.search_rules import SearchRules
from llmzero_ray.records import NodeKind, PhaseStatus
from llmzero_ray.search.base import SearchNode, best_scored


@dataclass(kw_only=True, slots=True)
class TreeNode(SearchNode):
    """One training phase in the tree. Only the tree writes to it."""

    debug_depth: int = 0
    exempt: bool = False
    """Whether it does not count towards its parent's cap (forced scratch nodes, their fixes, clones)."""
    vetoed: bool = False
    """Whether the user pruned it. When it ends, it neither fixes a failure nor counts as one."""
    fixed: bool = False
    """Whether it is a failed root that a debug run has fixed, so that it gets no further debug run."""
    visits: int = 0
    """Number of finished runs in this subtree."""
    v_val: int = 0
    v_fail: int = 0
    v_early: int = 0
    v_unval: int = 0
    in_flight: int = 0
    """Number of running runs in this subtree."""
    score_sum: float = 0.0
    """Sum over the subtree's validated runs of (score - the search's first score)."""
    k_cap: int = 0
    """Number of attached children that count towards the cap."""
    blocked: bool = True

    @property
    def is_validated(self) -> bool:
        """Whether it succeeded with a score, which then counts in means."""
        return self.score is not None and self.status in ("completed", "early_stopped")


class Tree:
    """Nodes and their derived counters. The caller must only make changes that the rules allow."""

    def __init__(self, rules: SearchRules) -> None:
        self.rules = rules
        self.nodes: dict[int, TreeNode] = {}
        """Nodes by id in order of creation. A parent always comes before its children."""
        self.root: TreeNode | None = None
        self.scores: list[float] = []
        """All scores, in the order in which runs ended. Sums add differences from the first score, so that
        rounding errors depend on the spread of the scores, not on their size."""
        self.scale = (0.0, 0.0)
        """Worst and best score so far."""

    def __getitem__(self, node_id: int) -> TreeNode:
        return self.nodes[node_id]

    # --- reading --------------------------------------------------------------------------------------------

    def cap(self, node: TreeNode) -> int:
        """Maximum children of a node, by its status. 0 for a failed node at the maximum debug depth."""
        if node.status != "failed":
            return self.rules.max_evolve_children
        return 0 if node.debug_depth >= self.rules.max_debug_depth else self.rules.max_debug_children

    def is_full(self, node: TreeNode) -> bool:
        """Whether selection may create no further child here."""
        return node.fixed or node.k_cap >= self.cap(node)

    def path_up(self, node: TreeNode) -> Iterator[TreeNode]:
        """The node and its ancestors, up to the root."""
        at: TreeNode | None = node
        while at is not None:
            yield at
            at = None if at.parent is None else self.nodes[at.parent]

    def subtree(self, node: TreeNode) -> Iterator[TreeNode]:
        """The node and all its descendants, parents first."""
        todo = [node.id]
        while todo:
            at = self.nodes[todo.pop()]
            yield at
            todo.extend(at.children)

    def best(self) -> TreeNode | None:
        """Best-scored node that is not pruned (the earliest on ties), or None if none has a score."""
        return best_scored(node for node in self.nodes.values() if not node.pruned)

    def debug_origin(self, node: TreeNode) -> TreeNode:
        """Failed run at which a chain of debug runs began. It is not a debug run itself."""
        return next(above for above in self.path_up(node) if above.kind != "debug")

    # --- changing -------------------------------------------------------------------------------------------

    def add(self, node_id: int, kind: NodeKind, on: TreeNode | None, *, exempt: bool = False) -> TreeNode:
        """Create a running node on `on` (None for the root). Below a pruned node, it is pruned too."""
        node = TreeNode(
            id=node_id,
            kind=kind,
            parent=None if on is None else on.id,
            created_on=None if on is None else on.id,
            debug_depth=on.debug_depth + 1 if kind == "debug" and on is not None else 0,
            exempt=exempt,
            pruned=on is not None and on.pruned,
        )
        self.nodes[node_id] = node
        if kind == "root":
            self.root = node
        self._update()
        return node

    def finish(self, node: TreeNode, status: PhaseStatus, score: float | None) -> None:
        """Set the outcome of a running node. Move it if it fixed a failure, then count it in its
        ancestors."""
        # The user ended a vetoed run, so that its failure is not counted and its success fixes nothing.
        node.status = "completed" if node.vetoed and status == "failed" else status
        node.score = score
        if score is not None:
            self.scores.append(score)
            self.scale = (min(self.scores), max(self.scores))
        if node.kind == "debug" and node.status != "failed" and not node.vetoed:
            self._settle_fix(node)
        self._backpropagate(node)
        self._update()

    def veto(self, node: TreeNode) -> list[int]:
        """Prune a subtree at the user's request. Returns the running nodes in it, which must be stopped."""
        members = list(self.subtree(node))
        for member in members:
            member.pruned = member.vetoed = True
        self._update()
        return [member.id for member in members if member.is_running]

    # --- parts of a change ----------------------------------------------------------------------------------

    def _settle_fix(self, node: TreeNode) -> None:
        """Make a successful debug run a sibling of the failure that it fixed, and prune the failed chain."""
        origin = self.debug_origin(node)
        home = origin if origin.parent is None else self.nodes[origin.parent]
        node.parent, node.debug_depth, node.exempt = home.id, 0, origin.exempt
        # If another fix pruned the chain while this run was in flight, it is not pruned at its new place.
        node.pruned = home.pruned
        self._update()
        left = [origin]
        if origin is home:
            origin.fixed = True
            # Earlier fixes are also children of a failed root. Prune only debug runs that did not succeed.
            chain = (self.nodes[child] for child in origin.children)
            left = [
                one
                for one in chain
                if one.kind == "debug" and one.status not in ("completed", "early_stopped")
            ]
        for member in (member for top in left for member in self.subtree(top)):
            member.pruned = True

    def _backpropagate(self, node: TreeNode) -> None:
        for above in self.path_up(node):
            above.visits += 1
            above.v_early += node.status == "early_stopped"
            if node.status == "failed":
                above.v_fail += 1
            elif node.score is not None:
                above.v_val += 1
                above.score_sum += node.score - self.scores[0]
            else:
                above.v_unval += 1

    def _update(self) -> None:
        """Recompute children, running runs and flags of all nodes."""
        for node in self.nodes.values():
            node.children = []
            if node.parent is not None:
                self.nodes[node.parent].children.append(node.id)
        for node in reversed(self.nodes.values()):
            children = [self.nodes[child] for child in node.children]
            node.in_flight = node.is_running + sum(child.in_flight for child in children)
            node.k_cap = sum(not child.exempt for child in children)
            full = self.is_full(node)
            node.terminal = node.pruned or (
                not node.is_running and full and all(child.terminal for child in children)
            )
            node.blocked = (
                node.terminal or node.is_running or (full and all(child.blocked for child in children))
            )
