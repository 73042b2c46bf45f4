"""What a run on a GPU leaves behind, and what it leaves out, without one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gpu import conftest
from tests.gpu.report import note


def item(*names: str) -> Any:
    """A test with these marks; `takes` has 60 seconds."""
    return SimpleNamespace(
        get_closest_marker=lambda name: pytest.mark.takes(60).mark if name in names else None
    )


def test_every_measurement_is_in_the_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "new" / "report.jsonl"
    with monkeypatch.context() as patched:  # the report of this test itself goes nowhere
        patched.setenv("LLMZERO_GPU_REPORT", str(place))
        for step in (1, 2):
            note(step=step, missing=None, place=tmp_path)
            found = [json.loads(line) for line in place.read_text().splitlines()]
            assert [line["step"] for line in found] == [*range(1, step + 1)]
    assert "missing" not in found[-1] and found[-1]["test"].startswith("test_every_measurement")


def test_what_the_budget_does_not_hold_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    conftest.pytest_runtest_setup(item("takes"))
    monkeypatch.setenv("LLMZERO_GPU_BUDGET_S", "1")
    conftest.pytest_runtest_setup(item())
    with pytest.raises(pytest.skip.Exception, match=r"takes 60 s, and .* s of LLMZERO_GPU_BUDGET_S are left"):
        conftest.pytest_runtest_setup(item("takes"))


def test_a_card_that_cannot_train_ends_the_run_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "problem_here", lambda: "the driver is too old: update it")
    conftest.pytest_runtest_setup(item("takes"))
    with pytest.raises(pytest.exit.Exception, match=r"^the driver is too old: update it$"):
        conftest.pytest_runtest_setup(item("gpu"))
