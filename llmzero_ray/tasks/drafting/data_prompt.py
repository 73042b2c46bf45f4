"""A data profile as prompt text: bounded in length, with all text from the files quoted as data.

File and column names are untrusted text too, and are quoted as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llmzero_ray.agents.llm.prompt_text import quote
from llmzero_ray.tasks.drafting.base import Column, DataProfile, Row, Table
from llmzero_ray.tasks.sources.base import as_text, text_of, value_at
from llmzero_ray.tasks.sources.custom import answer_text
from llmzero_ray.utils.text import CUT, clean, one_line

ROWS_CHARS = 768
"""Maximum characters of a table's first rows, all together."""
TABLE_CHARS, TEXT_CHARS = 5_000, 3_000
"""Maximum characters of one block."""
MAX_TABLES = 8
_MAX_COLUMNS = 60
_MAX_NAMES = 8
_CELL = 240
_WIDE = 600
_MAX_SKIPPED = 20
_REWARD_ROWS = 6


def data_prompt(profile: DataProfile) -> str:
    """The profile as text: tables with columns and first rows, texts, skipped files."""
    more = "" if profile.complete else ", and more that were not listed"
    files = "1 file" if profile.n_files == 1 else f"{profile.n_files} files"
    parts = [f"The folder holds {files}{more}."]
    for number, table in enumerate(profile.tables[:MAX_TABLES], start=1):
        parts += [f"## Table {number}", _block(_table(table), f"table {number}", TABLE_CHARS)]
    for name, text in profile.texts.items():
        parts += [
            "## A text next to the data",
            _block([f"file: {name}", *text.splitlines()], "text", TEXT_CHARS),
        ]
    if profile.skipped:
        lines = [f"{one_line(name, 120)}: {why}" for name, why in list(profile.skipped.items())]
        left = [f"and {len(lines) - _MAX_SKIPPED} more"] if len(lines) > _MAX_SKIPPED else []
        parts += ["## Not read", _block([*lines[:_MAX_SKIPPED], *left], "skipped", TABLE_CHARS)]
    return "\n\n".join(parts)


def _block(lines: Iterable[str], label: str, max_chars: int) -> str:
    """As many of the first lines as fit, quoted as data."""
    kept, room = list[str](), max_chars
    for line in lines:
        short = clean(line).rstrip()[:_WIDE]
        room -= len(short) + 1
        if room < 0:
            kept.append("(and more)")
            break
        kept += [short] if short else []
    return quote("\n".join(kept), label=label, max_lines=len(kept) + 1, max_chars=2 * max_chars, width=_WIDE)


def _table(table: Table) -> Iterator[str]:
    names = ", ".join(one_line(name, 80) for name in table.files[:_MAX_NAMES])
    more = f", and {len(table.files) - _MAX_NAMES} named alike" if len(table.files) > _MAX_NAMES else ""
    yield f"files: {names}{more}"
    yield f"rows: {'' if table.exact else 'about '}{table.n_rows}; looked at: {len(table.rows)}"
    if table.unreadable:
        first = one_line(table.unreadable[0], _CELL)
        yield f"rows that cannot be read and are left out: {len(table.unreadable)}, the first: {first}"
    yield "columns:"
    for column in table.all_columns[:_MAX_COLUMNS]:
        yield f"  {_column_line(column, len(table.rows))}"
    if len(table.all_columns) > _MAX_COLUMNS:
        yield f"  and {len(table.all_columns) - _MAX_COLUMNS} more"
    yield "first rows, shortened:"
    room = ROWS_CHARS
    for row in table.rows[:3]:
        for name, value in row.items():
            line = f"  {one_line(name, 60)} = {shortened(as_text(value), min(_CELL, max(room, 24)))}"
            room -= len(line)
            if room < 0:
                return
            yield line
        yield "  --"


def _column_line(column: Column, n_rows: int) -> str:
    kinds = " or ".join(column.kinds) or "empty"
    parts = [kinds, f"filled in {column.filled} of {n_rows}", f"up to {column.longest} characters"]
    if column.distinct is not None:
        parts.append(f"{column.distinct} different values")
    if column.common and column.longest <= 40:
        parts.append("namely " + " | ".join(one_line(value, 40) for value in column.common[:10]))
    return f"{one_line(column.name, 60)}: {', '.join(parts)}"


def shortened(text: str, limit: int = _CELL) -> str:
    """The beginning of a text on one line, with `\\n` for line breaks."""
    return one_line(_in_one(text[: limit + 1]), limit)


def _in_one(text: str) -> str:
    return clean(text).strip().replace("\n", "\\n")


def rows_for_reward(rows: tuple[Row, ...], columns: tuple[str, ...], answer: str) -> str:
    """A few rows, spread over the sample, with only the named columns, quoted as data. The answer is shown as
    a reward receives it."""
    step = max(1, len(rows) // _REWARD_ROWS)
    lines = []
    for row in rows[::step][:_REWARD_ROWS]:
        for name in columns:
            text = answer_text(value_at(row, name)) if name == answer else text_of(row, name)
            # The end of a long answer often holds the result.
            ends = f" {CUT} {one_line(_in_one(text[-_CELL:]), 2 * _CELL)}" if len(text) > 2 * _CELL else ""
            lines.append(f"{one_line(name, 60)} = {shortened(text)}{ends}")
        lines.append("--")
    return _block(lines, "rows", 2 * TABLE_CHARS)
