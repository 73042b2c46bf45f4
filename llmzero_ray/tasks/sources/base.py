"""What a data set's rows become: examples, or rejections; and the adapter that a data set implements.

Not here: any data set (one file each), reading files (readers.py), choosing among examples (selection.py).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from llmzero_ray.prepared.manifest import RewardEntry

Record: TypeAlias = Mapping[str, Any]
"""One raw row: column -> value."""
OnlySplit: TypeAlias = Literal["", "val", "test", "confirm"]
"""The only split that a row may enter, or "" when the data set leaves that open."""
Shares: TypeAlias = Literal["equal", "proportional"]
"""How the sources of a task share a split: the same number each, or by their sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskExample:
    """One question, ready to become a row."""

    data_source: str
    """The stratum as well: splits are shared out among data sources."""
    prompt: str
    """The user's message."""
    system: str = ""
    """A message before it; empty: none."""
    ground_truth: str
    label: str
    """The answer as a constant answerer would give it; empty: no constant answer can be right."""
    stable_id: str = ""
    """What names the row in its data set, wherever it stands there."""
    group: str = ""
    """Rows of one group never stand in two splits; empty: the row is alone."""
    extra: Mapping[str, str | bool] = field(default_factory=dict)
    """`extra_info` beside index and split; the same keys for every example of an adapter."""

    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat."""
        user = {"role": "user", "content": self.prompt}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A row that cannot be used."""

    reason: str
    """Few words, the same for all rows of this kind: they are counted by it."""
    detail: str
    """What is wrong with this row, and what to do."""


class DatasetAdapter(Protocol):
    """One data set: which columns it has, and what a row of it means."""

    @property
    def name(self) -> str:
        """Name of the task; no slash."""
        ...

    @property
    def version(self) -> int:
        """Raised with every change of what rows become."""
        ...

    @property
    def licence(self) -> str | None:
        """Of the data."""
        ...

    @property
    def ability(self) -> str:
        """VeRL's `ability` column."""
        ...

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that every row must have."""
        ...

    @property
    def optional(self) -> tuple[str, ...] | None:
        """Columns that may stand beside them; None: any."""
        ...

    @property
    def extra(self) -> Mapping[str, Literal["string", "bool"]]:
        """Arrow type by key of `TaskExample.extra`."""
        ...

    @property
    def shares(self) -> Shares:
        """How data sources share the splits."""
        ...

    @property
    def reward(self) -> RewardEntry:
        """The reward of these rows."""
        ...

    def options(self) -> dict[str, Any]:
        """Settings that decide the content, for the recipe."""
        ...

    def wants(self, name: str) -> bool:
        """Whether a file of this name (relative to the directory given) belongs to the data set."""
        ...

    def check(self) -> None:
        """Return quietly when everything that the task needs is installed.

        Raises:
            TaskError: what is missing.
        """
        ...

    def adapt(self, record: Record, file: str) -> TaskExample | Rejection:
        """What a row of the file of that name becomes; the same wherever the row stands."""
        ...

    def gold_response(self, data_source: str, ground_truth: str) -> str | None:
        """A response that must score 1; None when there is none, or it is not known."""
        ...


def slug(text: str) -> str:
    """A name that can be part of a metric's: lower case, digits and single underscores."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def value_at(record: Record, column: str) -> Any:
    """A column's value; None when it is absent.

    `answer.value` is the value of an object's key (of a list of objects, the list of their values), and
    `messages.user` what that role says last in a chat.
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
"""Of other forms than OpenAI's."""


def chat_turns(value: Any) -> list[tuple[str, Any]]:
    """Role and content of each turn of a chat, in OpenAI's form (`role`, `content`) or ShareGPT's (`from`,
    `value`); empty for anything else."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return []
    for role, content in (("role", "content"), ("from", "value")):
        if all(isinstance(each.get(role), str) and content in each for each in value):
            return [(_ROLES.get(each[role], each[role]), each[content]) for each in value]
    return []


def as_text(value: Any) -> str:
    """A cell as trimmed text: lists, objects and truth values as JSON; empty for None and NaN."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list | tuple | Mapping | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None or value != value else str(value)


def text_of(record: Record, column: str) -> str:
    """A column as text (`value_at`, `as_text`)."""
    return as_text(value_at(record, column))


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def option_lines(options: Mapping[str, str]) -> str:
    """One line per option: `A. text`."""
    return "\n".join(f"{letter}. {text}" for letter, text in options.items())


def options_problem(options: Mapping[str, str]) -> Rejection | None:
    """Why a question cannot be asked with these options."""
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
