"""A search.yaml that no slots can be made of, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmzero_ray.errors import ConfigError
from llmzero_ray.tasks.prepare import prepare
from llmzero_ray.tune import verl_trainable
from tests.searches import scripted_search


@pytest.fixture(scope="module")
def task_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("task") / "echo"
    prepare(dir=directory, family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
    return directory


def test_what_cannot_be_trained_is_one_message_at_once(tmp_path: Path, task_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"root\.overrides: "):
        verl_trainable(scripted_search(tmp_path, task_dir), **{"root.overrides": {"lr": 7.0}})
