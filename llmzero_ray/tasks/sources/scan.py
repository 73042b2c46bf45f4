"""Single pass over a data set: the adapter reads each row, and usable rows are written to a file.

`scan` reads in this process or, in shares, on a Ray cluster (Ray Data); both find the same rows. Only
`ROW_KEYS` is kept in memory, 61 bytes a row. Examples stay on disk until they are chosen. Not here: reading a
format (readers.py), choosing (selection.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.directory import Progress
from llmzero_ray.prepared.splits import canonical_prompt
from llmzero_ray.prepared.verl_rows import prompt_digest
from llmzero_ray.tasks.sources.base import DatasetAdapter, Rejection, TaskExample
from llmzero_ray.tasks.sources.readers import Part, SourceFile, Unreadable, parquet_columns, read_rows
from llmzero_ray.tasks.sources.selection import ROW_KEYS, SPLIT_CODES, Indices, RowKeys
from llmzero_ray.utils.files import text_digest

_RAY_SHARES = 4
"""Shares into which a file is cut on a cluster."""
_SHOWN = 3
"""Maximum examples kept of each kind of unusable row."""
_BLOCK_ROWS = 1024
"""Rows buffered in memory before they are written."""
_UNREADABLE = "unreadable row"


@dataclass
class ScannedRows:
    """Usable rows of a data set, and counts of the unusable ones."""

    path: Path
    """JSON Lines file of the usable rows' examples."""
    files: Sequence[SourceFile]
    keys: RowKeys = field(default_factory=lambda: np.empty(0, ROW_KEYS))
    """Shape (usable rows,), in the order of that file."""
    starts: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    """Shape (usable rows,): the byte at which each line begins."""
    rows: Counter[int] = field(default_factory=Counter)
    """All rows, by number of the file."""
    notes: dict[str, str] = field(default_factory=dict)
    """Notes on damaged files, by file name."""
    _dropped: Counter[tuple[str, int]] = field(default_factory=Counter)
    _examples: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, reason: str, file: int, row: int, detail: str) -> None:
        """Count an unusable row; the first few of each reason and file are kept as examples."""
        self._dropped[reason, file] += 1
        if self._dropped[reason, file] <= _SHOWN:
            self._examples.setdefault(reason, []).append(f"{self.files[file].name}, row {row}: {detail}")

    def sort_examples(self) -> None:
        """Put the examples of each reason in the order of their texts."""
        self._examples = {reason: sorted(places) for reason, places in self._examples.items()}

    @property
    def dropped(self) -> Counter[str]:
        """Unusable rows, by reason."""
        found: Counter[str] = Counter()
        for (reason, _), n in self._dropped.items():
            found[reason] += n
        return found

    @property
    def dropped_examples(self) -> dict[str, tuple[str, ...]]:
        """A few unusable rows of each reason: file, row, what is wrong."""
        return {reason: tuple(places[:_SHOWN]) for reason, places in self._examples.items()}

    def examples(self, rows: Indices) -> list[TaskExample]:
        """Examples at these positions of `keys`."""
        found = []
        with self.path.open("rb") as stream:
            for start in self.starts[rows].tolist():
                stream.seek(start)
                found.append(msgspec.json.decode(stream.readline(), type=TaskExample))
        return found


@dataclass(frozen=True)
class _Block:
    """Some rows of a share: keys and lines of usable rows, and (file, row, reason, detail) of the others."""

    keys: RowKeys
    lines: list[bytes]
    unusable: list[tuple[int, int, str, str]]
    """Row number 0 marks a note on the whole file."""


def scan(
    adapter: DatasetAdapter,
    files: Sequence[SourceFile],
    path: Path,
    progress: Progress,
    *,
    on_ray: bool = False,
) -> ScannedRows:
    """The rows of all files, with the usable ones written to `path`.

    With `on_ray` each file is cut into shares, which the workers of a Ray session read; every node must see
    the files under their paths. A file that cannot be read, from its start or from some row on, is noted, and
    its good rows are used.

    Raises:
        TaskError: there is no Ray session to read with.
        OSError: `path` cannot be written.
    """
    found = ScannedRows(path=path, files=tuple(files))
    blocks: Iterable[_Block]
    if on_ray:
        progress(f"reading {len(files)} files in {len(files) * _RAY_SHARES} shares", 0.0)
        blocks = _blocks_on_ray(adapter, list(files))
    else:
        blocks = _blocks_here(adapter, files, progress)
    keys, sizes = [found.keys], [np.zeros(1, np.int64)]
    n_rows = at = 0
    with path.open("wb") as stream:
        for block in blocks:
            at = int(block.keys["file"][-1]) if len(block.keys) else at
            n_rows += len(block.lines) + len(block.unusable)
            progress(f"reading: {files[at].name}, {n_rows} rows so far", at / len(files))
            stream.writelines(block.lines)
            keys.append(block.keys)
            sizes.append(np.array([len(line) for line in block.lines], np.int64))
            for file, row, reason, detail in block.unusable:
                if row:
                    found.rows[file] += 1
                    found.drop(reason, file, row, detail)
                else:
                    found.notes.setdefault(files[file].name, detail)
    found.keys, found.starts = np.concatenate(keys), np.cumsum(np.concatenate(sizes))[:-1]
    found.rows.update(found.keys["file"].tolist())
    found.sort_examples()
    return found


def _blocks_here(
    adapter: DatasetAdapter, files: Sequence[SourceFile], progress: Progress
) -> Iterator[_Block]:
    for number, file in enumerate(files):
        progress(f"reading: {file.name}", number / len(files))
        yield from _read_share(adapter, file, number)


def _blocks_on_ray(adapter: DatasetAdapter, files: list[SourceFile]) -> Iterator[_Block]:
    import ray

    if not ray.is_initialized():
        raise TaskError("preparing on a cluster needs a Ray session; call ray.init first, or prepare locally")

    def read(batch: dict[str, Any]) -> Iterator[dict[str, list[_Block]]]:
        number, share = int(batch["file"][0]), int(batch["share"][0])
        for block in _read_share(adapter, files[number], number, (share, _RAY_SHARES)):
            yield {"block": [block]}

    shares = [
        {"file": number, "share": share} for number in range(len(files)) for share in range(_RAY_SHARES)
    ]
    data = ray.data.from_items(shares, override_num_blocks=len(shares)).map_batches(read, batch_size=1)
    data.context.execution_options.preserve_order = True
    for row in data.iter_rows():
        yield row["block"]


def _read_share(
    adapter: DatasetAdapter, file: SourceFile, number: int, part: Part = (0, 1)
) -> Iterator[_Block]:
    columns = _Columns(adapter)
    keys: list[tuple[int, ...]] = []
    lines: list[bytes] = []
    unusable: list[tuple[int, int, str, str]] = []
    try:
        header = parquet_columns(file)
        for row, record in read_rows(file, columns.to_read, part):
            adapted = _adapted(adapter, columns, header, file.name, record)
            if isinstance(adapted, Rejection):
                unusable.append((number, row, adapted.reason, adapted.detail))
            else:
                example, line = adapted
                keys.append((*_row_keys(adapter.name, example, file), number, row))
                lines.append(line)
            if len(lines) + len(unusable) == _BLOCK_ROWS:
                yield _Block(np.array(keys, ROW_KEYS), lines, unusable)
                keys, lines, unusable = [], [], []
    except TaskError as error:
        note = str(error)
        unusable.append((number, 0, "", note if note.startswith(file.name) else f"{file.name}: {note}"))
    if columns.unexpected:
        names = ", ".join(sorted(columns.unexpected))
        note = f"columns that are not known and not used: {names}; columns expected: {columns.expected()}"
        unusable.append((number, 0, "", f"{file.name}: {note}"))
    yield _Block(np.array(keys, ROW_KEYS), lines, unusable)


def _adapted(
    adapter: DatasetAdapter,
    columns: _Columns,
    header: tuple[str, ...] | None,
    file: str,
    record: dict[str, Any] | Unreadable,
) -> tuple[TaskExample, bytes] | Rejection:
    """The example of a record, and its line of JSON."""
    if isinstance(record, Unreadable):
        return Rejection(reason=_UNREADABLE, detail=record.detail)
    adapted = columns.check(header or tuple(record)) or adapter.adapt(record, file)
    if isinstance(adapted, Rejection):
        return adapted
    try:
        return adapted, msgspec.json.encode(adapted) + b"\n"
    except UnicodeEncodeError as error:
        return Rejection(
            reason=_UNREADABLE, detail=f"holds what is not text ({error}); save it again as UTF-8"
        )


def digest(text: str) -> int:
    """The first 64 bits of a text's SHA-256, as an unsigned integer."""
    return int.from_bytes(bytes.fromhex(text_digest(text)[:16]), "little")


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
    """Check of a record's columns against those of a data set. Each combination of columns is checked
    once."""

    def __init__(self, adapter: DatasetAdapter) -> None:
        self._required, self._optional = adapter.required, adapter.optional
        self._verdicts: dict[tuple[str, ...], Rejection | None] = {}
        self.unexpected: set[str] = set()

    @property
    def to_read(self) -> tuple[str, ...] | None:
        """Columns of a Parquet file that are needed. If None, all."""
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
