"""Checks of a language model's drafting responses beyond their schema.

A response with problems is requested once more; after that the rules replace wrong fields.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.tasks.drafting.base import DataProfile, Table, TaskSpec, UserChoices
from llmzero_ray.tasks.drafting.column_roles import check_column, fit_answers
from llmzero_ray.tasks.drafting.llm_requests import DescriptorSchema, RewardSchema, SelectorSchema
from llmzero_ray.tasks.drafting.recipes import recipes
from llmzero_ray.tasks.rewards.regex_match import check_pattern
from llmzero_ray.tasks.task_yaml import OPTIONS_FIELD, template_fields

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
MAX_TEMPLATE, MAX_CODE, MAX_GOLD = 4_000, 20_000, 500
_EMPTY = 0.1
"""Largest share of rows in which a column of the question may be empty; such rows are dropped."""


def descriptor_problems(
    response: DescriptorSchema, profile: DataProfile, user: UserChoices
) -> Mapping[str, str]:
    """Field -> problem, as text for the model. Empty if the response can be used."""
    problems: dict[str, str] = {}
    n_tables = len(profile.tables)
    if not 1 <= response.table <= n_tables:
        return {"table": f"table is {response.table}; there are the tables 1 to {n_tables}"}
    if user.table is not None and response.table != user.table:
        return {"table": f"table is {response.table}; the user asks for table {user.table}"}
    table = profile.tables[response.table - 1]
    if not NAME.fullmatch(response.name):
        problems["name"] = f"name {response.name[:80]!r}: must be 1 to 63 of a-z, 0-9, _ and -"
    if not response.description:
        problems["description"] = "description is empty"
    for name in (response.answer, *response.options):
        if problem := _unknown_column(table, name):
            problems["answer" if name == response.answer else "options"] = problem
    if user.answer is not None and response.answer != user.answer:
        problems["answer"] = f"answer is {response.answer!r}; the user asks for {user.answer!r}"
    if user.options and tuple(response.options) != user.options:
        problems["options"] = f"options are {response.options}; the user asks for {list(user.options)}"
    if problem := _template_problem(response, table, user):
        problems["question"] = problem
    if response.options and not problems and (problem := _options_problem(response, table, user)):
        problems["options"] = problem
    return problems


def _options_problem(response: DescriptorSchema, table: Table, user: UserChoices) -> str:
    try:
        fit = fit_answers(table, response.answer, tuple(response.options))
    except ConfigError as error:
        return f"options: {error}"
    answer_form = user.answer_form or response.answer_form
    if not fit.fits(answer_form):
        return (
            f"answer_form is {answer_form}; of the answers in {response.answer} would fit: {fit.describe()}"
        )
    if fit.one_letter and not user.options:
        return "options: the right one always stands at the same place; leave them out"
    return ""


def _unknown_column(table: Table, name: str) -> str:
    try:
        check_column(table, name)
    except ConfigError as error:
        return str(error)
    return ""


def _template_problem(response: DescriptorSchema, table: Table, user: UserChoices) -> str:
    try:
        fields = template_fields(response.question)
    except ValueError as error:
        return f"question: {error}"
    columns = [name for name in fields if name != OPTIONS_FIELD or table.column(name) is not None]
    shown = OPTIONS_FIELD in fields
    columns = [name for name in columns if name != OPTIONS_FIELD or not response.options]
    if problem := next((problem for name in columns if (problem := _unknown_column(table, name))), ""):
        return f"question: {problem}"
    if len(response.question) > MAX_TEMPLATE:
        return f"question has {len(response.question)} characters; at most {MAX_TEMPLATE}"
    if not [name for name in columns if name != OPTIONS_FIELD]:
        return "question names no column, so that all prompts would be equal"
    if empty := next((name for name in columns if _emptiness(table, name) > _EMPTY), None):
        return f"question shows {empty}, which is empty in {_emptiness(table, empty):.0%} of the rows"
    if response.answer in columns:
        return f"question shows {response.answer}, the column with the answer"
    if shown != bool(response.options):
        return "question must show {options} exactly where options names columns"
    if user.question is not None and user.question not in columns:
        return f"question does not show {{{user.question}}}, which the user asks for"
    return ""


def _emptiness(table: Table, name: str) -> float:
    column = table.column(name)
    return 1.0 if column is None else 1 - column.filled / len(table.rows)


def selector_problems(response: SelectorSchema) -> list[str]:
    """Problems of a recipe ranking. Empty if it can be used."""
    known = recipes()
    unknown = [name for name in response.ranking if name not in known]
    if unknown or not response.ranking or len(set(response.ranking)) < len(response.ranking):
        return [f"ranking is {response.ranking}; must name each of {', '.join(known)} at most once"]
    return []


def complete_ranking(names: list[str], by_rules: tuple[str, ...]) -> tuple[str, ...]:
    """The known recipes of `names`, each once, then the missing ones in the order of the rules."""
    known = [name for name in dict.fromkeys(names) if name in recipes()]
    return (*known, *(name for name in by_rules if name not in known))


def reward_problems(response: RewardSchema, spec: TaskSpec) -> list[str]:
    """Problems of a reward that are visible without running it. Empty if it can be validated on rows."""
    if (response.kind == "mcq") != bool(spec.choices) and response.kind != "python":
        held = f"has the options {', '.join(spec.choices)}" if spec.choices else "has no options"
        return [f"kind is {response.kind}, but the task {held}: mcq belongs to options, and they to it"]
    if not response.instruction:
        return ["instruction is empty; say how the answer is to be written down"]
    if response.gold is not None and ("{answer}" not in response.gold or len(response.gold) > MAX_GOLD):
        return [f"gold must hold {{answer}} and at most {MAX_GOLD} characters"]
    if response.kind == "regex" and response.gold is None:
        return ["gold is null; a regex cannot be tried without the form of a right response"]
    if response.kind == "regex":
        return _pattern_problems(response.pattern)
    if response.kind == "python":
        if spec.choices:
            return ["kind is python, but options need mcq: leave the options out of the task, or choose mcq"]
        return _code_problems(response.code)
    return []


def _pattern_problems(pattern: str | None) -> list[str]:
    try:
        check_pattern(pattern)
    except TaskError as error:
        return [str(error)]
    return []


def _code_problems(code: str | None) -> list[str]:
    """Problems of code that are visible before it is tried in the sandbox."""
    if not code or len(code) > MAX_CODE:
        return [f"code has {len(code or '')} characters; must have 1 to {MAX_CODE}"]
    if hidden := {c for c in code if unicodedata.category(c).startswith("C") and c not in "\n\t"}:
        return [
            f"code holds control or invisible characters: {', '.join(ascii(c) for c in sorted(hidden)[:5])}"
        ]
    return []
