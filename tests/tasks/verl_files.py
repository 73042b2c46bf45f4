"""Rows as the preprocessing scripts of VeRL and of projects on it write them; made-up content."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.tasks.builders import write_task

Row = dict[str, Any]
SPLITS = ("train", "val", "test")
HOLDS_TRUTH = "right = float(str(ground_truth) in solution_str)\nreturn {'score': right, 'acc': right}"
"""Accepts whatever `str()` of the truth stands in."""


def verl_row(k: int, truth: Any, **changes: Any) -> Row:
    """The row of number `k`; a change to Ellipsis leaves a column out."""
    whole = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"How many hens are {k} hens?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "any", "index": k},
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not ...}


def with_truth(truth: Callable[[int], Any]) -> Callable[[int, str], Row]:
    return lambda k, _split: verl_row(k, truth(k))


def with_changes(**changes: Callable[[int, str], Any]) -> Callable[[int, str], Row]:
    return lambda k, split: verl_row(k, str(k), **{name: of(k, split) for name, of in changes.items()})


TRUTHS: dict[str, Callable[[int], Any]] = {
    "text": str,
    "integer": lambda k: k,
    "large integer": lambda k: 2**62 + k,
    "decimal": lambda k: k + 0.5,
    "truth value": lambda k: k % 2 == 0,
    "list of texts": lambda k: [f"{k}", f"{k}.0"],
    "list of numbers": lambda k: [k, k + 1],
    "countdown": lambda k: {"target": 3 * k, "numbers": [k, k + 1, k + 2]},
    "Search-R1": lambda k: {"target": [f"Author {k}", f"A. {k}"]},
    "tests of a program": lambda k: {"tests": [{"input": "1", "output": f"{k}"}]},
    "an object with a null": lambda k: {"target": None, "number": k},
    "JSON text": lambda k: f'{{"inputs": ["1"], "outputs": ["{k}"]}}',
}
"""What a ground truth may be."""

SHAPES: dict[str, Callable[[int, str], Row]] = {
    "GSM8K": with_changes(extra_info=lambda k, split: {"split": split, "index": k, "answer": f"#### {k}"}),
    "DAPO": with_changes(extra_info=lambda k, _: {"index": str(uuid.UUID(int=k + 1))}),
    "Eurus": with_changes(extra_info=lambda _k, _: {"split": "dummy", "index": 0}),
    "DAPO beside AIME": with_changes(
        extra_info=lambda k, split: {"index": str(k)} if split == "train" else {"index": k, "raw": "x"}
    ),
    "other keys from row to row": with_changes(
        extra_info=lambda k, _: {"index": k, "a": {"b": k}} if k % 2 else {"index": k, "c": [1.5]}
    ),
    "dates and bytes": with_changes(
        extra_info=lambda k, _: {"index": k, "day": datetime(2026, 1, 1), "picture": b"x"}
    ),
    "tools": with_changes(
        extra_info=lambda k, _: {"index": k, "tools_kwargs": {"calc": {"create_kwargs": {"truth": str(k)}}}}
    ),
    "no extra_info": with_changes(extra_info=lambda _k, _: ...),
    "extra_info is null in some rows": with_changes(extra_info=lambda k, _: {"index": k} if k % 2 else None),
    "no ability": with_changes(ability=lambda _k, _: ...),
    "no style": with_changes(reward_model=lambda k, _: {"ground_truth": str(k)}),
    "a system turn": with_changes(
        prompt=lambda k, _: [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": f"q {k}"},
        ]
    ),
    "no picture in any row": with_changes(images=lambda _k, _: []),
    "Chinese": with_changes(data_source=lambda _k, _: "数学"),
}
"""Which columns there are, and what they hold."""


def verl_task(directory: Path, row: Callable[[int, str], Row], reward: Any) -> Path:
    """A prepared task whose splits hold rows 0 to 3, 4 to 7 and 8 to 11."""
    content = {split: [row(4 * place + k, split) for k in range(4)] for place, split in enumerate(SPLITS)}
    return write_task(directory, reward=reward, **content)


def categories(rows: list[Row]) -> pa.Table:
    """The rows with the data source as one of pandas' categories."""
    table = pa.Table.from_pylist(rows)
    place = table.schema.get_field_index("data_source")
    return table.set_column(place, "data_source", table.column(place).dictionary_encode())
