"""Parts of the agents' figures: sizes in pixels, small fonts, smoothed lines, axes with few ticks."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llmzero_ray.plots import style
from llmzero_ray.records.metrics import accuracy_error
from llmzero_ray.utils.text import number

_SIZE = {"font.size": 7.5, "axes.titlesize": 8.5, "axes.labelsize": 7.5, "legend.fontsize": 7.5}
_COLOURS = 64
"""Colours of a picture's palette, which covers also rare ones: no line changes its colour."""


@contextmanager
def figure_style() -> Iterator[None]:
    """Context manager: the report's style with smaller fonts."""
    import matplotlib

    with style.applied():
        matplotlib.rcParams.update(_SIZE)
        yield


def new_figure(width: int, height: int) -> Any:
    """Empty figure of this size in pixels, without automatic layout, which would cost several drawings."""
    figure = style.new_figure(width / style.DPI, height / style.DPI)
    figure.set_layout_engine("none")
    return figure


def png(figure: Any) -> bytes:
    """The figure as a PNG with a palette, a third of the usual bytes. Equal figures give equal bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(style.png(figure))) as picture:
        found = picture.convert("RGB").quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE)
        found.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def margins(width: int, height: int, rows: int, columns: int) -> dict[str, float]:
    """Margins of the panels for `add_gridspec`: tick labels left, titles above, axis label below."""
    left, right, top, bottom, gap_x, gap_y = 64, 14, 34, 54, 74, 62
    panel_x = (width - left - right - (columns - 1) * gap_x) / columns
    panel_y = (height - top - bottom - (rows - 1) * gap_y) / rows
    return {
        "left": left / width, "right": 1 - right / width, "top": 1 - top / height, "bottom": bottom / height,
        "wspace": gap_x / panel_x, "hspace": gap_y / panel_y,
    }  # fmt: skip


def smoothed_line(
    axes: Any, steps: Sequence[int], values: Sequence[float], colour: str, **style_args: Any
) -> None:
    """Draw a thin line of the values, and a thick one of their mean over two steps on both sides."""
    if not steps:
        return
    axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.4, **style_args)
    marker = "o" if len(steps) == 1 else ""
    smooth = style.rolling_mean(values)
    axes.plot(steps, smooth, color=colour, linewidth=1.4, marker=marker, markersize=2.5, **style_args)


def band(axes: Any, steps: Sequence[int], values: Sequence[float], n_val: int, colour: str) -> None:
    """Draw a band of one standard error around validation scores."""
    errors = [accuracy_error(v, n_val) for v in values]
    low = [v - e for v, e in zip(values, errors, strict=True)]
    high = [v + e for v, e in zip(values, errors, strict=True)]
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def few_ticks(axes: Any) -> None:
    """Set few ticks with short numbers. A flat line keeps its value in the middle."""
    axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter(_tick)
    axes.tick_params(labelsize=7, length=2)
    values = [v for line in axes.lines for v in line.get_ydata() if isinstance(v, float) and math.isfinite(v)]
    if values and max(values) - min(values) < 1e-9 * max(1.0, abs(values[0])):
        room = max(0.1 * abs(values[0]), 0.01)
        axes.set_ylim(values[0] - room, values[0] + room)


def _tick(value: float, _: int) -> str:
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 else number(value)
