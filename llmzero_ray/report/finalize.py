"""Ends an interrupted search from its journal, without Ray.

Phases that were running when their processes died end with their saved results, and the outcome is written.
Not here: ending actors that may still be running (actors/app.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from collections.abc import Collection
from pathlib import Path

from llmzero_ray.coordinator import CoordinatorCore, replay
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.journal import Journal, check_server
from llmzero_ray.records import Event, PhaseResult
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
        lost = {(e.node, e.phase_attempt) for e in journal.history if isinstance(e, ev.RunnerLost)}
        for run in [run for run in core.runs.values() if run.active and not run.started]:
            # If there is a result, the search was paused before the phase's end was journalled.
            outcome = storage.result(run.node, run.attempt, since=run.first_attempt)
            outcome = outcome or _until_pause(storage, run, core.config.slots.n_gpus, lost)
            if outcome is not None:
                post(ev.phase_ended(run.node, run.attempt, outcome))
        post(ev.UserStop(reason=reason))
        for run in [run for run in core.runs.values() if run.active and run.started]:
            post(_end_of(storage, run, core.config.slots.n_gpus))
        if any(isinstance(command, cmd.WriteOutcome) for command in core.outstanding()):
            post(ev.OutcomeWritten(problem=_write(storage)))
        remove_leftovers(storage, core)
    finally:
        lock.release()


def _until_pause(
    storage: SearchStorage, run: PhaseRun, n_gpus: int, lost: Collection[tuple[int | None, int | None]]
) -> PhaseResult | None:
    """Result of a phase that trained until the search was paused, from what its attempts saved.

    `lost` are the (node, attempt) whose runners were lost; their GPU hours are counted already.

    None if none has trained, or if it is the reference, which a stop cancels.
    """
    attempts = {point.attempt for point in load_points(storage, run.node)}
    last = max(attempts, default=-1)
    if run.spec is None or run.node == REFERENCE or last < run.first_attempt:
        return None
    left = lost_phase(storage, run.node, "the search was paused", n_gpus=n_gpus, attempt=last)
    reason = run.stop_reason or "user"
    ended = dataclasses.replace(run, salvaged=left, stop_reason=reason).as_ended()
    if (run.node, last) in lost:
        ended = dataclasses.replace(ended, gpu_hours=0.0)
    else:
        ended = dataclasses.replace(ended, stop_reason=f"{reason} (the search was paused)")
    return with_tokens(storage, run.spec, ended)


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
