"""One question to a language model, from values to a filled form: rendered, paid, sent, recorded, read.

An answer that does not fit the form is asked for once more with the reason, within the same deadline. Every
call leaves a record with the node and an event in the journal, whatever came of it. Not here: what is asked
(agents.py), transport (client.py), money (ledger.py).
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from llmzero_ray import events as ev
from llmzero_ray.agents.base import AgentName
from llmzero_ray.agents.llm.answers import read, tool
from llmzero_ray.agents.llm.call import ImageBlock, LlmAnswer, LlmCall, SystemBlock, TextBlock, Usage
from llmzero_ray.agents.llm.errors import ASK_AGAIN, LlmCallError
from llmzero_ray.agents.llm.ledger import LedgerEntry, Reservation
from llmzero_ray.agents.llm.metered import LlmClient, Purse, metered_call
from llmzero_ray.agents.llm.prompting import Prompts
from llmzero_ray.errors import AgentError, CapReachedError, ProposalError
from llmzero_ray.records import Event

logger = logging.getLogger(__name__)

_ROOM_TO_THINK = 4000
"""Tokens added to every answer's limit once one was cut off: some models think first, asked or not."""
_LEAST_S = 1.0
"""Seconds that must be left of a deadline to ask once more."""

Post: TypeAlias = Callable[[Event], None]
Keep: TypeAlias = Callable[[int, str, Mapping[str, Any], bytes | None], None]
"""(node, name, record, picture): puts a call's record with its node."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, of whom, and where its record goes."""

    agent: AgentName
    node: int
    name: str
    """Of the record, unique for the node: `proposer-0`."""
    stable: Mapping[str, Any]
    """Values of the system prompt: the same for the whole search."""
    call: Mapping[str, Any]
    """Values of this call."""
    png: bytes | None
    max_tokens: int
    rounds: int = 2
    """Times an answer may be asked for, the first included."""


class Caller:
    """Puts questions to one model; from any thread, several at once."""

    def __init__(
        self,
        *,
        prompts: Prompts,
        client: Callable[[int, str], LlmClient],
        purse: Purse,
        post: Post,
        keep: Keep,
        model: str,
        deadline_s: float,
        strict: bool = True,
    ) -> None:
        """`client` gives who answers the call of that node and name."""
        self.prompts = prompts
        self._client, self._purse, self._post, self._keep = client, purse, post, keep
        self._model, self._deadline_s, self._strict = model, deadline_s, strict
        self._room = 0

    def ask(self, question: Question) -> Any:
        """The filled form of the question's agent.

        Raises:
            CapReachedError: `budget.dollars` does not allow the call.
            AgentError: no usable answer within the deadline.
        """
        until = time.monotonic() + self._deadline_s
        values, problem = dict(question.call), AgentError("not asked")
        for round_ in range(question.rounds):
            left = until - time.monotonic()
            if round_ and left < _LEAST_S:
                break
            try:
                return self._once(question, f"{question.name}.{round_}", values, left)
            except ProposalError as error:
                problem = AgentError(str(error))
            except LlmCallError as error:
                if error.kind not in ASK_AGAIN:
                    raise
                problem = error
                if error.kind == "max_tokens":
                    self._room = _ROOM_TO_THINK
            values["rejected"] = str(problem)
        raise problem

    def _once(self, question: Question, name: str, values: Mapping[str, Any], deadline_s: float) -> Any:
        call = self._call(question, values, deadline_s)
        booking = _Booking(self._purse)
        answer: LlmAnswer | None = None
        problem, outcome = "", "ok"
        try:
            answer = metered_call(self._client(question.node, name), booking, call)
            return read(question.agent, answer.input)
        except ProposalError as error:
            problem, outcome = str(error), "schema"
            raise
        except CapReachedError as error:
            problem, outcome = str(error), "cap"
            raise
        except LlmCallError as error:
            problem, outcome = str(error), error.kind
            raise
        finally:
            self._note(question, name, call, booking.entry, answer, outcome, problem)

    def _call(self, question: Question, values: Mapping[str, Any], deadline_s: float) -> LlmCall:
        texts = self.prompts.render(question.agent, question.stable, values)
        picture = () if question.png is None else (ImageBlock(png=question.png),)
        return LlmCall(
            agent=question.agent,
            node=question.node,
            system=(SystemBlock(text=texts.system, cacheable=True),),
            content=(*picture, TextBlock(text=texts.user)),
            tool=tool(question.agent, strict=self._strict),
            max_tokens=question.max_tokens + self._room,
            deadline_s=deadline_s,
        )

    def _note(
        self,
        question: Question,
        name: str,
        call: LlmCall,
        entry: LedgerEntry | None,
        answer: LlmAnswer | None,
        outcome: str,
        problem: str,
    ) -> None:
        """Keep the record, then tell the journal; neither may cost the search its answer."""
        usage = Usage() if entry is None else entry.usage
        event = ev.AgentCalled(
            node=question.node,
            agent=question.agent,
            call=name,
            outcome=outcome,
            model=self._model,
            prompt=prompt_hash(call),
            input_tokens=usage.input,
            output_tokens=usage.output,
            cache_read_tokens=usage.cache_read,
            cache_creation_tokens=usage.cache_creation,
            dollars=0.0 if entry is None else entry.dollars,
            latency_s=0.0 if entry is None else round(entry.latency_s, 3),
            n_attempts=0 if answer is None else answer.n_attempts,
            source=f"call:{question.node}:{name}:{time.time_ns()}",
        )
        record = call_record(call, event, answer, problem, self.prompts.digest)
        if problem:
            logger.warning("node=%d %s: %s", question.node, name, problem)
        try:
            self._keep(question.node, name, record, question.png)
        except Exception:
            logger.exception("node=%d: the record of %s could not be written", question.node, name)
        self._post(event)


class _Booking:
    """A purse that remembers what it booked."""

    def __init__(self, purse: Purse) -> None:
        self._purse = purse
        self.entry: LedgerEntry | None = None

    def reserve(self, agent: str, node: int, worst: Usage) -> Reservation:
        return self._purse.reserve(agent, node, worst)

    def settle(
        self, reservation: Reservation, *, usage: Usage | None, latency_s: float, outcome: str
    ) -> LedgerEntry:
        self.entry = self._purse.settle(reservation, usage=usage, latency_s=latency_s, outcome=outcome)
        return self.entry


def prompt_hash(call: LlmCall) -> str:
    """sha256 over everything a call sends: texts, picture, tool."""
    parts = {
        "system": [block.text for block in call.system],
        "content": [
            block.text if isinstance(block, TextBlock) else base64.b64encode(block.png).decode()
            for block in call.content
        ],
        "tool": [call.tool.name, call.tool.description, dict(call.tool.schema)],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def call_record(
    call: LlmCall, event: ev.AgentCalled, answer: LlmAnswer | None, problem: str, digest: str
) -> dict[str, Any]:
    """A call as it is kept: texts, the picture's hash, the answer, tokens and price. Plain JSON data."""
    pictures = [block.png for block in call.content if isinstance(block, ImageBlock)]
    return {
        "agent": call.agent,
        "model": event.model,
        "prompts": digest,
        "prompt": event.prompt,
        "system": [block.text for block in call.system],
        "user": [block.text for block in call.content if isinstance(block, TextBlock)],
        "images": [hashlib.sha256(png).hexdigest() for png in pictures],
        "tool": {"name": call.tool.name, "schema": dict(call.tool.schema)},
        "max_tokens": call.max_tokens,
        "outcome": event.outcome,
        "problem": problem,
        "answer": None if answer is None else _answer_record(answer),
        "dollars": event.dollars,
        "latency_s": event.latency_s,
    }


def _answer_record(answer: LlmAnswer) -> dict[str, Any]:
    return {
        "input": dict(answer.input),
        "stop_reason": answer.stop_reason,
        "usage": asdict(answer.usage),
        "latency_s": round(answer.latency_s, 3),
        "n_attempts": answer.n_attempts,
        "model": answer.model,
        "request_id": answer.request_id,
    }
