"""Ends an interrupted search from its journal, without Ray.

Phases that were running when their processes died end with their saved results, and the outcome is written.
`interrupted_phases` is also used by a coordinator that resumes a search.
Not here: ending actors that may still be running (actors/app.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmzero_ray.coordinator import CoordinatorCore, replay
from llmzero_ray.coordinator.runs import INTERRUPTED, PhaseRun
from llmzero_ray.journal import Journal, check_server
from llmzero_ray.records import Event
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_points, lost_phase, with_tokens
from llmzero_ray.storage.presence import SearchLock, last_heartbeat


def finalize(storage: SearchStorage, reason: str) -> None:
    """End an interrupted search with the user's stop as its reason, and write its outcome.

    Raises:
        StorageError: a coordinator is running the search, or the directory cannot be written.
        JournalError: the journal is damaged.
    """
    root = storage.paths.root
    lock, before = SearchLock(root), last_heartbeat(root)
    lock.acquire(private_head=True, role="command")
    try:
        address = storage.journal_address()
        if not isinstance(address, Path):
            check_server(address)
        journal = Journal(address)
        core = replay(journal.history, root)

        async def append(event: Event) -> Event | None:
            return journal.append(event)

        def post(event: Event) -> None:
            asyncio.run(core.record(event, append))

        here, pid = socket.gethostname(), os.getpid()
        post(ev.CoordinatorStarted(epoch=journal.epoch, host=here, pid=pid, previous_alive=before))
        for event in interrupted_phases(storage, core, journal.history):
            post(event)
        for run in [run for run in core.runs.values() if run.active and not run.started]:
            waits = run.active and not run.given_up  # the end of another one may have ended the search
            if waits and run.salvaged is not None and run.node != REFERENCE:  # a stop cancels the reference
                ended = dataclasses.replace(run, stop_reason=run.stop_reason or "user").as_ended()
                post(ev.phase_ended(run.node, run.attempt, ended))
        post(ev.UserStop(reason=reason))
        for run in [run for run in core.runs.values() if run.active and run.started]:
            post(_end_of(storage, run, core.config.slots.n_gpus))
        if core.stage == "measuring":  # the search was ending for another reason
            post(ev.UserStop(reason=reason))
        if any(isinstance(command, cmd.WriteOutcome) for command in core.outstanding()):
            post(ev.OutcomeWritten(problem=_write(storage)))
        remove_leftovers(storage, core)
    finally:
        lock.release()


def interrupted_phases(
    storage: SearchStorage, core: CoordinatorCore, history: Sequence[Event]
) -> Iterator[Event]:
    """Events with what phases that wait for their slots had saved before the search was interrupted. An
    attempt whose loss is in the journal is left out, and the reference.

    If a phase has a result, the search was interrupted before its end was journalled.
    """
    lost = {(event.node, event.phase_attempt) for event in history if isinstance(event, ev.RunnerLost)}
    ends: list[Event] = []
    for run in [run for run in core.runs.values() if run.active and not run.started]:
        outcome = storage.result(run.node, run.attempt, since=run.first_attempt)
        last = max((point.attempt for point in load_points(storage, run.node)), default=-1)
        untold = last >= run.first_attempt and (run.node, last) not in lost
        if outcome is not None:
            ends.append(ev.phase_ended(run.node, run.attempt, outcome))
            untold = len(ends) > 1 and not run.has_result  # the first end may stop the search
        if run.spec is None or run.node == REFERENCE or not untold:
            continue
        left = lost_phase(storage, run.node, INTERRUPTED, n_gpus=core.config.slots.n_gpus, attempt=last)
        left = with_tokens(storage, run.spec, dataclasses.replace(left, cause=INTERRUPTED))
        if left != run.salvaged or outcome is not None:
            yield ev.PhaseInterrupted(
                node=run.node, phase_attempt=run.attempt, salvaged=left, ended=outcome is not None
            )
    yield from ends  # an end may stop the search, and with it the phases that have not ended


def _end_of(storage: SearchStorage, run: PhaseRun, n_gpus: int) -> Event:
    """Event for a phase whose runner has died: its result if it was written, otherwise its loss with what was
    saved."""
    outcome = storage.result(run.node, run.attempt, since=run.first_attempt)
    if outcome is not None:
        return ev.phase_ended(run.node, run.attempt, outcome)
    left = lost_phase(storage, run.node, "the search was stopped", n_gpus=n_gpus, attempt=run.attempt)
    return ev.RunnerLost(
        slot=run.slot,
        node=run.node,
        phase_attempt=run.attempt,
        reason="the search no longer had a coordinator",
        salvaged=left if run.spec is None else with_tokens(storage, run.spec, left),
    )


def _write(storage: SearchStorage) -> str:
    from llmzero_ray.report import write_outcome

    try:
        return write_outcome(storage).problem
    except Exception as error:  # noqa: BLE001 - the search must end even without its report
        return f"{type(error).__name__}: {error}"


def remove_leftovers(storage: SearchStorage, core: CoordinatorCore) -> None:
    """Finish deletions of adapters that a crash interrupted, and remove partial files. Called after the last
    event."""
    for deletion in core.deletions:
        for item in deletion.items:
            storage.delete_adapter(item.node, item.step)
    storage.sweep()
