"""Search tree: nodes by id, their counters, and which of them can still be selected.

Each change updates all counters and flags along one path, with loops instead of recursion, so its cost is
linear in the depth even for a chain of ten thousand nodes. This module makes no choices.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from llmzero_ray.config.search_rules import SearchRules
from llmzero_ray.records import NodeKind, PhaseStatus

NodeStatus: TypeAlias = Literal["running"] | PhaseStatus
"""`running` from the moment the node is begun: the rules do not distinguish pending and training runs."""


@dataclass(kw_only=True, slots=True)
class TreeNode:
    """One training phase in the tree. Only the tree writes to it."""

    id: int
    order: int
    """Position in the order of creation, from 0."""
    kind: NodeKind
    status: NodeStatus = "running"
    score: float | None = None
    """Best validation score of the steps executed in this node."""
    best_step: int | None = None
    """Step of `score`, counted inside the phase."""
    parent: int | None
    """Current parent. A debug run that succeeds moves."""
    created_on: int | None
    """Node it was created from, before any move."""
    resume_from: tuple[int, int] | None = None
    """(node, step) of the checkpoint it starts from, possibly off the tree path. None for the base model."""
    debug_depth: int = 0
    exempt: bool = False
    """Whether it does not count towards its parent's cap (forced scratch nodes, their fixes, clones)."""
    pruned: bool = False
    vetoed: bool = False
    """Whether the user pruned it. If it ends later, it neither fixes anything nor counts as a failure."""
    fixed: bool = False
    """For a failed root: whether one of its debug runs succeeded, so that it gets no further one."""
    children: list[int] = field(default_factory=list)
    """Attached children in order of creation, pruned ones included."""
    visits: int = 0
    """Finished runs in this subtree."""
    v_val: int = 0
    v_fail: int = 0
    v_early: int = 0
    v_unval: int = 0
    in_flight: int = 0
    """Running runs in this subtree."""
    score_sum: float = 0.0
    """Sum over the subtree's validated runs of (score - the search's first score)."""
    shaped_sum: float = 0.0
    """Sum of their shaped normalised scores; kept only for `q_aggregate: mean_of_f`."""
    k_cap: int = 0
    """Number of attached children that count towards the cap."""
    n_live: int = 0
    """Number of children that are not terminal."""
    n_open: int = 0
    """Number of children that are not blocked."""
    terminal: bool = False
    blocked: bool = True

    @property
    def is_running(self) -> bool:
        """Whether it has begun but not finished."""
        return self.status == "running"

    @property
    def is_validated(self) -> bool:
        """Whether its score enters means, that is, it succeeded with a score."""
        return self.score is not None and self.status in ("completed", "early_stopped")


class Tree:
    """Nodes and their derived counters. The caller passes only changes that the rules allow."""

    def __init__(self, rules: SearchRules) -> None:
        self.rules = rules
        self.nodes: dict[int, TreeNode] = {}
        """Nodes by id in order of creation. A parent always comes before its children."""
        self.root: TreeNode | None = None
        self.next_id = 0
        """Lowest id above all used ids."""
        self.n_running = 0
        self.n_scratch = 0
        """Number of root and forced scratch nodes."""
        self.n_evolve = 0
        """Number of nodes except debug nodes."""
        self.s_min: float | None = None
        self.s_max: float | None = None
        self.first_score: float | None = None
        """First score. Scores are summed as differences from it, so that sums are exact to their spread even
        for large scores."""
        self.best: TreeNode | None = None
        """Best-scored node, failed and pruned ones included (the earliest one in a tie)."""
        self._ranked: list[tuple[float, int, int]] = []

    def __getitem__(self, node_id: int) -> TreeNode:
        return self.nodes[node_id]

    # --- reading --------------------------------------------------------------------------------------------

    def cap(self, node: TreeNode) -> int:
        """Cap on a node's children: by its status, and 0 at the deepest level of debugging."""
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

    def best_unpruned(self) -> TreeNode | None:
        """Best-scored node that is not pruned (the earliest one in a tie), or None without scores."""
        while self._ranked and self.nodes[self._ranked[0][2]].pruned:
            heapq.heappop(self._ranked)
        return self.nodes[self._ranked[0][2]] if self._ranked else None

    def debug_origin(self, node: TreeNode) -> TreeNode:
        """Failed run at which a chain of debug runs began, itself not a debug run."""
        return next(above for above in self.path_up(node) if above.kind != "debug")

    # --- changing -------------------------------------------------------------------------------------------

    def add(self, node_id: int, kind: NodeKind, on: TreeNode | None, *, exempt: bool = False) -> TreeNode:
        """Create a running node on `on` (None for the root). Under a pruned node it is pruned too."""
        node = TreeNode(
            id=node_id,
            order=len(self.nodes),
            kind=kind,
            parent=None,
            created_on=None if on is None else on.id,
            debug_depth=on.debug_depth + 1 if kind == "debug" and on is not None else 0,
            exempt=exempt,
            in_flight=1,
        )
        self.nodes[node_id] = node
        self._count_node(node)
        if on is not None:
            self._attach(node, on)
        return node

    def finish(self, node: TreeNode, status: PhaseStatus, score: float | None) -> None:
        """Give a running node its outcome: move it if it fixed a failure, then count it in its ancestors."""
        self.n_running -= 1
        # The user ended the vetoed run, whatever its outcome: no failure is charged, no fix is made.
        node.status = "completed" if node.vetoed and status == "failed" else status
        node.score = score
        if node.kind == "debug" and node.status != "failed" and not node.vetoed:
            self._settle_fix(node)
        self._enter_score(node)
        self._backpropagate(node)
        self._refresh(node)

    def veto(self, node: TreeNode) -> list[int]:
        """Prune a subtree at the user's request. Returns its running nodes, which must be stopped."""
        members = list(self.subtree(node))
        for member in members:
            member.vetoed = True
        self._prune(node)
        return [member.id for member in members if member.is_running]

    # --- parts of a change ----------------------------------------------------------------------------------

    def _count_node(self, node: TreeNode) -> None:
        self.next_id = max(self.next_id, node.id + 1)
        self.n_running += node.is_running
        self.n_evolve += node.kind != "debug"
        self.n_scratch += node.kind in ("root", "scratch")
        if node.kind == "root":
            self.root = node

    def _settle_fix(self, node: TreeNode) -> None:
        """Make a successful debug run a sibling of the failure it fixed, and prune what it leaves behind."""
        origin = self.debug_origin(node)
        home = origin if origin.parent is None else self.nodes[origin.parent]
        self._detach(node)
        node.debug_depth = 0
        node.exempt = origin.exempt
        # A run that was in flight when another fix pruned the chain leaves that subtree with its own success.
        node.pruned = home.pruned
        self._attach(node, home)
        if origin is not home:
            self._prune(origin)
            return
        origin.fixed = True
        for child in [self.nodes[other] for other in origin.children]:
            # An earlier fix has left the chain of failures; only what still belongs to it goes.
            if child.kind == "debug" and child.status not in ("completed", "early_stopped"):
                self._prune(child)
        self._refresh(origin)

    def _backpropagate(self, node: TreeNode) -> None:
        failed, validated = node.status == "failed", node.is_validated
        early = node.status == "early_stopped"
        above_first = 0.0 if node.score is None or self.first_score is None else node.score - self.first_score
        for above in self.path_up(node):
            above.in_flight -= 1
            above.visits += 1
            above.v_early += early
            if failed:
                above.v_fail += 1
            elif validated:
                above.v_val += 1
                above.score_sum += above_first
            else:
                above.v_unval += 1

    def _enter_score(self, node: TreeNode) -> None:
        if self.first_score is None:
            self.first_score = node.score
        self._rank(node)

    def _rank(self, node: TreeNode) -> None:
        if node.score is None:
            return
        self.s_min = node.score if self.s_min is None else min(self.s_min, node.score)
        self.s_max = node.score if self.s_max is None else max(self.s_max, node.score)
        heapq.heappush(self._ranked, (-node.score, node.order, node.id))
        best = self.best
        if best is None or best.score is None or (-node.score, node.order) < (-best.score, best.order):
            self.best = node

    def _prune(self, top: TreeNode) -> None:
        for node in self.subtree(top):
            node.pruned = True
            self._refresh(node)

    def _attach(self, node: TreeNode, parent: TreeNode) -> None:
        node.parent = parent.id
        node.pruned = node.pruned or parent.pruned
        # Only a fix that moves is older than children already there; a new node goes to the end.
        parent.children.insert(
            bisect(parent.children, node.order, key=lambda at: self.nodes[at].order), node.id
        )
        parent.k_cap += not node.exempt
        node.terminal, node.blocked = self._flags(node)
        parent.n_live += not node.terminal
        parent.n_open += not node.blocked
        for above in self.path_up(parent):
            above.in_flight += node.in_flight
        self._refresh(parent)

    def _detach(self, node: TreeNode) -> None:
        assert node.parent is not None
        parent = self.nodes[node.parent]
        parent.children.remove(node.id)
        parent.k_cap -= not node.exempt
        parent.n_live -= not node.terminal
        parent.n_open -= not node.blocked
        for above in self.path_up(parent):
            above.in_flight -= node.in_flight
        self._refresh(parent)

    def _flags(self, node: TreeNode) -> tuple[bool, bool]:
        """(terminal, blocked) of a node from its own facts and its children's counts."""
        running, full = node.is_running, self.is_full(node)
        terminal = node.pruned or (not running and full and node.n_live == 0)
        return terminal, terminal or running or (full and node.n_open == 0)

    def _refresh(self, node: TreeNode) -> None:
        """Update a node's flags, and its ancestors' as far as they change."""
        for at in self.path_up(node):
            terminal, blocked = self._flags(at)
            if (terminal, blocked) == (at.terminal, at.blocked):
                return
            if at.parent is not None:
                parent = self.nodes[at.parent]
                parent.n_live += at.terminal - terminal
                parent.n_open += at.blocked - blocked
            at.terminal, at.blocked = terminal, blocked
