"""The files of a draft as text, and how they get into a directory: all new or unchanged, or none is touched.

Not here: what they say (assembling.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from llmzero_ray.agents.drafting.values import OpenQuestion, Ranking, Reading
from llmzero_ray.errors import StorageError
from llmzero_ray.files import replace_file, storage_error
from llmzero_ray.text import one_line

_OPEN = "# OPEN:"
_RECORD = "draft.json"
"""Holds times and prices, and is written anew each time."""


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def task_yaml(
    fields: Mapping[str, Any], evidence: Sequence[str], doubts: Sequence[str], asked: Sequence[OpenQuestion]
) -> str:
    """task.yaml: what is known, and each open question as a comment in the place of its field."""
    lines = ["# A draft: look at it, edit it, then run `llmzero prepare` with this file."]
    lines += [f"# {_comment(line)}" for line in evidence]
    lines += [f"# Doubt: {_comment(line)}" for line in doubts]
    open_fields = {question.field: question for question in asked}
    for name, value in fields.items():
        if question := open_fields.pop(name, None):
            lines.append(open_line(question))
        if value is not None:
            lines.append(_dumped({name: value}))
    lines += [open_line(question) for question in open_fields.values()]
    return "\n".join(lines) + "\n"


def open_line(question: OpenQuestion) -> str:
    """An open question as one line of comment."""
    choices = f" One of: {', '.join(question.choices)}." if question.choices else ""
    return f"{_OPEN} {question.field}: {_comment(question.asks + choices, 600)} ({question.flag})"


def search_yaml(fields: Mapping[str, Any], ranking: Ranking) -> str:
    """search.yaml, with the reason of its recipe and the one thing that nobody but the user can name."""
    first, *others = ranking.names
    lines = [
        "# A suggestion: look at it, edit it. Prepare the task before a search.",
        f"# Recipe: {first}; then {', '.join(others)}." if others else f"# Recipe: {first}.",
        f"# {_comment(ranking.explanation, 600)}",
        "# Lengths are estimated from the sampled rows, at three characters a token.",
        "# Name the base model before a search starts:",
        "# model: {path: /directory/of/the/model}",
        _dumped(fields),
    ]
    return "\n".join(lines) + "\n"


def description_md(reading: Reading, evidence: Sequence[str], ranking: Ranking | None) -> str:
    """description.md: the task in words, why it was read so, and what to look at."""
    parts = [f"# {reading.name}", reading.description]
    for head, lines in (("Why it was read so", evidence), ("To be checked", reading.doubts)):
        if lines:
            parts += [f"## {head}", "\n".join(f"- {_comment(line, 600)}" for line in lines)]
    if ranking is not None:
        parts += ["## Recipe", f"{ranking.names[0]}. {_comment(ranking.explanation, 2000)}"]
    return "\n\n".join(parts) + "\n"


def _dumped(fields: Mapping[str, Any]) -> str:
    return yaml.dump(dict(fields), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100).rstrip(
        "\n"
    )


def _comment(text: str, limit: int = 300) -> str:
    """On one line, so that no word of a stranger leaves the comment."""
    return one_line(text, limit)


def write_files(directory: Path, files: Mapping[str, str], *, force: bool = False) -> list[str]:
    """Write the files, each in one step; names of those that have changed or are new.

    Raises:
        StorageError: one of them exists with other content and `force` is not set, or cannot be written.
            Without `force` nothing has been written then.
    """
    changed = {name: text for name, text in files.items() if not _holds(directory / name, text)}
    taken = [name for name in changed if name != _RECORD and (directory / name).exists()]
    if taken and not force:
        raise StorageError(
            f"{directory} holds other versions of {', '.join(taken)}; edits would be lost. Give --force to "
            "replace them, or another --out"
        )
    for name, text in changed.items():
        replace_file(directory / name, text)
    return list(changed)


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode("utf-8")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(path, error) from error


def record_json(record: Mapping[str, Any]) -> str:
    """draft.json."""
    return json.dumps(record, indent=1, ensure_ascii=False, default=str) + "\n"
