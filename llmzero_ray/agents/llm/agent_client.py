"""Structured responses of a language model within a deadline and a budget: parse, validate, and retry with
the reason.

A response that does not parse or validate is requested again within the same deadline. The model then sees
its answer, and the reason as the tool result. Every call is reported, including failed ones.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from llmzero_ray.agents.llm.budget import BudgetClient, CallBudget, LlmClient, call_within_budget
from llmzero_ray.agents.llm.errors import REPROMPT_KINDS, LlmCallError
from llmzero_ray.agents.llm.messages import (
    ImageBlock,
    LlmCall,
    LlmResponse,
    RefusedAnswer,
    TextBlock,
    Tool,
    Usage,
)
from llmzero_ray.agents.llm.prompt_text import quote
from llmzero_ray.agents.llm.prompts import Rendered
from llmzero_ray.errors import AgentError, CapReachedError, ProposalError

logger = logging.getLogger(__name__)

_MIN_RETRY_S = 1.0
"""Minimum remaining seconds of the deadline for a retry."""


def _no_problems(parsed: Any) -> list[str]:  # noqa: ARG001
    return []


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A request, and the answers to it that were rejected."""

    texts: Rendered
    png: bytes | None
    refused: tuple[RefusedAnswer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StructuredRequest:
    """One request of an agent, with the callbacks that render its prompt and check its response."""

    agent: str
    node: int
    name: str
    """Name of the call's record, unique for the node, such as `proposer-0`."""
    render: Callable[[str | None], Rendered]
    """Callback that renders the prompt. Its argument is the reason why the previous response was rejected, or
    None at first."""
    tool: Tool
    parse: Callable[[Any], Any]
    """Callback that parses the tool's input. Raises ProposalError if it does not match the schema."""
    max_tokens: tuple[int, ...]
    """Token limit of the response for each try."""
    validate: Callable[[Any], list[str]] = _no_problems
    """Callback that returns the problems of a parsed response, as text for the model. Empty if usable."""
    png: bytes | None = None
    conversation: Conversation | None = None
    """Conversation to continue, whose last answer was rejected. If None, `render` begins a new one."""


@dataclass(frozen=True, kw_only=True)
class StructuredResponse:
    """A parsed response, and the problems that remain after all tries."""

    parsed: Any
    problems: tuple[str, ...] = ()
    conversation: Conversation
    content: tuple[Mapping[str, Any], ...]
    """Blocks of the answer."""

    def refused(self, reason: str) -> Conversation:
        """The conversation with this answer rejected."""
        return _with_refusal(self.conversation, self.content, reason)


@dataclass(frozen=True, kw_only=True)
class CallReport:
    """A call with its response or error, tokens, cost and latency."""

    name: str
    """Name of the request with the number of the try, such as `proposer-0.1`."""
    call: LlmCall
    model: str
    response: LlmResponse | None
    outcome: str
    """`ok`, `schema`, `refused`, `cap`, `interrupted`, or the error's kind."""
    problem: str
    usage: Usage
    """Tokens as booked in the budget."""
    dollars: float
    latency_s: float
    n_attempts: int
    png: bytes | None
    estimated: bool = False
    """Whether a part of `usage` is a worst case."""
    reservations: tuple[str, ...] = ()
    """Ids of the budget reservations that the call has settled."""


Report: TypeAlias = Callable[[CallReport], None]


@dataclass(kw_only=True)
class ReportedCall:
    """A call in progress, and the content of its report."""

    client: LlmClient
    budget: CallBudget
    call: LlmCall
    response: LlmResponse | None = None
    outcome: str = "interrupted"
    problem: str = ""

    def send(self) -> LlmResponse:
        """The model's response."""
        self.response = call_within_budget(self.client, self.call, self.budget)
        return self.response


@contextlib.contextmanager
def reported_call(
    client: LlmClient,
    budget: BudgetClient,
    report: Report,
    call: LlmCall,
    *,
    name: str,
    model: str,
    png: bytes | None = None,
) -> Iterator[ReportedCall]:
    """Context manager around sending a call and checking its response. On exit the call is reported, even if
    it failed. `name` and `png` as in `CallReport`; `model` is reported if the server names none."""
    own = CallBudget(budget, call.agent, call.node, client.worst_case(call), least_output=call.max_tokens)
    made = ReportedCall(client=client, budget=own, call=call)
    try:
        yield made
    except (ProposalError, CapReachedError, AgentError) as error:
        made.problem, made.outcome = str(error), _outcome_of(error)
        raise
    finally:
        if made.problem:
            logger.warning("node=%d %s: %s", call.node, name, made.problem)
        report(
            CallReport(
                name=name,
                call=call,
                model=own.model or model,
                response=made.response,
                outcome=made.outcome,
                problem=made.problem,
                usage=own.usage,
                dollars=own.dollars,
                latency_s=own.latency_s,
                n_attempts=own.n_attempts,
                png=png,
                estimated=own.estimated,
                reservations=own.reservations,
            )
        )


class AgentClient:
    """Client that sends structured requests to one model. Thread-safe."""

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
        """`client(node, name)` returns the client for that call. Once a response was cut off,
        `thinking_tokens` are added to every token limit, because some models think before they respond."""
        self.model = model
        self._client, self._budget, self._report = client, budget, report
        self.deadline_s, self._thinking_tokens = deadline_s, thinking_tokens
        self._extra_tokens = 0

    def generate(self, request: StructuredRequest) -> StructuredResponse:
        """Parsed response, with `problems` if the last try still has some.

        Raises:
            CapReachedError: the budget does not allow the call.
            AgentError: no response within the deadline that can be parsed.
        """
        until = time.monotonic() + self.deadline_s
        latest: StructuredResponse | None = None
        failure = AgentError("not asked")
        conversation = request.conversation or Conversation(texts=request.render(None), png=request.png)
        for round_, max_tokens in enumerate(request.max_tokens):
            left = until - time.monotonic()
            if round_ and left < _MIN_RETRY_S:
                break
            call = _call(request, conversation, max_tokens + self._extra_tokens, left)
            try:
                latest = self._attempt(request, f"{request.name}.{round_}", call, conversation)
                if not latest.problems:
                    return latest
                failure = AgentError("; ".join(latest.problems))
                conversation = latest.refused(str(failure))
            except _FormError as error:
                failure = AgentError(str(error))
                conversation = _with_refusal(conversation, error.content, str(error))
            except LlmCallError as error:
                if error.kind not in REPROMPT_KINDS:
                    raise
                failure = error
                if error.kind == "max_tokens":
                    self._extra_tokens = self._thinking_tokens
                if not conversation.refused:  # there is no tool call to reply to
                    conversation = replace(conversation, texts=request.render(str(error)))
        if latest is not None:
            return latest
        raise failure

    def _attempt(
        self, request: StructuredRequest, name: str, call: LlmCall, conversation: Conversation
    ) -> StructuredResponse:
        client, png = self._client(call.node, name), conversation.png
        with reported_call(
            client, self._budget, self._report, call, name=name, model=self.model, png=png
        ) as made:
            response = made.send()
            try:
                parsed = request.parse(response.input)
            except ProposalError as error:
                raise _FormError(str(error), response.content) from error
            problems = tuple(request.validate(parsed))
            made.problem, made.outcome = "; ".join(problems), "refused" if problems else "ok"
            return StructuredResponse(
                parsed=parsed, problems=problems, conversation=conversation, content=response.content
            )


class _FormError(ProposalError):
    """Error: an answer does not fit its schema."""

    def __init__(self, message: str, content: tuple[Mapping[str, Any], ...]) -> None:
        super().__init__(message)
        self.content = content


def _with_refusal(
    conversation: Conversation, content: tuple[Mapping[str, Any], ...], reason: str
) -> Conversation:
    said = (
        f"Refused. {quote(reason, label='refusal', max_lines=12, max_chars=1200, width=400)}\nHand in the "
        "whole answer again. Change nothing that this does not name."
    )
    answer = RefusedAnswer(content=content, reason=said)
    return replace(conversation, refused=(*conversation.refused, answer))


def _call(
    request: StructuredRequest, conversation: Conversation, max_tokens: int, deadline_s: float
) -> LlmCall:
    texts = conversation.texts
    picture = () if conversation.png is None else (ImageBlock(png=conversation.png),)
    return LlmCall(
        agent=request.agent,
        node=request.node,
        system=texts.system,
        content=(*picture, TextBlock(text=texts.user)),
        tool=request.tool,
        max_tokens=max_tokens,
        deadline_s=deadline_s,
        refused=conversation.refused,
    )


def _outcome_of(error: Exception) -> str:
    """Outcome of a call that raised, as in `CallReport.outcome`."""
    match error:
        case LlmCallError():
            return error.kind
        case CapReachedError():
            return "cap"
        case ProposalError():
            return "schema"
        case _:
            return "connection"  # the ledger could not be reached
