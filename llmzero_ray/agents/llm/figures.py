"""Figures for agents: the dynamics along a resume path, and a running phase drawn over the best strategy.

Equal requests give equal PNG bytes. Figures are no larger than an agent needs, because an image costs about
width x height / 750 tokens. The style is the report's (plots/style.py).
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llmzero_ray.errors import AgentError
from llmzero_ray.hyperparameters.verl_keys import MAX_RESPONSE
from llmzero_ray.plots import style
from llmzero_ray.records.agents import NodeView, StopRequest
from llmzero_ray.records.metrics import (
    BEST_OF_N,
    ENTROPY,
    GRAD_NORM,
    KL,
    LENGTH,
    LENGTH_MAX,
    MIXED_GROUPS,
    REWARDS,
    Curves,
    accuracy_error,
    series,
)
from llmzero_ray.utils.text import number

COMPOSITE_WIDTH, ROW_HEIGHT = 1100, 270
OVERLAY_SIZE = (900, 520)
_PER_ROW = 3
_SIZE = {"font.size": 7.5, "axes.titlesize": 8.5, "axes.labelsize": 7.5, "legend.fontsize": 7.5}
_COLOURS = 64
"""Colours in an image's palette: enough for rare ones too, so that no line changes its colour."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small plot: its title and its metrics, the first one drawn thick."""

    title: str
    metrics: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Names of the lines, if there are several."""


PANELS = (
    Panel(title="reward (train)", metrics=(REWARDS[0], BEST_OF_N), names=("mean", "best of n")),
    Panel(title="share of mixed groups", metrics=(MIXED_GROUPS,)),
    Panel(title="KL to the base model", metrics=(KL,)),
    Panel(title="entropy", metrics=(ENTROPY,)),
    Panel(title="response length", metrics=(LENGTH, LENGTH_MAX), names=("mean", "longest")),
    Panel(title="gradient norm", metrics=(GRAD_NORM,)),
)
"""Panels in display order. Validation comes first. Panels in which nothing changes are left out."""
MOST_PANELS = 6
"""Two rows. The text has every metric of the shown phase; the figure adds the path before it."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A phase of the path, up to where the next one continues it."""

    node: NodeView
    begin: int
    cut: int | None
    """Step inside the phase at which the next phase resumes, or None if the path includes its end."""

    def line(self, name: str) -> tuple[list[int], list[float]]:
        one = series(self.node.curves, name)
        kept = one if self.cut is None else one.until(self.cut)
        return [self.begin + step for step in kept.steps], list(kept.values)

    def validation(self) -> tuple[list[int], list[float]]:
        curves = self.node.curves
        pairs = [
            (self.begin + s, v)
            for s, v in zip(curves.val_steps, curves.val_scores, strict=True)
            if math.isfinite(v) and (self.cut is None or s <= self.cut)
        ]
        return [s for s, _ in pairs], [v for _, v in pairs]

    @property
    def end(self) -> int:
        last = max((*self.node.curves.steps, *self.node.curves.val_steps), default=0)
        return self.begin + (last if self.cut is None else min(last, self.cut))


def draw_figure(kind: str, request: Any, n_val: int) -> bytes:
    """PNG of a request: `composite` for a proposal, `overlay` for the early stopper.

    Raises:
        AgentError: the kind does not exist, or nothing was logged to draw.
    """
    if kind == "overlay":
        return overlay_png(request, n_val=n_val)
    if kind != "composite":
        raise AgentError(f"there is no picture {kind!r}; there are composite and overlay.")
    scratch = request.from_scratch
    best = () if scratch or request.best is None else (request.best,)
    siblings = () if scratch else request.siblings
    png = composite_png(
        request.on, request.path, n_val=n_val, from_scratch=scratch, siblings=siblings, best=best
    )
    if png is None:
        raise AgentError(f"node {request.on.node} has logged nothing that could be drawn.")
    return png


# --- the proposer's figure ----------------------------------------------------------------------------------


def composite_png(
    on: NodeView,
    path: Sequence[NodeView] = (),
    *,
    n_val: int = 500,
    from_scratch: bool = False,
    siblings: Sequence[NodeView] = (),
    best: Sequence[NodeView] = (),
) -> bytes | None:
    """Small multiples of a resume path by global step, 1,100 pixels wide. None if nothing was logged.

    `path` ends with `on`; borders of phases are dashed. The validation panel also shows `siblings`, which
    started on the path, and `best`, unless it is among the others, labelled with node numbers.
    `from_scratch` shows the node alone, by its own steps: the context of a forced fresh start has no path.
    """
    parts = [_Part(node=on, begin=0, cut=None)] if from_scratch else _parts((*path[:-1], on))
    shown = [
        panel
        for panel in PANELS
        if any(len({v for part in parts for v in part.line(name)[1]}) > 1 for name in panel.metrics)
    ]
    known = {part.node.node for part in parts}
    others = {view.node: (view, style.ORANGE) for view in siblings}
    others |= {view.node: (view, style.GREEN) for view in best if view.node not in known}
    beside = [
        (_Part(node=view, begin=view.base_step, cut=None), colour)
        for view, colour in others.values()
        if any(map(math.isfinite, view.curves.val_scores))
    ]
    validated = any(part.validation()[0] for part in parts)
    shown = shown[: MOST_PANELS - validated]
    n_panels = len(shown) + validated
    if n_panels == 0:
        return None
    columns = min(_PER_ROW, n_panels)
    rows = math.ceil(n_panels / columns)
    with _figure_style():
        figure = _new_figure(COMPOSITE_WIDTH, rows * ROW_HEIGHT + 30)
        grid = figure.add_gridspec(
            rows, columns, **_margins(COMPOSITE_WIDTH, rows * ROW_HEIGHT + 30, rows, columns)
        )
        places = [figure.add_subplot(grid[divmod(i, columns)]) for i in range(n_panels)]
        if validated:
            _validation_panel(places[0], parts, n_val)
            _beside(places[0], beside)
        for axes, panel in zip(places[validated:], shown, strict=True):
            _metric_panel(axes, parts, panel)
        for i, axes in enumerate(places):
            _frame(axes, parts, max((part.end for part, _ in beside), default=0))
            if i + columns >= n_panels:
                axes.set_xlabel("step of the phase" if from_scratch else "global step")
        return _png(figure)


def _parts(path: Sequence[NodeView]) -> list[_Part]:
    """Phases of a path, each cut where the next one resumed."""
    found = []
    for node, after in zip(path, (*path[1:], None), strict=True):
        cut = None if after is None else after.base_step - node.base_step
        found.append(_Part(node=node, begin=node.base_step, cut=cut))
    return found


def _validation_panel(axes: Any, parts: Sequence[_Part], n_val: int) -> None:
    for part in parts:
        steps, values = part.validation()
        start = part.node.curves.start_score
        if start is not None and math.isfinite(start):
            axes.plot(part.begin, start, "o", color="white", mec=style.BLUE, markersize=4, zorder=5)
            steps, values = [part.begin, *steps], [start, *values]
        _band(axes, steps, values, n_val, style.BLUE)
        axes.plot(steps, values, color=style.BLUE, linewidth=1.4, marker="o", markersize=2.5)
        if len(parts) > 1:
            axes.annotate(
                f"n{part.node.node}", (part.begin, 0), xycoords=("data", "axes fraction"), xytext=(2, 2),
                textcoords="offset points", fontsize=6.5, color=style.DARK,
            )  # fmt: skip
    axes.set_title("validation ± 1 std. error", fontweight="bold")


def _beside(axes: Any, others: Sequence[tuple[_Part, str]]) -> None:
    """Draw the validations of phases that are not on the path, with a legend."""
    low, high = axes.get_ylim()
    ends = [part.validation()[1][-1] for part, _ in others]
    places = _apart(ends, 0.07 * (max([high, *ends]) - min([low, *ends])))
    for (part, colour), place in zip(others, places, strict=True):
        steps, values = part.validation()
        axes.plot(steps, values, color=colour, linewidth=1.0, marker="o", markersize=2, zorder=2)
        look = {"color": colour, "fontsize": 6.5, "va": "center"}
        axes.text(steps[-1], place, f"  n{part.node.node}", **look)
    drawn = {colour for _, colour in others}
    names = ((style.ORANGE, "siblings orange"), (style.GREEN, "best green"))
    if named := [name for colour, name in names if colour in drawn]:
        axes.set_title(f"validation; {', '.join(named)}", fontweight="normal")


def _apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions near the wanted ones, in the same order, with at least `gap` between neighbours."""
    placed: dict[int, float] = {}
    lowest = -math.inf
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        placed[i] = max(wanted[i], lowest)
        lowest = placed[i] + gap
    above = (sum(placed.values()) - sum(wanted)) / max(1, len(wanted))
    return [placed[i] - above for i in range(len(wanted))]


def _metric_panel(axes: Any, parts: Sequence[_Part], panel: Panel) -> None:
    colours = (style.BLUE, style.ORANGE)
    for part in parts:
        for name, colour in zip(panel.metrics, colours, strict=False):
            _smoothed_line(axes, *part.line(name), colour)
    axes.set_title(panel.title)
    drawn = [name for name in panel.metrics if any(part.line(name)[0] for part in parts)]
    if len(drawn) > 1:
        for text, colour, x in zip(panel.names, colours, (0.73, 1.0), strict=False):
            look = {"color": colour, "ha": "right", "va": "bottom", "fontsize": 7}
            axes.text(x, 1.035, text, transform=axes.transAxes, **look)
    if panel.metrics[0] == LENGTH:
        _caps(axes, parts)


def _caps(axes: Any, parts: Sequence[_Part]) -> None:
    """Draw the response cap along the path, if it is in range. Equal neighbours form one segment."""
    low, top = axes.get_ylim()
    stretches: list[tuple[int, int, int]] = []
    for part in parts:
        cap = part.node.hyperparameters.get(MAX_RESPONSE)
        if isinstance(cap, int) and cap <= 1.6 * top:
            joins = bool(stretches) and stretches[-1][2] == cap
            begin = stretches.pop()[0] if joins else part.begin
            stretches.append((begin, part.end, cap))
    for begin, end, cap in stretches:
        axes.plot((begin, end), (cap, cap), color=style.VERMILLION, linewidth=1.0, linestyle=":")
        look = {"color": style.VERMILLION, "fontsize": 6.5, "ha": "left", "va": "bottom"}
        axes.text(begin, cap, f" cap {cap}", **look)
    if stretches:
        axes.set_ylim(low, max(top, 1.1 * max(cap for _, _, cap in stretches)))


def _frame(axes: Any, parts: Sequence[_Part], end: int) -> None:
    """Draw borders of phases, and give all panels the same range of steps, up to at least `end`."""
    for part in parts[1:]:
        axes.axvline(part.begin, color=style.DARK, linewidth=0.8, linestyle="--", zorder=1)
    first, last = parts[0].begin, max(end, *(part.end for part in parts))
    margin = 0.02 * max(1, last - first)
    axes.set_xlim(first - margin, last + margin)
    axes.locator_params(axis="x", nbins=6, integer=True)
    _few_ticks(axes)


# --- the early stopper's figure -----------------------------------------------------------------------------


def overlay_png(request: StopRequest, *, n_val: int = 500) -> bytes:
    """The running phase (blue) over the best strategy (green, dashed) by global step, 900 x 520 pixels.

    Large: validation with one standard error. Small, as context: train reward and response length. The best
    strategy is shown along its whole path, from the base model on.
    """
    running = request.running
    end = running.base_step + running.n_steps
    best, now = _parts(request.incumbent_chain or (request.incumbent,)), _parts((running,))
    with _figure_style():
        figure = _new_figure(*OVERLAY_SIZE)
        grid = figure.add_gridspec(2, 2, width_ratios=(2.2, 1), **_margins(*OVERLAY_SIZE, 2, 2))
        main = figure.add_subplot(grid[:, 0])
        _overlay_validation(main, request, n_val)
        for part in best[1:]:
            main.axvline(part.begin, color=style.GREEN, linewidth=0.6, linestyle="--", alpha=0.5)
        main.axvline(end, color=style.DARK, linewidth=0.8, linestyle=":")
        main.annotate(
            "planned end", (end, 1), xycoords=("data", "axes fraction"), xytext=(-3, -9),
            textcoords="offset points", ha="right", fontsize=6.5, color=style.DARK,
        )  # fmt: skip
        main.set_title("validation", fontweight="bold")
        main.set_xlabel("global step")
        main.legend(loc="lower right", bbox_to_anchor=(1.01, 0.985), ncols=2, columnspacing=1.0)
        _few_ticks(main)
        for row, (name, title) in enumerate(((REWARDS[0], "reward (train)"), (LENGTH, "response length"))):
            axes = figure.add_subplot(grid[row, 1])
            for parts, colour, dash in ((best, style.GREEN, "--"), (now, style.BLUE, "-")):
                for part in parts:
                    _smoothed_line(axes, *part.line(name), colour, linestyle=dash)
            if not axes.lines:
                axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color=style.GREY)
            axes.set_title(title)
            axes.locator_params(axis="x", nbins=4, integer=True)
            _few_ticks(axes)
        return _png(figure)


def _overlay_validation(axes: Any, request: StopRequest, n_val: int) -> None:
    history = [(s, v) for s, v in request.incumbent_path if math.isfinite(v)]
    scores = [v for _, v in history] + (
        [request.incumbent.score] if request.incumbent.score is not None else []
    )
    steps, values = [s for s, _ in history], [v for _, v in history]
    _band(axes, steps, values, n_val, style.GREEN)
    label = f"best (node {request.incumbent.node})"
    look: dict[str, Any] = {"linewidth": 1.6, "marker": "o", "markersize": 3}
    axes.plot(steps, values, color=style.GREEN, linestyle="--", label=label, **look)
    if scores:
        axes.axhline(max(scores), color=style.GREEN, linewidth=0.8, linestyle=":")
    steps, values = _with_start(request.running.curves)
    _band(axes, steps, values, n_val, style.BLUE)
    axes.plot(steps, values, color=style.BLUE, label=f"running (node {request.running.node})", **look)


def _with_start(curves: Curves) -> tuple[list[int], list[float]]:
    points = [(0, curves.start_score)] if curves.start_score is not None else []
    points += zip(curves.val_steps, curves.val_scores, strict=True)
    kept = [(curves.base_step + s, v) for s, v in points if math.isfinite(v)]
    return [s for s, _ in kept], [v for _, v in kept]


@contextmanager
def _figure_style() -> Iterator[None]:
    """Context manager: the report's style with smaller fonts."""
    import matplotlib

    with style.applied():
        matplotlib.rcParams.update(_SIZE)
        yield


def _new_figure(width: int, height: int) -> Any:
    """Empty figure of this size in pixels, without automatic layout, which would cost several drawings."""
    figure = style.new_figure(width / style.DPI, height / style.DPI)
    figure.set_layout_engine("none")
    return figure


def _png(figure: Any) -> bytes:
    """The figure as a PNG with a palette, a third of the usual bytes. Equal figures give equal bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(style.png(figure))) as picture:
        found = picture.convert("RGB").quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE)
        found.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _margins(width: int, height: int, rows: int, columns: int) -> dict[str, float]:
    """Margins of the panels for `add_gridspec`: tick labels left, titles above, axis label below."""
    left, right, top, bottom, gap_x, gap_y = 64, 14, 34, 54, 74, 62
    panel_x = (width - left - right - (columns - 1) * gap_x) / columns
    panel_y = (height - top - bottom - (rows - 1) * gap_y) / rows
    return {
        "left": left / width, "right": 1 - right / width, "top": 1 - top / height, "bottom": bottom / height,
        "wspace": gap_x / panel_x, "hspace": gap_y / panel_y,
    }  # fmt: skip


def _smoothed_line(
    axes: Any, steps: Sequence[int], values: Sequence[float], colour: str, **style_args: Any
) -> None:
    """Draw the values as a thin line, and their mean over two steps on each side as a thick one."""
    if not steps:
        return
    axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.4, **style_args)
    marker = "o" if len(steps) == 1 else ""
    smooth = style.rolling_mean(values)
    axes.plot(steps, smooth, color=colour, linewidth=1.4, marker=marker, markersize=2.5, **style_args)


def _band(axes: Any, steps: Sequence[int], values: Sequence[float], n_val: int, colour: str) -> None:
    """Draw a band of one standard error around validation scores."""
    errors = [accuracy_error(v, n_val) for v in values]
    low = [v - e for v, e in zip(values, errors, strict=True)]
    high = [v + e for v, e in zip(values, errors, strict=True)]
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def _few_ticks(axes: Any) -> None:
    """Set a few ticks with short numbers. A flat line keeps its value in the middle."""
    axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter(_tick)
    axes.tick_params(labelsize=7, length=2)
    values = [v for line in axes.lines for v in line.get_ydata() if isinstance(v, float) and math.isfinite(v)]
    if values and max(values) - min(values) < 1e-9 * max(1.0, abs(values[0])):
        room = max(0.1 * abs(values[0]), 0.01)
        axes.set_ylim(values[0] - room, values[0] + room)


def _tick(value: float, _: int) -> str:
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 else number(value)
