"""One real, small echo task for all tests that need a model. They are slow: its warm start takes 14 s."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmzero_ray.prepared import PreparedTask
from llmzero_ray.tasks import tiny_model
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


@pytest.fixture(scope="session")
def untaught_task(tmp_path_factory: pytest.TempPathFactory) -> PreparedTask:
    """A task with a model beside it, in `model`, that has learnt nothing and is made at once."""
    place: Path = tmp_path_factory.mktemp("untaught")
    tokenizer = tiny_model.make_tokenizer()
    tiny_model.save(tiny_model.make_model(tokenizer, seed=0), tokenizer, place / "model")
    return prepare(dir=place / "echo", family="echo", make_model=False, n_train=256, n_val=32, n_test=32)
