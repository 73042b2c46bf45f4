"""Requests of the drafting agents to a language model: prompts, response schemas, records of calls.

Schemas are flat on purpose. What a schema cannot express is checked afterwards (response_checks.py). Not
here: the values of the prompts (llm_agents.py), how a schema becomes JSON Schema and a response is parsed
(llm/structured_output.py), the prompts (prompts/drafting/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeAlias

from llmzero_ray.agents.knowledge import prompt_file
from llmzero_ray.agents.llm.agent_client import CallReport, StructuredRequest
from llmzero_ray.agents.llm.call_records import prompt_hash
from llmzero_ray.agents.llm.errors import redacted
from llmzero_ray.agents.llm.messages import TextBlock
from llmzero_ray.agents.llm.prompt_text import quote
from llmzero_ray.agents.llm.prompts import Rendered, template_environment
from llmzero_ray.agents.llm.structured_output import ResponseSchema, ResponseTool, Text, Texts
from llmzero_ray.tasks.task_yaml import AnswerForm, RewardKind
from llmzero_ray.utils.files import text_digest

DraftingAgent: TypeAlias = Literal["task_descriptor", "tool_selector", "reward_writer"]


class DescriptorSchema(ResponseSchema):
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
    answer_form: AnswerForm
    """For multiple choice: what the answer column holds; index counts from 0. Else letter."""
    licence: Text | None
    """Licence of the data, if stated."""
    doubts: Texts
    """What a person should check, a sentence each; empty where nothing is doubtful."""


class SelectorSchema(ResponseSchema):
    """The tool selector's answer."""

    explanation: Text
    """Two or three sentences: what about the task decides."""
    ranking: Texts
    """Names of recipes, best first; each once."""


class RewardSchema(ResponseSchema):
    """The reward writer's answer."""

    reason: Text
    """Why this reward fits the answers."""
    kind: RewardKind
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


TOOLS: dict[DraftingAgent, ResponseTool] = {
    "task_descriptor": ResponseTool(
        name="describe_task",
        description="Hand in what the task is and which columns it is made of.",
        schema=DescriptorSchema,
    ),
    "tool_selector": ResponseTool(
        name="rank_recipes",
        description="Hand in the training recipes in the order of their fitness.",
        schema=SelectorSchema,
    ),
    "reward_writer": ResponseTool(
        name="write_reward", description="Hand in how responses are judged.", schema=RewardSchema
    ),
}
"""The tool of each agent."""


# --- requests and records -----------------------------------------------------------------------------------


_MAX_TOKENS: Mapping[DraftingAgent, int] = {
    "task_descriptor": 2_500,
    "tool_selector": 1_000,
    "reward_writer": 5_000,
}
"""Maximum tokens of a response. Doubled for the retry, because the first response may have been cut off."""
Validate: TypeAlias = Callable[[Any], list[str]]
"""Returns the problems of a response, in words for the model. Empty if it can be used."""


def drafting_request(
    agent: DraftingAgent,
    values: Mapping[str, Any],
    validate: Validate,
    *,
    name: str,
    strict: bool,
    secret: str | None,
) -> StructuredRequest:
    """The request with these template values. `name` is the name of its record. `secret` is the API key,
    which is redacted in the prompt."""

    def render_both(rejection: str | None) -> Rendered:
        reason = "" if rejection is None else quote(rejection, label="refusal", max_lines=12, max_chars=2_000)
        user = render(f"{agent}.user.md.j2", {**values, "rejected": reason})
        return Rendered(system=render(f"{agent}.system.md.j2", {}), user=redacted(user, secret))

    return StructuredRequest(
        agent=agent,
        node=0,
        name=name,
        render=render_both,
        tool=TOOLS[agent].definition(strict=strict),
        parse=TOOLS[agent].parse,
        max_tokens=(_MAX_TOKENS[agent], 2 * _MAX_TOKENS[agent]),
        validate=validate,
    )


def draft_record(report: CallReport) -> dict[str, Any]:
    """A call as a JSON object for draft.json."""
    record: dict[str, Any] = {
        "agent": report.call.agent,
        "model": report.model,
        "prompt": prompt_hash(report.call),
        "system": [report.call.system],
        "user": [block.text for block in report.call.content if isinstance(block, TextBlock)],
        "outcome": report.outcome,
        "answer": None if report.response is None else dict(report.response.input),
    }
    if report.problem:
        record["problem"] = report.problem
    return record | {
        "input_tokens": report.usage.all_input,
        "output_tokens": report.usage.output,
        "dollars": round(report.dollars, 6),
        "latency_s": round(report.latency_s, 3),
    }


def render(name: str, values: Mapping[str, Any]) -> str:
    """A template of prompts/drafting/, rendered with these values."""
    return str(_environment().get_template(name).render(values)).strip() + "\n"


def prompts_digest() -> str:
    """One sha256 over all templates of prompts/drafting/, hexadecimal."""
    names = [f"{agent}.{part}.md.j2" for agent in _MAX_TOKENS for part in ("system", "user")]
    texts = (f"{name}\n{_text(name)}" for name in names)
    return text_digest("\n".join(texts))


def _text(name: str) -> str:
    return prompt_file(f"drafting/{name}").read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    return template_environment(_text)
