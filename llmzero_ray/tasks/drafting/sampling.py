"""The first rows of a data file and the beginning of a text file, from a bounded head of it.

Rows are read as `prepare` reads them (sources/readers.py).
"""

from __future__ import annotations

import codecs
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.sources.readers import SourceFile, read_rows

HEAD_BYTES = 2 * 2**20
"""Maximum bytes read of one file."""
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
    """The head of one data file."""

    rows: tuple[dict[str, Any], ...]
    n_rows: int
    """Rows of the whole file: counted if `exact`, otherwise estimated."""
    exact: bool
    unreadable: tuple[str, ...] = ()
    """Rows of the head that cannot be read, such as `row 7 has 3 cells, the header has 2; …`."""


def sample_rows(path: Path) -> Sample:
    """The first rows of a file.

    Raises:
        TaskError: it has no readable rows; the message has the reason, without the file's name.
    """
    try:
        found = _parquet(path) if path.suffix.lower() == ".parquet" else _text_rows(path)
    except OSError as error:
        raise TaskError(f"cannot be read ({error.strerror or error})") from error
    except TaskError as error:
        raise TaskError(str(error).removeprefix("it: ").removeprefix("it ")) from error
    if not found.rows:
        raise TaskError("holds no rows")
    if len(found.rows[0]) > MAX_COLUMNS:
        raise TaskError(f"has {len(found.rows[0])} columns; at most {MAX_COLUMNS} are looked at")
    return found


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
    """Rows of the whole lines, or of the whole elements of a JSON array, in the head of a file."""
    data, size = _head(path)
    whole = len(data) == size
    if not whole and not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        data = data[: data.rfind(b"\n") + 1]
        if not data:
            raise TaskError(f"has a line of more than {HEAD_BYTES} bytes")
    rows, bad = list[dict[str, Any]](), list[str]()
    with tempfile.NamedTemporaryFile(suffix=path.suffix) as copy:
        copy.write(data)
        copy.flush()
        try:
            for number, row in read_rows(SourceFile(path=copy.name, name="it")):
                if isinstance(row, dict):
                    rows += [row] if row else []
                else:
                    bad.append(f"row {number} {row.detail}")
        except TaskError:
            if whole:  # the last row of a head may be cut off
                raise
    _check_share(rows, bad)
    n_rows = len(rows) if whole else round(size * len(rows) / len(data))
    return Sample(rows=tuple(rows[:FILE_ROWS]), n_rows=n_rows, exact=whole, unreadable=tuple(bad))


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
    bad = list[str]()

    def good() -> Iterator[dict[str, Any]]:
        for number, row in islice(read_rows(SourceFile(path=str(path), name="it"), wanted), FILE_ROWS):
            if isinstance(row, dict):
                yield {**row, **left_out}
            else:
                bad.append(f"row {number} {row.detail}")

    rows = tuple(_bounded(good()))
    _check_share(rows, bad)
    return Sample(rows=rows, n_rows=metadata.num_rows, exact=True, unreadable=tuple(bad))


def _check_share(rows: Sequence[Any], bad: Sequence[str]) -> None:
    """Check that at least half of the rows can be read."""
    if len(bad) > len(rows):
        raise TaskError(f"has {len(bad)} rows that cannot be read; {bad[0]}")


def _bounded(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows as plain JSON values, no more than fit into `HEAD_BYTES`."""
    room = HEAD_BYTES
    for row in rows:
        plain = json.dumps(row, default=str)
        room -= len(plain)
        if room < 0:
            return
        yield json.loads(plain)
