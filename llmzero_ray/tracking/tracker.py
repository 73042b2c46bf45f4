"""Tracker of a search: follows its files, feeds one process per run and backend, and sends alerts.

    python -m llmzero_ray.tracking.tracker DIRECTORY

The first line of the standard input is a JSON object: `variables`, the environment of those processes (the
trackers' keys), and `settings`, the block `tracking`. When the input or the search ends, the runs are
finished within `tracking.finish_s`. Exit code 1: something could not be sent; the log says what, and the next
tracker of the search sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.config import TrackingConfig
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import LlmzeroError
from llmzero_ray.journal import trust
from llmzero_ray.records.events import PhaseFailed, PhaseFinished
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.api_key import NOTIFY_URLS
from llmzero_ray.utils.logs import log_to

from .alerts import BACKEND as ALERTS
from .alerts import Alerts
from .backend_process import FAILED, INCOMPLETE, OPTUNA, RunOpening, last_step
from .runs import SUMMARY, TrackedPoint, TrackedRun, node_points, node_run, summary_points, summary_run

logger = logging.getLogger("llmzero_ray.tracking.tracker")
_LOOK_S = 2.0
_AGAIN_S = 30.0
_AGAIN_MAX_S = 600.0
"""Maximum seconds until a rejected run is retried; the first time it is `_AGAIN_S`."""
_AT_ONCE = 2
"""Maximum runs of ended phases that one backend has open at a time."""
_NICE = 10
_TAIL = 2000


class RunFeed:
    """One run in one backend: its points so far, and the process that passes them on."""

    def __init__(
        self, opening: RunOpening, log: Path, ended: asyncio.Semaphore, finishing: asyncio.Event
    ) -> None:
        """`ended` limits the concurrent runs of ended phases. Once `finishing` is set, a failed try is not
        repeated."""
        self._opening, self._log, self._ended_runs, self._finishing = opening, log, ended, finishing
        self._points: dict[int, TrackedPoint] = {}
        self._changed, self._closed = asyncio.Event(), False
        self.failed = False
        self.task = asyncio.create_task(self._run())

    @property
    def what(self) -> str:
        """Backend and run, for messages."""
        return f"{self._opening.backend}, run {self._opening.name}"

    @property
    def missing(self) -> int:
        """Number of points that have not been given to the backend."""
        done = last_step(Path(self._opening.state))
        return sum(step > done for step in self._points)

    def offer(self, points: Iterable[TrackedPoint]) -> None:
        """Add new points. A known step keeps its values."""
        for point in points:
            if point.step not in self._points:
                self._points[point.step] = point
                self._changed.set()

    def close(self) -> None:
        """Record that no more points will come."""
        self._closed = True
        self._changed.set()

    async def _run(self) -> None:
        again_s = _AGAIN_S
        while True:
            while not self.missing and not self._closed:
                await self._wait()
            if not self.missing:
                return
            last = self._finishing.is_set()
            async with self._ended_runs if self._closed else contextlib.nullcontext():
                code = await self._feed()
            if code in (0, INCOMPLETE):
                self.failed = code == INCOMPLETE
                if self.failed:
                    logger.warning("%s: some points were not taken: %s", self.what, self._reason())
                return
            logger.warning("%s failed (exit code %d): %s", self.what, code, self._reason())
            if last:
                self.failed = True
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finishing.wait(), again_s)
            again_s = min(2 * again_s, _AGAIN_MAX_S)

    async def _feed(self) -> int:
        """Exit code of one process that receives the missing points, then new ones."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "llmzero_ray.tracking.backend_process",
                stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip
        assert process.stdin is not None
        try:
            await self._hand_over(process.stdin)
        except OSError:  # it has ended: its exit code says how
            logger.debug("%s: its process ended early", self.what)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:  # this task is cancelled
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    async def _hand_over(self, pipe: asyncio.StreamWriter) -> None:
        pipe.write(json.dumps(dataclasses.asdict(self._opening), default=str).encode() + b"\n")
        sent = last_step(Path(self._opening.state))
        try:
            while True:
                self._changed.clear()
                for step in sorted(step for step in self._points if step > sent):
                    pipe.write(json.dumps([step, dict(self._points[step].values)]).encode() + b"\n")
                    await pipe.drain()
                    sent = step
                if self._closed:
                    break
                await self._wait(pipe)
        finally:
            pipe.close()

    async def _wait(self, pipe: asyncio.StreamWriter | None = None) -> None:
        """Wait until there are new points or no more will come.

        Raises:
            ConnectionError: the process has died.
        """
        while not self._changed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_S)
            if pipe is not None and pipe.is_closing():
                raise ConnectionResetError
        if pipe is None:
            self._changed.clear()

    def _reason(self) -> str:
        """Last output line of the process."""
        try:
            text = self._log.read_bytes()[-_TAIL:].decode(errors="replace")
        except OSError as error:
            return str(error)
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


class SearchTracker:
    """All runs of one search in all backends of its configuration."""

    def __init__(
        self, storage: SearchStorage, variables: Mapping[str, str], settings: TrackingConfig
    ) -> None:
        """`settings` name VeRL's trackers and `apprise`; `variables` are for the backends' processes."""
        self._storage, self.settings = storage, settings
        given = {**settings.variables, **variables}
        self._variables = {name: value for name, value in given.items() if name != NOTIFY_URLS}
        self._backends = [name for name in settings.backends if name != ALERTS]
        state = storage.paths.root / "tracking" / "state" / "alerts.json"
        self._alerts = Alerts(state, given) if ALERTS in settings.backends else None
        config = storage.config()
        trust(None if config is None else config.journal_address)
        self._follower = Follower(storage)
        self._feeds: dict[tuple[str, str], RunFeed] = {}
        self._done: set[int] = set()
        self._unread: set[int] = set()
        # One semaphore per backend, so that a backend that hangs only delays its own runs.
        self._ended_runs = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(_AT_ONCE))
        self._finishing = asyncio.Event()

    @property
    def finished(self) -> bool:
        """Whether the search has ended."""
        return self._follower.finished is not None

    def look(self) -> None:
        """Read new data and pass it on.

        Raises:
            LlmzeroError: the journal cannot be read.
        """
        new = self._follower.poll()
        core = self._follower.core
        if core.started is None:
            return
        for run in core.runs.values():
            # A phase that was lost and ends as it was has points, but no attempt that is started.
            begun = run.started or run.outcome is not None
            if run.spec is None or not begun or run.node in self._done:
                continue
            try:
                points = tuple(node_points(self._storage, run))
            except (OSError, ValueError) as error:  # the other runs, and alerts, do not wait for it
                if run.node not in self._unread:
                    logger.warning("the points of node %d cannot be read: %s", run.node, error)
                self._unread.add(run.node)
                continue
            self._unread.discard(run.node)
            feeds = self._feeds_of(node_run(core, run.node))
            for feed in feeds:
                feed.offer(points)
            if not run.active:
                self._done.add(run.node)
                for feed in feeds:
                    feed.close()
        if any(isinstance(event, PhaseFinished | PhaseFailed) for event in new):
            points = tuple(summary_points(core, self._follower.events))
            for feed in self._feeds_of(summary_run(core)):
                feed.offer(points)
        if self._alerts is not None:
            self._alerts.look(self._follower)

    async def finish(self, wait_s: float) -> bool:
        """Finish all runs. Returns False if something could not be sent, which the log reports."""
        self._finishing.set()
        for feed in self._feeds.values():
            feed.close()
        alerts = None
        if self._alerts is not None:
            alerts = asyncio.create_task(self._alerts.finish(self._follower, wait_s))
        tasks = {feed.task: feed for feed in self._feeds.values()}
        late: set[asyncio.Task[None]] = set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=wait_s)
        for task in late:
            logger.warning("%s: not finished within %.0f s, ended", tasks[task].what, wait_s)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        missing = [feed for feed in self._feeds.values() if feed.missing]
        for feed in missing:
            logger.warning("%s: %d points are missing", feed.what, feed.missing)
        told = alerts is None or await alerts
        failed = self._unread or any(feed.failed for feed in self._feeds.values())
        return told and not late and not missing and not failed

    def _feeds_of(self, run: TrackedRun) -> list[RunFeed]:
        settings, root = self.settings, self._storage.paths.root / "tracking"
        backends = [name for name in self._backends if name != OPTUNA or run.key == SUMMARY]
        for backend in backends:
            if (run.key, backend) in self._feeds:
                continue
            opening = RunOpening(
                backend=backend,
                project=settings.project,
                group=self._storage.name,
                name=run.name,
                config=run.config,
                state=str(root / "state" / f"{run.key}.{backend}.json"),
                forks=run.forks and str(root / "state" / f"{run.forks}.{backend}.json"),
                forks_at=run.forks_at,
                outputs=str(root),
                variables=self._variables,
            )
            log = self._storage.paths.logs / "trackers" / f"{run.key}.{backend}.log"
            ended = self._ended_runs[backend]
            self._feeds[run.key, backend] = RunFeed(opening, log, ended, self._finishing)
        return [self._feeds[run.key, backend] for backend in backends]


async def track(
    directory: Path,
    variables: Mapping[str, str],
    ended: asyncio.Event,
    settings: TrackingConfig,
) -> bool:
    """Track a search until it has ended or `ended` is set; False if something could not be sent."""
    tracker = SearchTracker(SearchStorage.at(directory), variables, settings)
    while True:
        stop = ended.is_set()
        try:
            tracker.look()
        except (LlmzeroError, OSError, ValueError) as error:
            logger.warning("the search's files cannot be read: %s", error)
        if stop or tracker.finished:
            return await tracker.finish(tracker.settings.finish_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _LOOK_S)


async def _main(directory: Path) -> int:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    given: dict[str, Any] = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def wait_for_end() -> None:
        await reader.read()
        ended.set()

    waiting = asyncio.create_task(wait_for_end())
    with open(directory / "tracking" / "tracker.lock", "w") as lock:  # noqa: ASYNC230
        # The tracker of a coordinator that was killed may still be finishing.
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        settings = TrackingConfig.model_validate(given["settings"])
        complete = await track(directory, given["variables"], ended, settings)
    waiting.cancel()
    return 0 if complete else 1


def main(directory: str) -> int:
    """Track the search in a directory, and return the exit code."""
    os.nice(_NICE)
    path = Path(directory).absolute()
    (path / "tracking").mkdir(parents=True, exist_ok=True)
    log_to(path / "logs" / "tracking.log")
    try:
        return asyncio.run(_main(path))
    except Exception:
        logger.exception("the tracker ended")
        return FAILED


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # do not wait for a thread that still reads the input
