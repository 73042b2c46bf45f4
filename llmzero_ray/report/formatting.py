"""Formatting of numbers and tables as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from llmzero_ray.hyperparameters import format_value, short
from llmzero_ray.records.metrics import Score
from llmzero_ray.records.significance import Difference
from llmzero_ray.report.facts import Changed
from llmzero_ray.utils.text import collapse_whitespace, plain

NONE = "–"


def accuracy(value: float | None) -> str:
    """`0.4125`, or a dash for None."""
    return NONE if value is None else f"{value:.4f}"


def scored(score: Score | None) -> str:
    """`0.4125 ± 0.0154 (n = 1024)`, or a dash."""
    if score is None:
        return NONE
    error = "" if score.standard_error is None else f" ± {score.standard_error:.4f}"
    return f"{score.mean:.4f}{error}" + ("" if score.n is None else f" (n = {score.n})")


def gain(difference: Difference | None) -> str:
    """`+0.2100 ± 0.0190 = 11.1 standard errors`, or a dash."""
    if difference is None:
        return NONE
    return (
        f"{difference.gain:+.4f} ± {difference.standard_error:.4f} = "
        f"{standard_errors(difference.in_standard_errors)} standard errors"
    )


def interval(bounds: tuple[float, float] | None, *, signed: bool = False) -> str:
    """`0.3826 to 0.4430`, with signs `+0.1728 to +0.2472`, or a dash."""
    if bounds is None:
        return NONE
    return " to ".join(f"{bound:+.4f}" if signed else f"{bound:.4f}" for bound in bounds)


def p_value(p: float | None) -> str:
    """`0.031`, `< 0.001`, or a dash."""
    if p is None:
        return NONE
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def standard_errors(value: float) -> str:
    """`11.1`, `-0.71`, or infinity."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def hours(value: float) -> str:
    """Hours with three significant digits and at least two decimal places: `0.0123`, `1.50`."""
    return "0" if value == 0 else plain(value, places=2).replace(",", "")


def share(part: float, whole: float) -> str:
    """`97.5 %`, or a dash if `whole` is 0."""
    return NONE if whole <= 0 else f"{100 * part / whole:.1f} %"


def change(changed: Changed) -> str:
    """`lr 0.001 → 5e-4`."""
    old, new = format_value(changed.key, changed.old), format_value(changed.key, changed.new)
    return f"{short(changed.key)} {old} → {new}"


class TextTable(str):
    """Markdown table that also has its cells as plain text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def followed_by(self, text: str) -> TextTable:
        """The same table with a text below it."""
        made = TextTable(self + text)
        made.header, made.rows = self.header, self.rows
        return made


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> TextTable:
    """Table in which the columns `right` are right-aligned."""
    aligned, plain_rows = set(right), tuple(map(tuple, rows))
    rule = ["---:" if i in aligned else "---" for i in range(len(header))]
    lines = [header, rule, *([cell(text) for text in row] for row in plain_rows)]
    made = TextTable("\n".join(f"| {' | '.join(line)} |" for line in lines))
    made.header, made.rows = tuple(header), plain_rows
    return made


def cell(text: str) -> str:
    """Text as a table cell: on one line, with pipes escaped. A dash if it is empty."""
    return collapse_whitespace(text).replace("|", "\\|") or NONE


def bullets(lines: Iterable[str]) -> str:
    """Bullet list, one entry per line."""
    return "\n".join(f"- {collapse_whitespace(line)}" for line in lines)
