"""From the rows of a file to what the selection sees of them, and to the items of the rows that it chose.

Both go over a file row by row, so that memory does not grow with it. Not here: choosing (selection.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.rows import prompt_digest
from llmzero_ray.tasks.sources.base import Adapter, Item, Rejection
from llmzero_ray.tasks.sources.reading import SourceFile, Unreadable, parquet_columns, read_rows
from llmzero_ray.tasks.sources.selection import FACTS, HOMES, Facts
from llmzero_ray.tasks.splits import canonical_prompt

_EXAMPLES = 3
_FLUSH = 4096
"""Rows that are plain Python values at a time."""


@dataclass
class Tally:
    """What became of the rows of some files, as far as they were not chosen from."""

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows by reason."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The first few of each reason: file, row, what is wrong."""
    notes: dict[str, str] = field(default_factory=dict)
    """What a person should know about a file, by file."""
    sources: dict[int, str] = field(default_factory=dict)
    """Digest of a data source -> its name."""

    def drop(self, reason: str, place: str, detail: str) -> None:
        """Count a row, and keep it as an example while there are few."""
        self.dropped[reason] += 1
        kept = self.examples.setdefault(reason, [])
        if len(kept) < _EXAMPLES:
            kept.append(f"{place}: {detail}")

    def to_json(self) -> str:
        """As text, for another process."""
        return json.dumps({**vars(self), "dropped": dict(self.dropped)})

    @classmethod
    def from_json(cls, text: str) -> Tally:
        """What `to_json` wrote."""
        held = json.loads(text)
        sources = {int(number): name for number, name in held["sources"].items()}
        return cls(**{**held, "dropped": Counter(held["dropped"]), "sources": sources})

    def add(self, other: Tally) -> None:
        """Count another one's rows as well."""
        self.rows += other.rows
        self.dropped.update(other.dropped)
        for reason, places in other.examples.items():
            self.examples[reason] = sorted([*self.examples.get(reason, []), *places])[:_EXAMPLES]
        self.notes |= other.notes
        self.sources |= other.sources


def digest(text: str) -> int:
    """64 bits of a text's sha256."""
    return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little")


def examine(
    adapter: Adapter, file: SourceFile, number: int, part: tuple[int, int] = (0, 1)
) -> tuple[Facts, Tally]:
    """The facts of a file's usable rows (or of one share of them), and what became of the others.

    A file that cannot be read, from its start or from some row on, is noted, and what is good in it is used.
    """
    tally, columns = Tally(), _Columns(adapter)
    blocks: list[Facts] = []
    pending: list[tuple[int, ...]] = []
    try:
        header = parquet_columns(file)
        for row, record in read_rows(file, columns.to_read, part=part):
            tally.rows += 1
            adapted = _adapted(adapter, columns, header, file.name, record)
            if isinstance(adapted, Rejection):
                tally.drop(adapted.reason, f"{file.name}, row {row}", adapted.detail)
                continue
            facts = _facts(adapter.name, adapted, file)
            tally.sources[facts[5]] = adapted.data_source
            pending.append((*facts, number, row))
            if len(pending) == _FLUSH:
                blocks.append(np.array(pending, dtype=FACTS))
                pending.clear()
    except TaskError as error:
        text = str(error)
        tally.notes[file.name] = text if text.startswith(file.name) else f"{file.name}: {text}"
    if columns.unexpected:
        names = ", ".join(sorted(columns.unexpected))
        text = f"columns that are not known and not used: {names}; columns expected: {columns.expected()}"
        tally.notes.setdefault(file.name, f"{file.name}: {text}")
    return np.concatenate([*blocks, np.array(pending, dtype=FACTS)]), tally


def items_at(adapter: Adapter, file: SourceFile, wanted: Set[int]) -> Iterator[tuple[int, Item]]:
    """The items of some rows of a file, with their numbers.

    Raises:
        TaskError: the file is not the one that was examined.
    """
    found = 0
    # What is broken behind the wanted rows does no harm; a row that is missing is noticed below.
    with suppress(TaskError):
        for row, record in read_rows(file, _Columns(adapter).to_read, wanted):
            adapted = record if isinstance(record, Unreadable) else adapter.adapt(record, file.name)
            if isinstance(adapted, Item):
                found += 1
                yield row, adapted
    if found != len(wanted):
        raise TaskError(f"{file.name} was changed while it was being prepared; prepare again")


def _adapted(
    adapter: Adapter,
    columns: _Columns,
    header: tuple[str, ...] | None,
    file: str,
    record: dict[str, Any] | Unreadable,
) -> Item | Rejection:
    if isinstance(record, Unreadable):
        return Rejection(reason="unreadable row", detail=record.detail)
    return columns.check(header or tuple(record)) or adapter.adapt(record, file)


def _facts(task: str, item: Item, file: SourceFile) -> tuple[int, ...]:
    """The content's part of `FACTS`, in their order."""
    messages = item.messages()
    prompt = canonical_prompt(item.prompt)
    identity = f"{item.data_source}|{item.stable_id}|{prompt}"
    extra = json.dumps(dict(item.extra), sort_keys=True)
    return (
        digest(f"{task}|group|{item.group}" if item.group else f"{task}|row|{identity}"),
        digest(f"{task}|{identity}"),
        int.from_bytes(prompt_digest(messages)[:8], "little"),
        digest(item.ground_truth),
        digest(f"{identity}|{item.prompt}|{item.system}|{item.ground_truth}|{extra}"),
        digest(item.data_source),
        HOMES[file.home],
    )


class _Columns:
    """Compares the columns of records with those of a data set; each combination once."""

    def __init__(self, adapter: Adapter) -> None:
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
        missing = [name for name in self._required if name not in names]
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
