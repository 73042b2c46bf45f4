"""Drafting agents without a language model, based on rules. Undecided points stay open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks.drafting.base import (
    DataProfile,
    OpenQuestion,
    RecipeRanking,
    RewardAttempt,
    RewardSpec,
    Table,
    TaskFeatures,
    TaskSpec,
    UserChoices,
)
from llmzero_ray.tasks.drafting.column_roles import find_roles
from llmzero_ray.tasks.drafting.config_fields import response_tokens
from llmzero_ray.tasks.drafting.recipes import rank_recipes
from llmzero_ray.tasks.drafting.reward_rules import choose_reward
from llmzero_ray.tasks.sources.base import slug
from llmzero_ray.utils.text import one_line

_LICENCE = re.compile(
    r"^licen[cs]e:\s*[\"']?([A-Za-z0-9][\w.+ -]{1,40}?)[\"']?\s*$", re.IGNORECASE | re.MULTILINE
)
_MAX_NAME = 48
_CLEAR_LEAD = 0.8
"""Share of all rows that the largest table must hold to be chosen without a question."""


class ExpertDraftingAgents:
    """Task descriptor, tool selector and reward writer as rules."""

    def describe(self, profile: DataProfile, sentence: str, user: UserChoices) -> TaskSpec:
        """The task that the columns of the chosen or largest table suggest.

        Raises:
            ConfigError: the user chose a table or a column that does not exist.
        """
        table = pick_table(profile, user)
        roles = find_roles(table, user)
        return TaskSpec(
            table=table,
            name=user.name or task_name(profile.folder),
            description=_description(sentence, table),
            template=roles.template,
            answer=roles.answer,
            choices=roles.choices,
            answer_form=roles.answer_form,
            licence=licence_of(profile),
            evidence=roles.evidence,
            doubts=roles.doubts,
            open=(*_open_table(profile, user), *roles.open),
        )

    def rank(self, spec: TaskSpec, features: TaskFeatures, sentence: str) -> RecipeRanking:  # noqa: ARG002
        """All recipes by points."""
        return rank_recipes(features, response_tokens(features))

    def write_reward(
        self,
        spec: TaskSpec,
        sentence: str,  # noqa: ARG002
        user: UserChoices,
        attempts: Sequence[RewardAttempt],
    ) -> RewardSpec | None:
        """Reward that fits the answers. None after a failed attempt.

        Raises:
            ConfigError: `user.reward` is not a reward.
        """
        return None if attempts else choose_reward(spec, user)


def pick_table(profile: DataProfile, user: UserChoices) -> Table:
    """The table that the user chose, otherwise the largest.

    Raises:
        ConfigError: there is no table of that number.
    """
    number = 1 if user.table is None else user.table
    if not 1 <= number <= len(profile.tables):
        raise ConfigError(f"--table {number}: the folder has the tables 1 to {len(profile.tables)}")
    return profile.tables[number - 1]


def _open_table(profile: DataProfile, user: UserChoices) -> tuple[OpenQuestion, ...]:
    n_rows = [table.n_rows for table in profile.tables]
    if user.table is not None or n_rows[0] >= _CLEAR_LEAD * sum(n_rows):
        return ()
    listed = "; ".join(
        f"{number}: {one_line(', '.join(table.files), 60)} (columns "
        f"{one_line(', '.join(column.name for column in table.columns), 60)})"
        for number, table in enumerate(profile.tables[:8], start=1)
    )
    return (
        OpenQuestion(
            field="files",
            text=f"Files differ in their columns; which belong to the task? {listed}",
            choices=tuple(str(number + 1) for number in range(len(profile.tables))),
            flag="--table",
        ),
    )


def task_name(folder: Path) -> str:
    """The folder's name as a slug that metric names can contain."""
    return slug(folder.absolute().name)[:_MAX_NAME].strip("_") or "task"


def licence_of(profile: DataProfile) -> str | None:
    """Licence in the front matter of a README. None if there is none, or if there are several different
    ones."""
    found = [match[1] for text in profile.texts.values() if (match := _LICENCE.search(text))]
    return found[0].strip() if len(set(found)) == 1 else None


def _description(sentence: str, table: Table) -> str:
    about = "" if table.exact else "about "
    columns = ", ".join(one_line(column.name, 40) for column in table.columns[:12])
    return (
        f"{one_line(sentence, 2000)}\n\n"
        f"The data are {about}{table.n_rows} rows in {len(table.files)} files with the columns {columns}."
    )
