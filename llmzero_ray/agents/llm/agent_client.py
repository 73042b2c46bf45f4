"""The agents' way to a language model: a question in, a filled form out, within a deadline and a budget.

An answer that cannot be used is asked for once more with the reason, within the same deadline. Every call is
reported, whatever came of it. Not here: what is asked (agents.py, drafting/), transport (client.py), money
(budget.py), how calls are kept (call_records.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from llmzero_ray.agents.llm.budget import BudgetClient, CallBudget, LlmClient, call_within_budget
from llmzero_ray.agents.llm.errors import REPROMPT_KINDS, LlmCallError
from llmzero_ray.agents.llm.messages import (
    ImageBlock,
    LlmCall,
    LlmResponse,
    SystemBlock,
    TextBlock,
    Tool,
    Usage,
)
from llmzero_ray.agents.llm.prompts import Rendered
from llmzero_ray.errors import AgentError, CapReachedError, ProposalError

logger = logging.getLogger(__name__)

_MIN_RETRY_S = 1.0
"""Seconds that must be left of a deadline to ask once more."""


def _no_problems(parsed: Any) -> list[str]:  # noqa: ARG001
    return []


@dataclass(frozen=True, kw_only=True)
class StructuredRequest:
    """What is asked, of whom, and how the answer is read."""

    agent: str
    node: int
    name: str
    """Of the record, unique for the node: `proposer-0`."""
    render: Callable[[str | None], Rendered]
    """The texts; the argument is why the previous answer was refused, None in the first round."""
    tool: Tool
    parse: Callable[[Any], Any]
    """The form that the tool's input fills in. Raises ProposalError."""
    max_tokens: tuple[int, ...]
    """Longest answer, for each time it may be asked for."""
    validate: Callable[[Any], list[str]] = _no_problems
    """What is wrong with a filled form, in words for the model; nothing: it can be used."""
    png: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class StructuredResponse:
    """A form, and what is still wrong with it after all rounds."""

    parsed: Any
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CallReport:
    """One call as it was made, and what came of it."""

    name: str
    """The question's name with the round: `proposer-0.1`."""
    call: LlmCall
    model: str
    response: LlmResponse | None
    outcome: str
    """`ok`, `schema`, `rejection`, `cap`, or the error's kind."""
    problem: str
    usage: Usage
    """As booked."""
    dollars: float
    latency_s: float
    n_attempts: int
    png: bytes | None


Report: TypeAlias = Callable[[CallReport], None]


class AgentClient:
    """Puts questions to one model; from any thread, several at once."""

    def __init__(
        self,
        *,
        client: Callable[[int, str], LlmClient],
        budget: BudgetClient,
        report: Report,
        model: str,
        deadline_s: float,
        thinking_tokens: int = 0,
    ) -> None:
        """`client` gives who answers the call of that node and name. `thinking_tokens`: tokens added to every
        answer's limit once one was cut off, since some models think first, asked or not."""
        self.model = model
        self._client, self._budget, self._report = client, budget, report
        self._deadline_s, self._thinking_tokens = deadline_s, thinking_tokens
        self._extra_tokens = 0

    def generate(self, request: StructuredRequest) -> StructuredResponse:
        """The filled form; with `problems` where the last round had some too.

        Raises:
            CapReachedError: the budget does not allow the call.
            AgentError: no form that can be read within the deadline.
        """
        until = time.monotonic() + self._deadline_s
        latest: StructuredResponse | None = None
        failure, rejection = AgentError("not asked"), None
        for round_, max_tokens in enumerate(request.max_tokens):
            left = until - time.monotonic()
            if round_ and left < _MIN_RETRY_S:
                break
            call = _call(request, request.render(rejection), max_tokens + self._extra_tokens, left)
            try:
                latest = self._attempt(request, f"{request.name}.{round_}", call)
                if not latest.problems:
                    return latest
                failure = AgentError("; ".join(latest.problems))
            except ProposalError as error:
                failure = AgentError(str(error))
            except LlmCallError as error:
                if error.kind not in REPROMPT_KINDS:
                    raise
                failure = error
                if error.kind == "max_tokens":
                    self._extra_tokens = self._thinking_tokens
            rejection = str(failure)
        if latest is not None:
            return latest
        raise failure

    def _attempt(self, request: StructuredRequest, name: str, call: LlmCall) -> StructuredResponse:
        client = self._client(call.node, name)
        budget = CallBudget(self._budget, call.agent, call.node, client.worst_case(call))
        response: LlmResponse | None = None
        problem, outcome = "", "ok"
        try:
            response = call_within_budget(client, call, budget)
            parsed = request.parse(response.input)
            problems = tuple(request.validate(parsed))
            if problems:
                problem, outcome = "; ".join(problems), "refused"
            return StructuredResponse(parsed=parsed, problems=problems)
        except (ProposalError, CapReachedError, AgentError) as error:
            problem, outcome = str(error), _outcome(error)
            raise
        finally:
            if problem:
                logger.warning("node=%d %s: %s", call.node, name, problem)
            self._report(
                CallReport(
                    name=name,
                    call=call,
                    model=self.model,
                    response=response,
                    outcome=outcome,
                    problem=problem,
                    usage=budget.usage,
                    dollars=budget.dollars,
                    latency_s=budget.latency_s,
                    n_attempts=budget.n_attempts,
                    png=request.png,
                )
            )


def _call(request: StructuredRequest, texts: Rendered, max_tokens: int, deadline_s: float) -> LlmCall:
    picture = () if request.png is None else (ImageBlock(png=request.png),)
    return LlmCall(
        agent=request.agent,
        node=request.node,
        system=(SystemBlock(text=texts.system, cacheable=True),),
        content=(*picture, TextBlock(text=texts.user)),
        tool=request.tool,
        max_tokens=max_tokens,
        deadline_s=deadline_s,
    )


def _outcome(error: Exception) -> str:
    match error:
        case LlmCallError():
            return error.kind
        case CapReachedError():
            return "cap"
        case ProposalError():
            return "schema"
        case _:
            return "connection"  # to the ledger
