"""Put a drafting agent's question to a language model: rendered, paid, sent, recorded, read.

An answer that does not fit is sent back once with the reason. Not here: what is asked (model.py), what is
checked (checking.py), transport and money (agents/llm).
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from llmzero_ray.agents.drafting.forms import DraftingAgent, read, tool
from llmzero_ray.agents.knowledge import prompt_file
from llmzero_ray.agents.llm.briefing_text import quote
from llmzero_ray.agents.llm.call import LlmCall, SystemBlock, TextBlock
from llmzero_ray.agents.llm.calling import prompt_hash
from llmzero_ray.agents.llm.errors import ASK_AGAIN, LlmCallError, scrubbed
from llmzero_ray.agents.llm.ledger import Ledger, LedgerEntry
from llmzero_ray.agents.llm.metered import LlmClient, metered_call
from llmzero_ray.agents.llm.templates import template_environment
from llmzero_ray.errors import AgentError, CapReachedError, ProposalError

logger = logging.getLogger(__name__)

_ROUNDS = 2
_MAX_TOKENS: Mapping[DraftingAgent, int] = {
    "task_descriptor": 2_500,
    "tool_selector": 1_000,
    "reward_writer": 5_000,
}
"""Room for an answer, and, where a first one was cut off, twice that."""
Problems = Callable[[Any], list[str]]
"""What is wrong with a filled form, in words for the model; nothing: it can be used."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A form, and what is still wrong with it after all rounds."""

    form: Any
    problems: tuple[str, ...]


@dataclass
class Asker:
    """Asks one model; keeps a record of every call."""

    client: LlmClient
    ledger: Ledger
    model: str
    deadline_s: float
    strict: bool = True
    secret: str | None = field(default=None, repr=False)
    """The API key: blotted out of whatever is sent or kept, wherever it came from."""
    records: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def ask(self, agent: DraftingAgent, values: Mapping[str, Any], problems: Problems) -> Answered:
        """A filled form.

        Raises:
            CapReachedError: the ledger does not allow the call.
            AgentError: no form that can be read.
        """
        until = time.monotonic() + self.deadline_s
        given, failure, latest = dict(values), AgentError("not asked"), None
        for round_ in range(_ROUNDS):
            left = until - time.monotonic()
            if round_ and left < 1.0:
                break
            try:
                form = self._once(agent, given, left, (round_ + 1) * _MAX_TOKENS[agent], problems)
            except ProposalError as error:
                failure = AgentError(str(error))
            except LlmCallError as error:
                if error.kind not in ASK_AGAIN:
                    raise
                failure = error
            else:
                latest = form
                if not form.problems:
                    return form
                failure = AgentError("; ".join(form.problems))
            given["rejected"] = quote(str(failure), label="refusal", max_lines=12, max_chars=2_000)
        if latest is not None:
            return latest
        raise failure

    def _once(
        self,
        agent: DraftingAgent,
        values: Mapping[str, Any],
        deadline_s: float,
        max_tokens: int,
        problems: Problems,
    ) -> Answered:
        call = self._call(agent, values, deadline_s, max_tokens)
        record: dict[str, Any] = {
            "agent": agent,
            "model": self.model,
            "prompt": prompt_hash(call),
            "system": [block.text for block in call.system],
            "user": [block.text for block in call.content if isinstance(block, TextBlock)],
            "outcome": "ok",
            "answer": None,
        }
        booked = len(self.ledger.entries)
        try:
            answer = metered_call(self.client, self.ledger, call)
            record["answer"] = dict(answer.input)
            form = read(agent, answer.input)
            found = problems(form)
            if found:
                record |= {"outcome": "refused", "problem": "; ".join(found)}
            return Answered(form=form, problems=tuple(found))
        except (ProposalError, CapReachedError, LlmCallError) as error:
            record |= {"outcome": _outcome(error), "problem": str(error)}
            raise
        finally:
            entries = self.ledger.entries[booked:]
            self.records.append({**record, **_paid(entries[0] if entries else None)})

    def _call(
        self, agent: DraftingAgent, values: Mapping[str, Any], deadline_s: float, max_tokens: int
    ) -> LlmCall:
        system = render(f"{agent}.system.md.j2", {})
        user = scrubbed(render(f"{agent}.user.md.j2", {"rejected": "", **values}), self.secret)
        return LlmCall(
            agent=agent,
            node=0,
            system=(SystemBlock(text=system, cacheable=True),),
            content=(TextBlock(text=user),),
            tool=tool(agent, strict=self.strict),
            max_tokens=max_tokens,
            deadline_s=deadline_s,
        )


def _outcome(error: Exception) -> str:
    if isinstance(error, LlmCallError):
        return error.kind
    return "cap" if isinstance(error, CapReachedError) else "schema"


def _paid(entry: LedgerEntry | None) -> dict[str, Any]:
    if entry is None:
        return {"input_tokens": 0, "output_tokens": 0, "dollars": 0.0, "latency_s": 0.0}
    return {
        "input_tokens": entry.usage.all_input,
        "output_tokens": entry.usage.output,
        "dollars": round(entry.dollars, 6),
        "latency_s": round(entry.latency_s, 3),
    }


def render(name: str, values: Mapping[str, Any]) -> str:
    """A text of prompts/drafting/ with its values."""
    return str(_environment().get_template(name).render(values)).strip() + "\n"


def prompts_digest() -> str:
    """One sha256 over all texts of prompts/drafting/."""
    names = [f"{agent}.{part}.md.j2" for agent in _MAX_TOKENS for part in ("system", "user")]
    texts = (f"{name}\n{_text(name)}" for name in names)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _text(name: str) -> str:
    return prompt_file(f"drafting/{name}").read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    return template_environment(_text)
