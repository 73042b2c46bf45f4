"""A slow second opinion: the search rules written down again, with everything recomputed for every question.

Nothing is shared with the library and nothing is remembered but the list of what happened. Recursive,
quadratic, and meant to be read beside the rules.
"""

from __future__ import annotations

import math
from typing import Any

DEFAULTS = {
    "C": 1.414,
    "T": 0.3,
    "w_f": 0.5,
    "w_e": 0.3,
    "o_f": 2,
    "max_evolve_children": 2,
    "max_debug_children": 3,
    "max_debug_depth": 5,
    "rho_min": 0.2,
    "q_aggregate": "f_of_mean",
}
SUCCESS = ("completed", "early_stopped")


class State:
    """The tree after a list of happenings; see `NaiveSearch` for their form."""

    def __init__(self, happened: list[tuple[Any, ...]]) -> None:
        self.kind: dict[int, str] = {}
        self.status: dict[int, str] = {}
        self.score: dict[int, float | None] = {}
        self.parent: dict[int, int | None] = {}
        self.depth: dict[int, int] = {}
        self.exempt: set[int] = set()
        self.pruned: set[int] = set()
        self.vetoed: set[int] = set()
        self.fixed_root = False
        self.charged: list[tuple[int, list[int]]] = []
        for what, *rest in happened:
            getattr(self, what)(*rest)

    # happenings

    def create(self, node: int, kind: str, on: int | None, exempt: bool) -> None:
        self.kind[node], self.status[node], self.score[node], self.parent[node] = kind, "running", None, on
        self.depth[node] = self.depth[on] + 1 if kind == "debug" and on is not None else 0
        if exempt:
            self.exempt.add(node)
        if on in self.pruned:
            self.pruned.add(node)

    def finish(self, node: int, status: str, score: float | None) -> None:
        if node in self.vetoed and status == "failed":
            status = "completed"
        self.status[node], self.score[node] = status, score
        if self.kind[node] == "debug" and status in SUCCESS and node not in self.vetoed:
            origin = self.parent[node]
            assert origin is not None
            while self.kind[origin] == "debug":
                origin = self.parent[origin]
                assert origin is not None
            self.depth[node] = 0
            if origin in self.exempt:
                self.exempt.add(node)
            if self.parent[origin] is None:
                self.parent[node] = origin
                self.pruned.discard(node)
                self.fixed_root = True
                for other in self.children(origin):
                    if self.kind[other] == "debug" and self.status[other] not in SUCCESS:
                        self.pruned.update(self.subtree(other))
            else:
                self.parent[node] = self.parent[origin]
                self.pruned.discard(node)
                if self.parent[node] in self.pruned:
                    self.pruned.add(node)
                self.pruned.update(self.subtree(origin))
        self.charged.append((node, self.ancestors(node)))

    def veto(self, node: int) -> None:
        self.pruned.update(self.subtree(node))
        self.vetoed.update(self.subtree(node))

    # structure

    def children(self, node: int) -> list[int]:
        return [c for c, p in self.parent.items() if p == node]

    def subtree(self, node: int) -> list[int]:
        return [node] + [d for c in self.children(node) for d in self.subtree(c)]

    def ancestors(self, node: int | None) -> list[int]:
        return [] if node is None else [node, *self.ancestors(self.parent[node])]

    # counters

    def runs(self, node: int) -> list[int]:
        return [run for run, to in self.charged if node in to]

    def visits(self, node: int) -> int:
        return len(self.runs(node))

    def in_flight(self, node: int) -> int:
        return sum(self.status[d] == "running" for d in self.subtree(node))

    def counts(self, node: int) -> dict[str, int]:
        runs = self.runs(node)
        won = [r for r in runs if self.status[r] in SUCCESS]
        return {
            "N": len(runs),
            "v_fail": sum(self.status[r] == "failed" for r in runs),
            "v_val": sum(self.score[r] is not None for r in won),
            "v_unval": sum(self.score[r] is None for r in won),
            "v_early": sum(self.status[r] == "early_stopped" for r in runs),
        }


class NaiveSearch:
    """Happenings: ("create", id, kind, on, exempt), ("finish", id, status, score), ("veto", id)."""

    def __init__(self, budget: int | None = None, **rules: Any) -> None:
        self.r = {**DEFAULTS, **rules}
        self.budget = budget
        self.happened: list[tuple[Any, ...]] = []

    def add(self, *happening: Any) -> None:
        self.happened.append(happening)

    @property
    def state(self) -> State:
        return State(self.happened)

    # value

    def norm(self, s: State, score: float) -> float:
        scores = [x for x in s.score.values() if x is not None]
        low, high = min(scores), max(scores)
        return 1.0 if low == high else (score - low) / (high - low)

    def f(self, x: float) -> float:
        t = self.r["T"]
        return float((math.exp(x / t) - 1) / (math.exp(1 / t) - 1))

    def prior(self, s: State, node: int) -> float:
        score = s.score[node]
        return 0.0 if score is None else self.f(self.norm(s, score))

    def value(self, s: State, node: int) -> float:
        v = s.counts(node)
        scores = [s.score[r] for r in s.runs(node) if s.status[r] in SUCCESS]
        xs = [self.norm(s, x) for x in scores if x is not None]
        value = 0.0
        if xs and self.r["q_aggregate"] == "f_of_mean":
            value = self.f(sum(xs) / len(xs))
        elif xs:
            value = sum(map(self.f, xs)) / len(xs)
        total = v["N"]
        gained = v["v_val"] / total * value
        failed = self.r["w_f"] * max(0, v["v_fail"] - self.r["o_f"]) / total
        return float(gained - failed - self.r["w_e"] * v["v_early"] / total)

    # structure

    def cap(self, s: State, node: int) -> int:
        if s.status[node] != "failed":
            return int(self.r["max_evolve_children"])
        return 0 if s.depth[node] >= self.r["max_debug_depth"] else int(self.r["max_debug_children"])

    def k_cap(self, s: State, node: int) -> int:
        return sum(c not in s.exempt for c in s.children(node))

    def full(self, s: State, node: int) -> bool:
        if s.parent[node] is None and s.fixed_root:
            return True
        return self.k_cap(s, node) >= self.cap(s, node)

    def terminal(self, s: State, node: int) -> bool:
        if node in s.pruned:
            return True
        closed = self.full(s, node) and all(self.terminal(s, c) for c in s.children(node))
        return s.status[node] != "running" and closed

    def blocked(self, s: State, node: int) -> bool:
        if self.terminal(s, node) or s.status[node] == "running":
            return True
        return self.full(s, node) and all(self.blocked(s, c) for c in s.children(node))

    # answers

    def best(self, s: State, *, skip: set[int] | frozenset[int] = frozenset()) -> int | None:
        top: int | None = None
        for node, score in s.score.items():  # in order of creation
            if score is None or node in skip:
                continue
            if top is None or score > (s.score[top] or 0.0):
                top = node
        return top

    def levels(self, s: State) -> tuple[list[dict[str, Any]], int]:
        """Every level of the descent under the names of the rules, and the node to expand."""
        node, levels = next(iter(s.kind)), []
        while True:
            n = s.visits(node) + s.in_flight(node)
            ln = math.log(max(1, n))
            k_fair = len(s.children(node))
            prior = self.prior(s, node)
            views = {}
            for child in s.children(node):
                if not self.blocked(s, child):
                    q = self.value(s, child)
                    uct = q + self.r["C"] * math.sqrt(ln / (s.visits(child) + s.in_flight(child)))
                    views[child] = {"Q": q, "uct": uct}
            new = prior + self.r["C"] * math.sqrt(ln / (n / (k_fair + 1)))
            full = self.full(s, node)
            levels.append(
                {
                    "at": node,
                    "N": n,
                    "k_fair": k_fair,
                    "k_cap": self.k_cap(s, node),
                    "cap": self.cap(s, node),
                    "full": full,
                    "uct_new": new,
                    "Q_prior": prior,
                    "children": views,
                }
            )
            best = max((v["uct"] for v in views.values()), default=-math.inf)
            if new > best + 1e-12 and not full:
                return levels, node
            node = min(c for c, v in views.items() if v["uct"] >= best - 1e-12)

    def ask(self) -> tuple[str, int | None, list[dict[str, Any]]]:
        s = self.state
        if self.budget is not None and len(s.kind) >= self.budget:
            return "stop", None, []
        if not s.kind:
            return "root", None, []
        root = next(iter(s.kind))
        scratch = sum(kind in ("root", "scratch") for kind in s.kind.values())
        evolve = sum(kind != "debug" for kind in s.kind.values())
        if scratch / evolve < self.r["rho_min"]:
            best = self.best(s, skip=s.pruned)
            return "scratch", root if best is None else best, []
        if self.terminal(s, root):
            return "stop", None, []
        if self.blocked(s, root):
            return "wait", None, []
        levels, on = self.levels(s)
        return "debug" if s.status[on] == "failed" else "evolve", on, levels

    def table(self) -> dict[int, dict[str, Any]]:
        """The nodes as `explain` prints them."""
        s = self.state
        return {
            node: {
                "parent": s.parent[node],
                **s.counts(node),
                "debug_depth": s.depth[node],
                "pruned": node in s.pruned,
                "terminal": self.terminal(s, node),
                "in_flight": s.in_flight(node),
            }
            for node in s.kind
        }
