"""What made a phase fail: an exception as a failed phase, and the fault of a GPU that a log tells of.

VeRL's engine converts the exceptions it knows itself (engines/verl/failures.py).
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable

from llmzero_ray.errors import NonFiniteError
from llmzero_ray.records import Checkpoint, FailureClass, PhaseFailure

_TAIL_CHARS = 4000
CARD_FAULT = (
    r"uncorrectable (?:ECC|NVLink)|GPU is lost|fallen off the bus|no CUDA-capable device|hardware stack error"
    r"|Xid \("
)
"""Pattern of what CUDA and NVIDIA's driver say of a GPU that has failed, whatever was computed on it. A lost
process, a lost connection and a full memory are no such faults."""
_FAULT = re.compile(CARD_FAULT, re.IGNORECASE)
_LIMIT = 300


def failure_of(
    node: int, error: Exception, *, steps_done: int, checkpoints: Iterable[Checkpoint]
) -> PhaseFailure:
    """Failed phase for an uncaught exception of an engine."""
    classes: list[tuple[type[Exception], FailureClass]] = [(MemoryError, "oom"), (NonFiniteError, "nan")]
    trace = "".join(traceback.format_exception(error))
    return PhaseFailure(
        node=node,
        failure_class=next((name for kind, name in classes if isinstance(error, kind)), "engine"),
        cause=f"{type(error).__name__}: {error}".splitlines()[0],
        log_tail=trace[-_TAIL_CHARS:],
        steps_done=steps_done,
        checkpoints=tuple(checkpoints),
    )


def card_fault(text: str) -> str | None:
    """The last line of a message or log that tells of a failed card, at most 300 characters; None if
    there is none."""
    found = [line.strip() for line in text.splitlines() if _FAULT.search(line)]
    return found[-1][:_LIMIT] if found else None
