"""Which column of a table is the question, the answer, the options: rules on names and values.

What rules cannot tell becomes an open question; what the user has said is taken as it is. Not here: how
answers are judged (judging.py), reading files (perceive.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from llmzero_ray.agents.drafting.names import by_name, check_column, fits_template, plain
from llmzero_ray.agents.drafting.options import FORMS, find_options, fit_answers, nested_options
from llmzero_ray.agents.drafting.values import AnswerForm, Column, Given, OpenQuestion, Table
from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks.task_yaml import OPTIONS_FIELD

_QUESTION = (
    "question", "problem", "query", "prompt", "instruction", "input", "statement", "task", "sentence", "text",
)  # fmt: skip
_CONTEXT = (
    "context", "passage", "abstract", "paragraph", "article", "document", "background", "story", "premise",
    "hypothesis",
)  # fmt: skip
_ANSWER = (
    "answer", "final_answer", "gold_answer", "gold", "ground_truth", "gt", "correct_answer", "correct_option",
    "answer_key", "answer_idx", "answer_index", "target", "label", "solution", "output", "expected", "result",
    "golden_answers", "answers", "response", "completion",
)  # fmt: skip
_ANSWER_KINDS = ("text", "number", "truth value", "list")


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What columns are for."""

    template: str | None
    answer: str | None
    choices: tuple[str, ...]
    answer_form: AnswerForm
    evidence: tuple[str, ...]
    doubts: tuple[str, ...]
    open: tuple[OpenQuestion, ...]


@dataclass(frozen=True, kw_only=True)
class _Options:
    choices: tuple[str, ...] = ()
    form: AnswerForm = "letter"
    evidence: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    open: tuple[OpenQuestion, ...] = ()


def find_roles(table: Table, given: Given) -> Roles:
    """The roles of a table's columns.

    Raises:
        ConfigError: the user has named a column that the table does not have, or that no prompt can show.
    """
    _check_given(table, given)
    answer = given.answer or by_name(table, _ANSWER, _ANSWER_KINDS, {given.question})
    question = given.question or _question(table, {answer})
    if answer is None and question is not None:
        others = [column.name for column in table.columns if column.name != question]
        answer = others[0] if len(others) == 1 else None
    options = _Options()
    if answer is not None and question is not None:
        options = _options(table, question, answer, given)
    taken = (("question", question), ("answer", answer))
    return Roles(
        template=None if question is None else _template(table, question, answer, options.choices),
        answer=answer,
        choices=options.choices,
        answer_form=options.form,
        evidence=(*(f"the {what} is taken from {name}" for what, name in taken if name), *options.evidence),
        doubts=options.doubts,
        open=(*_open_columns(table, question, answer), *options.open),
    )


def _check_given(table: Table, given: Given) -> None:
    for name in (given.question, given.answer, *given.options):
        if name is not None:
            check_column(table, name)
    if given.question is not None and not fits_template(given.question):
        raise ConfigError(f"the column {given.question!r} cannot stand in a prompt's template; rename it")


def _question(table: Table, without: set[str | None]) -> str | None:
    named = by_name(table, _QUESTION, ("text",), without)
    if named is not None and fits_template(named):
        return named
    telling = [
        column.name
        for column in table.columns
        if column.kinds == ("text",)
        and column.name not in without
        and _varies(column)
        and fits_template(column.name)
    ]
    return telling[0] if len(telling) == 1 else None


def _varies(column: Column) -> bool:
    return column.distinct is None or column.distinct > column.filled / 2


def _options(table: Table, question: str, answer: str, given: Given) -> _Options:
    choices = given.options or find_options(table, {question, answer})
    if not choices:
        nested = nested_options(table, {question, answer})
        return _Options() if nested is None else _Options(open=(_which_options(nested),))
    fit, listed = fit_answers(table, answer, choices), ", ".join(choices)
    if fit.one_letter and not given.options:
        return _Options(
            doubts=(
                f"{listed} look like options, but the right one always stands at the same place, so that its "
                "letter would be known without reading: answers are taken as text instead",
            )
        )
    form = given.answer_form or fit.form
    if form is not None:
        told = f"options are in {listed}; as {form}, {fit.shares[form]:.0%} of the answers fit"
        return _Options(choices=choices, form=form, evidence=(told,))
    asked = OpenQuestion(
        field="answer_form",
        asks=f"Does {answer} hold a letter, an option's text, or its number from 0? (Of the rows would fit: "
        f"{fit.told()})",
        choices=FORMS,
        flag="--answer-form",
    )
    return _Options(choices=choices, open=(asked,))


def _which_options(nested: str) -> OpenQuestion:
    return OpenQuestion(
        field="choices",
        asks=f"{nested} looks like options, but is no list or object of texts. Which columns hold them? If "
        "none does, write them into a list, or into a column each",
        choices=(),
        flag="--options-field",
    )


def _open_columns(table: Table, question: str | None, answer: str | None) -> list[OpenQuestion]:
    names, asked = [column.name for column in table.columns], list[OpenQuestion]()
    if question is None:
        usable = tuple(name for name in names if name != answer and fits_template(name))
        asks = "Which column holds the question?"
        asked.append(OpenQuestion(field="prompt", asks=asks, choices=usable, flag="--question-field"))
    if answer is None:
        others = tuple(name for name in names if name != question)
        asks = "Which column holds the right answer?"
        asked.append(OpenQuestion(field="answer", asks=asks, choices=others, flag="--answer-field"))
    return asked


def _template(table: Table, question: str, answer: str | None, choices: tuple[str, ...]) -> str:
    """Context first, then the question, then the options."""
    context = [
        column.name
        for column in table.columns
        if plain(column.name) in _CONTEXT
        and column.name not in (question, answer)
        and column.kinds == ("text",)
        and column.filled == len(table.rows)
        and fits_template(column.name)
    ]
    parts = [*(f"{{{name}}}" for name in context), f"{{{question}}}"]
    return "\n\n".join(parts) + (f"\n{{{OPTIONS_FIELD}}}" if choices else "")
