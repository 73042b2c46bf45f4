"""Tree search with an ask-and-tell interface.

    search = TreeSearch(SearchRules(), budget=16)
    while (decision := search.ask()).action not in ("stop", "wait"):
        node = search.begin(decision)
        search.tell(node, "completed", score=train(node))

`ask` does not change the search, so it may be repeated. With several runners, each must begin its run before
the next one asks; outcomes may be told at any time. The same calls of `begin` and `tell` in the same order
always give the same search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from llmzero_ray.config.search_rules import SearchRules
from llmzero_ray.errors import SearchError
from llmzero_ray.records import NodeKind, PhaseStatus
from llmzero_ray.search.base import Action, Decision, SearchMethod, StopReason
from llmzero_ray.search.decision import ChildView, Level, Seen, TreeDecision, reason_in_words
from llmzero_ray.search.tree import Tree, TreeNode
from llmzero_ray.search.uct import TIE, exploration, fair_visits, mean_value, own_value, q_value


class TreeSearch(SearchMethod[TreeNode]):
    """One search. `budget` is the maximum number of runs, including the root (no limit if None)."""

    def __init__(self, rules: SearchRules | None = None, budget: int | None = None) -> None:
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 1):
            raise SearchError(
                f"budget is {budget!r} runs; must be a whole number >= 1, or None for no limit."
            )
        self.rules = rules if rules is not None else SearchRules()
        self.budget = budget
        self.offers_best = False
        """Whether a node may also resume checkpoints of the best node if that is in another branch."""
        self.fresh_start_fits = True
        """Whether a run from the base model can still become as long as the best strategy. If not, none is
        forced while any node is open."""
        self._tree = Tree(self.rules)

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[int, TreeNode]:
        """All nodes by id in order of creation, read-only."""
        return MappingProxyType(self._tree.nodes)

    @property
    def running(self) -> tuple[int, ...]:
        """Nodes that have begun but not finished, earliest first."""
        return tuple(node.id for node in self._tree.nodes.values() if node.is_running)

    @property
    def runs_before_fresh_start(self) -> int | None:
        """Number of runs that can begin before one is forced to start from the base model. None if none
        will be forced."""
        tree, least = self._tree, self.rules.rho_min
        if least == 0 or tree.root is None or not self.fresh_start_fits:
            return None
        n_scratch, n_evolve = self._counts()
        forced_at = math.floor(n_scratch / least) + 1
        forced_at += n_scratch / forced_at >= least  # rounding
        return max(0, forced_at - n_evolve)

    @property
    def stop_reason(self) -> StopReason | None:
        """Reason why no further run will begin, or None if one may."""
        return self.ask().stop_reason

    # --- ask ------------------------------------------------------------------------------------------------

    def ask(self) -> TreeDecision:
        """Next action, with all facts on which it is based. Does not change the search."""
        tree = self._tree
        if self.budget is not None and len(tree.nodes) >= self.budget:
            return self._decide("stop", stop_reason="budget")
        if tree.root is None:
            return self._decide("root")
        # Before the selection, because a scratch child also reopens a search whose nodes are all closed.
        n_scratch, n_evolve = self._counts()
        few = n_scratch / n_evolve < self.rules.rho_min
        if few and (tree.root.terminal or self.fresh_start_fits):
            return self._decide("scratch", tree.best() or tree.root)
        if tree.root.terminal:
            return self._decide("stop", stop_reason="exhausted")
        if tree.root.blocked:
            return self._decide("wait")
        levels: list[Level] = []
        below: TreeNode | None = tree.root
        while below is not None:
            chosen = below
            level, below = self._look_at(chosen)
            levels.append(level)
        return self._decide("debug" if chosen.status == "failed" else "evolve", chosen, levels)

    def explain(self, decision: Mapping[str, Any]) -> str:
        """Explanation of a decision, given as written by `TreeDecision.to_dict`."""
        return reason_in_words(TreeDecision.from_dict(decision))

    def _counts(self) -> tuple[int, int]:
        """(number of root and forced scratch nodes, number of nodes except debug nodes)."""
        kinds = [node.kind for node in self._tree.nodes.values()]
        return kinds.count("root") + kinds.count("scratch"), len(kinds) - kinds.count("debug")

    def _decide(
        self,
        action: Action,
        on: TreeNode | None = None,
        descent: Sequence[Level] = (),
        stop_reason: StopReason | None = None,
    ) -> TreeDecision:
        scores, (n_scratch, n_evolve) = self._tree.scores, self._counts()
        seen = Seen(
            s_min=min(scores, default=None),
            s_max=max(scores, default=None),
            created=len(self._tree.nodes),
            budget=self.budget,
            running=len(self.running),
            n_scratch=n_scratch,
            n_evolve=n_evolve,
            rho_min=self.rules.rho_min,
            descent=tuple(descent),
        )
        return TreeDecision(
            action=action, on=None if on is None else on.id, stop_reason=stop_reason, seen=seen
        )

    def _look_at(self, node: TreeNode) -> tuple[Level, TreeNode | None]:
        """(level of a node, child into which to descend or None if the virtual new child wins)."""
        tree, rules = self._tree, self.rules
        visits, k_fair, prior = node.visits + node.in_flight, len(node.children), own_value(tree, node)
        views = []
        for child in (tree[child] for child in node.children):
            if child.blocked:
                continue
            # An unblocked child is not running, so it has at least its own visit and needs no prior.
            q = q_value(
                mean_value(tree, child), child.v_val, child.v_fail, child.v_early, child.visits, rules
            )
            uct = q + exploration(visits, child.visits + child.in_flight, rules.C)
            views.append(ChildView(child.id, q, uct))
        level = Level(
            at=node.id,
            visits=visits,
            k_fair=k_fair,
            k_cap=node.k_cap,
            cap=tree.cap(node),
            full=tree.is_full(node),
            uct_new=prior + exploration(visits, fair_visits(visits, k_fair), rules.C),
            q_prior=prior,
            children=tuple(views),
        )
        best = max((view.uct for view in views), default=-math.inf)
        if not level.full and level.uct_new > best + TIE:
            return level, None
        # Values that differ only by rounding are a tie. The lowest id wins.
        return level, tree[min(view.id for view in views if view.uct >= best - TIE)]

    # --- begin and tell -------------------------------------------------------------------------------------

    def begin(self, decision: Decision, node_id: int | None = None) -> int:
        """Begin the run of a decision. Returns its node id, by default the next free one.

        Raises:
            SearchError: the decision is to stop or to wait, or it does not fit this tree.
        """
        if decision.action == "stop" or decision.action == "wait":
            raise SearchError(
                f"decision is {decision.action!r}; only root, evolve, debug and scratch begin a run."
            )
        return self.create(decision.action, decision.on, node_id)

    def create(self, kind: NodeKind, on: int | None, node_id: int | None = None) -> int:
        """Begin a run as recorded, even if the rules would not choose it. Returns its node id.

        Raises:
            SearchError: the id is taken, there is already a root (or none yet), `on` is unknown or still
                running, or a debug run is created on a node that has not failed.
        """
        return self._create(kind, on, node_id, exempt=kind == "scratch")

    def clone(self, parent: int, node_id: int | None = None) -> int:
        """Begin an evolve run that the user requested. Returns its node id.

        It does not count towards the parent's cap, and it reopens a closed node. Otherwise it counts like any
        run, including towards the budget.

        Raises:
            SearchError: the parent is unknown, running or pruned, or the budget is spent.
        """
        if self.node(parent).pruned:
            raise SearchError(
                f"node {parent} is pruned, so nothing under it is selected; clone an open node."
            )
        if self.budget is not None and len(self._tree.nodes) >= self.budget:
            raise SearchError(f"the budget of {self.budget} runs is spent; raise it to clone node {parent}.")
        return self._create("evolve", parent, node_id, exempt=True)

    def _finish(self, node_id: int, status: PhaseStatus, score: float | None) -> None:
        """Set the outcome of a running node. A successful debug run first becomes a sibling of the failure
        that it fixed. A vetoed run neither counts as a failure nor fixes one."""
        self._tree.finish(self._tree[node_id], status, score)

    def _prune(self, node_id: int) -> list[int]:
        return self._tree.veto(self._tree[node_id])

    def _create(self, kind: NodeKind, on: int | None, node_id: int | None, *, exempt: bool) -> int:
        tree = self._tree
        new_id = max(tree.nodes, default=-1) + 1 if node_id is None else node_id
        if new_id in tree.nodes:
            raise SearchError(f"node {new_id} exists already; ids must be unique.")
        if kind == "root":
            if tree.root is not None or on is not None:
                raise SearchError(f"node {new_id}: a root is created first, once, and on no other node.")
            return tree.add(new_id, kind, None).id
        if on is None:
            raise SearchError(f"node {new_id}: {kind} needs the node it is created on.")
        parent = self.node(on)
        if parent.is_running:
            raise SearchError(f"node {new_id}: node {on} is still running; create on a finished one.")
        if kind == "debug" and parent.status != "failed":
            raise SearchError(f"node {new_id}: debug needs a failed node, and node {on} is {parent.status}.")
        return tree.add(new_id, kind, parent, exempt=exempt).id

    # --- checkpoints ----------------------------------------------------------------------------------------

    def offered_checkpoint_nodes(self, node_id: int) -> tuple[int, ...]:
        """Nodes whose checkpoints a node may resume, first phase first. Empty if it starts from scratch.

        These are the resume chain of the node on which it was created. With `offers_best`, the best node
        comes first, unless it is in the chain or pruned, or the node is a debug run.

        Raises:
            SearchError: the node is unknown.
        """
        node = self.node(node_id)
        if node.created_on is None or node.kind == "scratch" or not self.rules.multi_stage:
            return ()
        chain = self.resume_chain(node.created_on)
        best = self.best
        if best is None or best.id in chain or not self._may_branch(node, best):
            return chain
        return (best.id, *chain)

    def _may_branch(self, node: TreeNode, source: TreeNode) -> bool:
        """Whether a node may resume `source` from another branch, provided that `source` is the best node."""
        ended = not source.is_running and not source.pruned
        return self.offers_best and node.kind == "evolve" and self.rules.multi_stage and ended

    def _may_resume(self, node_id: int, source: int) -> bool:
        # The source need not be the best node any more: another may have become that since it was offered.
        was_best = source in self.nodes and self._may_branch(self.node(node_id), self.node(source))
        return was_best or super()._may_resume(node_id, source)
