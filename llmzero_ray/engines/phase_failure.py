"""Where an exception about one phase becomes data: a failed phase with a class, a one-line cause and the
trace.

Not here: what an engine itself turns into a failure, with better knowledge (engines/verl/failures.py).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from llmzero_ray.errors import NonFiniteError
from llmzero_ray.records import Checkpoint, FailureClass, PhaseFailure

_TAIL_CHARS = 4000


def failure_of(
    node: int, error: Exception, *, steps_done: int, checkpoints: Iterable[Checkpoint]
) -> PhaseFailure:
    """The failed phase that an engine's uncaught exception means."""
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
