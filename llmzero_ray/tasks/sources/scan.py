"""Scan a data set twice: compute the keys of every row, then fetch the rows that the selection chose.

`Scanner` says where that happens; `LocalScanner` is one process that reads one file after the other. Both
passes go over a file row by row, so that memory does not grow with it. Not here: choosing (selection.py), the
same on a cluster (ray_scanner.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.directory import Progress
from llmzero_ray.prepared.splits import canonical_prompt
from llmzero_ray.prepared.verl_rows import prompt_digest
from llmzero_ray.tasks.sources.base import DatasetAdapter, Rejection, TaskExample
from llmzero_ray.tasks.sources.readers import SourceFile, Unreadable, parquet_columns, read_rows
from llmzero_ray.tasks.sources.selection import ROW_KEYS, SPLIT_CODES, RowKeys
from llmzero_ray.utils.files import text_digest

_EXAMPLES = 3
_FLUSH = 4096
"""Rows that are plain Python values at a time."""


@dataclass
class ScanStatistics:
    """Number of rows of some files, and what became of the unusable ones."""

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows by reason."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The first few of each reason: file, row, what is wrong."""
    notes: dict[str, str] = field(default_factory=dict)
    """What is odd about a file, by file name."""
    sources: dict[int, str] = field(default_factory=dict)
    """Digest of a data source -> its name."""

    def drop(self, reason: str, place: str, detail: str) -> None:
        """Count an unusable row, and keep it as an example while there are few."""
        self.dropped[reason] += 1
        kept = self.examples.setdefault(reason, [])
        if len(kept) < _EXAMPLES:
            kept.append(f"{place}: {detail}")

    def to_json(self) -> str:
        """As text, for another process."""
        return json.dumps({**vars(self), "dropped": dict(self.dropped)})

    @classmethod
    def from_json(cls, text: str) -> ScanStatistics:
        """What `to_json` wrote."""
        held = json.loads(text)
        sources = {int(number): name for number, name in held["sources"].items()}
        return cls(**{**held, "dropped": Counter(held["dropped"]), "sources": sources})

    def add(self, other: ScanStatistics) -> None:
        """Add the rows of another part."""
        self.rows += other.rows
        self.dropped.update(other.dropped)
        for reason, places in other.examples.items():
            self.examples[reason] = sorted([*self.examples.get(reason, []), *places])[:_EXAMPLES]
        self.notes |= other.notes
        self.sources |= other.sources


def digest(text: str) -> int:
    """The first 64 bits of a text's SHA-256, as an unsigned integer."""
    return int.from_bytes(bytes.fromhex(text_digest(text)[:16]), "little")


def scan_file(
    adapter: DatasetAdapter, file: SourceFile, number: int, part: tuple[int, int] = (0, 1)
) -> tuple[RowKeys, ScanStatistics]:
    """The keys of a file's usable rows, shape (rows,), and what became of the others; `part` is (i, n): the
    i-th of n shares.

    A file that cannot be read, from its start or from some row on, is noted, and what is good in it is used.
    """
    statistics, columns = ScanStatistics(), _Columns(adapter)
    blocks: list[RowKeys] = []
    pending: list[tuple[int, ...]] = []
    try:
        header = parquet_columns(file)
        for row, record in read_rows(file, columns.to_read, part=part):
            statistics.rows += 1
            adapted = _adapted(adapter, columns, header, file.name, record)
            if isinstance(adapted, Rejection):
                statistics.drop(adapted.reason, f"{file.name}, row {row}", adapted.detail)
                continue
            keys = _row_keys(adapter.name, adapted, file)
            statistics.sources[keys[5]] = adapted.data_source
            pending.append((*keys, number, row))
            if len(pending) == _FLUSH:
                blocks.append(np.array(pending, dtype=ROW_KEYS))
                pending.clear()
    except TaskError as error:
        text = str(error)
        statistics.notes[file.name] = text if text.startswith(file.name) else f"{file.name}: {text}"
    if columns.unexpected:
        names = ", ".join(sorted(columns.unexpected))
        text = f"columns that are not known and not used: {names}; columns expected: {columns.expected()}"
        statistics.notes.setdefault(file.name, f"{file.name}: {text}")
    return np.concatenate([*blocks, np.array(pending, dtype=ROW_KEYS)]), statistics


def examples_at(
    adapter: DatasetAdapter, file: SourceFile, wanted: Set[int]
) -> Iterator[tuple[int, TaskExample]]:
    """The examples of some rows of a file, with the numbers of the rows.

    Raises:
        TaskError: the file is not the one that was scanned.
    """
    found = 0
    # What is broken behind the wanted rows does no harm; a row that is missing is noticed below.
    with suppress(TaskError):
        for row, record in read_rows(file, _Columns(adapter).to_read, wanted):
            adapted = record if isinstance(record, Unreadable) else adapter.adapt(record, file.name)
            if isinstance(adapted, TaskExample):
                found += 1
                yield row, adapted
    if found != len(wanted):
        raise TaskError(f"{file.name} was changed while it was being prepared; prepare again")


def _adapted(
    adapter: DatasetAdapter,
    columns: _Columns,
    header: tuple[str, ...] | None,
    file: str,
    record: dict[str, Any] | Unreadable,
) -> TaskExample | Rejection:
    if isinstance(record, Unreadable):
        return Rejection(reason="unreadable row", detail=record.detail)
    return columns.check(header or tuple(record)) or adapter.adapt(record, file)


def _row_keys(task: str, example: TaskExample, file: SourceFile) -> tuple[int, ...]:
    """The part of `ROW_KEYS` that depends on the content alone, in its order."""
    messages = example.messages()
    prompt = canonical_prompt(example.prompt)
    identity = f"{example.data_source}|{example.stable_id}|{prompt}"
    extra = json.dumps(dict(example.extra), sort_keys=True)
    return (
        digest(f"{task}|group|{example.group}" if example.group else f"{task}|row|{identity}"),
        digest(f"{task}|{identity}"),
        int.from_bytes(prompt_digest(messages)[:8], "little"),
        digest(example.ground_truth),
        digest(f"{identity}|{example.prompt}|{example.system}|{example.ground_truth}|{extra}"),
        digest(example.data_source),
        SPLIT_CODES[file.only_split],
    )


class _Columns:
    """Compares the columns of records with those of a data set; each combination once."""

    def __init__(self, adapter: DatasetAdapter) -> None:
        self._required, self._optional = adapter.required, adapter.optional
        self._verdicts: dict[tuple[str, ...], Rejection | None] = {}
        self.unexpected: set[str] = set()

    @property
    def to_read(self) -> tuple[str, ...] | None:
        """The columns of a Parquet file that are needed; None: all."""
        return None if self._optional is None else (*self._required, *self._optional)

    def check(self, names: tuple[str, ...]) -> Rejection | None:
        if names not in self._verdicts:
            self._verdicts[names] = self._judge(names)
        return self._verdicts[names]

    def _judge(self, names: tuple[str, ...]) -> Rejection | None:
        if self._optional is not None:
            self.unexpected |= set(names) - {*self._required, *self._optional}
        # answer.value is a key of the column answer.
        missing = [name for name in self._required if not {name, name.partition(".")[0]} & set(names)]
        if not missing:
            return None
        return Rejection(
            reason="missing columns",
            detail=f"lacks {', '.join(missing)}; columns expected: {self.expected()}; found: "
            f"{', '.join(map(str, names)) or 'none'}. Rename the columns, or write a task.yaml of your own",
        )

    def expected(self) -> str:
        optional = ", ".join(self._optional or ())
        return ", ".join(self._required) + (f" (and perhaps {optional})" if optional else "")


Place: TypeAlias = tuple[int, int]
"""Number of the file among the files scanned, and number of the row in it."""


@dataclass
class ScanResult:
    """The keys of all usable rows of a data set, and what became of the others."""

    keys: RowKeys
    """Shape (rows,)."""
    statistics: ScanStatistics = field(default_factory=ScanStatistics)
    rows: dict[int, int] = field(default_factory=dict)
    """Rows by number of the file."""

    @classmethod
    def joined(cls, parts: Sequence[tuple[int, RowKeys, ScanStatistics]]) -> ScanResult:
        """Parts of files (number of the file, keys, statistics), joined."""
        whole = cls(keys=np.concatenate([np.empty(0, dtype=ROW_KEYS), *(keys for _, keys, _ in parts)]))
        for number, _, statistics in parts:
            whole.statistics.add(statistics)
            whole.rows[number] = whole.rows.get(number, 0) + statistics.rows
        return whole


class Scanner(Protocol):
    """Where the rows of a data set are read."""

    def scan(self, adapter: DatasetAdapter, files: Sequence[SourceFile], progress: Progress) -> ScanResult:
        """The keys of every usable row of every file."""
        ...

    def fetch(
        self, adapter: DatasetAdapter, files: Sequence[SourceFile], wanted: Mapping[int, Set[int]]
    ) -> dict[Place, TaskExample]:
        """The examples of some rows; `wanted` maps the number of a file to numbers of its rows.

        Raises:
            TaskError: a file was changed since it was scanned.
        """
        ...


class LocalScanner:
    """Reads in this process, one file after the other."""

    def scan(self, adapter: DatasetAdapter, files: Sequence[SourceFile], progress: Progress) -> ScanResult:
        """The keys of every usable row of every file."""
        parts = []
        for number, file in enumerate(files):
            progress(f"reading: {file.name}", number / len(files))
            parts.append((number, *scan_file(adapter, file, number)))
        return ScanResult.joined(parts)

    def fetch(
        self, adapter: DatasetAdapter, files: Sequence[SourceFile], wanted: Mapping[int, Set[int]]
    ) -> dict[Place, TaskExample]:
        """The examples of some rows; `wanted` maps the number of a file to numbers of its rows."""
        return {
            (number, row): example
            for number, rows in wanted.items()
            for row, example in examples_at(adapter, files[number], rows)
        }
