"""Whoever writes into the storage gets no code run by the process that resumes from it."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from llmzero_ray.engines.verl.full_checkpoint import loading_data_alone


class Touch:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_a_planted_file_runs_nothing_even_where_pickles_are_asked_for(tmp_path: Path) -> None:
    torch.save({"loader": Touch(tmp_path / "touched")}, tmp_path / "loader.pt")
    with loading_data_alone(), pytest.raises(pickle.UnpicklingError, match=r"system"):
        torch.load(tmp_path / "loader.pt", weights_only=False)
    assert not (tmp_path / "touched").exists()


def test_the_parts_of_a_full_checkpoint_come_back_as_they_were(tmp_path: Path) -> None:
    states = {
        "random": {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()},
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}},
            "param_groups": [],
        },
        "loader": {"_num_yielded": 2, "_shared_seed": None, "dataset_state": None},
    }
    torch.save(states, tmp_path / "loader.pt")
    with loading_data_alone():
        found = torch.load(tmp_path / "loader.pt", weights_only=False)
    assert found["random"]["random"] == random.getstate()
    np.random.set_state(found["random"]["numpy"])
    assert found["loader"] == states["loader"]
    assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], torch.ones(2))


def test_torch_loads_as_before_afterwards(tmp_path: Path) -> None:
    before = torch.load
    with pytest.raises(RuntimeError, match="x"), loading_data_alone():
        raise RuntimeError("x")
    assert torch.load is before
