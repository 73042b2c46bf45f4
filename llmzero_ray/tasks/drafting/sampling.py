"""The first rows of a data file and the beginning of a text file, from a bounded head of it."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError

HEAD_BYTES = 2 * 2**20
"""Bytes read of one file."""
FILE_ROWS = 400
"""Rows sampled of one file."""
TEXT_CHARS = 4_000
SHORT = 200
"""Characters of a value that may be counted and compared."""
MAX_COLUMNS = 200
_ROW_GROUP_BYTES = 2**30
"""Largest row group of a Parquet file, unpacked, that is opened."""
_BATCH_ROWS = 50


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The head of one data file."""

    rows: tuple[dict[str, Any], ...]
    n_rows: int
    """Rows of the whole file: counted if `exact`, otherwise estimated."""
    exact: bool


def sample_rows(path: Path) -> Sample:
    """The first rows of a file.

    Raises:
        TaskError: it has no readable rows; the message has the reason, without the file's name.
    """
    try:
        found = _parquet(path) if path.suffix.lower() == ".parquet" else _text_rows(path)
    except OSError as error:
        raise TaskError(f"cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError, csv.Error) as error:
        raise TaskError(str(error)) from error
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
        return _head(path)[0][:TEXT_CHARS]
    except OSError as error:
        raise TaskError(f"cannot be read ({error.strerror or error})") from error


def _head(path: Path) -> tuple[str, bool, int]:
    """Beginning of a file, whether that is the whole file, and its size in bytes."""
    # The file may have been replaced by a link or a pipe since it was listed.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(HEAD_BYTES)
    whole = len(data) == size
    if b"\x00" in data:
        raise TaskError("is binary, not text")
    try:
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=whole), whole, size
    except UnicodeDecodeError as error:
        raise TaskError(f"is not UTF-8 text ({error.reason})") from error


def _text_rows(path: Path) -> Sample:
    text, whole, size = _head(path)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        rows, used = _csv(text, whole, "\t" if suffix == ".tsv" else ",")
    elif suffix == ".json" and text.lstrip().startswith("["):
        rows, used = _array(text)
    else:
        rows, used = _lines(text, whole)
    kept = tuple(rows[:FILE_ROWS])
    return Sample(
        rows=kept,
        n_rows=len(rows) if whole else round(size * len(rows) / max(1, used)),
        exact=whole,
    )


def _lines(text: str, whole: bool) -> tuple[list[dict[str, Any]], int]:
    """Rows of JSON Lines and their size in bytes."""
    if not whole:
        text = text[: text.rfind("\n") + 1]
        if not text:
            raise TaskError(f"has a line of more than {HEAD_BYTES} bytes")
    lines = [line for line in text.split("\n") if line.strip()]
    rows = [row for row in map(_object, lines) if row is not None]
    if lines and len(rows) < len(lines) / 2:
        raise TaskError("holds lines that are no JSON objects; write one object a line")
    return rows, len(text.encode())


def _object(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and row else None


def _array(text: str) -> tuple[list[dict[str, Any]], int]:
    decoder, rows, at = json.JSONDecoder(), list[dict[str, Any]](), text.index("[") + 1
    end = at
    while True:
        while at < len(text) and (text[at].isspace() or text[at] == ","):
            at += 1
        if at >= len(text) or text[at] == "]":
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        end = at
        if isinstance(value, dict) and value:
            rows.append(value)
    return rows, len(text[:end].encode())


def _csv(text: str, whole: bool, delimiter: str) -> tuple[list[dict[str, Any]], int]:
    csv.field_size_limit(HEAD_BYTES)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    cells = list(_until_broken(reader, whole))
    if not cells:
        raise TaskError("holds no rows")
    header, *body = cells if whole else cells[:-1] or cells
    if len(set(header)) < len(header):
        raise TaskError("has a column twice; rename one of them")
    rows = [dict(zip(header, line, strict=True)) for line in body if len(line) == len(header)]
    return rows, len(text.encode())


def _until_broken(reader: Iterator[list[str]], whole: bool) -> Iterator[list[str]]:
    """The rows; in a head, a last row that is cut within quotes is not an error."""
    try:
        yield from reader
    except csv.Error:
        if whole:
            raise


def _parquet(path: Path) -> Sample:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            n_rows = file.metadata.num_rows
            if len(file.schema_arrow.names) > MAX_COLUMNS:
                raise TaskError(
                    f"has {len(file.schema_arrow.names)} columns; at most {MAX_COLUMNS} are looked at"
                )
            if n_rows and file.metadata.row_group(0).total_byte_size > _ROW_GROUP_BYTES:
                raise TaskError("has row groups of more than 1 GiB; write it with smaller ones")
            # Pictures and sounds are no part of a prompt: such a column is named, and stays empty.
            wanted = [field.name for field in file.schema_arrow if "binary" not in str(field.type)]
            left_out = dict.fromkeys(name for name in file.schema_arrow.names if name not in wanted)
            batches = file.iter_batches(_BATCH_ROWS, row_groups=[0] if n_rows else [], columns=wanted)
            rows = tuple(_bounded({**row, **left_out} for batch in batches for row in batch.to_pylist()))
    except pa.ArrowException as error:
        raise TaskError(f"is not readable as Parquet ({' '.join(str(error).split())[:120]})") from error
    return Sample(rows=rows, n_rows=n_rows, exact=True)


def _bounded(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows as plain JSON values: at most `FILE_ROWS`, and no more than fit into `HEAD_BYTES`."""
    room = HEAD_BYTES
    for row in islice(rows, FILE_ROWS):
        plain = json.dumps(row, default=str)
        room -= len(plain)
        if room < 0:
            return
        yield json.loads(plain)
