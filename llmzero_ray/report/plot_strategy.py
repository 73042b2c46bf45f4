"""Picture: hyper-parameters of the best strategy's phases, one row each over global steps."""

from __future__ import annotations

from typing import Any

from llmzero_ray.hyperparameters import SPACE, canonical, short
from llmzero_ray.plots import style
from llmzero_ray.records import HyperparameterValue
from llmzero_ray.report import formatting as fmt
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.utils.text import one_line

ALWAYS = tuple(map(canonical, ("lr", "kl_loss_coef", "temperature", "n", "max_response_length")))
MOST = 12
"""Rows of one picture; further changed hyper-parameters are in the report's tables."""


def draw_recipe(facts: SearchFacts) -> bytes | None:
    """The picture as PNG; None without a best strategy."""
    if not facts.path:
        return None
    keys = shown_keys(facts)
    with style.applied():
        figure = style.new_figure(11.0, 1.5 + 0.92 * len(keys))
        rows = figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
        for axes, key in zip(rows, keys, strict=True):
            _row(axes, facts, key)
        rows[-1].set_xlabel("global step")
        rows[-1].set_xlim(0, facts.path[-1].end)
        rows[0].set_title(f"{facts.config.name}: hyper-parameters along the best strategy", pad=18)
        _phase_names(rows[0], facts)
        line = figure.axes[0].plot([], [], color=style.REFERENCE, linestyle="-.", linewidth=1.4)
        figure.legend(line, ["default recipe"], loc="outside lower right")
        return style.png(figure)


def shown_keys(facts: SearchFacts) -> tuple[str, ...]:
    """Keys to show: the usual ones first, then others that a phase of the strategy changed, in table
    order."""
    changed = {change.key for phase in facts.path for change in facts.changes(phase.run)}
    others = [row.key for row in SPACE if row.key in changed and row.key not in ALWAYS]
    unknown = sorted(changed - {row.key for row in SPACE})
    return (*ALWAYS, *others, *unknown)[:MOST]


def _values(facts: SearchFacts, key: str) -> list[HyperparameterValue]:
    return [
        None if phase.run.spec is None else phase.run.spec.hyperparameters.get(key) for phase in facts.path
    ]


def _row(axes: Any, facts: SearchFacts, key: str) -> None:
    values = _values(facts, key)
    default = facts.default.get(key)
    moves = any(value != default for value in values)
    colour = style.BEST if moves else style.GREY
    heights = _heights(axes, values, default)
    for phase in facts.path:
        axes.axvspan(phase.begin, phase.end, color=style.BANDS[(phase.number + 1) % 2], linewidth=0, zorder=0)
    if moves:
        axes.axhline(heights[-1], color=style.REFERENCE, linestyle="-.", linewidth=1.4, zorder=1)
    before: float | None = None
    for begin, end, value, height in _stretches(facts, values, heights):
        if before is not None:
            axes.plot((begin, begin), (before, height), color=colour, linewidth=1.0, zorder=2)
        axes.plot((begin, end), (height, height), color=colour, linewidth=2.8, zorder=3)
        cramped = end == facts.path[-1].end and end - begin < 0.08 * end  # its label would leave the picture
        axes.annotate(
            one_line(fmt.value(key, value), 40),
            (end if cramped else (begin + end) / 2, height),
            xytext=(0, 4),
            zorder=4,
            textcoords="offset points",
            ha="right" if cramped else "center",
            va="bottom",
            fontsize=8.5,
            color=colour,
            fontweight="bold" if value != default else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.75},
        )
        before = height
    _label(axes, key, colour)


def _stretches(
    facts: SearchFacts, values: list[HyperparameterValue], heights: list[float]
) -> list[tuple[int, int, HyperparameterValue, float]]:
    """(begin, end, value, height) of phases; neighbours with the same value are one stretch."""
    found: list[tuple[int, int, HyperparameterValue, float]] = []
    for phase, value, height in zip(facts.path, values, heights[:-1], strict=True):
        begin = phase.begin
        if found and found[-1][2] == value:
            begin = found.pop()[0]
        found.append((begin, phase.end, value, height))
    return found


def _heights(axes: Any, values: list[HyperparameterValue], default: HyperparameterValue) -> list[float]:
    """Height at which each value is drawn, the default last; each non-numeric value gets its own level."""
    levels = [*values, default]
    numbers = [float(v) for v in levels if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) != len(levels):
        names = list(dict.fromkeys(map(str, levels)))
        heights = [float(names.index(str(v))) for v in levels]
        axes.set_ylim(-0.6, max(heights) + 1.1)
        return heights
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low >= 3:
        axes.set_yscale("log")
        axes.set_ylim(low / (high / low) ** 0.3, high * (high / low) ** 0.75)
    else:
        room = (high - low) or abs(high) or 1.0
        axes.set_ylim(low - 0.35 * room, high + 0.75 * room)
    return numbers


def _label(axes: Any, key: str, colour: str) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    axes.yaxis.set_major_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(
        short(key),
        rotation=0,
        ha="right",
        va="center",
        color=colour if colour == style.BEST else style.BLACK,
    )
    axes.grid(visible=False)


def _phase_names(axes: Any, facts: SearchFacts) -> None:
    total = facts.path[-1].end
    for phase in facts.path:
        narrow = phase.cut < 0.11 * total
        axes.annotate(
            str(phase.number) if narrow else f"phase {phase.number} · node {phase.node}",
            ((phase.begin + phase.end) / 2, 1.0),
            xytext=(0, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8.5,
            color=style.BEST,
        )
