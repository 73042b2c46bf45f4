"""Configuration keys that messages name exist, so that following the message changes something."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from llmzero_ray.config import SearchConfig

ROOT = Path(__file__).parent.parent
BLOCKS = {name: field.annotation for name, field in SearchConfig.model_fields.items()}
KEY = re.compile(rf"(?<![\w./-])({'|'.join(BLOCKS)})\.([a-z][a-z0-9_]*)(?![\w(/-]|\.[a-z])")
FILES = re.compile(r"\.(json|jsonl|md|parquet|png|py|safetensors|txt|yaml)$")


def keys_of(block: str) -> set[str]:
    """What may stand below a block of search.yaml."""
    model = BLOCKS[block]
    return set(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else set()


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """All string literals of a file but its docstrings; those of one f-string are one text."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    others = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    others |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in others:
            yield node.lineno, node.value


@cache
def named_keys() -> list[tuple[str, str, str]]:
    """(place, block, key) of every dotted key of a block in a sentence; a text without a blank is
    the name of something else."""
    return [
        (f"{path.relative_to(ROOT)}:{line}", match[1], match[2])
        for folder in ("llmzero_ray", "actors", "jobs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in texts(path)
        for match in KEY.finditer(text)
        if " " in text and not FILES.search(match[0])
    ]


def test_every_key_that_a_text_names_is_in_the_schema() -> None:
    unknown = [
        f"{place} names {block}.{key}" for place, block, key in named_keys() if key not in keys_of(block)
    ]
    assert unknown == []


def test_the_scan_finds_keys_in_messages() -> None:
    found = {f"{block}.{key}" for _, block, key in named_keys()}
    assert {"budget.runs", "engine.max_response_length", "phase.n_steps", "agents.price"} <= found


@pytest.mark.parametrize("text", ["Raise agents.max_tokens, or", "agents.max_tokens is 0"])
def test_the_scan_knows_a_key_that_does_not_exist(text: str) -> None:
    match = KEY.search(text)
    assert match is not None
    assert match[2] not in keys_of(match[1])


def test_messages_about_the_journals_store_name_the_key_that_moves_it() -> None:
    for folder in ("journal", "journals"):
        for path in (ROOT / "llmzero_ray" / folder).rglob("*.py"):
            for line, text in texts(path):
                assert "`storage`" not in text, f"{path}:{line}: the journal's place is set by `journal`"
