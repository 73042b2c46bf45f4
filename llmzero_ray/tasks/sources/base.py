"""Examples and rejections made from rows, and the adapter that a data set implements."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from llmzero_ray.prepared.gold_answers import gold_response
from llmzero_ray.prepared.manifest import RewardEntry

Record: TypeAlias = Mapping[str, Any]
"""One raw row: column -> value."""
OnlySplit: TypeAlias = Literal["", "val", "test", "confirm"]
"""The only split that a row may enter, or "" when the data set leaves that open."""
Shares: TypeAlias = Literal["equal", "proportional"]
"""Way in which the sources of a task share a split: equally, or in proportion to their sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskExample:
    """One question, ready to become a row."""

    data_source: str
    """VeRL's data source. Also the stratum: each data source gets a share of each split."""
    prompt: str
    """The user's message."""
    system: str = ""
    """System message before the prompt. Empty if none."""
    ground_truth: str
    label: str
    """Answer for a constant policy. Empty if no constant answer can be right."""
    stable_id: str = ""
    """Id of the row in its data set, independent of its position."""
    group: str = ""
    """Group whose rows are never in two splits. Empty if the row is alone."""
    extra: Mapping[str, str | bool] = field(default_factory=dict)
    """`extra_info` except index and split, with the same keys for every example of an adapter."""

    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat."""
        user = {"role": "user", "content": self.prompt}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A row that cannot be used."""

    reason: str
    """Short reason, the same for all rows with this defect. Rejections are counted by it."""
    detail: str
    """Description of the defect in this row, and how to fix it."""


def empty(column: str, reason: str = "") -> Rejection:
    """Rejection of a row without text in a column. `reason` replaces the default, `empty` and the column."""
    return Rejection(
        reason=reason or f"empty {column}", detail=f"{column} is empty; fill it or remove the row"
    )


class DatasetAdapter:
    """Adapter of one data set: its columns, and the meaning of a row. A subclass sets the fields without a
    default and writes `adapt`."""

    name: str
    """Name of the task; no slash."""
    version = 1
    """Version, incremented with every change of the resulting examples."""
    licence: str | None
    """Licence of the data."""
    ability: str
    """VeRL's `ability` column."""
    required: tuple[str, ...]
    """Columns that every row must have."""
    optional: tuple[str, ...] | None = None
    """Other columns that may be present. If None, any."""
    shares: Shares = "equal"
    """Way in which data sources share the splits."""
    reward: RewardEntry
    """The reward of these rows."""

    def options(self) -> dict[str, Any]:
        """Settings that decide the content."""
        return {}

    def wants(self, name: str) -> bool:  # noqa: ARG002
        """Whether a file of this name (relative to the directory given) belongs to the data set."""
        return True

    def check(self) -> None:
        """Check that everything that the task needs is installed.

        Raises:
            TaskError: something is missing; the message says what.
        """

    def adapt(self, record: Record, file: str) -> TaskExample | Rejection:
        """Example or rejection for a row of that file, independent of the row's position."""
        raise NotImplementedError

    def gold_response(self, data_source: str, ground_truth: str) -> str | None:  # noqa: ARG002
        """Response that must score 1. None if there is none or it is unknown."""
        form = self.reward.gold_response
        return None if form is None else gold_response(form, ground_truth)


def slug(text: str) -> str:
    """Name that can be part of a metric's name: lower case, digits and single underscores."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def value_at(record: Record, column: str) -> Any:
    """Value of a column, or None if it is absent.

    `answer.value` is the value of an object's key (of a list of objects, the list of their values), and
    `messages.user` the last message of that role in a chat.
    """
    if column in record or "." not in column:
        return record.get(column)
    head, *keys = column.split(".")
    value = record.get(head)
    for key in keys:
        if turns := chat_turns(value):
            value = next((content for role, content in reversed(turns) if role == key), None)
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            value = [each.get(key) for each in value]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


_ROLES = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant"}
"""Roles of chat formats other than OpenAI's."""


def chat_turns(value: Any) -> list[tuple[str, Any]]:
    """Role and content of each turn of a chat, in OpenAI's form (`role`, `content`) or ShareGPT's (`from`,
    `value`). Empty for anything else."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return []
    for role, content in (("role", "content"), ("from", "value")):
        if all(isinstance(each.get(role), str) and content in each for each in value):
            return [(_ROLES.get(each[role], each[role]), each[content]) for each in value]
    return []


def as_text(value: Any) -> str:
    """Cell as trimmed text. Lists, objects and booleans become JSON; None, NaN and infinity become empty."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list | tuple | Mapping | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    if value is None or value != value or value in (math.inf, -math.inf):
        return ""
    return str(value)


def text_of(record: Record, column: str) -> str:
    """A column as text (`value_at`, `as_text`)."""
    return as_text(value_at(record, column))


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def option_lines(options: Mapping[str, str]) -> str:
    """One line per option: `A. text`."""
    return "\n".join(f"{letter}. {text}" for letter, text in options.items())


def options_problem(options: Mapping[str, str]) -> Rejection | None:
    """Reason why a question cannot be asked with these options. None if it can."""
    if len(options) < 2:
        return Rejection(
            reason="too few options", detail=f"{len(options)} options; a question needs two or more"
        )
    empty = [letter for letter, text in options.items() if not text]
    if empty:
        return Rejection(reason="empty option", detail=f"option {empty[0]} is empty; fill or remove it")
    seen: dict[str, str] = {}
    for letter, text in options.items():
        if text in seen:
            return Rejection(
                reason="duplicate options",
                detail=f"options {seen[text]} and {letter} are both {text[:60]!r}; only one can be right",
            )
        seen[text] = letter
    return None
