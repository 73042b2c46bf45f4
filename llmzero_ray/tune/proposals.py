"""Proposals for the phases of a search under Tune: requested on threads, checked on the controller's.

A proposer may take minutes (a language model), but Tune's controller is one thread. Therefore the proposer is
called on another thread, with everything it may see as values. Its answer is checked like the proposals of
any search: names, bounds, couplings, an offered checkpoint, no duplicate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmzero_ray.errors import HyperparameterError, ProposalError
from llmzero_ray.records import Change, Diagnosis, Proposal, ResumeFrom
from llmzero_ray.records.agents import (
    Budget,
    ErrorRequest,
    OfferedCheckpoint,
    ProposalRequest,
    TaskView,
    base_of_changes,
)
from llmzero_ray.search import nearest_saved_step
from llmzero_ray.tune.any_space import AnySpaceProposer, best_checkpoint
from llmzero_ray.tune.state import TunePhase, TuneSearch
from llmzero_ray.utils.text import number_ranges, one_line

log = logging.getLogger(__name__)
MAX_TRIES = 3
"""Proposals of one node: the first and two corrections; after that the local search proposes."""
_NO_LIMIT = 1_000_000
"""Placeholder for limits of rows, tokens and steps: the space already holds what a trainable can take."""

Answer = Proposal | Mapping[str, Any]
"""A proposal, or only name -> new value, from the best offered checkpoint."""


@dataclass(kw_only=True)
class Asked:
    """A node with a pending proposal."""

    request: ProposalRequest
    future: Future[Answer]


class AsyncProposals:
    """Requests, checks and repeats proposals of one search."""

    def __init__(self, search: TuneSearch, proposer: Any, seed: int = 1) -> None:
        self._search, self._proposer = search, proposer
        self._local = AnySpaceProposer(search.space, seed=seed)
        self._asked: dict[int, Asked] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_asked": {}}

    # --- asking ---------------------------------------------------------------------------------------------

    def request(self, node: int) -> None:
        """Request the proposal of a begun node, unless it is pending."""
        if node not in self._asked:
            self._ask(self._request_for(self._search.phases[node]))

    def collect(self) -> None:
        """Plan the nodes whose proposals have arrived. Rejected ones are requested again."""
        for node, asked in list(self._asked.items()):
            if asked.future.done():
                del self._asked[node]
                self._take(node, asked)

    def wait(self, timeout_s: float) -> None:
        """Wait for a proposal, at most that long."""
        pending = [asked.future for asked in self._asked.values()]
        if pending:
            came = threading.Event()
            for future in pending:
                future.add_done_callback(lambda _: came.set())
            came.wait(timeout_s)

    def open_directory(self, directory: Path) -> None:
        """Let a proposer that keeps files do so there (language_model.py)."""
        keep = getattr(self._proposer, "open_directory", None)
        if callable(keep):
            keep(directory)

    def forget(self) -> None:
        """Drop pending proposals: the search was replaced by the one of the records."""
        self._asked = {}

    def _ask(self, request: ProposalRequest) -> None:
        future: Future[Answer] = Future()
        node = request.node or 0
        self._asked[node] = Asked(request=request, future=future)
        # A daemon: an experiment that ends does not wait for a model's answer.
        threading.Thread(
            target=_answer, args=(future, self._call, request), name=f"propose-{node}", daemon=True
        ).start()

    def _call(self, request: ProposalRequest) -> Answer:
        failed = request.on.status == "failed" and not request.from_scratch
        analyze = getattr(self._proposer, "analyze", None)
        if failed and callable(analyze):
            found: Answer = analyze(_error_request(request))
            return found
        propose: Callable[[ProposalRequest], Answer] = getattr(self._proposer, "propose", self._proposer)
        return propose(request)

    def _take(self, node: int, asked: Asked) -> None:
        phase, request = self._search.phases[node], asked.request
        error = asked.future.exception()
        try:
            if error is not None:
                raise ProposalError(f"the proposer failed: {type(error).__name__}: {error}")
            self._plan(phase, request, asked.future.result())
        except ProposalError as refused:
            log.warning(
                "node=%d proposal %d refused: %s", node, request.tries + 1, one_line(str(refused), 500)
            )
            if request.tries + 1 < MAX_TRIES:
                self._ask(replace(request, rejected=str(refused), tries=request.tries + 1))
            else:
                self._plan(phase, request, self._local.propose(request), may_copy=True)

    # --- requests -------------------------------------------------------------------------------------------

    def _request_for(self, phase: TunePhase) -> ProposalRequest:
        search = self._search
        assert phase.on is not None
        offered = search.tree.offered_checkpoint_nodes(phase.node)
        on = search.view(phase.on)
        best = search.tree.best
        steps = search.phase_steps or max(max(search.phases[0].steps, default=1), 1)
        path = search.tree.resume_chain(phase.on)
        return ProposalRequest(
            task=TaskView(
                name=search.metric,
                n_train=_NO_LIMIT,
                phase_steps=steps,
                max_phase_steps=_NO_LIMIT,
                max_model_len=_NO_LIMIT,
                max_prompt_length=_NO_LIMIT,
            ),
            on=on,
            path=tuple(search.view(node) for node in path),
            siblings=tuple(
                search.view(node) for node in search.tree.node(phase.on).children if node != phase.node
            ),
            best=None if best is None else search.view(best.id),
            default=search.root,
            checkpoints=tuple(
                OfferedCheckpoint(
                    node=node,
                    step=step,
                    global_step=search.phases[node].base_step + step,
                    val_score=search.phases[node].steps[step].score,
                )
                for node in offered
                for step in sorted(search.phases[node].checkpoints)
                if step in search.phases[node].steps
            ),
            from_scratch=phase.kind == "scratch",
            n_scratch=sum(p.kind in ("root", "scratch") for p in search.phases.values()),
            node=phase.node,
            budget=Budget(runs=search.budget - len(search.phases)),
            tree=tuple(
                replace(view, curves=view.curves.outline())
                for node in search.phases
                if node != phase.node
                for view in (search.view(node),)
            ),
        )

    # --- checks ---------------------------------------------------------------------------------------------

    def _plan(
        self, phase: TunePhase, request: ProposalRequest, answer: Answer, *, may_copy: bool = False
    ) -> None:
        """Plan the phase, or reject the answer with a reason for its author.

        Raises:
            ProposalError: what is wrong, and what is allowed.
        """
        search = self._search
        proposal = answer if isinstance(answer, Proposal) else self._as_proposal(request, answer)
        source = self._source(phase, proposal.resume_from)
        failed = phase.kind == "debug"
        base = base_of_changes(
            phase.kind,
            on=request.on.hyperparameters,
            source=None if source is None else search.phases[source.node].configuration,
            root=search.root,
        )
        try:
            named = search.trials.named({change.key: change.new for change in proposal.changes})
            wanted = {
                key: search.space.proposed(key, value)
                for name, value in named.items()
                for key in (search.space.canonical(name),)
            }
            full = search.space.complete(base, wanted)
            if source is not None:
                start = search.phases[source.node].configuration or {}
                search.space.check_transition(start, full, resumed=True)
        except HyperparameterError as error:
            raise ProposalError(str(error)) from error
        twin = next(
            (
                other
                for other in search.phases.values()
                if other.configuration is not None
                and other.resume_from == source
                and not (failed and other.status == "failed")
                and search.space.same_training(other.configuration, full)
            ),
            None,
        )
        if twin is not None and not may_copy:
            raise ProposalError(
                f"this phase would be a copy of node {twin.node}, which is {twin.status}: it starts from the "
                "same checkpoint with the same configuration. Start from another step, or change something."
            )
        n_steps = search.phase_steps
        if n_steps is not None and proposal.n_steps >= 1:
            n_steps = proposal.n_steps
        search.plan(phase.node, full, n_steps, source, proposal.diagnosis, proposal.rationale)

    def _as_proposal(self, request: ProposalRequest, answer: object) -> Proposal:
        if not isinstance(answer, Mapping):
            raise ProposalError(
                f"the proposer gave {type(answer).__name__}; must be a Proposal, or a mapping from names of "
                "the space to new values."
            )
        if request.on.status == "failed" and not request.from_scratch:
            start = request.on.resume_from
        else:
            chosen = best_checkpoint(request.checkpoints)
            start = None if chosen is None else ResumeFrom(node=chosen.node, step=chosen.step)
        return Proposal(
            diagnosis=Diagnosis(state="unknown", summary=""),
            changes=tuple(
                Change(key=str(key), old=None, new=value, reason="") for key, value in answer.items()
            ),
            resume_from=start,
            n_steps=request.task.phase_steps,
            total_epochs=None,
            rationale="",
            agent="callable",
        )

    def _source(self, phase: TunePhase, wanted: ResumeFrom | None) -> ResumeFrom | None:
        """The saved checkpoint nearest to the wanted one."""
        if wanted is None:
            return None
        offered = self._search.tree.offered_checkpoint_nodes(phase.node)
        saved = sorted(self._search.phases[wanted.node].checkpoints) if wanted.node in offered else []
        if not saved:
            with_some = [node for node in offered if self._search.phases[node].checkpoints]
            allowed = f"a checkpoint of node {', '.join(map(str, with_some))}" if with_some else "none (null)"
            raise ProposalError(
                f"resume_from names node {wanted.node} step {wanted.step}, which is not offered; allowed: "
                f"{allowed}."
            )
        step = nearest_saved_step(saved, wanted.step)
        if step is None:
            raise ProposalError(
                f"resume_from names step {wanted.step} of node {wanted.node}; saved are "
                f"{number_ranges(saved)}."
            )
        return ResumeFrom(node=wanted.node, step=step)


def _answer(
    future: Future[Answer], call: Callable[[ProposalRequest], Answer], request: ProposalRequest
) -> None:
    try:
        future.set_result(call(request))
    except BaseException as error:  # noqa: BLE001 - it is the controller's to judge
        future.set_exception(error)


def _error_request(request: ProposalRequest) -> ErrorRequest:
    known = {view.node: view for view in (*request.tree, request.on)}
    chain = [request.on]
    while chain[-1].kind == "debug" and chain[-1].parent in known:
        chain.append(known[chain[-1].parent or 0])
    return ErrorRequest(
        task=request.task,
        failed=request.on,
        chain=tuple(reversed(chain)),
        default=request.default,
        checkpoints=request.checkpoints,
        rejected=request.rejected,
        node=request.node,
        tries=request.tries,
        budget=request.budget,
    )
