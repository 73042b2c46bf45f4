"""Records of drafting (data profile, task, reward, open questions) and the protocol of its agents.

Frozen values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from llmzero_ray.tasks.task_yaml import AnswerForm, RewardKind

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table, as its sampled rows show it."""

    name: str
    kinds: tuple[str, ...]
    """text, number, truth value, list, object, objects (a list of them), chat, other: the most frequent
    first."""
    filled: int
    """Sampled rows in which it is not empty."""
    distinct: int | None
    """Number of distinct values, or None if some are longer than `sampling.SHORT`."""
    longest: int
    """Characters of the longest value."""
    common: tuple[str, ...]
    """Values of the column, most frequent first, if they are few and short."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Files whose rows have the same columns."""

    files: tuple[str, ...]
    """Relative to the folder, sorted."""
    n_rows: int
    """Rows in all files: counted if `exact`, otherwise estimated."""
    exact: bool
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = field(repr=False)
    """The sample: whole rows of the opened files."""
    within: tuple[Column, ...] = ()
    """Nested columns: the keys of objects as `answer.value`, the roles of chats as `messages.user`."""
    unreadable: tuple[str, ...] = ()
    """Rows of the opened files that cannot be read, each with its file and the reason."""
    broken: tuple[str, ...] = ()
    """Opened files of which only the beginning can be read, each with the reason."""

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """The columns, each followed by its nested ones."""
        return tuple(
            each
            for column in self.columns
            for each in (column, *(w for w in self.within if w.name.startswith(f"{column.name}.")))
        )

    def column(self, name: str) -> Column | None:
        """Column or nested column of that name, or None."""
        return next((column for column in self.all_columns if column.name == name), None)


@dataclass(frozen=True, kw_only=True)
class DataProfile:
    """Tables, texts and skipped files of a folder, from samples."""

    folder: Path
    tables: tuple[Table, ...]
    """Sorted by number of rows, largest first."""
    texts: Mapping[str, str]
    """README and licence files: name -> the beginning."""
    skipped: Mapping[str, str]
    """File or group of files -> why it was not read."""
    n_files: int
    complete: bool
    """False if the folder has more files than were listed."""


@dataclass(frozen=True, kw_only=True)
class OpenQuestion:
    """A field of task.yaml that only the user can decide."""

    field: str
    """Field of task.yaml."""
    text: str
    choices: tuple[str, ...]
    """If empty, anything is allowed."""
    flag: str
    """Option of `llmzero draft` and `llmzero search` that answers it."""

    @property
    def listed_choices(self) -> str:
        """`One of: a, b.`, or empty if anything is allowed."""
        return f"One of: {', '.join(self.choices)}." if self.choices else ""


@dataclass(frozen=True, kw_only=True)
class UserChoices:
    """Decisions of the user; agents never override them."""

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
class TaskSpec:
    """The task: table, prompt template, answer column, options. Result of the task descriptor."""

    table: Table
    name: str
    description: str
    """A few sentences, Markdown."""
    template: str | None
    """Prompt template with `{column}` placeholders, without instructions on the answer's format. None if not
    decided yet."""
    answer: str | None
    choices: tuple[str, ...] = ()
    answer_form: AnswerForm = "letter"
    licence: str | None = None
    evidence: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Points that the user should check."""
    open: tuple[OpenQuestion, ...] = ()
    labels: tuple[str, ...] | None = None
    """The different answers of all rows. None if they are many, or if not all rows were read."""
    longest_prompt: int = 0
    """Estimated tokens of the longest prompt that a search has room for, without instructions. 0 if the
    template or the answer column is not decided."""


@dataclass(frozen=True, kw_only=True)
class RewardSpec:
    """Reward of the draft, the result of the reward writer."""

    kind: RewardKind | None
    """Kind of reward, or None if not decided yet."""
    options: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    """Source of a whole module with `compute_score`, for kind python."""
    function: str | None = None
    """The user's own FILE.py:function in place of `code`, for kind python."""
    gold: str | None = None
    """Form of a right response, `{answer}` standing for the answer."""
    instruction: str = ""
    """Format instruction at the end of the prompt; no template."""
    evidence: tuple[str, ...] = ()
    open: tuple[OpenQuestion, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RewardAttempt:
    """A reward that failed its validation on sampled rows, with the findings."""

    reward: RewardSpec
    findings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TaskFeatures:
    """Properties of the task by which recipes are ranked."""

    n_train: int
    kind: RewardKind | None
    prompt_tokens: int
    """Estimated tokens of the longest prompt that a search has room for."""
    answer_tokens: int
    """Estimated tokens of the longest sampled answer."""
    n_labels: int | None
    """Distinct answers of the sample, or None if the answers are long."""
    response_cap: int | None = None
    """The user's cap of a response, in tokens. If None, it is derived from the answers."""


@dataclass(frozen=True, kw_only=True)
class RecipeRanking:
    """Recipes ordered by fit. Result of the tool selector."""

    names: tuple[str, ...]
    """Best first."""
    explanation: str


class DraftingAgents(Protocol):
    """The three drafting agents; their results are validated before use."""

    def describe(self, profile: DataProfile, sentence: str, user: UserChoices) -> TaskSpec:
        """The task that the data and the sentence describe."""
        ...

    def rank(self, spec: TaskSpec, features: TaskFeatures, sentence: str) -> RecipeRanking:
        """All recipes, the best fit first."""
        ...

    def write_reward(
        self, spec: TaskSpec, sentence: str, user: UserChoices, attempts: Sequence[RewardAttempt]
    ) -> RewardSpec | None:
        """A reward for the task. After failed `attempts`, a better one, or None if the agent has none."""
        ...
