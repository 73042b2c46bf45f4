"""Columns by their names: which one a rule means, which may stand in a template.

Not here: what their values say (columns.py, options.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from llmzero_ray.agents.drafting.values import Table
from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks.task_yaml import OPTIONS_FIELD, template_fields

_FILLED = 0.9
"""Share of rows in which a column must hold something to be taken by a rule."""


def check_column(table: Table, name: str) -> None:
    """Return quietly when the table has the column.

    Raises:
        ConfigError: it has not.
    """
    if table.column(name) is None:
        held = ", ".join(column.name for column in table.columns)
        raise ConfigError(f"the table has no column {name!r}; it has: {held}")


def fits_template(name: str) -> bool:
    """Whether a column can be named between the braces of a template."""
    try:
        return template_fields(f"{{{name}}}") == (name,) and name != OPTIONS_FIELD
    except ValueError:
        return False


def plain(name: str) -> str:
    """`answerKey`, `Answer Key` and `answer-key` are the same."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")


def by_name(
    table: Table, names: Sequence[str], kinds: Sequence[str], without: Iterable[str | None]
) -> str | None:
    """The column whose name stands first among `names`, among filled ones of these kinds."""
    fit = {
        plain(column.name): column.name
        for column in reversed(table.columns)
        if column.kinds[:1]
        and column.kinds[0] in kinds
        and column.name not in set(without)
        and column.filled >= _FILLED * len(table.rows)
    }
    return next((fit[name] for name in names if name in fit), None)
