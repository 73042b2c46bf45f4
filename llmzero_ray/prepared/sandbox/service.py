"""Sandbox for callers on any thread, for the lifetime of this process: rewards in training.

One thread owns the sandbox, whose process ends with it, and scores waiting rows in batches. A row that hangs
or kills the reward's process gets no score, and the process is replaced. A reward that does so repeatedly, or
cannot be started, is given up until `renew`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from llmzero_ray.errors import LlmzeroError, RewardError
from llmzero_ray.prepared.sandbox.scorer import CallOutcome, Sandbox

_BATCH = 256
_FORGIVEN = 1_000
"""Rows after which lost processes are counted from zero again: one answer in thousands may hang a reward."""


class SandboxService:
    """Service with the arguments of `Sandbox`. The sandbox starts at once, in the background."""

    def __init__(self, path: str, name: str, **options: Any) -> None:
        self._path, self._name, self._options = path, name, options
        self._sandbox: Sandbox | None = None
        self._broken: str | None = None
        self._scored = 0
        self._waiting: queue.SimpleQueue[tuple[Mapping[str, Any], Future[CallOutcome]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._serve, daemon=True, name="reward-sandbox")
        self._thread.start()

    def submit(self, row: Mapping[str, Any]) -> Future[CallOutcome]:
        """Future with the outcome of one row, done at the latest when the time limits of all rows before it
        and its own have run out.

        The future raises RewardError when the reward has been given up.
        """
        found: Future[CallOutcome] = Future()
        self._waiting.put((row, found))
        return found

    def renew(self) -> None:
        """Give a reward that was given up another try, with the next row."""
        self._broken, self._scored = None, _FORGIVEN

    def close(self) -> None:
        """End the sandbox once all submitted rows are scored. Rows submitted later are never scored."""
        self._waiting.put(None)
        self._thread.join()

    def _serve(self) -> None:
        self._start()
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while len(batch) < _BATCH and not self._waiting.empty():
                if (more := self._waiting.get()) is None:
                    self._waiting.put(None)
                    break
                batch.append(more)
            batch = [(row, found) for row, found in batch if found.set_running_or_notify_cancel()]
            outcomes = self._score([row for row, _ in batch])
            for (_, found), outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, RewardError):
                    found.set_exception(outcome)
                else:
                    found.set_result(outcome)
        if self._sandbox is not None:
            self._sandbox.close()

    def _start(self) -> None:
        try:
            self._sandbox = Sandbox(self._path, self._name, **self._options)
        except Exception as error:  # noqa: BLE001  the thread must live; the callers are told
            self._broken = _why(error)

    def _score(self, rows: list[Mapping[str, Any]]) -> list[CallOutcome | RewardError]:
        if self._broken is None and self._sandbox is None:
            self._start()
        if self._sandbox is None or self._broken is not None:
            return [RewardError(str(self._broken))] * len(rows)
        if self._scored >= _FORGIVEN:
            self._sandbox.forget_losses()
            self._scored = 0
        try:
            outcomes = self._sandbox.score(rows)
        except Exception as error:  # noqa: BLE001  it could not be started again
            self._sandbox.close()
            self._sandbox = None
            self._broken = _why(error)
            return [RewardError(self._broken)] * len(rows)
        self._scored += len(rows)
        given_up = next((outcome for outcome in outcomes if not outcome.tried), None)
        if given_up is None:
            return list(outcomes)
        self._broken = f"the reward {given_up.problem}"
        return [outcome if outcome.tried else RewardError(self._broken) for outcome in outcomes]


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, LlmzeroError) else f"{type(error).__name__}: {error}"
