"""One real, small echo task for all tests that need a model. They are slow: its warm start takes 14 s."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmzero_ray.prepared import PreparedTask
from llmzero_ray.tasks.prepare import prepare


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "echo_task" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


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
