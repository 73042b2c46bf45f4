"""What a language model's drafts must fulfil beyond their schema, and how they are mended.

An answer is sent back with its problems once; what is wrong after that is replaced by what the rules say. Not
here: asking (questions.py), trying a reward on rows (trial.py).
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Mapping

from llmzero_ray.agents.drafting.forms import DescriptorForm, RewardForm, SelectorForm
from llmzero_ray.agents.drafting.names import check_column
from llmzero_ray.agents.drafting.options import fit_answers
from llmzero_ray.agents.drafting.recipes import recipes
from llmzero_ray.agents.drafting.values import Given, Perception, Reading, Table
from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.tasks.rewards.regex_match import check_pattern
from llmzero_ray.tasks.task_yaml import OPTIONS_FIELD, template_fields

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
MAX_TEMPLATE, MAX_CODE, MAX_GOLD = 4_000, 20_000, 500
_EMPTY = 0.1
"""Largest share of rows in which a column of the question may be empty: such rows are left out."""
FUNCTION = "compute_score"
_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


def descriptor_faults(form: DescriptorForm, perception: Perception, given: Given) -> Mapping[str, str]:
    """Field -> what is wrong with it."""
    faults: dict[str, str] = {}
    n_tables = len(perception.tables)
    if not 1 <= form.table <= n_tables:
        return {"table": f"table is {form.table}; there are the tables 1 to {n_tables}"}
    if given.table is not None and form.table != given.table:
        return {"table": f"table is {form.table}; the user asks for table {given.table}"}
    table = perception.tables[form.table - 1]
    if not NAME.fullmatch(form.name):
        faults["name"] = f"name {form.name[:80]!r}: must be 1 to 63 of a-z, 0-9, _ and -"
    if not form.description:
        faults["description"] = "description is empty"
    for name in (form.answer, *form.options):
        if told := _unknown(table, name):
            faults["answer" if name == form.answer else "options"] = told
    if given.answer is not None and form.answer != given.answer:
        faults["answer"] = f"answer is {form.answer!r}; the user asks for {given.answer!r}"
    if given.options and tuple(form.options) != given.options:
        faults["options"] = f"options are {form.options}; the user asks for {list(given.options)}"
    if told := _template_fault(form, table, given):
        faults["question"] = told
    if form.options and not faults and (told := _options_fault(form, table, given)):
        faults["options"] = told
    return faults


def _options_fault(form: DescriptorForm, table: Table, given: Given) -> str:
    try:
        fit = fit_answers(table, form.answer, tuple(form.options))
    except ConfigError as error:
        return f"options: {error}"
    answer_form = given.answer_form or form.answer_form
    if not fit.fits(answer_form):
        return f"answer_form is {answer_form}; of the answers in {form.answer} would fit: {fit.told()}"
    if fit.one_letter and not given.options:
        return "options: the right one always stands at the same place; leave them out"
    return ""


def _unknown(table: Table, name: str) -> str:
    try:
        check_column(table, name)
    except ConfigError as error:
        return str(error)
    return ""


def _template_fault(form: DescriptorForm, table: Table, given: Given) -> str:
    try:
        fields = template_fields(form.question)
    except ValueError as error:
        return f"question: {error}"
    columns = [name for name in fields if name != OPTIONS_FIELD or table.column(name) is not None]
    shown = OPTIONS_FIELD in fields
    columns = [name for name in columns if name != OPTIONS_FIELD or not form.options]
    if told := next((told for name in columns if (told := _unknown(table, name))), ""):
        return f"question: {told}"
    if len(form.question) > MAX_TEMPLATE:
        return f"question has {len(form.question)} characters; at most {MAX_TEMPLATE}"
    if not [name for name in columns if name != OPTIONS_FIELD]:
        return "question names no column, so that all prompts would be equal"
    if empty := next((name for name in columns if _emptiness(table, name) > _EMPTY), None):
        return f"question shows {empty}, which is empty in {_emptiness(table, empty):.0%} of the rows"
    if form.answer in columns:
        return f"question shows {form.answer}, the column with the answer"
    if shown != bool(form.options):
        return "question must show {options} exactly where options names columns"
    if given.question is not None and given.question not in columns:
        return f"question does not show {{{given.question}}}, which the user asks for"
    return ""


def _emptiness(table: Table, name: str) -> float:
    column = table.column(name)
    return 1.0 if column is None else 1 - column.filled / len(table.rows)


def selector_faults(form: SelectorForm) -> list[str]:
    """What is wrong with a ranking."""
    known = recipes()
    unknown = [name for name in form.ranking if name not in known]
    if unknown or not form.ranking or len(set(form.ranking)) < len(form.ranking):
        return [f"ranking is {form.ranking}; must name each of {', '.join(known)} at most once"]
    return []


def mended_ranking(names: list[str], by_rules: tuple[str, ...]) -> tuple[str, ...]:
    """The known names once each, then those that were left out, as rules rank them."""
    known = [name for name in dict.fromkeys(names) if name in recipes()]
    return (*known, *(name for name in by_rules if name not in known))


def reward_faults(form: RewardForm, reading: Reading) -> list[str]:
    """What is wrong with a reward before it is tried."""
    if (form.kind == "mcq") != bool(reading.choices) and form.kind != "python":
        held = f"has the options {', '.join(reading.choices)}" if reading.choices else "has no options"
        return [f"kind is {form.kind}, but the task {held}: mcq belongs to options, and they to it"]
    if not form.instruction:
        return ["instruction is empty; say how the answer is to be written down"]
    if form.gold is not None and ("{answer}" not in form.gold or len(form.gold) > MAX_GOLD):
        return [f"gold must hold {{answer}} and at most {MAX_GOLD} characters"]
    if form.kind == "regex" and form.gold is None:
        return ["gold is null; a regex cannot be tried without the form of a right response"]
    if form.kind == "regex":
        return _pattern_faults(form.pattern)
    if form.kind == "python":
        if reading.choices:
            return ["kind is python, but options need mcq: leave the options out of the task, or choose mcq"]
        return _code_faults(form.code)
    return []


def _pattern_faults(pattern: str | None) -> list[str]:
    try:
        check_pattern(pattern)
    except TaskError as error:
        return [str(error)]
    return []


def _code_faults(code: str | None) -> list[str]:
    """Only read, never run: that is the sandbox's."""
    if not code or len(code) > MAX_CODE:
        return [f"code has {len(code or '')} characters; must have 1 to {MAX_CODE}"]
    if hidden := {c for c in code if unicodedata.category(c).startswith("C") and c not in "\n\t"}:
        return [
            f"code holds control or invisible characters: {', '.join(ascii(c) for c in sorted(hidden)[:5])}"
        ]
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [f"code is no Python: {error}"]
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == FUNCTION]
    if not found:
        return [f"code defines no plain function {FUNCTION} at its top level"]
    taken = [argument.arg for argument in (*found[-1].args.posonlyargs, *found[-1].args.args)]
    if taken[:4] != list(_ARGUMENTS) or found[-1].args.kwarg is None:
        return [
            f"{FUNCTION} must take ({', '.join(_ARGUMENTS)}=None, **kwargs); it takes ({', '.join(taken)})"
        ]
    return []
