"""Wrong input of every kind that was tried: the exit code and the text that a user got for it.

The entries are in data/wrong_inputs.yaml (inputs.py says what is in one).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox import public_api, tables
from tests.marks import needs_sandbox

CASES = tables.cases()
PROCESSES = ("unknown-key", "no-such-file", "status-of-nothing", "history-that-is-no-json", "unknown-option")
"""Entries that are also given in a process of their own."""
SANDBOXED = ("reward-without-the-function",)
"""Entries whose reward is code of its own: without a sandbox it is refused earlier, for that."""


def check(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Check that a command prints what was recorded in the table."""
    assert found["exit"] == recorded["exit"], found["err"]
    assert "Traceback" not in found["err"]
    if "usage" in recorded:
        for word in recorded["usage"]:
            assert word in found["err"]
    else:
        assert (found["err"], found["out"]) == (recorded["err"], recorded["out"])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case["name"], marks=needs_sandbox if case["name"] in SANDBOXED else ())
        for case in CASES
    ],
)
def test_a_wrong_input_gives_its_exit_code_and_its_message(case: dict[str, Any], tmp_path: Path) -> None:
    check(case, tables.observed(case, tmp_path / "here"))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_of_its_own_says_the_same(name: str, tmp_path: Path) -> None:
    (case,) = [case for case in CASES if case["name"] == name]
    check(case, tables.observed({**case, "process": True}, tmp_path / "here"))


def test_there_are_more_kinds_than_were_tried_first() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES) >= 52


@pytest.mark.parametrize("job", ["search", "status", "stop", "explain", "prepare", "score", "doctor"])
def test_every_job_answers_wrong_input_with_exit_code_2(job: str, tmp_path: Path) -> None:
    from tests.blackbox import commands

    words = {"explain": ["nowhere"], "score": ["--jsonl", "nowhere"]}.get(job, ["nowhere"])
    result = commands.run_process([f"jobs.{job}", *words], tmp_path)
    assert result.exit == 2
    assert "nowhere" in result.err
    assert not list(tmp_path.iterdir())


def test_no_wrong_input_leaves_a_journal_behind(tmp_path: Path) -> None:
    case = {"name": "x", "command": ["search", "search.yaml", "--set", "budget.runs=0"]}
    tables.observed(case, tmp_path / "here")
    assert not list((tmp_path / "here").rglob("journal"))
    assert public_api.CHECKOUT.is_dir()
