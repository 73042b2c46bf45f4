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
from llmzero_ray.agents.llm.errors import ASK_AGAIN, LlmCallError
from llmzero_ray.agents.llm.messages import (
    ImageBlock,
    LlmAnswer,
    LlmCall,
    SystemBlock,
    TextBlock,
    Tool,
    Usage,
)
from llmzero_ray.agents.llm.prompting import Rendered
from llmzero_ray.errors import AgentError, CapReachedError, ProposalError

logger = logging.getLogger(__name__)

_LEAST_S = 1.0
"""Seconds that must be left of a deadline to ask once more."""


def _no_problems(form: Any) -> list[str]:  # noqa: ARG001
    return []


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, of whom, and how the answer is read."""

    agent: str
    node: int
    name: str
    """Of the record, unique for the node: `proposer-0`."""
    render: Callable[[str | None], Rendered]
    """The texts; the argument is why the previous answer was refused, None in the first round."""
    tool: Tool
    read: Callable[[Any], Any]
    """The form that the tool's input fills in. Raises ProposalError."""
    max_tokens: tuple[int, ...]
    """Longest answer, for each time it may be asked for."""
    problems: Callable[[Any], list[str]] = _no_problems
    """What is wrong with a filled form, in words for the model; nothing: it can be used."""
    png: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class FilledForm:
    """A form, and what is still wrong with it after all rounds."""

    form: Any
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CallReport:
    """One call as it was made, and what came of it."""

    name: str
    """The question's name with the round: `proposer-0.1`."""
    call: LlmCall
    model: str
    answer: LlmAnswer | None
    outcome: str
    """`ok`, `schema`, `refused`, `cap`, or the error's kind."""
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
        room_to_think: int = 0,
    ) -> None:
        """`client` gives who answers the call of that node and name. `room_to_think`: tokens added to every
        answer's limit once one was cut off, since some models think first, asked or not."""
        self.model = model
        self._client, self._budget, self._report = client, budget, report
        self._deadline_s, self._room_to_think = deadline_s, room_to_think
        self._room = 0

    def ask(self, question: Question) -> FilledForm:
        """The filled form; with `problems` where the last round had some too.

        Raises:
            CapReachedError: the budget does not allow the call.
            AgentError: no form that can be read within the deadline.
        """
        until = time.monotonic() + self._deadline_s
        latest: FilledForm | None = None
        failure, refused = AgentError("not asked"), None
        for round_, max_tokens in enumerate(question.max_tokens):
            left = until - time.monotonic()
            if round_ and left < _LEAST_S:
                break
            call = _call(question, question.render(refused), max_tokens + self._room, left)
            try:
                latest = self._answered(question, f"{question.name}.{round_}", call)
                if not latest.problems:
                    return latest
                failure = AgentError("; ".join(latest.problems))
            except ProposalError as error:
                failure = AgentError(str(error))
            except LlmCallError as error:
                if error.kind not in ASK_AGAIN:
                    raise
                failure = error
                if error.kind == "max_tokens":
                    self._room = self._room_to_think
            refused = str(failure)
        if latest is not None:
            return latest
        raise failure

    def _answered(self, question: Question, name: str, call: LlmCall) -> FilledForm:
        client = self._client(call.node, name)
        budget = CallBudget(self._budget, call.agent, call.node, client.worst_case(call))
        answer: LlmAnswer | None = None
        problem, outcome = "", "ok"
        try:
            answer = call_within_budget(client, call, budget)
            form = question.read(answer.input)
            problems = tuple(question.problems(form))
            if problems:
                problem, outcome = "; ".join(problems), "refused"
            return FilledForm(form=form, problems=problems)
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
                    answer=answer,
                    outcome=outcome,
                    problem=problem,
                    usage=budget.usage,
                    dollars=budget.dollars,
                    latency_s=budget.latency_s,
                    n_attempts=budget.n_attempts,
                    png=question.png,
                )
            )


def _call(question: Question, texts: Rendered, max_tokens: int, deadline_s: float) -> LlmCall:
    picture = () if question.png is None else (ImageBlock(png=question.png),)
    return LlmCall(
        agent=question.agent,
        node=question.node,
        system=(SystemBlock(text=texts.system, cacheable=True),),
        content=(*picture, TextBlock(text=texts.user)),
        tool=question.tool,
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
