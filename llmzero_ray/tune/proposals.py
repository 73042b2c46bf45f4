"""Proposals for the phases of a search under Tune: requested on threads, recorded on the controller's thread.

A proposer such as a language model may take minutes, and Tune's controller has one thread. The proposer
therefore runs on another thread and gets everything it may see as values. The core checks its answer as in
any search.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from llmzero_ray.errors import HyperparameterError, JournalError, ProposalError
from llmzero_ray.records import Change, Diagnosis, Event, Proposal, from_json, to_json
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ErrorRequest, ProposalRequest
from llmzero_ray.tune.any_space import best_start
from llmzero_ray.tune.state import NO_LIMIT, TuneSearch
from llmzero_ray.utils.threads import in_thread

Answer = Proposal | Mapping[str, Any]
"""A proposal, or a mapping name -> new value, which starts from the best offered checkpoint."""


class AsyncProposals:
    """Requests the proposals of one search, and posts the answers."""

    def __init__(self, search: TuneSearch, proposer: Any) -> None:
        self._search, self._proposer = search, proposer
        self._asked: list[tuple[ProposalRequest, Future[Answer]]] = []
        attach = getattr(proposer, "attach", None)
        if callable(attach):  # a language model, whose calls are events of the search
            attach(search)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_asked": []}

    def collect(self) -> None:
        """Post the answers that have arrived, and request the proposals that the search waits for."""
        for asked in [asked for asked in self._asked if asked[1].done()]:
            self._asked.remove(asked)
            self._search.post(self._answered(*asked))
        while self._search.to_ask:
            self._ask(self._search.to_ask.pop(0))

    def wait(self, timeout_s: float) -> None:
        """Wait for a proposal, at most that long."""
        if self._asked:
            came = threading.Event()
            for _, future in self._asked:
                future.add_done_callback(lambda _: came.set())
            came.wait(timeout_s)

    def _ask(self, command: cmd.Propose | cmd.Analyze) -> None:
        propose = cmd.Propose(
            id=command.id,
            node=command.node,
            on=command.on,
            from_scratch=isinstance(command, cmd.Propose) and command.from_scratch,
            rejected=command.rejected,
            tries=command.tries,
        )
        request = self._search.request(propose)
        assert isinstance(request, ProposalRequest)
        call: Any = getattr(self._proposer, "propose", self._proposer)
        shown: ProposalRequest | ErrorRequest = request
        analyze = getattr(self._proposer, "analyze", None)
        if isinstance(command, cmd.Analyze) and callable(analyze):
            call, shown = analyze, self._search.request(command)
        # An experiment that ends does not wait for a model's answer.
        self._asked.append((request, in_thread(partial(call, shown))))

    def _answered(self, request: ProposalRequest, future: Future[Answer]) -> Event:
        node, error = request.node or 0, future.exception()
        try:
            if error is not None:
                raise ProposalError(f"the proposer failed: {type(error).__name__}: {error}")
            proposal = self._checked(request, future.result())
        except ProposalError as refused:
            return ev.ProposalRefused(node=node, message=str(refused), tries=request.tries + 1)
        return ev.Proposed(node=node, proposal=proposal, tries=request.tries)

    def _checked(self, request: ProposalRequest, answer: object) -> Proposal:
        """The answer as a proposal with the space's names and values.

        Raises:
            ProposalError: it is not a proposal, or has a name or a value outside the space.
        """
        proposal = answer if isinstance(answer, Proposal) else _proposal(request, answer)
        _check_fields(proposal)
        search, changes = self._search, []
        named = search.trials.named({change.key: change.new for change in proposal.changes})
        try:
            for change in proposal.changes:
                key = search.space.canonical(change.key)
                value = search.space.proposed(key, named[change.key])
                changes.append(replace(change, key=key, new=value))
        except HyperparameterError as error:
            raise ProposalError(str(error)) from error
        n_steps = NO_LIMIT if search.phase_steps is None else max(proposal.n_steps, 1)
        return replace(proposal, changes=tuple(changes), n_steps=n_steps)


def _check_fields(proposal: Proposal) -> None:
    """Check that the journal can keep a proposal. Its values are checked with the space.

    Raises:
        ProposalError: a field is not of its type.
    """
    problem = "the proposer gave a Proposal with a wrong field"
    changes = proposal.changes
    if not isinstance(changes, list | tuple) or not all(isinstance(each, Change) for each in changes):
        raise ProposalError(f"{problem}: changes must be a tuple of Change(key=, old=, new=, reason=).")
    unvalued = tuple(replace(change, old=None, new=None) for change in changes)
    try:
        from_json(to_json(replace(proposal, changes=unvalued)))
    except JournalError as error:
        raise ProposalError(f"{problem}: {error}") from error


def _proposal(request: ProposalRequest, answer: object) -> Proposal:
    if not isinstance(answer, Mapping):
        raise ProposalError(
            f"the proposer gave {type(answer).__name__}; must be a Proposal, or a mapping from names of "
            "the space to new values."
        )
    if request.on.status == "failed" and not request.from_scratch:
        start = request.on.resume_from
    else:
        start = best_start(request.checkpoints)
    return Proposal(
        diagnosis=Diagnosis(state="unknown", summary=""),
        changes=tuple(Change(key=str(key), old=None, new=new, reason="") for key, new in answer.items()),
        resume_from=start,
        n_steps=request.task.phase_steps,
        rationale="",
        agent="callable",
    )
