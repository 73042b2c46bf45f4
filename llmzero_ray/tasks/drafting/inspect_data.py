"""Profile a folder of data: tables with column statistics, README and licence texts, skipped files.

No model is called, and nothing outside the folder is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.drafting.base import Column, DataProfile, Row, Table
from llmzero_ray.tasks.drafting.listing import FolderListing, list_files
from llmzero_ray.tasks.drafting.sampling import SHORT, Sample, evenly, sample_rows, sample_text
from llmzero_ray.tasks.sources.base import as_text, chat_turns, value_at
from llmzero_ray.utils.text import plural

MAX_OPENED = 40
"""Maximum data files that are sampled."""
GROUP_OPENED = 3
"""Maximum files sampled of each group with the same name pattern."""
TABLE_ROWS = 800
_DEPTH = 2
"""Maximum depth of nested objects that is read."""
FEW = 20
"""Maximum distinct values of a column that are listed, and maximum keys of an object that become columns."""


def inspect_data(folder: Path) -> DataProfile:
    """The profile of a folder.

    Raises:
        TaskError: it is not a directory, or holds no readable table.
    """
    listing = list_files(folder)
    samples = dict(_samples(folder, listing))
    tables = tuple(sorted(_tables(listing, samples), key=lambda table: (-table.n_rows, table.files)))
    if not tables:
        reasons = "; ".join(
            [f"{name} {why}" for name, why in list(listing.skipped.items())[:5]]
            + [f"{name} is read as a description" for name in listing.texts[:3]]
            + [f"{name} describes data and holds no rows" for name in listing.descriptions[:3]]
        )
        raise TaskError(
            f"{folder} holds no rows that can be read ({reasons or 'no file at all'}); put JSON, JSON Lines, "
            "CSV, TSV or Parquet files into it"
        )
    used = {name for table in tables for name in table.files} | set(listing.skipped)
    for pattern, files in listing.groups.items():
        if pattern not in used and (rest := set(files) - used):
            stands = f"stands for {plural(len(rest), 'file')} not looked into"
            listing.skipped[pattern] = f"{stands}: others so named cannot be read, or differ in their columns"
    return DataProfile(
        folder=folder,
        tables=tables,
        texts=_texts(folder, listing),
        skipped=listing.skipped,
        n_files=listing.n_files,
        complete=listing.complete,
    )


def _samples(folder: Path, listing: FolderListing) -> Iterable[tuple[str, Sample]]:
    n_opened = 0
    for pattern, files in listing.groups.items():
        for name in _spread(files):
            if n_opened >= MAX_OPENED:
                listing.skipped[pattern] = f"was not looked into: at most {MAX_OPENED} files are"
                break
            n_opened += 1
            try:
                yield name, sample_rows(folder / name)
            except TaskError as error:
                listing.skipped[name] = str(error)


def _spread(files: Sequence[str]) -> list[str]:
    """The first, the middle and the last file."""
    if len(files) <= GROUP_OPENED:
        return list(files)
    return [files[0], files[len(files) // 2], files[-1]]


def _tables(listing: FolderListing, samples: dict[str, Sample]) -> Iterable[Table]:
    by_columns: dict[tuple[str, ...], list[str]] = {}
    for name, sample in samples.items():
        by_columns.setdefault(tuple(sorted({key for row in sample.rows for key in row})), []).append(name)
    for names in _merged(by_columns):
        yield _table(listing, {name: samples[name] for name in names})


def _merged(by_columns: dict[tuple[str, ...], list[str]]) -> Iterable[list[str]]:
    """Files of each table. A file that lacks some columns joins the table that has all of its columns."""
    kept: list[tuple[set[str], list[str]]] = []
    for columns, names in sorted(by_columns.items(), key=lambda item: -len(item[0])):
        home = next((table for table in kept if len(columns) > 1 and set(columns) < table[0]), None)
        if home is None:
            kept.append((set(columns), list(names)))
        else:
            home[1].extend(names)
    return [sorted(names) for _, names in kept]


def _table(listing: FolderListing, samples: dict[str, Sample]) -> Table:
    files = sorted({*samples, *_named_alike(listing, samples)} - set(listing.skipped))
    mean = sum(sample.n_rows for sample in samples.values()) / len(samples)
    share = max(1, TABLE_ROWS // len(samples))
    rows = [row for sample in samples.values() for row in evenly(sample.rows, share)]
    names = dict.fromkeys(key for row in rows for key in row)
    return Table(
        files=tuple(files),
        n_rows=round(mean * len(files)),
        exact=len(files) == len(samples) and all(sample.exact for sample in samples.values()),
        columns=tuple(_column(name, rows) for name in names),
        within=tuple(column for name in names for column in _within(name, rows)),
        rows=tuple(rows),
        unreadable=tuple(f"{name}, {why}" for name, sample in samples.items() for why in sample.unreadable),
        broken=tuple(f"{name} {sample.broken}" for name, sample in samples.items() if sample.broken),
    )


def _named_alike(listing: FolderListing, opened: Iterable[str]) -> Iterable[str]:
    """Files of groups whose every sampled member has these columns."""
    for files in listing.groups.values():
        looked_at = set(_spread(files)) - set(listing.skipped)
        if len(files) > GROUP_OPENED and looked_at and looked_at <= set(opened):
            yield from files


def _within(name: str, rows: Sequence[Row]) -> Iterable[Column]:
    """Nested columns: an object's keys, a chat's roles."""
    values = [value for row in rows if _is_filled(value := value_at(row, name))]
    keys = dict.fromkeys(key for value in values for key in _keys(value))
    if name.count(".") < _DEPTH and len(keys) <= FEW:
        for key in keys:
            yield _column(f"{name}.{key}", rows)
            yield from _within(f"{name}.{key}", rows)


def _keys(value: Any) -> Iterable[str]:
    if turns := chat_turns(value):
        return [role for role, _ in turns]
    held = value if isinstance(value, list) else [value]
    return [key for each in held if isinstance(each, dict) for key in each]


def _column(name: str, rows: Sequence[Row]) -> Column:
    values = [value for row in rows if _is_filled(value := value_at(row, name))]
    texts = [as_text(value) for value in values]
    counts = Counter(texts) if all(len(text) <= SHORT for text in texts) else None
    few = counts is not None and len(counts) <= FEW
    return Column(
        name=name,
        kinds=tuple(kind for kind, _ in Counter(map(_kind, values)).most_common()),
        filled=len(values),
        distinct=None if counts is None else len(counts),
        longest=max(map(len, texts), default=0),
        common=tuple(text for text, _ in counts.most_common()) if counts is not None and few else (),
    )


def _is_filled(value: Any) -> bool:
    return value is not None and value not in ("", [], {})


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "truth value"
        case int() | float():
            return "number"
        case str():
            return "text"
        case list() if chat_turns(value):
            return "chat"
        case list():
            return "objects" if any(isinstance(each, dict) for each in value) else "list"
        case dict():
            return "object"
    return "other"


def _texts(folder: Path, listing: FolderListing) -> dict[str, str]:
    found = {}
    for name in listing.texts:
        try:
            found[name] = sample_text(folder / name)
        except TaskError as error:
            listing.skipped[name] = str(error)
    return found
