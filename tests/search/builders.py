"""Short ways to write down a search."""

from __future__ import annotations

from typing import Any

from llmzero_ray.search import SearchRules, TreeSearch

STATUS: dict[str, Any] = {"ok": "completed", "early": "early_stopped", "failed": "failed"}
Run = tuple[Any, int | None, str, float | None]
"""(kind, node created on, `ok`, `early`, `failed` or `running`, score); its id is its place in the list."""


def grow(*runs: Run, budget: int | None = None, **rules: Any) -> TreeSearch:
    """The search after these runs, each finished before the next one begins."""
    search = TreeSearch(SearchRules(**rules), budget)
    for run in runs:
        add(search, *run)
    return search


def add(search: TreeSearch, kind: Any, on: int | None, status: str = "ok", score: float | None = None) -> int:
    """One more run; the id of its node."""
    node = search.create(kind, on)
    if status != "running":
        search.tell(node, STATUS[status], score)
    return node


def chosen(search: TreeSearch) -> tuple[str, int | None]:
    """Action and node of the next decision."""
    decision = search.ask()
    return decision.action, decision.on


def parents(search: TreeSearch) -> list[int | None]:
    """Where each node hangs, in the order of creation."""
    return [node.parent for node in search.nodes.values()]


def counters(search: TreeSearch, node_id: int) -> dict[str, int]:
    """Visits of a node by result."""
    node = search.node(node_id)
    names = ("visits", "v_val", "v_fail", "v_early", "v_unval")
    return {name: getattr(node, name) for name in names}
