"""One real, small echo task for all tests that need a model: its warm start takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmzero_ray.prepared import PreparedTask
from llmzero_ray.tasks.prepare import prepare


@pytest.fixture(scope="session")
def echo_reports() -> list[tuple[str, float]]:
    """Output of `prepare` while it made `echo_task`."""
    return []


@pytest.fixture(scope="session")
def echo_task(
    tmp_path_factory: pytest.TempPathFactory, echo_reports: list[tuple[str, float]]
) -> PreparedTask:
    directory: Path = tmp_path_factory.mktemp("tasks") / "echo"
    return prepare(
        dir=directory,
        family="echo",
        n_train=64,
        n_val=64,
        n_test=32,
        progress=lambda doing, share: echo_reports.append((doing, share)),
    )
