"""VeRL's row schema: build rows, write a split as parquet, and check files before VeRL reads them in a phase.

A row is `{data_source, prompt, ability, reward_model: {style, ground_truth}, extra_info: {index, split,
...}}`; `prompt` is a chat. Rows that are built here have text as `ground_truth` (JSON text when it is
composite). Files of VeRL's own scripts are taken as they are: a truth may be anything that JSON has, a data
source may hold a slash, `extra_info` may be anything or absent, and each split is a data set of its own with
its own Arrow schema.

Source: the data set and reward loop of VeRL 0.9.1 (`verl.utils.dataset.rl_dataset`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from llmzero_ray.dynamics.answers import Gold
from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.families import Family, Problem
from llmzero_ray.prepared.gold_answers import accepted_answers
from llmzero_ray.prepared.manifest import SplitFile
from llmzero_ray.prepared.splits import canonical_prompt
from llmzero_ray.utils.files import file_digest, text_digest

COLUMNS = {
    "data_source": "string",
    "prompt": "list of {role: string, content: string}",
    "reward_model": "{ground_truth: text, number, truth value, list or object}",
}
"""Required columns, with descriptions of their types. `extra_info` and further columns are allowed."""
_EXTRA = "extra_info"
_MEDIA = ("images", "videos", "audios")
"""Columns from which VeRL's data set puts pictures, videos and sounds into a prompt."""
_HINTS = {
    "prompt": ' A prompt is a chat: [{"role": "user", "content": "..."}]. `llmzero draft` makes such rows '
    "of a table with texts.",
    "reward_model": " VeRL's reward is given ground_truth as it stands here.",
}
_SAMPLE = 16
"""Rows per file that are kept to try the reward on."""


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """Contents of a checked file."""

    n_rows: int
    data_sources: tuple[str, ...]
    prompts: Mapping[bytes, int]
    """Digest of each canonical prompt -> row number."""
    samples: tuple[dict[str, Any], ...]
    """A few rows, from the whole length of the file."""


def verl_row(
    *,
    data_source: str,
    prompt: list[dict[str, str]],
    ability: str,
    ground_truth: str,
    index: int,
    split: str,
    extra: Mapping[str, str | bool] | None = None,
) -> dict[str, Any]:
    """One row. `index` counts the rows of its split, and `extra` holds the values of `extra_info` except
    index and split."""
    return {
        "data_source": data_source,
        "prompt": prompt,
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"index": index, "split": split, **(extra or {})},
    }


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write one row or more, all with the same keys of `extra_info`, under one schema. Equal rows give equal
    bytes with the same version of pyarrow.

    Raises:
        OSError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    more = [
        (name, pa.bool_() if isinstance(value, bool) else pa.string())
        for name, value in rows[0]["extra_info"].items()
        if name not in ("index", "split")
    ]
    schema = pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string()), *more])),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def to_rows(family: Family, split: str, problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    """Problems as rows in VeRL's schema; `extra_info.index` counts inside the split."""
    return [
        verl_row(
            data_source=family.name,
            prompt=[{"role": "user", "content": problem.prompt}],
            ability=family.name,
            ground_truth=problem.answer,
            index=index,
            split=split,
        )
        for index, problem in enumerate(problems)
    ]


def write_split(directory: Path, split: str, rows: list[dict[str, Any]]) -> SplitFile:
    """Write the rows of a split as `<split>.parquet` into a task's directory; its entry in the manifest.

    Raises:
        OSError: the file cannot be written.
    """
    path = directory / f"{split}.parquet"
    write_parquet(rows, path)
    return SplitFile(file=path.name, rows=len(rows), sha256=file_digest(path))


def read_first_rows(path: str | Path, n_rows: int | None) -> list[dict[str, Any]]:
    """The first `n_rows` rows (all if None) of a split that was checked or written here."""
    import pyarrow.parquet as pq

    return _rows(pq.ParquetFile(path).read(columns=[*COLUMNS, _EXTRA]).slice(0, n_rows))


def _rows(table: Any) -> list[dict[str, Any]]:
    """The rows as VeRL passes them to a reward, with only the plain values of `extra_info`."""
    held = table.select([name for name in (*COLUMNS, _EXTRA) if name in table.column_names])
    return [{**row, _EXTRA: plain(row.get(_EXTRA) or {})} for row in held.to_pylist()]


def plain(value: Any) -> Any:
    """Value as JSON: arrays as lists, numpy numbers as Python's, mappings and lists with their plain values.
    Values without a plain form are dropped."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        held = {str(key): plain(each) for key, each in value.items()}
        return {key: each for key, each in held.items() if each is not NOTHING}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set):
        return [each for each in map(plain, value) if each is not NOTHING]
    return NOTHING


NOTHING = object()
"""Result of `plain` for a value that has no plain form."""


def read_golds(path: str | Path) -> dict[int, Gold]:
    """Position of each row of a split -> its question and the wordings of its answer.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no rows of VeRL's (pyarrow's errors).
    """
    return {
        index: Gold(
            prompt="\n".join(message["content"] for message in row["prompt"]),
            wordings=accepted_answers(row["reward_model"]["ground_truth"]),
        )
        for index, row in enumerate(read_first_rows(path, None))
    }


def check_split(path: Path, split: str) -> SplitFacts:
    """Check that VeRL can use every row of a file, and return facts about it.

    Raises:
        TaskError: missing, not parquet, empty, columns or types wrong, or a row that cannot be used.
    """
    table = _read(path, split)
    _check_columns(table.schema, path)
    if table.num_rows == 0:
        raise TaskError(f"{path} ({split}) has no rows; every split needs at least one")
    _check_extra(table.schema, path)
    _check_no_media(table, path)
    rows = _rows(table)
    for number, row in enumerate(rows):
        if problem := _row_problem(row):
            raise TaskError(f"{path} ({split}), row {number}: {problem}")
    return SplitFacts(
        n_rows=len(rows),
        data_sources=tuple(sorted({row["data_source"] for row in rows})),
        prompts={prompt_digest(row["prompt"]): number for number, row in enumerate(rows)},
        samples=tuple(rows[:: -(-len(rows) // _SAMPLE)]),
    )


def check_between(facts: Mapping[str, SplitFacts]) -> None:
    """Check that no two splits share a prompt.

    Raises:
        TaskError: which splits, how many prompts, one example.
    """
    for first, second in combinations(facts, 2):
        one, other = facts[first].prompts, facts[second].prompts
        shared = one.keys() & other.keys()
        if shared:
            row, twin = min((one[digest], other[digest]) for digest in shared)
            raise TaskError(
                f"{len(shared)} prompts stand both in {first} and in {second}, e.g. row {row} of {first} is "
                f"row {twin} of {second}; scores would not be held-out: remove them from one of the two"
            )


def _read(path: Path, split: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise TaskError(
            f"{path}, the {split} split that the manifest names, does not exist; make the task again, or "
            "correct the manifest"
        )
    if path.stat().st_size == 0:
        raise TaskError(f"{path} ({split}) is an empty file, not parquet; make the task again")
    try:
        # One file, not a data set: a path such as `split=train/x.parquet` must not add a column.
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise TaskError(f"{path} ({split}) cannot be read as parquet: {error}") from error


def _check_columns(schema: Any, path: Path) -> None:
    missing = ", ".join(name for name in COLUMNS if name not in schema.names)
    if missing:
        raise TaskError(
            f"{path} lacks {missing}; columns expected: {', '.join(COLUMNS)}; found: "
            f"{', '.join(schema.names) or 'none'}"
        )
    for name, wanted in COLUMNS.items():
        kind = schema.field(name).type
        if not _TYPE_TESTS[name](kind):
            raise TaskError(f"{path}: column {name} must be {wanted}; it is {kind}.{_HINTS.get(name, '')}")


def _check_extra(schema: Any, path: Path) -> None:
    import pyarrow.types as types

    kind = schema.field(_EXTRA).type if _EXTRA in schema.names else None
    if kind is not None and not (types.is_struct(kind) or types.is_null(kind)):
        raise TaskError(
            f"{path}: column {_EXTRA} must be an object, such as {{index: 0}}, or absent; it is {kind}"
        )


def _check_no_media(table: Any, path: Path) -> None:
    for name in _MEDIA:
        if name in table.column_names and any(value.as_py() for value in table.column(name)):
            raise TaskError(
                f"{path}: column {name} holds {name}; prompts of a search are text alone. Leave out the rows "
                "that need them, or the column where no prompt does"
            )


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):  # pandas' categories
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_json(kind: Any) -> bool:
    """Whether the reward's sandbox can be given values of this type."""
    import pyarrow.types as types

    if types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_json(kind.value_type)
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    return _is_text(kind) or any(test(kind) for test in tests)


def _is_struct_with(kind: Any, **tests: Callable[[Any], bool]) -> bool:
    import pyarrow.types as types

    if not types.is_struct(kind):
        return False
    fields = {field.name: field.type for field in kind}
    return all(name in fields and test(fields[name]) for name, test in tests.items())


def _is_chat(kind: Any) -> bool:
    import pyarrow.types as types

    is_list = types.is_list(kind) or types.is_large_list(kind)
    return bool(is_list and _is_struct_with(kind.value_type, role=_is_text, content=_is_text))


_TYPE_TESTS: dict[str, Callable[[Any], bool]] = {
    "data_source": _is_text,
    "prompt": _is_chat,
    "reward_model": lambda kind: _is_struct_with(kind, ground_truth=_is_json),
}


def _row_problem(row: Mapping[str, Any]) -> str | None:
    """Problem of a row whose types are right, or None."""
    empty = next((name for name in COLUMNS if not row[name]), None)
    if empty is not None:
        return f"{empty} is empty or null"
    if any(not message or not message["role"] or message["content"] is None for message in row["prompt"]):
        return "a message of the prompt has no role or no content"
    if row["reward_model"]["ground_truth"] is None:
        return "reward_model.ground_truth is null"
    return None


def prompt_digest(prompt: Iterable[Mapping[str, str]]) -> bytes:
    """16-byte digest of a prompt, so that the prompts of a large data set need not stay in memory."""
    text = "\x00".join(f"{message['role']}\x01{canonical_prompt(message['content'])}" for message in prompt)
    return bytes.fromhex(text_digest(text)[:32])
