"""Rows of the doctor's table: what was checked, how it stands, what to do; and the exit code they mean.

A check that raises, or takes too long, is a row as well, so that it never keeps the others from running. Not
here: the checks themselves (checks.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from llmzero_ray.errors import LlmzeroError

T = TypeVar("T")
Kind: TypeAlias = Literal["config", "storage", "capacity", "engine"]
Status: TypeAlias = Literal["ok", "warn", "FAIL", "skipped"]

EXIT_CODES: Mapping[Kind, int] = {"config": 2, "storage": 3, "capacity": 4, "engine": 5}
"""In the order of the table."""
_LISTED = 4
_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red", "skipped": "dim"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One check."""

    name: str
    kind: Kind
    status: Status
    found: str
    todo: str = ""


def exit_code(rows: Iterable[Row]) -> int:
    """0 when nothing failed, else the code of the first kind that did."""
    return min((EXIT_CODES[row.kind] for row in rows if row.status == "FAIL"), default=0)


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Rows by kind, within a kind as they were found."""
    return sorted(rows, key=lambda row: EXIT_CODES[row.kind])


def skipped(name: str, kind: Kind, why: str) -> Row:
    """A check that another one makes pointless."""
    return Row(name=name, kind=kind, status="skipped", found=f"skipped: {why}")


def checked(name: str, kind: Kind, work: Callable[[], Row], *, limit_s: float) -> Row:
    """The row of one check; failing when `work` raises or has no answer within `limit_s` seconds."""
    try:
        return bounded(work, limit_s)
    except LlmzeroError as error:
        found = str(error)
    except TimeoutError:
        found = f"no answer within {limit_s:g} s"
    except Exception as error:  # noqa: BLE001 - whatever one check raises, the others go on
        found = f"could not be checked: {type(error).__name__}: {error}"
    return Row(name=name, kind=kind, status="FAIL", found=found)


def bounded(work: Callable[[], T], limit_s: float) -> T:
    """What `work` returns or raises; it runs in a thread of its own and is left alone when it is late.

    Raises:
        TimeoutError: it has not ended within `limit_s` seconds.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below, by the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="doctor", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


def table_of(title: str, rows: Sequence[Row]) -> Table:
    """The rows for people."""
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


def listed(parts: Sequence[str], *, separator: str = "; ") -> str:
    """The first few of many."""
    more = f"{separator}and {len(parts) - _LISTED} more" if len(parts) > _LISTED else ""
    return separator.join(parts[:_LISTED]) + more
