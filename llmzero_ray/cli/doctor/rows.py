"""Findings of checks as rows of a table, and the resulting exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from rich import box
from rich.table import Table
from rich.text import Text

Kind: TypeAlias = Literal["config", "storage", "capacity", "engine"]
Status: TypeAlias = Literal["ok", "warn", "FAIL", "skipped"]

EXIT_CODES: Mapping[Kind, int] = {"config": 2, "storage": 3, "capacity": 4, "engine": 5}
"""Exit code of a failed check by its kind, in the order of the table."""
_LISTED = 4
_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red", "skipped": "dim"}


class CheckFinding(NamedTuple):
    """Finding of one check."""

    status: Status
    found: str
    todo: str = ""
    """Remedy, or empty."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A finding with the name and the kind of its check."""

    name: str
    kind: Kind
    status: Status
    found: str
    todo: str = ""


def skipped(why: str) -> CheckFinding:
    """Finding of a check that was skipped."""
    return CheckFinding("skipped", f"skipped: {why}")


def exit_code(rows: Iterable[Row]) -> int:
    """Exit code: 0 if nothing failed, otherwise the code of the first kind that did."""
    return min((EXIT_CODES[row.kind] for row in rows if row.status == "FAIL"), default=0)


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Rows sorted by kind, and within a kind in order of appearance."""
    return sorted(rows, key=lambda row: EXIT_CODES[row.kind])


def table_of(title: str, rows: Sequence[Row]) -> Table:
    """The rows as a table for a terminal, with a column of remedies only if there are any."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold", ratio=3)
    remedies = any(row.todo for row in rows)
    if remedies:
        table.add_column("what to do", overflow="fold", ratio=2)
    for row in rows:
        status = Text(row.status, style=_STYLES[row.status])
        table.add_row(Text(row.name), status, Text(row.found), *([Text(row.todo)] if remedies else []))
    return table


def first_few(parts: Sequence[str], *, separator: str = "; ") -> str:
    """The first parts of a list, and the number of the others."""
    more = f"{separator}and {len(parts) - _LISTED} more" if len(parts) > _LISTED else ""
    return separator.join(parts[:_LISTED]) + more
