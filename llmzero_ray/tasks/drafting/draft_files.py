"""Texts of a draft's files, and writing them. Without `force`, nothing is written if files with other content
exist."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmzero_ray.agents.llm.errors import redacted
from llmzero_ray.config.yaml_text import to_yaml
from llmzero_ray.errors import StorageError
from llmzero_ray.tasks.drafting.base import OpenQuestion, RecipeRanking, TaskSpec
from llmzero_ray.tasks.drafting.config_fields import REWARD_FILE
from llmzero_ray.tasks.drafting.draft import Draft
from llmzero_ray.utils.files import replace_file, storage_error
from llmzero_ray.utils.text import one_line

TASK, SEARCH, DESCRIPTION, RECORD = "task.yaml", "search.yaml", "description.md", "draft.json"
_OPEN = "# OPEN:"


def draft_files(draft: Draft, record: Mapping[str, Any], secret: str | None = None) -> dict[str, str]:
    """File name -> text of a draft; `secret` is redacted in all of them.

    `record` becomes draft.json: the agents' calls (`DraftingSession.record`).
    """
    evidence = (*draft.spec.evidence, *draft.reward.evidence)
    files = {
        TASK: task_yaml(draft.fields, evidence, draft.spec.doubts, draft.open),
        DESCRIPTION: description_md(draft.spec, evidence, draft.ranking),
    }
    if draft.search is not None and draft.ranking is not None:
        files[SEARCH] = search_yaml(draft.search, draft.ranking)
    if draft.reward.code is not None:
        files[REWARD_FILE] = draft.reward.code.rstrip() + "\n"
    files[RECORD] = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    return {name: redacted(text, secret) for name, text in files.items()}


def write_draft(
    draft: Draft,
    directory: Path,
    record: Mapping[str, Any],
    *,
    secret: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write the files of a draft, each atomically, and return the names of those that are new or changed.

    Raises:
        StorageError: files with other content exist and `force` is not set (then nothing is written), or they
            cannot be written.
    """
    files = draft_files(draft, record, secret)
    changed = {name: text for name, text in files.items() if not _has_content(directory / name, text)}
    taken = [name for name in changed if name != RECORD and (directory / name).exists()]
    if taken and not force:
        raise StorageError(
            f"{directory} holds other versions of {', '.join(taken)}; edits would be lost. Give --force to "
            "replace them, or another --out"
        )
    for name, text in changed.items():
        replace_file(directory / name, text)
    return list(changed)


def _has_content(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode("utf-8")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(path, error) from error


# --- texts --------------------------------------------------------------------------------------------------


def task_yaml(
    fields: Mapping[str, Any],
    evidence: Sequence[str],
    doubts: Sequence[str],
    questions: Sequence[OpenQuestion],
) -> str:
    """task.yaml: the known fields, and each open question as a comment in place of its field."""
    lines = ["# A draft: look at it, edit it; then run `llmzero prepare` with it, or the search again."]
    lines += [f"# {_comment(line)}" for line in evidence]
    lines += [f"# Doubt: {_comment(line)}" for line in doubts]
    open_fields = {question.field: question for question in questions}
    for name, value in fields.items():
        if question := open_fields.pop(name, None):
            lines.append(open_line(question))
        if value is not None:
            lines.append(_dumped({name: value}))
    lines += [open_line(question) for question in open_fields.values()]
    return "\n".join(lines) + "\n"


def open_line(question: OpenQuestion) -> str:
    """An open question as one line of comment."""
    asked = f"{question.text} {question.listed_choices}".strip()
    return f"{_OPEN} {question.field}: {_comment(asked, 600)} ({question.flag})"


def search_yaml(fields: Mapping[str, Any], ranking: RecipeRanking) -> str:
    """search.yaml with the reason for its recipe, and a comment where the user must add a base model."""
    first, *others = ranking.names
    no_model = [
        "# Prepare the task, and name the base model before a search starts:",
        "# model: {path: /directory/of/the/model}",
    ]
    lines = [
        "# A suggestion: look at it, edit it.",
        f"# Recipe: {first}; then {', '.join(others)}." if others else f"# Recipe: {first}.",
        f"# {_comment(ranking.explanation, 600)}",
        "# Lengths are estimated, at three characters a token.",
        *([] if "model" in fields else no_model),
        _dumped(fields),
    ]
    return "\n".join(lines) + "\n"


def description_md(spec: TaskSpec, evidence: Sequence[str], ranking: RecipeRanking | None) -> str:
    """Text of description.md: the task, the evidence for its columns, and what to check."""
    parts = [f"# {spec.name}", spec.description]
    for head, lines in (("Why it was read so", evidence), ("To be checked", spec.doubts)):
        if lines:
            parts += [f"## {head}", "\n".join(f"- {_comment(line, 600)}" for line in lines)]
    if ranking is not None:
        parts += ["## Recipe", f"{ranking.names[0]}. {_comment(ranking.explanation, 2000)}"]
    return "\n\n".join(parts) + "\n"


def _dumped(fields: Mapping[str, Any]) -> str:
    return to_yaml(fields).rstrip("\n")


def _comment(text: str, limit: int = 300) -> str:
    """Text on one line, so that untrusted text cannot end the comment."""
    return one_line(text, limit)
