"""The one door to the estimates: what it takes from the configuration, the task and the caller."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmzero_ray.config import load_config
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate import Estimate
from llmzero_ray.estimate.search_time import disk_bytes
from llmzero_ray.tasks.tiny_model import SHAPE
from tests.builders import make_config

from .builders import ROOT, preset


def test_a_task_brings_its_sizes_and_its_model_where_the_configuration_names_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    config = make_config(model={"path": None, "lora_rank": 8})
    estimate = Estimate(config, SimpleNamespace(n_train=512, n_val=7, n_test=9, model_path=str(tmp_path)))
    assert (estimate.sizes.n_val, estimate.sizes.n_test) == (7, 9)
    assert estimate.adapter_bytes == 233472
    assert estimate.disk_bytes("planned") == disk_bytes(config, 233472, "planned")
    assert Estimate(config).disk_bytes("planned") is None
    elsewhere = config.model_copy(update={"model": config.model.model_copy(update={"path": "/nowhere"})})
    assert estimate.of(elsewhere).adapter_bytes is None


def test_a_measured_card_goes_before_the_configured_one() -> None:
    config = load_config(ROOT / preset("8b"))
    assert Estimate(config).gpu_memory[0].status == "fits"
    assert Estimate(config, gpu_gib=14.0).gpu_memory[0].status == "does not fit"


def test_without_a_model_there_is_no_estimate_of_memory() -> None:
    config = make_config(model={"path": None}, engine={"backend": "verl"}, slots={"gpu_memory_gib": 39.4})
    for answer in ("gpu_memory", "machine"):
        with pytest.raises(ConfigError, match=r"model\.path is null and the task brings no model"):
            getattr(Estimate(config), answer)()
