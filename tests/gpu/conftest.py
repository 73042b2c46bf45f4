"""The model on which a GPU is tried, the first check of the card, and what the report says of each test."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from tests.gpu.card import ROOT, first_problem, in_child
from tests.gpu.report import note, seconds_left


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "takes(seconds): left out if LLMZERO_GPU_BUDGET_S has less left")


@functools.cache
def problem_here() -> str | None:
    problem: str | None = in_child(first_problem)
    return problem


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: ends the run on a card that cannot train, and leaves out what the budget does not
    hold."""
    if item.get_closest_marker("gpu") is not None and (problem := problem_here()):
        note(problem=problem)
        pytest.exit(problem, returncode=1)
    mark = item.get_closest_marker("takes")
    if mark is not None and seconds_left() < mark.args[0]:
        pytest.skip(f"takes {mark.args[0]} s, and {seconds_left():.0f} s of LLMZERO_GPU_BUDGET_S are left")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "LLMZERO_GPU_REPORT" in os.environ and (report.when == "call" or report.outcome != "passed"):
        error = report.longreprtext[-1500:] if report.outcome != "passed" else None
        note(test=report.nodeid, outcome=report.outcome, took_s=round(report.duration, 1), error=error)


@pytest.fixture(scope="session")
def model() -> str:
    """Directory that LLMZERO_GPU_MODEL names, else models/Qwen3-0.6B. Any dense Qwen3, Qwen2 or Llama model
    with a chat template serves."""
    place = Path(os.environ.get("LLMZERO_GPU_MODEL", ROOT / "models" / "Qwen3-0.6B"))
    if not place.is_dir():
        pytest.fail(
            f"no model at {place}: hf download Qwen/Qwen3-0.6B --local-dir {place}, or set LLMZERO_GPU_MODEL"
        )
    return str(place)
