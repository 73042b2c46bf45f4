"""An exception that an engine lets out during a phase is a failed phase: data, not the end of a search."""

from __future__ import annotations

import pytest

from llmzero_ray.engines.base import failure_of
from llmzero_ray.records import Checkpoint, PhaseFailure


def failed(error: Exception) -> PhaseFailure:
    """What `failure_of` makes of an exception that was raised at step 7."""
    saved = Checkpoint(step=5, path="/elsewhere/5")
    try:
        raise error
    except Exception as raised:  # noqa: BLE001 - whatever it is
        return failure_of(3, raised, steps_done=7, checkpoints=[saved])


def test_the_cause_is_the_exceptions_first_line_and_its_trace_is_kept() -> None:
    failure = failed(ValueError("scripted bug\nwith a second line"))
    assert (failure.node, failure.cause) == (3, "ValueError: scripted bug")
    assert "Traceback" in failure.log_tail and "with a second line" in failure.log_tail


def test_what_was_saved_before_stays_with_the_failure() -> None:
    failure = failed(ValueError("late"))
    assert failure.steps_done == 7
    assert [saved.step for saved in failure.checkpoints] == [5]


@pytest.mark.parametrize(
    ("error", "failure_class"), [(MemoryError(), "oom"), (RuntimeError("x"), "engine")], ids=str
)
def test_memory_that_ran_out_has_a_class_of_its_own(error: Exception, failure_class: str) -> None:
    assert failed(error).failure_class == failure_class


def test_a_long_trace_is_cut_at_its_beginning() -> None:
    failure = failed(RuntimeError("x" * 100_000 + "the end"))
    assert len(failure.log_tail) < 10_000 and failure.log_tail.rstrip().endswith("the end")
