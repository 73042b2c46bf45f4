"""The one pass over a data set: each row goes through the adapter, and usable ones into an Arrow file.

`scan` reads in this process or, in shares, on a Ray cluster (Ray Data); both find the same rows. Memory holds
`ROW_KEYS` alone, 61 bytes a row; examples stay on disk until they are chosen. Not here: reading a format
(readers.py), choosing (selection.py).
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
from llmzero_ray.tasks.sources.readers import SourceFile, Unreadable, parquet_columns, read_rows
from llmzero_ray.tasks.sources.selection import ROW_KEYS, SPLIT_CODES, Indices, RowKeys
from llmzero_ray.utils.files import text_digest

RAY_SHARES = 4
"""Shares into which a file is cut on a cluster, unless the caller says otherwise."""
_SHOWN = 3
"""Unusable rows of each kind that are kept as examples."""
_BLOCK_ROWS, _BLOCK_BYTES = 4096, 1 << 24
"""Size of what is in memory before it is written."""
_UNREADABLE = "unreadable row"


@dataclass
class ScannedRows:
    """The usable rows of a data set, and what became of the others."""

    path: Path
    """Arrow file of the usable rows: the fields of `ROW_KEYS`, and the example as JSON."""
    files: Sequence[SourceFile]
    keys: RowKeys = field(default_factory=lambda: np.empty(0, ROW_KEYS))
    """Shape (usable rows,), in the order of the Arrow file."""
    rows: Counter[int] = field(default_factory=Counter)
    """All rows, by number of the file."""
    notes: dict[str, str] = field(default_factory=dict)
    """What is odd about a file, by file name."""
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
        """The examples at these positions of `keys`."""
        import pyarrow as pa

        with pa.memory_map(str(self.path)) as source:
            held = pa.ipc.open_file(source).read_all()["example"]
            return [msgspec.json.decode(held[row].as_py(), type=TaskExample) for row in rows.tolist()]


def scan(
    adapter: DatasetAdapter,
    files: Sequence[SourceFile],
    path: Path,
    progress: Progress,
    ray_shares: int | None = None,
) -> ScannedRows:
    """The rows of all files, with the usable ones written to `path`.

    With `ray_shares` each file is cut into that many shares, which the workers of a Ray session read; every
    node must see the files under their paths. A file that cannot be read, from its start or from some row on,
    is noted, and what is good in it is used.

    Raises:
        TaskError: there is no Ray session to read with.
        OSError: `path` cannot be written.
    """
    import pyarrow as pa

    found = ScannedRows(path=path, files=tuple(files))
    blocks: Iterable[Any]
    if ray_shares is None:
        blocks = _blocks_here(adapter, files, progress)
    else:
        progress(f"reading {len(files)} files in {len(files) * ray_shares} shares", 0.0)
        blocks = _blocks_on_ray(adapter, list(files), ray_shares)
    schema = _schema()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for block in blocks:
            for each in block.filter(block["reason"].is_valid()).to_pylist():
                if each["row"]:
                    found.rows[each["file"]] += 1
                    found.drop(each["reason"], each["file"], each["row"], each["detail"])
                else:
                    found.notes.setdefault(files[each["file"]].name, each["detail"])
            writer.write_table(block.filter(block["reason"].is_null()))
    found.sort_examples()
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
        found.keys = np.empty(table.num_rows, ROW_KEYS)
        for name in ROW_KEYS.names or ():
            found.keys[name] = table[name].to_numpy()
    found.rows.update(found.keys["file"].tolist())
    return found


def _blocks_here(adapter: DatasetAdapter, files: Sequence[SourceFile], progress: Progress) -> Iterator[Any]:
    for number, file in enumerate(files):
        progress(f"reading: {file.name}", number / len(files))
        yield from read_share(adapter, file, number)


def _blocks_on_ray(adapter: DatasetAdapter, files: list[SourceFile], n_shares: int) -> Iterable[Any]:
    import ray

    if n_shares < 1:
        raise TaskError(f"ray_shares is {n_shares}; a file is cut into at least one share")
    if not ray.is_initialized():
        raise TaskError("preparing on a cluster needs a Ray session; call ray.init first, or prepare locally")

    def read(batch: dict[str, Any]) -> Iterator[Any]:
        number, share = int(batch["file"][0]), int(batch["share"][0])
        return read_share(adapter, files[number], number, (share, n_shares))

    shares = [{"file": number, "share": share} for number in range(len(files)) for share in range(n_shares)]
    data = ray.data.from_items(shares, override_num_blocks=len(shares)).map_batches(read, batch_size=1)
    data.context.execution_options.preserve_order = True
    blocks: Iterable[Any] = data.iter_batches(batch_size=None, batch_format="pyarrow")
    return blocks


def _schema() -> Any:
    import pyarrow as pa

    keys = [(name, pa.from_numpy_dtype(ROW_KEYS[name])) for name in ROW_KEYS.names or ()]
    return pa.schema(
        [*keys, ("example", pa.large_binary()), ("reason", pa.string()), ("detail", pa.string())]
    )


def read_share(
    adapter: DatasetAdapter, file: SourceFile, number: int, part: tuple[int, int] = (0, 1)
) -> Iterator[Any]:
    """Arrow tables of the rows of a file; `part` is (i, n): the i-th of n shares.

    A usable row has an example, another one a reason and a detail; row 0 stands for a note on the file.
    """
    import pyarrow as pa

    schema, columns = _schema(), _Columns(adapter)
    rows: list[tuple[Any, ...]] = []
    n_bytes = 0

    def unusable(row: int, reason: str, detail: str) -> tuple[Any, ...]:
        return (*[0] * 7, number, row, None, reason, detail)

    def block() -> Any:
        held = zip(zip(*rows, strict=True), schema.types, strict=True)
        return pa.Table.from_arrays([pa.array(values, kind) for values, kind in held], schema=schema)

    try:
        header = parquet_columns(file)
        for row, record in read_rows(file, columns.to_read, part):
            adapted = _adapted(adapter, columns, header, file.name, record)
            if isinstance(adapted, Rejection):
                rows.append(unusable(row, adapted.reason, adapted.detail))
            else:
                example, text = adapted
                rows.append((*_row_keys(adapter.name, example, file), number, row, text, None, None))
                n_bytes += len(text)
            if len(rows) == _BLOCK_ROWS or n_bytes > _BLOCK_BYTES:
                yield block()
                rows.clear()
                n_bytes = 0
    except TaskError as error:
        note = str(error)
        rows.append(unusable(0, "", note if note.startswith(file.name) else f"{file.name}: {note}"))
    if columns.unexpected:
        names = ", ".join(sorted(columns.unexpected))
        note = f"columns that are not known and not used: {names}; columns expected: {columns.expected()}"
        rows.append(unusable(0, "", f"{file.name}: {note}"))
    if rows:
        yield block()


def _adapted(
    adapter: DatasetAdapter,
    columns: _Columns,
    header: tuple[str, ...] | None,
    file: str,
    record: dict[str, Any] | Unreadable,
) -> tuple[TaskExample, bytes] | Rejection:
    """The example of a record, also as JSON."""
    if isinstance(record, Unreadable):
        return Rejection(reason=_UNREADABLE, detail=record.detail)
    adapted = columns.check(header or tuple(record)) or adapter.adapt(record, file)
    if isinstance(adapted, Rejection):
        return adapted
    try:
        return adapted, msgspec.json.encode(adapted)
    except UnicodeEncodeError as error:
        return Rejection(
            reason=_UNREADABLE, detail=f"holds what is no text ({error}); save it again as UTF-8"
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
