"""A search over time in Chrome's trace format, which ui.perfetto.dev and chrome://tracing show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmzero_ray.cli.event_text import changes_text, event_line
from llmzero_ray.records import PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.report.costs import all_stays
from llmzero_ray.report.facts import SearchFacts

_EVENTS, _SLOTS = 1, 2
"""Process ids: the search's events as instants, and its slots with their spans."""
_FORM = {"displayTimeUnit": "ms"}


def chrome_trace(facts: SearchFacts) -> dict[str, Any]:
    """A trace with one thread per slot (proposals, phases and, inside them, set-ups) and the search's events.
    Times are microseconds since the first event."""
    begun = facts.events[0].time
    spans = [_name(_EVENTS, "search"), _name(_SLOTS, "slots")]
    for slot in sorted({stay.slot for stay in all_stays(facts)}):
        spans.append(_name(_SLOTS, f"slot {slot}", slot))
    for span in (*_phases(facts), *_proposals(facts)):
        begin, end = span.pop("begin"), span.pop("end")
        times = {"ts": round(1e6 * (begin - begun)), "dur": round(1e6 * (end - begin))}
        spans.append({"ph": "X", "pid": _SLOTS, **span, **times})
    for event in facts.events:
        if line := event_line(facts.core, event):
            at = round(1e6 * (event.time - begun))
            place = {"ph": "i", "s": "p", "pid": _EVENTS, "tid": 0, "ts": at}
            spans.append({"name": line, "cat": "event", **place})
    return {**_FORM, "traceEvents": spans}


def is_trace(path: Path) -> bool:
    """Whether a file begins as a `chrome_trace` does, written as JSON."""
    begin = json.dumps({**_FORM, "traceEvents": [_name(_EVENTS, "search")]}).removesuffix("]}").encode()
    try:
        with path.open("rb") as file:
            return file.read(len(begin)) == begin
    except OSError:
        return False


def _name(process: int, name: str, thread: int | None = None) -> dict[str, Any]:
    what = {"name": "process_name"} if thread is None else {"name": "thread_name", "tid": thread}
    return {"ph": "M", "pid": process, **what, "args": {"name": name}}


def _phases(facts: SearchFacts) -> Iterator[dict[str, Any]]:
    """Spans of phases in their slots. The last span of a node with a result begins with its set-up."""
    stays = all_stays(facts)
    last = {stay.node: stay for stay in stays}
    for stay in stays:
        run = facts.core.runs[stay.node]
        name = "default recipe" if stay.node == REFERENCE else f"node {stay.node}"
        changes = "" if run.spec is None else changes_text(facts.core, run.spec)
        args = {"status": "lost" if stay.lost else run.status, "score": run.score, "changes": changes}
        place = {"tid": stay.slot, "begin": stay.begin}
        yield {"name": name, "cat": "phase", "args": args, "end": stay.end, **place}
        if stay is last[stay.node] and isinstance(run.outcome, PhaseResult):
            end = min(stay.begin + run.outcome.setup_s, stay.end)
            yield {"name": "set-up", "cat": "set-up", "args": {"warm": run.outcome.warm}, "end": end, **place}


def _proposals(facts: SearchFacts) -> Iterator[dict[str, Any]]:
    """Spans of proposals, each from the decision for a run until the run has its spec."""
    decided: dict[int, ev.Decided] = {}
    for event in facts.events:
        if isinstance(event, ev.Decided) and event.node is not None:
            decided[event.node] = event
        elif isinstance(event, ev.PhasePlanned) and (before := decided.pop(event.node, None)) is not None:
            name = f"proposal for node {event.node}"
            args = {"action": before.action, "on": before.on}
            times = {"begin": before.time, "end": event.time}
            yield {"name": name, "cat": "proposal", "tid": event.slot, "args": args, **times}
