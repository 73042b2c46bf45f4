"""Which column of a table is the question, which the answer, and which hold the options of multiple choice.

These are rules on column names and sampled values. Undecided points become open questions, and the user's
choices are final.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks.drafting.base import Column, OpenQuestion, Table, UserChoices
from llmzero_ray.tasks.sources.base import LETTERS, TaskExample, value_at
from llmzero_ray.tasks.sources.custom import CustomTask
from llmzero_ray.tasks.task_yaml import OPTIONS_FIELD, AnswerForm, parse_task_file, template_fields
from llmzero_ray.utils.text import json_or_none

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
    "golden_answers", "answers", "response", "completion", "reward_model_ground_truth",
)  # fmt: skip
_ROW_NAMES = ("id", "idx", "index", "uid", "uuid", "row", "row_id", "row_number", "hash")
"""Names of columns that identify a row. Such a column is not chosen as the answer just because no other is
left."""
_ANSWER_KINDS = ("text", "number", "truth value", "list")


@dataclass(frozen=True, kw_only=True)
class ColumnRoles:
    """Prompt template, answer column and option columns of a table."""

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


def find_roles(table: Table, user: UserChoices) -> ColumnRoles:
    """The roles of a table's columns.

    Raises:
        ConfigError: the user chose a column that the table does not have, that no template can name, or that
            holds objects.
    """
    user = _with_turns(table, user)
    _check_user_columns(table, user)
    answer = user.answer or find_by_name(table, _ANSWER, _ANSWER_KINDS, {user.question})
    question = user.question or _question(table, {answer})
    if answer is None and question is not None:
        others = [column for column in table.columns if column.name != question and not _names_rows(column)]
        answer = others[0].name if len(others) == 1 and _is_plain(others[0]) else None
        if answer is None and question.endswith(_USER):
            turn = table.column(question.removesuffix(_USER) + _ASSISTANT)
            answer = turn.name if turn is not None and _is_filled(table, turn) else None
    options = _Options()
    if answer is not None and question is not None:
        options = _options(table, question, answer, user)
    taken = (("question", question), ("answer", answer))
    return ColumnRoles(
        template=None if question is None else _template(table, question, answer, options.choices),
        answer=answer,
        choices=options.choices,
        answer_form=options.form,
        evidence=(*(f"the {what} is taken from {name}" for what, name in taken if name), *options.evidence),
        doubts=options.doubts,
        open=(*_open_columns(table, question, answer), *options.open),
    )


_USER, _ASSISTANT = ".user", ".assistant"


def _with_turns(table: Table, user: UserChoices) -> UserChoices:
    """The choices, with each chat column replaced by its user's or assistant's turn."""

    def turn(name: str | None, role: str) -> str | None:
        column = table.column(name) if name is not None else None
        return f"{name}{role}" if column is not None and column.kinds[:1] == ("chat",) else name

    return replace(user, question=turn(user.question, _USER), answer=turn(user.answer, _ASSISTANT))


def _names_rows(column: Column) -> bool:
    return normalized_name(column.name) in _ROW_NAMES


def _is_plain(column: Column) -> bool:
    return bool(column.kinds) and not {"object", "objects", "chat"} & set(column.kinds)


def _check_user_columns(table: Table, user: UserChoices) -> None:
    for name in (user.question, user.answer, *user.options):
        if name is not None:
            check_column(table, name)
    for name in (user.question, user.answer):
        column = table.column(name) if name is not None else None
        if column is not None and not column.kinds:
            raise ConfigError(f"the column {name!r} is empty or binary in every row that was looked at")
        if column is not None and not _is_plain(column):
            fields = ", ".join(each.name for each in table.within if each.name.startswith(f"{name}."))
            raise ConfigError(
                f"the column {name!r} holds objects, which are not text; name a field of it"
                + (f": {fields}" if fields else ", after writing it into a column of its own")
            )
    if user.question is not None and not fits_template(user.question):
        raise ConfigError(f"the column {user.question!r} cannot stand in a prompt's template; rename it")


def _question(table: Table, without: set[str | None]) -> str | None:
    named = find_by_name(table, _QUESTION, ("text",), without)
    if named is not None and fits_template(named):
        return named
    asked = [
        column.name
        for column in table.within
        if column.name.endswith(_USER) and _is_filled(table, column) and fits_template(column.name)
    ]
    if len(asked) == 1:
        return asked[0]
    telling = [
        column.name
        for column in table.columns
        if column.kinds == ("text",)
        and column.name not in without
        and _varies(column)
        and not _names_rows(column)
        and fits_template(column.name)
    ]
    return telling[0] if len(telling) == 1 else None


def _varies(column: Column) -> bool:
    return column.distinct is None or column.distinct > column.filled / 2


def _options(table: Table, question: str, answer: str, user: UserChoices) -> _Options:
    choices = user.options or find_options(table, {question, answer})
    if not choices:
        nested = nested_options(table, {question, answer})
        return _Options() if nested is None else _Options(open=(_open_options(table, nested),))
    fit, listed = fit_answers(table, answer, choices), ", ".join(choices)
    if fit.one_letter and not user.options:
        return _Options(
            doubts=(
                f"{listed} look like options, but the right one always stands at the same place, so that its "
                "letter would be known without reading: answers are taken as text instead",
            )
        )
    form = user.answer_form or fit.form
    if form is not None:
        evidence = f"options are in {listed}; as {form}, {fit.shares[form]:.0%} of the answers fit"
        return _Options(choices=choices, form=form, evidence=(evidence,))
    open_form = OpenQuestion(
        field="answer_form",
        text=f"Does {answer} hold a letter, an option's text, or its number from 0? (Of the rows would fit: "
        f"{fit.describe()}) If it holds numbers from 1, write them from 0 first.",
        choices=ANSWER_FORMS,
        flag="--answer-form",
    )
    return _Options(choices=choices, open=(open_form,))


def _open_options(table: Table, nested: str) -> OpenQuestion:
    return OpenQuestion(
        field="choices",
        text=f"{nested} looks like options, but is not a list or object of texts. Which columns hold them? "
        "If none does, write them into a list, or into a column each.",
        choices=tuple(
            column.name
            for column in table.within
            if column.name.startswith(f"{nested}.") and _is_flat(table, column.name)
        ),
        flag="--options-field",
    )


def _open_columns(table: Table, question: str | None, answer: str | None) -> list[OpenQuestion]:
    questions = list[OpenQuestion]()
    if question is None:
        usable = tuple(
            column.name
            for column in table.all_columns
            if column.name != answer and fits_template(column.name) and _is_plain(column)
        )
        text = f"Which column holds the question?{_left_out(table)}"
        questions.append(OpenQuestion(field="prompt", text=text, choices=usable, flag="--question-field"))
    if answer is None:
        others = tuple(
            column.name for column in table.all_columns if column.name != question and _is_plain(column)
        )
        text = f"Which column holds the right answer?{_left_out(table)}"
        questions.append(OpenQuestion(field="answer", text=text, choices=others, flag="--answer-field"))
    return questions


def _left_out(table: Table) -> str:
    """Reasons why columns are no candidates. Empty without one."""
    without = [column.name for column in table.columns if not column.kinds]
    reasons = f" Empty or binary in every row that was looked at: {', '.join(without)}." if without else ""
    lists = [column.name for column in table.columns if column.kinds == ("objects",)]
    if table.n_rows == 1 and lists:
        held = " or ".join(lists)
        reasons += f" The table has one row: if {held} holds the rows, write that list alone into the file."
    return reasons


def _template(table: Table, question: str, answer: str | None, choices: tuple[str, ...]) -> str:
    """Prompt template: context first, then the question with the input of an instruction, then the
    options."""
    system = question.removesuffix(_USER) + ".system" if question.endswith(_USER) else None
    context = [
        column.name
        for column in table.all_columns
        if (normalized_name(column.name) in _CONTEXT or column.name == system)
        and column.name not in (question, answer)
        and column.kinds == ("text",)
        and column.filled == len(table.rows)
        and fits_template(column.name)
    ]
    parts = [*(f"{{{name}}}" for name in context), f"{{{question}}}"]
    for column in table.columns:
        about = normalized_name(column.name) == "input" and column.name not in (question, answer, *choices)
        if about and normalized_name(question) == "instruction" and column.kinds and _is_plain(column):
            optional = "" if column.filled == len(table.rows) else ":optional"
            parts += [f"{{{column.name}{optional}}}"] if fits_template(column.name) else []
    return "\n\n".join(parts) + (f"\n{{{OPTIONS_FIELD}}}" if choices else "")


# --- names --------------------------------------------------------------------------------------------------


_FILLED = 0.9
"""Smallest share of non-empty rows for a column to be chosen by a rule."""


def _is_filled(table: Table, column: Column) -> bool:
    return column.filled >= _FILLED * len(table.rows)


def unused_columns(table: Table, template: str, others: Iterable[str]) -> tuple[str, ...]:
    """Columns that are neither in the template nor in `others`. For an object that is used in part, its
    unused keys."""
    used = {*template_fields(template), *others}
    partly = {".".join(name.split(".")[:n]) for name in used for n in range(1, name.count(".") + 1)} - used
    names = [column.name for column in table.all_columns if column.name not in used | partly]
    whole = set(names)
    return tuple(name for name in names if not _inside(name, whole | used))


def _inside(name: str, names: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:n]) in names for n in range(1, len(parts)))


def check_column(table: Table, name: str) -> None:
    """Check that the table has the column.

    Raises:
        ConfigError: it does not.
    """
    if table.column(name) is None:
        held = ", ".join(column.name for column in table.all_columns)
        raise ConfigError(f"the table has no column {name!r}; it has: {held}")


def fits_template(name: str) -> bool:
    """Whether a column can be named between the braces of a template."""
    try:
        return template_fields(f"{{{name}}}") == (name,) and name != OPTIONS_FIELD
    except ValueError:
        return False


def normalized_name(name: str) -> str:
    """A column name in snake case: `answerKey`, `Answer Key` and `answer-key` become `answer_key`."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")


def find_by_name(
    table: Table, names: Sequence[str], kinds: Sequence[str], without: Iterable[str | None]
) -> str | None:
    """The column that matches the earliest of `names`, among columns that are filled and of these kinds."""
    fit = {
        normalized_name(column.name): column.name
        for column in reversed((*table.columns, *table.within))
        if column.kinds[:1]
        and column.kinds[0] in kinds
        and column.name not in set(without)
        and _is_filled(table, column)
    }
    return next((fit[name] for name in names if name in fit), None)


# --- options ------------------------------------------------------------------------------------------------


ANSWER_FORMS: tuple[AnswerForm, ...] = get_args(AnswerForm)
_OPTIONS = ("options", "choices", "candidates", "endings", "answer_choices", "alternatives")
_NUMBERED = re.compile(r"^(?:(?:option|choice|opt|ending|alternative)_?)?(?P<place>[a-j]|\d)$")
_FIRST = ("a", "0", "1")
_FITS = 0.95
_ONE_LETTER, _LETTER_ROWS = 0.9, 20


@dataclass(frozen=True, kw_only=True)
class AnswerFit:
    """Share of answers that identify an option, for each answer form."""

    shares: Mapping[AnswerForm, float]
    """Share of rows that fit each form."""
    form: AnswerForm | None
    """The form that fits. None if none does, if several do and disagree on the option, or if numbers seem to
    count from 1: none of 20 rows or more has a 0."""
    one_letter: bool
    """Nearly always the same letter is right, so that the position reveals the answer."""

    def describe(self) -> str:
        """Description of the shares."""
        return ", ".join(f"{form} {share:.0%}" for form, share in self.shares.items())

    def fits(self, form: AnswerForm) -> bool:
        """Whether answers can be read in that form."""
        return self.shares[form] >= _FITS


def find_options(table: Table, without: set[str | None]) -> tuple[str, ...]:
    """The column with all options, or one column each in their order; empty without options."""
    one = _one_column(table, without)
    if one is not None:
        return (one,) if _is_flat(table, one) else ()
    numbered = {
        found["place"]: column.name
        for column in table.columns
        if column.name not in without and (found := _NUMBERED.match(normalized_name(column.name)))
    }
    first = next((place for place in _FIRST if place in numbered), None)
    if first is None or len(numbered) < 2:
        return ()
    places = [chr(ord(first) + n) for n in range(len(numbered))]
    return tuple(numbered[place] for place in places) if set(places) == set(numbered) else ()


def nested_options(table: Table, without: set[str | None]) -> str | None:
    """A column that is named like options but holds nested values, such as ARC's `{"text": [...], "label":
    [...]}`."""
    one = _one_column(table, without)
    return one if one is not None and not _is_flat(table, one) else None


def _one_column(table: Table, without: set[str | None]) -> str | None:
    named = find_by_name(table, _OPTIONS, ("list", "object", "objects", "text"), without)
    within = (
        column.name
        for column in table.within
        if normalized_name(column.name.rpartition(".")[2]) in _OPTIONS and column.name not in without
    )
    return named or next(within, None)


def _is_flat(table: Table, column: str) -> bool:
    """Whether each option is a single text or number."""
    return sum(_flat(value_at(row, column)) for row in table.rows) >= _FITS * len(table.rows)


def _flat(value: Any) -> bool:
    value = json_or_none(value) if isinstance(value, str) else value
    held = list(value.values()) if isinstance(value, dict) else value
    return (
        isinstance(held, list) and len(held) > 1 and not any(isinstance(each, list | dict) for each in held)
    )


def fit_answers(table: Table, answer: str, choices: tuple[str, ...]) -> AnswerFit:
    """Fit of each answer form, computed with the adapter that will read the rows.

    Raises:
        ConfigError: the columns' names are not allowed in a task.yaml.
    """
    truths = {form: _truths(table, answer, choices, form) for form in ANSWER_FORMS}
    shares = {form: sum(each is not None for each in truths[form]) / len(table.rows) for form in ANSWER_FORMS}
    fitting = [form for form in ANSWER_FORMS if shares[form] >= _FITS]
    same = all(truths[form] == truths[fitting[0]] for form in fitting)
    chosen = fitting[0] if fitting and same else None
    often = Counter(truths[chosen]).most_common(1)[0][1] if chosen is not None else 0
    from_1 = chosen == "index" and len(table.rows) >= _LETTER_ROWS and LETTERS[0] not in truths[chosen]
    return AnswerFit(
        shares=shares,
        form=None if from_1 else chosen,
        one_letter=len(table.rows) >= _LETTER_ROWS and often >= _ONE_LETTER * len(table.rows),
    )


def _truths(table: Table, answer: str, choices: tuple[str, ...], form: AnswerForm) -> list[str | None]:
    """Letter of each row, or None if its answer identifies no option."""
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
