"""Rows spread over a data file, and the beginning of a text file.

Data may be sorted by label or subject, so that the first rows would tell too little. Of a long text file only
a head is read. Rows are read as `prepare` reads them (sources/readers.py).
"""

from __future__ import annotations

import codecs
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.sources.readers import Row, SourceFile, read_rows

WHOLE_BYTES = 2**27
"""Maximum bytes of one file whose rows are looked at."""
HEAD_BYTES = 2 * 2**20
"""Maximum bytes read of a longer text file, and maximum characters of a sample."""
FILE_ROWS = 400
"""Maximum rows sampled of one file."""
TEXT_CHARS = 4_000
SHORT = 200
"""Maximum characters of a value that is counted and compared."""
MAX_COLUMNS = 200
_ROW_GROUP_BYTES = 2**30
"""Maximum uncompressed size in bytes of a Parquet file's row groups."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows of one data file."""

    rows: tuple[dict[str, Any], ...]
    """Spread over what was read of the file."""
    n_rows: int
    """Rows of the whole file: counted if `exact`, otherwise estimated."""
    exact: bool
    unreadable: tuple[str, ...] = ()
    """What cannot be read, such as `row 7 has 3 cells, the header has 2; …`."""
    broken: str = ""
    """Why only the beginning of the file can be read, without the file's name."""


def sample_rows(path: Path) -> Sample:
    """Rows of a file.

    Raises:
        TaskError: it has no readable rows; the message has the reason, without the file's name.
    """
    try:
        found = _parquet(path) if path.suffix.lower() == ".parquet" else _text_rows(path)
    except OSError as error:
        raise TaskError(f"cannot be read ({error.strerror or error})") from error
    except TaskError as error:
        raise TaskError(_reason(error)) from error
    if not found.rows:
        raise TaskError("holds no rows")
    if found.n_rows == 1 and _holds_columns(found.rows[0]):
        raise TaskError("holds columns, not rows; write one object for each row")
    if len(found.rows[0]) > MAX_COLUMNS:
        raise TaskError(f"has {len(found.rows[0])} columns; at most {MAX_COLUMNS} are looked at")
    return found


def _reason(error: TaskError) -> str:
    return str(error).removeprefix("it: ").removeprefix("it ")


def _holds_columns(row: dict[str, Any]) -> bool:
    """Whether an object lists the cells of several columns: lists of one length, without objects."""
    columns = list(row.values())
    if len(columns) < 2 or not all(isinstance(column, list) for column in columns):
        return False
    cells = [cell for column in columns for cell in column]
    lengths = {len(column) for column in columns}
    return len(lengths) == 1 and min(lengths) > 1 and not any(isinstance(cell, dict) for cell in cells)


def sample_text(path: Path) -> str:
    """The beginning of a text file.

    Raises:
        TaskError: it cannot be read, or is not text.
    """
    try:
        data, size = _head(path)
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=len(data) == size)[:TEXT_CHARS]
    except OSError as error:
        raise TaskError(f"cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"is not UTF-8 text ({error.reason})") from error


def _head(path: Path) -> tuple[bytes, int]:
    """Beginning of a file, and the size of the file in bytes."""
    with path.open("rb") as stream:
        data = stream.read(HEAD_BYTES)
    if b"\x00" in data:
        raise TaskError("is binary, not text")
    return data, path.stat().st_size


def _text_rows(path: Path) -> Sample:
    """Rows of a text file, or of the whole lines or elements of a JSON array in the head of a long one."""
    data, size = _head(path)
    if len(data) < size and not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            raise TaskError(f"has a line of more than {HEAD_BYTES} bytes")
    broken = ""
    if size <= WHOLE_BYTES:
        try:
            return _sample(read_rows(SourceFile(path=str(path), name="it")))
        except TaskError as error:
            if len(data) == size:
                raise
            broken = _reason(error)
    with tempfile.NamedTemporaryFile(suffix=path.suffix) as copy:
        copy.write(data)
        copy.flush()
        found = _sample(_until_cut_off(copy.name))
    return replace(found, n_rows=round(size * found.n_rows / len(data)), exact=False, broken=broken)


def _until_cut_off(path: str) -> Iterator[Row]:
    with suppress(TaskError):  # the last row of a head may be cut off
        yield from read_rows(SourceFile(path=path, name="it"))


def _sample(found: Iterable[Row]) -> Sample:
    """Rows as plain JSON values, no more than fit into `HEAD_BYTES`.

    Raises:
        TaskError: more rows cannot be read than can.
    """
    kept, step, size, n_rows, bad = list[str](), 1, 0, 0, list[str]()
    for number, row in found:
        if not isinstance(row, dict):
            bad.append(f"row {number} {row.detail}")
        elif row:
            n_rows += 1
            if (n_rows - 1) % step:
                continue
            kept.append(json.dumps(row, default=str))
            size += len(kept[-1])
            while len(kept) > 2 * FILE_ROWS or size > HEAD_BYTES:
                kept, step = kept[::2] if len(kept) > 1 else [], 2 * step
                size = sum(map(len, kept))
    if len(bad) > n_rows:
        raise TaskError(f"has {len(bad)} rows that cannot be read; {bad[0]}")
    rows = tuple(map(json.loads, evenly(kept, FILE_ROWS)))
    return Sample(rows=rows, n_rows=n_rows, exact=True, unreadable=tuple(bad))


_Item = TypeVar("_Item")


def evenly(items: Sequence[_Item], n: int) -> list[_Item]:
    """`n` of the items, evenly spread over them. All of them if they are no more."""
    return [items[k * len(items) // n] for k in range(n)] if len(items) > n else list(items)


def _parquet(path: Path) -> Sample:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise TaskError(f"is not readable as Parquet ({' '.join(str(error).split())[:120]})") from error
    if len(schema) > MAX_COLUMNS:
        raise TaskError(f"has {len(schema)} columns; at most {MAX_COLUMNS} are looked at")
    if metadata.num_rows and metadata.row_group(0).total_byte_size > _ROW_GROUP_BYTES:
        raise TaskError("has row groups of more than 1 GiB; write it with smaller ones")
    # Pictures and sounds cannot be part of a prompt, so their columns are listed but left empty.
    left_out = {field.name: None for field in schema if "binary" in str(field.type)}
    wanted = [name for name in schema.names if name not in left_out]
    size = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
    share = (0, 1 + size // WHOLE_BYTES)
    found = _sample(
        (number, {**row, **left_out} if isinstance(row, dict) else row)
        for number, row in read_rows(SourceFile(path=str(path), name="it"), wanted, share)
    )
    return replace(found, n_rows=metadata.num_rows)


def every_row(paths: Iterable[Path], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """All rows of the files that can be read; of Parquet files, only these columns."""
    for path in paths:
        with suppress(TaskError):  # prepare too takes the rows before the place where a file is broken
            for _, row in read_rows(SourceFile(path=str(path), name=path.name), columns):
                if isinstance(row, dict):
                    yield row
