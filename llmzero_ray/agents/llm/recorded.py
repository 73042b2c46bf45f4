"""Recorded responses of an earlier search instead of a language model: no network, no key, no cost.

Every prompt is rendered from the current state and its hash is journalled, so that a changed prompt or a
different course of the search is visible. The response is the recorded one of the same node and call. A phase
that a verdict ended is ended at the recorded step, because the time of a verdict cannot be reproduced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.agents.llm.budget import CallBudget, LlmClient
from llmzero_ray.agents.llm.call_records import prompt_hash
from llmzero_ray.agents.llm.errors import LlmCallError
from llmzero_ray.agents.llm.messages import LlmCall, LlmResponse, Usage
from llmzero_ray.errors import ConfigError
from llmzero_ray.journal import read_all
from llmzero_ray.records.events import ApprovalAnswered, PhaseFinished

_STEP = re.compile(r"^(early_stopper)-(\d+)\.0$")


class RecordedResponses:
    """Recorded calls below `<search>/nodes/*/agents/`."""

    def __init__(self, search: str) -> None:
        """Raises ConfigError if the directory holds no recorded call."""
        self._nodes = Path(search) / "nodes"
        if not any(self._nodes.glob("*/agents/*.call.json")):
            raise ConfigError(
                f"agents.recorded_from is {search}: no recorded call of a language model was found below it; "
                "name the directory of a search that was run with agents.backend: claude."
            )

    def client(self, node: int, name: str) -> RecordedClient:
        """Client that returns the recorded response to the call of that name."""
        return RecordedClient(self._find(node, name), f"{name} of node {node}")

    def _find(self, node: int, name: str) -> dict[str, Any] | None:
        folder = self._nodes / f"{node:04d}" / "agents"
        exact = folder / f"{name}.call.json"
        if exact.is_file():
            return _read(exact)
        match = _STEP.match(name)
        if match is None:
            return None
        # A phase is judged at the step it reported last, which may differ by a few between searches.
        steps = {
            int(found[2]): path
            for path in folder.glob("early_stopper-*.call.json")
            if (found := _STEP.match(path.name.removesuffix(".call.json"))) is not None
        }
        before = [step for step in steps if step <= int(match[2])]
        return _read(steps[max(before)]) if before else None


def recorded_course(search: str) -> dict[str, Any]:
    """Decisions that are replayed as facts: `stops` (node -> [training steps, reason] of each phase that a
    verdict ended) and `approvals` (`NODE-TRIES` -> the user's answer to that proposal). Empty if there is no
    journal with the records.

    Raises:
        JournalError: the journal cannot be read.
    """
    journal = Path(search) / "journal"
    if not journal.is_dir():
        return {}
    events = read_all(journal)
    ended = [event.result for event in events if isinstance(event, PhaseFinished)]
    return {
        "stops": {
            str(one.node): [one.steps_done, one.stop_reason] for one in ended if one.status == "early_stopped"
        },
        "approvals": {
            f"{one.node}-{one.tries}": {
                "accepted": one.accepted,
                "changes": dict(one.changes),
                "n_steps": one.n_steps,
                "reason": one.reason,
            }
            for one in events
            if isinstance(one, ApprovalAnswered)
        },
    }


class RecordedClient:
    """Client that returns one recorded response."""

    def __init__(self, record: dict[str, Any] | None, what: str) -> None:
        self._record, self._what = record, what

    def call(self, call: LlmCall, budget: CallBudget) -> LlmResponse:
        """Recorded response with its tokens.

        Raises:
            LlmCallError: none was recorded, or the recorded call failed.
        """
        budget.reserve()  # no request is sent
        return self.answer(call)

    def answer(self, call: LlmCall) -> LlmResponse:
        """`call` without a budget."""
        if self._record is None:
            raise LlmCallError(f"No answer was recorded for {self._what}.", kind="not_found")
        response = self._record.get("answer")
        if response is None:
            kind, problem = self._record.get("outcome", "empty"), self._record.get("problem", "")
            raise LlmCallError(f"Recorded for {self._what}: {problem}", kind=kind)
        return LlmResponse(
            input=response["input"],
            stop_reason=response["stop_reason"],
            usage=Usage(**response["usage"]),
            latency_s=0.0,
            n_attempts=0,
            model=response["model"],
            request_id=response["request_id"],
            content=tuple(response.get("content") or _tool_use(call, response["input"])),
            tool=response.get("tool", ""),
        )

    def worst_case(self, call: LlmCall) -> Usage:  # noqa: ARG002
        """Tokens of the recorded response, which cost nothing."""
        response = (self._record or {}).get("answer")
        return Usage() if response is None else Usage(**response["usage"])


class ResumingClient:
    """Client that repeats answers received before the process died, at no cost, and asks another client for
    everything else."""

    def __init__(self, answered: Mapping[str, dict[str, Any]], client: LlmClient) -> None:
        """`answered` maps the hash of a prompt to the record of its call (`answered_calls`)."""
        self._answered, self._client = answered, client

    def call(self, call: LlmCall, budget: CallBudget) -> LlmResponse:
        """The recorded response, or the client's. Raises LlmCallError."""
        recorded = self._recorded(call)
        return self._client.call(call, budget) if recorded is None else recorded.answer(call)

    def worst_case(self, call: LlmCall) -> Usage:
        """Recorded tokens, or the client's upper bound."""
        recorded = self._recorded(call)
        return self._client.worst_case(call) if recorded is None else recorded.worst_case(call)

    def _recorded(self, call: LlmCall) -> RecordedClient | None:
        record = self._answered.get(prompt_hash(call))
        return None if record is None else RecordedClient(record, call.agent)


def recorded_calls(folder: Path) -> dict[str, dict[str, Any]]:
    """Name -> record of every call in a node's folder.

    Raises:
        LlmCallError: a record cannot be read.
    """
    return {path.name.removesuffix(".call.json"): _read(path) for path in sorted(folder.glob("*.call.json"))}


def answered_calls(records: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Hash of the prompt -> record, for calls that got an answer."""
    return {record["prompt"]: record for record in records.values() if record["answer"] is not None}


def _tool_use(call: LlmCall, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Content blocks for an answer whose record has only the tool's input."""
    return [{"type": "tool_use", "id": "recorded", "name": call.tool.name, "input": answer}]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LlmCallError(f"The record {path} cannot be read: {error}", kind="malformed") from error
    if not isinstance(found, dict):
        raise LlmCallError(f"The record {path} is not an object.", kind="malformed")
    return {key: _plain(value) for key, value in found.items()}


def _plain(data: Any) -> Any:
    """The data with answer blocks as mappings again. Records store a mapping that has a key `type`, such as a
    block, as a list of items."""
    if isinstance(data, list):
        return [_plain(value) for value in data]
    if not isinstance(data, dict):
        return data
    if data.keys() == {"type", "items"} and data["type"] == "Mapping":
        return {key: _plain(value) for key, value in data["items"]}
    return {key: _plain(value) for key, value in data.items()}
