"""What drafting a task is made of: what was seen in a folder, what was understood, what is still open.

Frozen values. Not here: who finds them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from llmzero_ray.tasks.task_yaml import RewardKind

Row: TypeAlias = Mapping[str, Any]
AnswerForm: TypeAlias = Literal["letter", "text", "index"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table, as its sampled rows show it."""

    name: str
    kinds: tuple[str, ...]
    """text, number, truth value, list, object, other: the most frequent first."""
    filled: int
    """Sampled rows in which it holds something."""
    distinct: int | None
    """Different values; None: some are longer than `sampling.SHORT`."""
    longest: int
    """Characters."""
    common: tuple[str, ...]
    """Its values, the most frequent first, where there are few short ones."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Files whose rows have the same columns."""

    files: tuple[str, ...]
    """Relative to the folder, sorted."""
    opened: tuple[str, ...]
    """Those that were looked into; the others are named alike."""
    n_rows: int
    """Of all files: counted where `exact`, else estimated."""
    exact: bool
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = field(repr=False)
    """The sample: whole rows from the heads of the opened files."""

    def column(self, name: str) -> Column | None:
        """The column of that name."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Perception:
    """What is in a folder, as far as it was looked at."""

    folder: Path
    tables: tuple[Table, ...]
    """The one with most rows first."""
    texts: Mapping[str, str]
    """README and licence files: name -> the beginning."""
    skipped: Mapping[str, str]
    """File or group of files -> why nothing was read of it."""
    n_files: int
    complete: bool
    """False: there are more files than were listed."""


@dataclass(frozen=True, kw_only=True)
class OpenQuestion:
    """Something that only the user can say."""

    field: str
    """Of task.yaml."""
    asks: str
    choices: tuple[str, ...]
    """Empty: anything."""
    flag: str
    """Option of `llmzero draft` that answers it."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user has said already; it is never overruled."""

    name: str | None = None
    table: int | None = None
    """Number of the table, from 1."""
    question: str | None = None
    """Column."""
    answer: str | None = None
    """Column."""
    options: tuple[str, ...] = ()
    """Columns."""
    answer_form: AnswerForm | None = None
    reward: str | None = None
    """A kind, `regex=PATTERN`, or FILE.py:function."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the task is: the descriptor's answer."""

    table: Table
    name: str
    description: str
    """A few sentences, Markdown."""
    template: str | None
    """The question, `{column}` standing for a column, without the words on how to answer; None: open."""
    answer: str | None
    choices: tuple[str, ...] = ()
    answer_form: AnswerForm = "letter"
    licence: str | None = None
    evidence: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """What a person should look at."""
    open: tuple[OpenQuestion, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RewardPlan:
    """How answers are to be judged: the reward writer's answer."""

    kind: RewardKind | None
    """None: open."""
    options: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    """For python: a whole module with `compute_score`."""
    function: str | None = None
    """For python: a file of the user's instead of `code`, FILE.py:function."""
    gold: str | None = None
    """Form of a right response, `{answer}` standing for the answer."""
    instruction: str = ""
    """How to answer, as the last words of the prompt; no template."""
    evidence: tuple[str, ...] = ()
    open: tuple[OpenQuestion, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A reward that was tried on rows, and what was wrong with it."""

    plan: RewardPlan
    findings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """What a recipe is chosen by."""

    n_train: int
    kind: RewardKind | None
    prompt_tokens: int
    """Of the longest sampled prompt, estimated."""
    answer_tokens: int
    """Of the longest sampled answer, estimated."""
    n_labels: int | None
    """Different answers of the sample; None: long ones."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Recipes by how well they fit: the tool selector's answer."""

    names: tuple[str, ...]
    """Best first."""
    explanation: str


class Drafters(Protocol):
    """The agents that answer; each answer is checked before it is used."""

    def describe(self, perception: Perception, sentence: str, given: Given) -> Reading:
        """What the task is."""
        ...

    def rank(self, reading: Reading, facts: TaskFacts, sentence: str) -> Ranking:
        """Which recipes fit."""
        ...

    def write_reward(
        self, reading: Reading, sentence: str, given: Given, tried: Sequence[Attempt]
    ) -> RewardPlan | None:
        """How answers are judged; with attempts that failed before, a better one, or None: no more ideas."""
        ...
