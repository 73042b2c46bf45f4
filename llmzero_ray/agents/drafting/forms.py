"""The forms in which a language model answers the drafting agents' questions: one tool each.

Flat on purpose. What a schema cannot say is checked afterwards (checking.py). Not here: how a form becomes a
schema and is filled in (llm/form.py), the questions (prompts/drafting/).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from llmzero_ray.agents.llm.form import Form, Text, Texts, filled, schema_of
from llmzero_ray.agents.llm.messages import Tool

DraftingAgent: TypeAlias = Literal["task_descriptor", "tool_selector", "reward_writer"]


class DescriptorForm(Form):
    """The task descriptor's answer."""

    table: int
    """Number of the table with the rows of the task, as in the list."""
    name: Text
    """Short name of the task: small letters, digits, _ and -."""
    description: Text
    """What the task is, what is given and what is to be answered: a few sentences, stated facts only."""
    question: str
    """The message to the model: columns in braces, such as {question}; {options} for lettered options.
    Without words on how to write the answer down."""
    answer: Text
    """Column with the right answer."""
    options: Texts
    """For multiple choice: the column with all options, or one column each, in their order; else empty."""
    answer_form: Literal["letter", "text", "index"]
    """For multiple choice: what the answer column holds; index counts from 0. Else letter."""
    licence: Text | None
    """Of the data, where it is stated."""
    doubts: Texts
    """What a person should check, a sentence each; empty where nothing is doubtful."""


class SelectorForm(Form):
    """The tool selector's answer."""

    explanation: Text
    """Two or three sentences: what about the task decides."""
    ranking: Texts
    """Names of recipes, best first; each once."""


class RewardForm(Form):
    """The reward writer's answer."""

    reason: Text
    """Why this reward fits the answers."""
    kind: Literal["exact_match", "mcq", "math", "regex", "python"]
    """A reward that ships, or python for a function of your own."""
    ignore_case: bool
    """exact_match and regex: capital and small letters are the same."""
    pattern: str | None
    """regex: finds the answer in a response; the last match counts, its first group is the answer. Else
    null."""
    code: str | None
    """python: a whole module with compute_score. Else null."""
    gold: str | None
    """regex and python: a right response, {answer} standing for the answer column's text. Else null."""
    instruction: Text
    """The last words of the prompt: how to write the answer down so that the reward finds it."""


FORMS: dict[DraftingAgent, type[Form]] = {
    "task_descriptor": DescriptorForm,
    "tool_selector": SelectorForm,
    "reward_writer": RewardForm,
}
_TOOLS: dict[DraftingAgent, tuple[str, str]] = {
    "task_descriptor": ("describe_task", "Hand in what the task is and which columns it is made of."),
    "tool_selector": ("rank_recipes", "Hand in the training recipes in the order of their fitness."),
    "reward_writer": ("write_reward", "Hand in how responses are judged."),
}


def tool(agent: DraftingAgent, *, strict: bool) -> Tool:
    """The tool through which an agent answers."""
    name, description = _TOOLS[agent]
    return Tool(name=name, description=description, schema=schema_of(FORMS[agent]), strict=strict)


def read(agent: DraftingAgent, answer: Any) -> Form:
    """The form that a tool's input fills in.

    Raises:
        ProposalError: it does not fit; says where, in words for the model.
    """
    return filled(FORMS[agent], answer)
