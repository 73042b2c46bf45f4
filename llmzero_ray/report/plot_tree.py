"""Picture: the search tree, coloured by score, shaped by how each node ended, the best strategy in bold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.plots import style
from llmzero_ray.records import PhaseFailure
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.tree_text import best_at

SHAPES = {
    "completed": "o",
    "early_stopped": "s",
    "failed": "D",
    "running": "h",
    "pending": "^",
    "cancelled": "v",
}
"""Status -> marker."""


def draw_tree(facts: SearchFacts) -> bytes | None:
    """The picture as PNG; None before the first run."""
    if not facts.nodes:
        return None
    places = layout(facts)
    generations, leaves = (1 + max(abs(place[i]) for place in places.values()) for i in (0, 1))
    width = min(26.0, max(9.0, 1.9 * generations + 1.8))
    height = min(20.0, max(3.6, 1.12 * leaves + 1.2))
    with style.applied():
        figure = style.new_figure(width, height)
        axes = figure.add_subplot()
        for node in facts.nodes:
            _edge(axes, facts, places, node)
        _points(figure, axes, facts, places)
        _legend(axes, facts)
        axes.set_title(f"{facts.config.name}: the search tree")
        axes.axis("off")
        axes.set_xlim(-0.45, generations - 0.5)
        axes.set_ylim(-leaves + 0.3, 0.5)
        return style.png(figure)


def layout(facts: SearchFacts) -> dict[int, tuple[float, float]]:
    """Node -> (x, y): generations from left to right, leaves below each other, a parent amid its children."""
    nodes = facts.nodes
    depths: dict[int, int] = {}
    for node in nodes:
        parent = nodes[node].parent
        depths[node] = 0 if parent is None else depths[parent] + 1
    y: dict[int, float] = {}
    free = 0.0
    for node in _leaves_first(facts):
        children = nodes[node].children
        if children:
            y[node] = (y[children[0]] + y[children[-1]]) / 2
        else:
            y[node], free = free, free - 1.0
    return {node: (float(depths[node]), y[node]) for node in nodes}


def _leaves_first(facts: SearchFacts) -> Iterator[int]:
    """Nodes of the tree, children before their parent, from top to bottom."""
    todo = [(node.id, False) for node in facts.nodes.values() if node.parent is None]
    while todo:
        node, is_open = todo.pop()
        if is_open:
            yield node
            continue
        todo.append((node, True))
        todo.extend((child, False) for child in reversed(facts.nodes[node].children))


def _edge(axes: Any, facts: SearchFacts, places: dict[int, tuple[float, float]], node: int) -> None:
    parent, run = facts.nodes[node].parent, facts.core.runs[node]
    source = facts.source(run)
    bold = node in facts.path_nodes
    if parent is not None:
        (x0, y0), (x1, y1) = places[parent], places[node]
        along = bold and source is not None and source.node == parent
        line = ":" if facts.nodes[node].pruned else "--" if source is None else "-"
        look = {"color": style.BEST, "linewidth": 3.4} if along else {"color": style.GREY, "linewidth": 1.2}
        axes.plot((x0, x1), (y0, y1), linestyle=line, zorder=1, **look)
        _edge_label(axes, run, (x0 + 0.5 * (x1 - x0), y0 + 0.5 * (y1 - y0)), bold)
    if source is not None and source.node != parent:
        _detour(axes, places[source.node], places[node], bold)


def _edge_label(axes: Any, run: PhaseRun, at: tuple[float, float], bold: bool) -> None:
    if run.spec is None:
        return
    source = run.spec.resume_from
    text = "scratch" if source is None else f"{source.node}@{source.step}"
    axes.text(
        *at,
        text,
        ha="center",
        va="center",
        fontsize=7.5,
        color=style.BEST if bold else style.DARK,
        zorder=2,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )


def _detour(axes: Any, begin: tuple[float, float], end: tuple[float, float], bold: bool) -> None:
    """Draw an arrow from the checkpoint's node if it is not the parent."""
    arrow = {
        "arrowstyle": "-|>",
        "color": style.BEST if bold else style.GREY,
        "linewidth": 2.6 if bold else 1.0,
        "linestyle": "-" if bold else "--",
        "connectionstyle": "arc3,rad=-0.3",
        "shrinkA": 14,
        "shrinkB": 16,
    }
    axes.annotate("", xy=end, xytext=begin, arrowprops=arrow, zorder=0)


def _points(figure: Any, axes: Any, facts: SearchFacts, places: dict[int, tuple[float, float]]) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scores = [run.score for run in facts.runs.values() if run.score is not None]
    low, high = (min(scores), max(scores)) if scores else (0.0, 1.0)
    scale: Any = ScalarMappable(Normalize(low, high if high > low else low + 1e-6), colormaps["cividis"])
    for node, (x, y) in places.items():
        run = facts.core.runs[node]
        fill = "white" if run.score is None else scale.to_rgba(run.score)
        dark = run.score is not None and scale.norm(run.score) < 0.55
        _point(axes, facts, run, (x, y), fill, "white" if dark else "black")
    if len(set(scores)) > 1:
        figure.colorbar(scale, ax=axes, label="best validation accuracy", shrink=0.9, pad=0.01)


def _point(
    axes: Any, facts: SearchFacts, run: PhaseRun, at: tuple[float, float], fill: Any, ink: str
) -> None:
    on_path, failed = run.node in facts.path_nodes, run.status == "failed"
    edge = style.FAILED if failed else style.BEST if on_path else style.BLACK
    size = 620 if failed else 720
    axes.scatter(
        *at,
        s=size,
        marker=SHAPES[run.status],
        color=[fill],
        edgecolor=edge,
        zorder=3,
        linewidth=3.0 if on_path else 2.2 if failed else 1.0,
    )
    axes.annotate(str(run.node), at, ha="center", va="center", color=ink, fontweight="bold", zorder=4)
    star = "★ " if facts.path and run.node == facts.path[-1].node else ""
    axes.annotate(
        f"{star}{_node_label(run)}\n{run.kind}",
        at,
        xytext=(0, -20),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=8,
        color=style.BEST if on_path else style.BLACK,
        linespacing=1.15,
        zorder=4,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
    )


def _node_label(run: PhaseRun) -> str:
    """The score, or why there is none."""
    if run.score is None and isinstance(run.outcome, PhaseFailure):
        return run.outcome.failure_class
    return best_at(run)


def _legend(axes: Any, facts: SearchFacts) -> None:
    present = {run.status for run in facts.runs.values()}
    for status, marker in SHAPES.items():
        if status in present:
            axes.scatter(
                [],
                [],
                s=90,
                marker=marker,
                color="white",
                label=status.replace("_", " "),
                edgecolor=style.FAILED if status == "failed" else style.BLACK,
            )
    if facts.path:
        axes.plot([], [], color=style.BEST, linewidth=3.4, label="best strategy")
    if any(node.pruned for node in facts.nodes.values()):
        axes.plot([], [], color=style.GREY, linestyle=":", label="pruned")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=7)
