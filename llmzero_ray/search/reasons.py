"""Explanations of the tree search's decisions, with the numbers that decided."""

from __future__ import annotations

from llmzero_ray.search.decision import Level, TreeDecision

SHOWN_LEVELS = 4
"""Maximum levels of a descent in an explanation: the last ones of a deeper descent."""


def reason_in_words(decision: TreeDecision) -> str:
    """Explanation of a decision, with the numbers it was based on."""
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
    """`2: new child 1.520 > node 4 1.310`; `below` is the level descended to, if any."""
    new = f"new child {level.uct_new:.3f}"
    if below is None:
        rival = max(level.children, key=lambda child: child.uct, default=None)
        lost = "without a rival" if rival is None else f"> node {rival.id} {rival.uct:.3f}"
        return f"{level.at}: {new} {lost}"
    won = next(f"node {child.id} {child.uct:.3f}" for child in level.children if child.id == below.at)
    return f"{level.at}: full, {won}" if level.full else f"{level.at}: {won} >= {new}"
