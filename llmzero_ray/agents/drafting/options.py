"""Multiple choice: which columns hold the options, and how the answer names one of them.

Not here: the other columns (columns.py).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from llmzero_ray.agents.drafting.names import by_name, plain
from llmzero_ray.agents.drafting.values import AnswerForm, Table
from llmzero_ray.tasks.sources.base import TaskExample
from llmzero_ray.tasks.sources.custom import CustomTask
from llmzero_ray.tasks.task_yaml import OPTIONS_FIELD, parse_task_file

FORMS: tuple[AnswerForm, ...] = get_args(AnswerForm)
_OPTIONS = ("options", "choices", "candidates", "endings", "answer_choices", "alternatives")
_NUMBERED = re.compile(r"^(?:(?:option|choice|opt|ending|alternative)_?)?(?P<place>[a-j]|\d)$")
_FIRST = ("a", "0", "1")
_FITS = 0.95
_ONE_LETTER, _LETTER_ROWS = 0.9, 20


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How well the answers name an option, read in each form."""

    shares: Mapping[AnswerForm, float]
    """Of the rows that fit."""
    form: AnswerForm | None
    """The form that fits; None: none does, or several do and mean different options."""
    one_letter: bool
    """Nearly always the same letter is right: the place of an option gives it away."""

    def told(self) -> str:
        """The shares in words."""
        return ", ".join(f"{form} {share:.0%}" for form, share in self.shares.items())

    def fits(self, form: AnswerForm) -> bool:
        """Whether answers can be read in that form."""
        return self.shares[form] >= _FITS


def find_options(table: Table, without: set[str | None]) -> tuple[str, ...]:
    """The column with all options, or one column each in their order; empty: there are none."""
    one = _one_column(table, without)
    if one is not None:
        return (one,) if _is_flat(table, one) else ()
    numbered = {
        found["place"]: column.name
        for column in table.columns
        if column.name not in without and (found := _NUMBERED.match(plain(column.name)))
    }
    first = next((place for place in _FIRST if place in numbered), None)
    if first is None or len(numbered) < 2:
        return ()
    places = [chr(ord(first) + n) for n in range(len(numbered))]
    return tuple(numbered[place] for place in places) if set(places) == set(numbered) else ()


def nested_options(table: Table, without: set[str | None]) -> str | None:
    """A column that holds options by its name, but in a form that is not read."""
    one = _one_column(table, without)
    return one if one is not None and not _is_flat(table, one) else None


def _one_column(table: Table, without: set[str | None]) -> str | None:
    return by_name(table, _OPTIONS, ("list", "object", "text"), without)


def _is_flat(table: Table, column: str) -> bool:
    """Whether each option is a text or a number of its own."""
    return sum(_flat(row.get(column)) for row in table.rows) >= _FITS * len(table.rows)


def _flat(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return False
    held = list(value.values()) if isinstance(value, dict) else value
    return (
        isinstance(held, list) and len(held) > 1 and not any(isinstance(each, list | dict) for each in held)
    )


def fit_answers(table: Table, answer: str, choices: tuple[str, ...]) -> Fit:
    """Every form, tried with the adapter that will read the rows.

    Raises:
        ConfigError: the columns' names cannot stand in a task.yaml.
    """
    truths = {form: _truths(table, answer, choices, form) for form in FORMS}
    shares = {form: sum(each is not None for each in truths[form]) / len(table.rows) for form in FORMS}
    fitting = [form for form in FORMS if shares[form] >= _FITS]
    same = all(truths[form] == truths[fitting[0]] for form in fitting)
    chosen = fitting[0] if fitting and same else None
    often = Counter(truths[chosen]).most_common(1)[0][1] if chosen is not None else 0
    return Fit(
        shares=shares,
        form=chosen,
        one_letter=len(table.rows) >= _LETTER_ROWS and often >= _ONE_LETTER * len(table.rows),
    )


def _truths(table: Table, answer: str, choices: tuple[str, ...], form: AnswerForm) -> list[str | None]:
    """The letter of each row; None: it cannot be told."""
    task = parse_task_file(
        {
            "name": "trial",
            "files": "rows",
            "prompt": f"{{{OPTIONS_FIELD}}}",
            "answer": answer,
            "choices": list(choices),
            "answer_form": form,
            "reward": "mcq",
        }
    )
    adapter = CustomTask(task)
    items = [adapter.adapt(row, "rows") for row in table.rows]
    return [item.ground_truth if isinstance(item, TaskExample) else None for item in items]
