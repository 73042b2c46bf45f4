"""Failpoints: named places at which a chaos test can kill the process; otherwise they do nothing.

`LLMZERO_FAILPOINTS` names a directory. A process that reaches the place `journal.written` while that
directory has a file of this name removes the file and ends as after `kill -9`: exactly one process per file.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "LLMZERO_FAILPOINTS"
PLACES = (
    "journal.written",
    "phase.handed_over",
    "phase.answered",
    "phase.result_written",
    "file.written",
    "checkpoint.saved",
    "engine.switching",
    "agent.answered",
    "stopper.judged",
    "checkpoints.deleting",
)
"""After an event is durable and before it is acted on; between starting a phase on its runner and the event
of it; between its outcome and the event; after a runner has written it; between a file's content and its
name; in the middle of an adapter's files; in a warm switch; between an agent's response and its event;
between a verdict and its event; between two deletions."""


def reach(place: str) -> None:
    """Kill this process here if a test requested it."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    try:
        (Path(directory) / place).unlink()
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
