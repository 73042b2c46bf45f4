"""Messages from a search to a person, through Apprise: a new best score, what needs them, limits, the end.

The services' addresses are secrets. They come from LLMZERO_NOTIFY_URLS and are passed only to
`send_alert.py`, which runs as one process per message because its libraries may hang.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmzero_ray.cli.event_text import event_line
from llmzero_ray.coordinator.follow import Follower, run_status
from llmzero_ray.records import Event, PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.report import summary
from llmzero_ray.report.comparison import comparisons, policies
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.utils.api_key import NOTIFY_URLS
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.plugins import extension
from llmzero_ray.utils.text import one_line, plural

logger = logging.getLogger("llmzero_ray.tracking.alerts")
BACKEND = "apprise"
"""Its name in `tracking.backends`."""
MINUTES = "LLMZERO_NOTIFY_MINUTES"
"""Environment variable with the minutes between two messages that are not urgent."""
_MINUTES = 30.0
_NEEDS_S = 30.0
"""Seconds between two checks for what needs a person. A need is only reported again after it has been absent
for twice as long, and for the minutes between two messages."""
_SEND_S = 60.0
_AGAIN_S, _AGAIN_MAX_S = 30.0, 600.0
"""Seconds until a message that no service accepted is sent again: the first time, and at most."""
_RESTART_S = 15.0
"""Seconds in which Ray may restart a coordinator that has died."""
_MOST = 20
"""Maximum lines of one message."""


class Alerts:
    """Collects and sends the alerts of one search. The file `state` holds the number of the last event sent,
    so that a restarted tracker repeats none."""

    def __init__(self, state: Path, variables: Mapping[str, str]) -> None:
        self._state, self._urls = state, variables.get(NOTIFY_URLS, "").strip()
        self._every_s = 60 * _minutes(variables.get(MINUTES))
        self._lines: list[str] = []
        self._events, self._sent = 0, _sent(state)
        self._urgent, self._capped, self._best = False, False, -math.inf
        self._dollars = 0.0  # cost of the calls up to the last event that was read
        self._facts: SearchFacts | None = None
        self._needed: dict[tuple[int | None, str], float] = {}
        self._needs_at = self._next_at = self._not_before = 0.0
        self._again_s = _AGAIN_S
        self._sending: asyncio.Task[None] | None = None
        if not self._urls:
            logger.warning("no alerts are sent: %s is empty in the environment of the command", NOTIFY_URLS)

    def look(self, follower: Follower) -> None:
        """Collect lines about new events and the current state, and send them if they are due."""
        if not self._urls:
            return
        for event in follower.events[self._events :]:
            self._events += 1
            is_new = self._events > self._sent
            self._urgent |= is_new and isinstance(event, ev.ENDS)
            for line in self._lines_of(follower, event):
                if is_new:
                    self._lines.append(line)
        now = time.monotonic()
        if now >= self._needs_at and follower.core.finished is None:
            self._needs_at = now + _NEEDS_S
            self._look_for_needs(follower, now)
        due = self._lines and (self._urgent or now >= self._next_at) and now >= self._not_before
        if due and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send(follower.storage.name))

    async def finish(self, follower: Follower, wait_s: float) -> bool:
        """Send what is urgent, including that the coordinator died. Returns False if no service accepted it.
        The rest is left to the search's next tracker."""
        if not self._urls:
            return True
        try:
            async with asyncio.timeout(wait_s):
                if run_status(follower).stage == "interrupted" and not isinstance(
                    follower.events[-1], ev.ENDS
                ):
                    await asyncio.sleep(min(_RESTART_S, wait_s / 2))
                    follower.poll()
                    self._needs_at = 0.0
                    self.look(follower)
                if self._sending is not None:
                    await self._sending
                if self._lines and self._urgent:
                    await self._send(follower.storage.name)
        except TimeoutError:
            logger.warning("alerts: not sent within %.0f s", wait_s)
        return not (self._lines and self._urgent)

    def _lines_of(self, follower: Follower, event: Event) -> Iterator[str]:
        """Lines about an event. Call it once for every event, sent before or not, to know the best score and
        the dollars spent by then."""
        core = follower.core
        told = event_line(core, event) or ""
        match event:
            case ev.PhaseFinished(result=PhaseResult(best_score=float(score))) if event.node >= 0:
                if score > self._best and core.runs[event.node].ended_with(event):
                    self._best = score
                    yield f"New best: {told}"
            case ev.BudgetReached() | ev.SearchPaused() | ev.SearchAborted():
                yield told
            case ev.SettingsChanged() | ev.SearchExtended() if "budget.dollars" in event.changes:
                self._capped = False  # the new cap may be reached too
            case ev.AgentCalled():
                self._dollars += event.dollars
                if self._capped or core.started is None:
                    return
                cap = core.config.budget.dollars
                if event.outcome == "cap" or (cap is not None and self._dollars >= cap):
                    self._capped = True
                    then = "the search ends" if core.config.agents.on_cap == "stop" else "rules decide now"
                    yield f"budget.dollars is used up (${self._dollars:.2f} of ${cap or 0:g}): {then}"
            case ev.SearchFinished():
                facts = SearchFacts(follower, before=self._facts)
                yield f"It has ended because {summary.end_in_words(facts)}."
                for line in summary.result_lines(facts, policies(facts), comparisons(facts)):
                    yield line.replace("**", "")

    def _look_for_needs(self, follower: Follower, now: float) -> None:
        if follower.core.started is None:
            return
        self._facts = SearchFacts(follower, before=self._facts)
        needs = extension("llmzero_ray.pages", "needs")
        for need in needs(self._facts, run_status(follower), time.time()):
            key = need.get("node"), re.sub(r"[\d.]+", "", need["text"])  # numbers change while a need lasts
            if now - self._needed.get(key, -math.inf) > max(self._every_s, 2 * _NEEDS_S):
                self._lines.append(f"Needs you: {need['text']}")
                self._urgent = True
            self._needed[key] = now

    async def _send(self, name: str) -> None:
        """Send the lines so far. After a failure they are kept for the next message."""
        lines, events = self._lines[:], self._events
        urgent, self._urgent = self._urgent, False
        left = plural(len(lines) - _MOST, "more line") if len(lines) > _MOST else ""
        body = "\n".join(one_line(line, 600) for line in (*lines[:_MOST], *([left] if left else ())))
        said, taken = await _deliver({"urls": self._urls, "title": f"llmzero: {name}", "body": body})
        if said:
            logger.warning("alert: %s", said)
        now = time.monotonic()
        if not taken:
            self._urgent |= urgent
            self._not_before, self._again_s = now + self._again_s, min(2 * self._again_s, _AGAIN_MAX_S)
            return
        del self._lines[: len(lines)]
        self._next_at, self._not_before, self._again_s = now + self._every_s, 0.0, _AGAIN_S
        self._sent = events
        self._state.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._state, json.dumps({"events": events}))


async def _deliver(message: Mapping[str, str]) -> tuple[str, bool]:
    """Send a message. Returns (problems in one sentence, whether a service accepted it)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "llmzero_ray.tracking.send_alert",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # libraries write addresses there
    )  # fmt: skip
    try:
        said, _ = await asyncio.wait_for(process.communicate(json.dumps(message).encode()), _SEND_S)
    except TimeoutError:
        return f"no service answered within {_SEND_S:.0f} s", False
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    told = one_line(said.decode(errors="replace"), 500)
    return told or (f"exit code {process.returncode}" if process.returncode else ""), process.returncode == 0


def _minutes(given: str | None) -> float:
    try:
        found = _MINUTES if given is None else float(given)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        logger.warning("%s is %r; must be a number >= 0; %g is used", MINUTES, given, _MINUTES)
        return _MINUTES
    return found


def _sent(state: Path) -> int:
    """Number of the last event that a message covered."""
    try:
        return int(json.loads(state.read_text(encoding="utf-8"))["events"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
