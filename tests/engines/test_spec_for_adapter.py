"""An adapter is scored under a configuration of its own LoRA rank, alpha and layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.verl.phase import spec_for_adapter
from llmzero_ray.errors import EngineError
from llmzero_ray.hyperparameters.verl_keys import EXCLUDE_MODULES, LORA_ALPHA, LORA_RANK, TARGET_MODULES
from llmzero_ray.records import PhaseSpec
from tests.builders import verl_settings

SETTINGS = verl_settings(lora_rank=8, lora_alpha=16)


def last_phase(**hyperparameters: Any) -> PhaseSpec:
    return PhaseSpec(
        search="s",
        node=3,
        kind="evolve",
        parent=2,
        resume_from=None,
        adapter=None,
        base_step=0,
        n_steps=4,
        hyperparameters={"data.train_batch_size": 16, **hyperparameters},
        seed=1,
        save_freq=4,
        test_freq=4,
        checkpoint_dir="/checkpoints",
    )


def adapter(folder: Path, config: Any) -> str:
    (folder / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("own", [{"r": 4, "lora_alpha": 16}, {"r": 8, "lora_alpha": 64}], ids=str)
def test_only_rank_and_alpha_change(tmp_path: Path, own: dict[str, int]) -> None:
    like = last_phase(**{LORA_RANK: 8, LORA_ALPHA: 16})
    found = spec_for_adapter(like, adapter(tmp_path, own), SETTINGS)
    expected = {**like.hyperparameters, LORA_RANK: own["r"], LORA_ALPHA: own["lora_alpha"]}
    assert found.hyperparameters == expected


ATTENTION = r".*\.(q_proj|v_proj)"
NAMES = ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"]


@pytest.mark.parametrize(
    ("acting", "own", "expected"),
    [
        ({}, {"target_modules": NAMES, "exclude_modules": None}, {}),
        ({}, {"target_modules": ATTENTION}, {TARGET_MODULES: ATTENTION}),
        ({TARGET_MODULES: ATTENTION}, {"target_modules": ATTENTION}, {}),
        ({TARGET_MODULES: ATTENTION}, {"target_modules": NAMES}, {TARGET_MODULES: "all-linear"}),
        ({}, {"target_modules": NAMES, "exclude_modules": "lm_head"}, {EXCLUDE_MODULES: "lm_head"}),
        ({EXCLUDE_MODULES: "lm_head"}, {"target_modules": NAMES}, {EXCLUDE_MODULES: None}),
    ],
)
def test_the_layers_of_an_adapter_are_those_that_it_was_trained_on(
    tmp_path: Path, acting: dict[str, Any], own: dict[str, Any], expected: dict[str, Any]
) -> None:
    like = last_phase(**acting)
    found = spec_for_adapter(like, adapter(tmp_path, {"r": 8, "lora_alpha": 16, **own}), SETTINGS)
    assert found.hyperparameters == {**like.hyperparameters, **expected}


@pytest.mark.parametrize("asked", [{}, {LORA_RANK: 8, LORA_ALPHA: 16}], ids=["settings", "phase"])
def test_an_adapter_like_the_last_phases_needs_no_other_configuration(
    tmp_path: Path, asked: dict[str, int]
) -> None:
    like = last_phase(**asked)
    assert spec_for_adapter(like, adapter(tmp_path, {"r": 8, "lora_alpha": 16}), SETTINGS) == like


@pytest.mark.parametrize("config", ["{", "[]", '{"r": 8}', '{"r": null, "lora_alpha": 16}'])
def test_a_folder_that_does_not_give_them_is_refused_by_name(tmp_path: Path, config: str) -> None:
    with pytest.raises(EngineError, match=r"adapter_config\.json does not give the adapter's rank"):
        spec_for_adapter(last_phase(), adapter(tmp_path, config), SETTINGS)


def test_a_folder_without_a_configuration_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="No such file"):
        spec_for_adapter(last_phase(), str(tmp_path), SETTINGS)
