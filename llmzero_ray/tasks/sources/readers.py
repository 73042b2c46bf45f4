"""Rows of JSON, JSON Lines, CSV, TSV and Parquet files, one after the other, in constant memory.

`datasets` and `pyarrow.dataset` do not read them: one bad row makes them refuse the whole file, without its
number; cells change on the way (`007` becomes 7, `NA` null, `"1"` 1 among numbers), and a first CSV row with
a cell too many shifts all columns. 200,000 rows (84 MB of JSON Lines) take 6.2 s of processor time and
296 MiB with `datasets` (streaming: 7.2 s, 431 MiB), here 0.9 s and 32 MiB. Parquet is read by pyarrow.

Data sets of the Hugging Face hub come through the `datasets` package, as Parquet files on this machine. Not
here: what the rows mean (the adapters), signing in (`hf auth login`, which gated data sets need).
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.sources.base import OnlySplit

_CHUNK = 1 << 20
_MAX_OBJECT = 1 << 26
"""Characters of one object in a JSON array."""
_BATCH = 2048
"""Rows of a Parquet file that are in memory together."""
_NOT_PARQUET = "is not readable as Parquet ({}); download or save it again"


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of a data set."""

    path: str
    name: str
    """Name relative to the given directory, with forward slashes, for adapters and messages."""
    only_split: OnlySplit = ""

    @property
    def spec_key(self) -> str:
        """Key of the file's digest among a task's settings."""
        return f"file.{self.only_split or 'any'}.{self.name}"


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Row that is not a record."""

    detail: str


Row: TypeAlias = tuple[int, dict[str, Any] | Unreadable]
"""Row number from 1 (in JSON Lines the line number), and its content."""
Part: TypeAlias = tuple[int, int]
"""(i, n): share i of the n shares of a file."""

PREPARED = ("manifest.json", "train.parquet", "val.parquet")
"""Names by which the directory of a prepared task is known."""
NO_ROWS = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json"})
"""Files of the `datasets` library that describe data."""
_SPLIT_OF_WORD: dict[str, OnlySplit] = {
    **dict.fromkeys(("test", "eval", "evaluation"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
}


def find_files(
    places: Sequence[str | Path], wants: Callable[[str], bool], only_split: OnlySplit = ""
) -> list[SourceFile]:
    """Data files of the given files and directories (searched recursively), sorted by name. Tasks that were
    prepared below a directory are no data.

    Raises:
        TaskError: a place does not exist, or holds nothing that can be read.
    """
    found: dict[str, SourceFile] = {}
    for place in map(Path, places):
        if not place.exists():
            raise TaskError(f"source {place} does not exist; give a file, or a directory with files in it")
        names = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
        root = place.parent if place.is_file() else place
        relative = [(path, path.relative_to(root).as_posix()) for path in names]
        folders = {path.parent for path in names if path.name in PREPARED} - {root}
        prepared = {folder for folder in folders if all((folder / name).exists() for name in PREPARED)}
        readable = [
            (path, name)
            for path, name in relative
            if path.suffix.lower() in _READERS
            and (path.name not in NO_ROWS or place.is_file())
            and not any(part.startswith(".") for part in name.split("/"))
            and prepared.isdisjoint(path.parents)
        ]
        if not readable:
            held = ", ".join(name for _, name in relative[:6]) or "nothing"
            raise TaskError(
                f"source {place} has no file that can be read (it holds {held}); "
                f"endings known: {', '.join(ENDINGS)}"
            )
        wanted = [(path, name) for path, name in readable if wants(name)]
        if not wanted:
            held = ", ".join(name for _, name in readable[:6])
            raise TaskError(f"source {place} has no file of this data set (it holds {held})")
        for path, name in wanted:
            found[str(path.absolute())] = SourceFile(
                path=str(path.absolute()), name=name, only_split=only_split
            )
    return list(found.values())


def fetch_from_hub(name: str, revision: str | None, directory: Path) -> list[SourceFile]:
    """Splits of a Hub data set, one file each in `directory`. Test and validation rows stay in their split.

    Raises:
        TaskError: `datasets` is missing, or the data set cannot be downloaded.
    """
    try:
        import datasets
    except ImportError as error:
        raise TaskError(
            f"hub: {name} needs the package datasets, which cannot be imported ({error}); install it, or "
            "download the files and name them as files"
        ) from error
    try:
        loaded = datasets.load_dataset(name, revision=revision)
    except Exception as error:  # the hub's client raises errors of many libraries
        raise TaskError(
            f"hub: {name} cannot be loaded ({type(error).__name__}: {error}). Without a network, or for a "
            "gated data set without access, download the files elsewhere and name them as files"
        ) from error
    files = []
    for split, rows in loaded.items():
        path = directory / f"{split}.parquet"
        rows.to_parquet(str(path))
        only_split = only_split_of(str(split))
        files.append(SourceFile(path=str(path), name=f"{name}/{split}.parquet", only_split=only_split))
    return files


def only_split_of(split: str) -> OnlySplit:
    """Only split that rows of a published split may enter. Empty for training rows, which may enter any."""
    words = split.lower().replace("-", "_").split("_")
    return next((_SPLIT_OF_WORD[word] for word in words if word in _SPLIT_OF_WORD), "")


def read_rows(
    file: SourceFile,
    columns: Sequence[str] | None = None,
    part: Part = (0, 1),
) -> Iterator[Row]:
    """Rows of a file. `columns` restricts the columns read from Parquet.

    Raises:
        TaskError: the file is empty, broken from some row on, or of another format than its name says.
    """
    path = Path(file.path)
    if path.stat().st_size == 0:
        raise TaskError(f"{file.name} is an empty file; fill or remove it")
    try:
        yield from _READERS[path.suffix.lower()](path, columns, part)
    except TaskError as error:
        raise TaskError(f"{file.name}: {error}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{file.name} is not UTF-8 text ({error.reason}); save it again as UTF-8") from error
    except (OSError, ValueError, csv.Error) as error:
        raise TaskError(f"{file.name} cannot be read: {error}") from error


def parquet_columns(file: SourceFile) -> tuple[str, ...] | None:
    """All columns of a Parquet file, used or not. None for other formats.

    Raises:
        TaskError: it is not a Parquet file.
    """
    if not file.path.lower().endswith(".parquet"):
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return tuple(pq.read_schema(file.path).names)
    except (pa.ArrowException, OSError) as error:
        raise TaskError(f"{file.name}: {_NOT_PARQUET.format(error)}") from error


def _mine(number: int, part: Part) -> bool:
    return part[1] == 1 or number // _BATCH % part[1] == part[0]


def _record(value: Any) -> dict[str, Any] | Unreadable:
    if isinstance(value, dict | Unreadable):
        return value
    return Unreadable(detail=f"holds {type(value).__name__}, not an object with columns")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in held if names.count(name) > 1)
        raise ValueError(f"has the key {repeated[:60]!r} twice in one object; rename one of them")
    return held


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
_ANY_DECODER = json.JSONDecoder(parse_int=str)
"""Decoder without the checks of `_DECODER`, and without Python's limit on the digits of an integer."""


def _value_at(text: str, at: int) -> tuple[Any, int]:
    """A JSON value, `Unreadable` if it cannot be used as it is, and the position after it.

    Raises:
        json.JSONDecodeError: it is not JSON.
    """
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        _, end = _ANY_DECODER.raw_decode(text, at)
        detail = str(error)
        if "sys.set_int_max_str_digits" in detail:
            detail = f"holds an integer of more than {sys.get_int_max_str_digits()} digits; write it as text"
        return Unreadable(detail=detail), end


def _json_lines(path: Path, _columns: Any, part: Part) -> Iterator[Row]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not _mine(number, part) or not line.strip():
                continue
            try:
                text = str(line, "utf-8-sig")
                value, end = _value_at(text, len(text) - len(text.lstrip()))
                if rest := text[end:].lstrip():
                    raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))
                yield number, _record(value)
            except (ValueError, RecursionError) as error:
                yield number, Unreadable(detail=f"is not JSON: {error}; write one object a line")


def _json(path: Path, columns: Any, part: Part) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as stream:
        first = next((char for char in iter(lambda: stream.read(1), "") if not char.isspace()), "")
        whole = _indented_object(stream) if first == "{" else None
        if first == "[" or whole is not None:
            for number, value in enumerate(_array_items(stream) if first == "[" else [whole], start=1):
                if _mine(number, part):
                    yield number, _record(value)
            return
    yield from _json_lines(path, columns, part)


def _indented_object(stream: TextIO) -> dict[str, Any] | Unreadable | None:
    """The object that is the whole file, after its opening brace has been read. None if the file holds
    something else, such as one object a line."""
    text = "{"
    with suppress(ValueError, RecursionError):
        text += stream.readline(_MAX_OBJECT)
        _value_at(text, 0)
        return None
    with suppress(ValueError, RecursionError):
        text += stream.read(_MAX_OBJECT)
        value, end = _value_at(text, 0)
        return None if text[end:].strip() else _record(value)
    return None


def _array_items(stream: TextIO) -> Iterator[Any]:
    """Elements of a JSON array, after its opening bracket has been read."""
    buffer, at, size = "", 0, _CHUNK
    n_read = 0
    while True:
        while at < len(buffer) and (buffer[at].isspace() or buffer[at] == ","):
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        try:
            value, at = _value_at(buffer, at)
        except (ValueError, RecursionError) as error:
            more = stream.read(size) if len(buffer) - at < _MAX_OBJECT else ""
            if not more:
                raise TaskError(
                    f"is broken from row {n_read + 1} on ({error}); the rows before it can be used: "
                    "save the file again, or cut it there"
                ) from error
            buffer, at, size = buffer[at:] + more, 0, size * 2
            continue
        n_read, size = n_read + 1, _CHUNK
        yield value


def _csv(path: Path, _columns: Any, part: Part) -> Iterator[Row]:
    csv.field_size_limit(_MAX_OBJECT)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(stream.readline())
        stream.seek(0)
        rows = csv.reader(stream, delimiter=delimiter, strict=True)
        header = next(rows, [])
        _check_names(header)
        for number, cells in _numbered(rows):
            if not cells or not _mine(number, part):
                continue
            if len(cells) == len(header):
                yield number, dict(zip(header, cells, strict=True))
            else:
                holds = {"\t": "tabs", ";": "semicolons"}.get(delimiter, "commas")
                detail = (
                    f"has {len(cells)} cells, the header has {len(header)}; quote cells that hold {holds}"
                )
                yield number, Unreadable(detail=detail)


def _numbered(rows: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    number = 0
    try:
        for number, cells in enumerate(rows, start=1):
            yield number, cells
    except csv.Error as error:
        raise TaskError(
            f"is broken from row {number + 1} on ({error}); look for a quote that is not closed, or that is "
            "not doubled inside a cell"
        ) from error


def _check_names(header: Sequence[str]) -> None:
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise TaskError(f"has the column {repeated[0]!r} twice; rename one of them")


def _delimiter(header: str) -> str:
    """Delimiter of a CSV file. Spreadsheets of many countries write semicolons, and some write tabs."""
    return next((each for each in ",\t;" if each in header), ",")


def _parquet(path: Path, columns: Sequence[str] | None, part: Part) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_names(file.schema_arrow.names)
            names = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
            start = 1
            # Group by group, so that the rows before a broken group can be used.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(_BATCH, row_groups=[group], columns=names):
                    mine = [k for k in range(batch.num_rows) if _mine(start + k, part)]
                    taken = batch if len(mine) == batch.num_rows else batch.take(pa.array(mine, pa.int64()))
                    for k, record in zip(mine, _records(taken), strict=True):
                        yield start + k, record
                    start += batch.num_rows
    except pa.ArrowException as error:
        raise TaskError(_NOT_PARQUET.format(error)) from error


def _records(batch: Any) -> list[Any]:
    """Rows of a batch of Arrow. A row with a value that Python does not have is `Unreadable`."""
    try:
        records = list(batch.to_pylist())
    except OverflowError as error:
        if batch.num_rows == 1:
            detail = f"holds a date or a time beyond Python's ({error}); write it as text"
            return [Unreadable(detail=detail)]
        return [record for k in range(batch.num_rows) for record in _records(batch.slice(k, 1))]
    for field in batch.schema:
        if "float" in str(field.type):  # Arrow calls 64-bit ones double
            for record in records:
                record[field.name] = _with_short_floats(record[field.name], field.type)
    return records


def _with_short_floats(value: Any, type_: Any) -> Any:
    """Value of an Arrow type whose 32-bit floats are the 64-bit ones of the same text. Converted as they are,
    54.1 would become 54.099998474121094. Whole numbers below 2**53 stay as they are."""
    import numpy as np
    from pyarrow import types

    if value is None:
        return None
    if types.is_float32(type_):
        exact = value.is_integer() and abs(value) < 2**53
        return value if exact else float(str(np.float32(value)))
    if types.is_struct(type_):
        return {field.name: _with_short_floats(value[field.name], field.type) for field in type_}
    if types.is_map(type_):
        return [(key, _with_short_floats(item, type_.item_type)) for key, item in value]
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return [_with_short_floats(item, type_.value_type) for item in value]
    return value


_READERS: dict[str, Callable[[Path, Any, Part], Iterator[Row]]] = {
    ".parquet": _parquet,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
}
ENDINGS = tuple(_READERS)
"""Suffixes of the files that can be read."""
