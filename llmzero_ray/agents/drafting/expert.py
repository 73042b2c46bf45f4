"""The drafting agents without a language model: what rules on names and values can tell; the rest stays open.

Not here: the rules (columns.py, judging.py, recipes.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmzero_ray.agents.drafting.assembling import response_tokens
from llmzero_ray.agents.drafting.columns import find_roles
from llmzero_ray.agents.drafting.judging import judge_by_rules
from llmzero_ray.agents.drafting.recipes import rank_by_rules
from llmzero_ray.agents.drafting.values import (
    Attempt,
    Given,
    OpenQuestion,
    Perception,
    Ranking,
    Reading,
    RewardPlan,
    Table,
    TaskFacts,
)
from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks.sources.base import slug
from llmzero_ray.text import one_line

_LICENCE = re.compile(
    r"^licen[cs]e:\s*[\"']?([A-Za-z0-9][\w.+ -]{1,40}?)[\"']?\s*$", re.IGNORECASE | re.MULTILINE
)
_MAX_NAME = 48
_CLEAR_LEAD = 0.8
"""Share of all rows that the largest table must hold to be taken without asking."""


class ExpertDrafters:
    """Data perception is `perceive`; these are the other three agents."""

    def describe(self, perception: Perception, sentence: str, given: Given) -> Reading:
        """The task, as columns tell it.

        Raises:
            ConfigError: the user has named a table or a column that does not exist.
        """
        table = pick_table(perception, given)
        roles = find_roles(table, given)
        return Reading(
            table=table,
            name=given.name or task_name(perception),
            description=_description(sentence, table),
            template=roles.template,
            answer=roles.answer,
            choices=roles.choices,
            answer_form=roles.answer_form,
            licence=licence_of(perception),
            evidence=roles.evidence,
            doubts=roles.doubts,
            open=(*_which_table(perception, given), *roles.open),
        )

    def rank(self, reading: Reading, facts: TaskFacts, sentence: str) -> Ranking:  # noqa: ARG002
        """Recipes by their points."""
        return rank_by_rules(facts, response_tokens(facts))

    def write_reward(
        self,
        reading: Reading,
        sentence: str,  # noqa: ARG002
        given: Given,
        tried: Sequence[Attempt],
    ) -> RewardPlan | None:
        """The reward that fits the answers; None once it has failed.

        Raises:
            ConfigError: `given.reward` is no reward.
        """
        return None if tried else judge_by_rules(reading, given)


def pick_table(perception: Perception, given: Given) -> Table:
    """The table that the user named, else the largest.

    Raises:
        ConfigError: there is no table of that number.
    """
    number = 1 if given.table is None else given.table
    if not 1 <= number <= len(perception.tables):
        raise ConfigError(f"--table {number}: the folder has the tables 1 to {len(perception.tables)}")
    return perception.tables[number - 1]


def _which_table(perception: Perception, given: Given) -> tuple[OpenQuestion, ...]:
    n_rows = [table.n_rows for table in perception.tables]
    if given.table is not None or n_rows[0] >= _CLEAR_LEAD * sum(n_rows):
        return ()
    told = "; ".join(
        f"{number}: {one_line(', '.join(table.files), 60)} (columns "
        f"{one_line(', '.join(column.name for column in table.columns), 60)})"
        for number, table in enumerate(perception.tables[:8], start=1)
    )
    return (
        OpenQuestion(
            field="files",
            asks=f"Files differ in their columns; which belong to the task? {told}",
            choices=tuple(str(number + 1) for number in range(len(perception.tables))),
            flag="--table",
        ),
    )


def task_name(perception: Perception) -> str:
    """The folder's name as part of a metric's."""
    return slug(perception.folder.absolute().name)[:_MAX_NAME].strip("_") or "task"


def licence_of(perception: Perception) -> str | None:
    """What a README's front matter names."""
    found = [match[1] for text in perception.texts.values() if (match := _LICENCE.search(text))]
    return found[0].strip() if len(set(found)) == 1 else None


def _description(sentence: str, table: Table) -> str:
    about = "" if table.exact else "about "
    columns = ", ".join(one_line(column.name, 40) for column in table.columns[:12])
    return (
        f"{one_line(sentence, 2000)}\n\n"
        f"The data are {about}{table.n_rows} rows in {len(table.files)} files with the columns {columns}."
    )
