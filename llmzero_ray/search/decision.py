"""Decisions of the tree search with all numbers on which they were based, as JSON and as text.

The journal stores them, so that a later replay can be compared with them number by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from llmzero_ray.search.base import Decision

SHOWN_LEVELS = 4
"""Maximum levels of a descent that an explanation shows. Of a deeper descent, it shows the last ones."""


class ChildView(NamedTuple):
    """A candidate child with its values when the decision was made."""

    id: int
    q: float
    uct: float


class Level(NamedTuple):
    """One level of the descent: a node, its virtual new child, and its candidate children."""

    at: int
    visits: int
    """Number of finished and running runs in the node's subtree."""
    k_fair: int
    """Number of attached children."""
    k_cap: int
    """Number of attached children that count towards the cap."""
    cap: int
    full: bool
    """Whether no new child was allowed. Always true for a failed root that was fixed."""
    uct_new: float
    q_prior: float
    children: tuple[ChildView, ...]

    def to_dict(self) -> dict[str, Any]:
        """The level under the names of `explain`'s output."""
        return {
            "at": self.at,
            "N": self.visits,
            "k_fair": self.k_fair,
            "k_cap": self.k_cap,
            "cap": self.cap,
            "full": self.full,
            "uct_new": self.uct_new,
            "Q_prior": self.q_prior,
            "children": {str(child.id): {"Q": child.q, "uct": child.uct} for child in self.children},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Level:
        """Restore a level from the data of `to_dict`."""
        head = [data[name] for name in ("at", "N", "k_fair", "k_cap", "cap", "full", "uct_new", "Q_prior")]
        children = (ChildView(int(key), view["Q"], view["uct"]) for key, view in data["children"].items())
        return cls._make((*head, tuple(children)))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All facts on which a decision was based."""

    s_min: float | None
    s_max: float | None
    created: int
    """Number of runs begun so far, including the root."""
    budget: int | None
    running: int
    n_scratch: int
    """Number of root and forced scratch nodes."""
    n_evolve: int
    """Number of nodes except debug nodes."""
    rho_min: float
    descent: tuple[Level, ...] = ()
    """Levels from the root down to the expanded node. Empty if nothing was selected."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**vars(self), "descent": [level.to_dict() for level in self.descent]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Seen:
        """Restore a record from the data of `to_dict`. Facts that this version does not know are dropped."""
        known = {field.name: data[field.name] for field in fields(cls)}
        return cls(**{**known, "descent": tuple(map(Level.from_dict, data["descent"]))})


@dataclass(frozen=True, kw_only=True)
class TreeDecision(Decision):
    """A decision of `TreeSearch`."""

    seen: Seen

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TreeDecision:
        """Restore a decision from the data of `to_dict`."""
        return cls(**{**data, "seen": Seen.from_dict(data["seen"])})


def reason_in_words(decision: TreeDecision) -> str:
    """Explanation of a decision, with the numbers on which it was based."""
    seen = decision.seen
    if decision.action == "root":
        return "first run of the search"
    if decision.action == "scratch":
        share = (
            f"{seen.n_scratch} of {seen.n_evolve} runs from scratch = {seen.n_scratch / seen.n_evolve:.3f}"
        )
        return f"{share} < {seen.rho_min:g}; node {decision.on} is the best so far"
    if decision.action == "wait":
        return f"nothing can be created before one of the {seen.running} running runs ends"
    if decision.action == "stop":
        return _stop_in_words(decision)
    levels = seen.descent
    lines = [_level_in_words(level, below) for level, below in zip(levels, [*levels[1:], None], strict=True)]
    hidden = len(lines) - SHOWN_LEVELS
    return "; ".join([f"({hidden} levels above)", *lines[hidden:]] if hidden > 0 else lines)


def _stop_in_words(decision: TreeDecision) -> str:
    if decision.stop_reason == "budget":
        return f"budget: {decision.seen.created} of {decision.seen.budget} runs begun"
    if decision.stop_reason == "exhausted":
        return "exhausted: no node can get another child"
    if decision.stop_reason == "user":
        return "user: a person ended the search"
    return f"{decision.stop_reason}: a limit of the search was reached"


def _level_in_words(level: Level, below: Level | None) -> str:
    """Text for one level: `2: new child 1.520 > node 4 1.310`. `below` is the next level of the descent, or
    None at its end."""
    new = f"new child {level.uct_new:.3f}"
    if below is None:
        rival = max(level.children, key=lambda child: child.uct, default=None)
        lost = "without a rival" if rival is None else f"> node {rival.id} {rival.uct:.3f}"
        return f"{level.at}: {new} {lost}"
    won = next(f"node {child.id} {child.uct:.3f}" for child in level.children if child.id == below.at)
    return f"{level.at}: full, {won}" if level.full else f"{level.at}: {won} >= {new}"
