"""Failpoints: named places at which a chaos test can kill the process. Without such a test, they do nothing.

`LLMZERO_FAILPOINTS` names a directory. A process that reaches the place `journal.written` while that
directory has a file of this name removes the file and kills itself as with `kill -9`. Each file therefore
kills exactly one process.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "LLMZERO_FAILPOINTS"
PLACES = (
    "journal.written",  # an event is durable but not acted on yet
    "phase.handed_over",  # the event that a phase has started is posted, but its runner is not called yet
    "phase.answered",  # a runner has returned an outcome, but the event of it is not posted yet
    "phase.result_written",  # a runner has written an outcome
    "file.written",  # a file's content is written, but the file does not have its name yet
    "checkpoint.saved",  # an adapter is written, but not its manifest yet
    "engine.switching",  # an engine has loaded the adapter of a phase, but has not begun the phase yet
    "agent.answered",  # an agent has answered, but the event of it is not posted yet
    "stopper.judged",  # a verdict is made, but the event of it is not posted yet
    "checkpoints.deleting",  # an adapter is about to be deleted
)
"""Names of all failpoints."""


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
