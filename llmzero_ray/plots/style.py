"""Style of all figures: size, colours for colour-blind readers, fonts, and PNG bytes. Figures do not use
pyplot, so threads share no state and no display is needed."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

DPI = 150

# Okabe and Ito's palette.
BLUE, ORANGE, VERMILLION, GREEN, SKY, PURPLE = (
    "#0072B2",
    "#E69F00",
    "#D55E00",
    "#009E73",
    "#56B4E9",
    "#CC79A7",
)
BLACK, DARK, GREY, LIGHT = "#222222", "#555555", "#8C8C8C", "#DDDDDD"
BEST, REFERENCE, FAILED = BLUE, ORANGE, VERMILLION
BANDS = ("#EAF2F8", "#FFFFFF")
"""Backgrounds of consecutive phases."""

STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.labelsize": 10.0,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT,
    "grid.linewidth": 0.7,
    "xtick.color": BLACK,
    "ytick.color": BLACK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "figure.facecolor": "white",
    "svg.hashsalt": "llmzero",
    "text.parse_math": False,  # a `$` in a value or name is plain text
}


@contextmanager
def applied() -> Iterator[None]:
    """Context manager that applies this style, independent of the user's own matplotlib settings."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def new_figure(width: float, height: float) -> Any:
    """Empty figure of this size in inches, with automatic layout."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def png(figure: Any) -> bytes:
    """The figure as a PNG. Equal figures give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def rolling_mean(values: Sequence[float]) -> list[float]:
    """Mean over each value and up to two neighbours on each side. Gaps are skipped; a value stays a gap if
    all values around it are gaps."""
    means = []
    for i in range(len(values)):
        near = [v for v in values[max(0, i - 2) : i + 3] if math.isfinite(v)]
        means.append(sum(near) / len(near) if near else math.nan)
    return means
