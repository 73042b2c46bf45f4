"""The drafting agents' questions to a language model, and the records of what became of them.

Not here: what is asked about (model.py), what is checked (checking.py), asking and money (agents/llm).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeAlias

from llmzero_ray.agents.drafting.forms import DraftingAgent, read, tool
from llmzero_ray.agents.knowledge import prompt_file
from llmzero_ray.agents.llm.agent_client import CallReport, Question
from llmzero_ray.agents.llm.briefing_text import quote
from llmzero_ray.agents.llm.call_records import prompt_hash
from llmzero_ray.agents.llm.errors import redacted
from llmzero_ray.agents.llm.messages import TextBlock
from llmzero_ray.agents.llm.prompting import Rendered
from llmzero_ray.agents.llm.templates import template_environment
from llmzero_ray.files import text_digest

_MAX_TOKENS: Mapping[DraftingAgent, int] = {
    "task_descriptor": 2_500,
    "tool_selector": 1_000,
    "reward_writer": 5_000,
}
"""Room for an answer; for the second one twice that, since the first may have been cut off."""
Problems: TypeAlias = Callable[[Any], list[str]]
"""What is wrong with a filled form, in words for the model; nothing: it can be used."""


def drafting_question(
    agent: DraftingAgent, values: Mapping[str, Any], problems: Problems, *, strict: bool, secret: str | None
) -> Question:
    """A question with these values of its template; `secret`, the API key, is never sent with them."""

    def render_both(refused: str | None) -> Rendered:
        reason = "" if refused is None else quote(refused, label="refusal", max_lines=12, max_chars=2_000)
        user = render(f"{agent}.user.md.j2", {**values, "rejected": reason})
        return Rendered(system=render(f"{agent}.system.md.j2", {}), user=redacted(user, secret))

    return Question(
        agent=agent,
        node=0,
        name=agent,
        render=render_both,
        tool=tool(agent, strict=strict),
        read=partial(read, agent),
        max_tokens=(_MAX_TOKENS[agent], 2 * _MAX_TOKENS[agent]),
        problems=problems,
    )


def draft_record(report: CallReport) -> dict[str, Any]:
    """A call as draft.json holds it."""
    record: dict[str, Any] = {
        "agent": report.call.agent,
        "model": report.model,
        "prompt": prompt_hash(report.call),
        "system": [block.text for block in report.call.system],
        "user": [block.text for block in report.call.content if isinstance(block, TextBlock)],
        "outcome": report.outcome,
        "answer": None if report.answer is None else dict(report.answer.input),
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
    """A text of prompts/drafting/ with its values."""
    return str(_environment().get_template(name).render(values)).strip() + "\n"


def prompts_digest() -> str:
    """One sha256 over all texts of prompts/drafting/."""
    names = [f"{agent}.{part}.md.j2" for agent in _MAX_TOKENS for part in ("system", "user")]
    texts = (f"{name}\n{_text(name)}" for name in names)
    return text_digest("\n".join(texts))


def _text(name: str) -> str:
    return prompt_file(f"drafting/{name}").read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    return template_environment(_text)
