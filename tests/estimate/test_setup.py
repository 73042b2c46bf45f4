"""What the estimate reads of a configuration is what the engine and VeRL make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from omegaconf import OmegaConf

from llmzero_ray.config import load_config
from llmzero_ray.engines.verl.factory import MICRO_BATCH_LIMIT
from llmzero_ray.engines.verl.overrides import all_overrides, compose, engine_overrides
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate.fit import assess
from llmzero_ray.estimate.model_shape import read_shape
from llmzero_ray.estimate.setup import VERL_DEFAULTS, setup_of
from llmzero_ray.hyperparameters import canonical, complete, defaults, resolve
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.records import PhaseSpec
from tests.builders import verl_settings

from .builders import A100_40, ROOT, SIZES, TABLE_12, practitioner, preset


def composed(overrides: dict[str, Any] | None = None) -> Any:
    """VeRL's configuration of a default phase on GPUs."""
    settings = verl_settings(
        platform="gpu",
        lora_rank=64,
        lora_alpha=64,
        max_prompt_length=1024,
        max_response_length=6144,
        eval_max_response_length=6144,
        overrides=overrides or {},
    )
    spec = PhaseSpec(
        search="s",
        node=0,
        kind="root",
        parent=None,
        resume_from=None,
        adapter=None,
        base_step=0,
        n_steps=1,
        hyperparameters=resolve(complete(defaults(), {})),
        seed=0,
        save_freq=1,
        test_freq=1,
        checkpoint_dir="/tmp",
    )
    return compose(all_overrides(settings, spec, 5000))


def test_defaults_are_those_of_the_composed_configuration() -> None:
    config = composed()
    for key, value in VERL_DEFAULTS.items():
        given = OmegaConf.select(config, key)
        if value is None:  # follows the actor's
            value = OmegaConf.select(config, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu")
        assert given == value, key


def test_a_slot_of_several_machines_keeps_a_copy_of_the_weights_on_each() -> None:
    config = load_config(ROOT / "jobs" / "configs" / "paper_4b.yaml")
    assert (config.slots.nodes, config.slots.gpus_per_node) == (4, 8)
    assert setup_of(config, root_hyperparameters(config, 5000), gpu_gib=39.4).shards == 8
    settings = verl_settings(platform="gpu", n_gpus_per_node=8, placement_groups=("0", "1"), nnodes=2)
    assert engine_overrides(settings)["actor_rollout_ref.actor.fsdp_config.fsdp_size"] == 8


def test_the_engines_chunks_of_the_entropy_follow_the_actors() -> None:
    outer = "actor_rollout_ref.actor.entropy_from_logits_"
    config = composed({outer + "with_chunking": True, outer + "chunk_size": 512})
    # What VeRL's engine reads; the outer keys are what the presets set.
    inner = "actor_rollout_ref.actor.fsdp_config.entropy_from_logits_"
    assert OmegaConf.select(config, inner + "with_chunking") is True
    assert OmegaConf.select(config, inner + "chunk_size") == 512


def test_a_setup_carries_the_phases_values() -> None:
    config = practitioner(
        micro_batch=2,
        overrides={
            "actor_rollout_ref.actor.entropy_from_logits_with_chunking": True,
            "+actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 2,
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 8192,
        },
    )
    found = setup_of(config, root_hyperparameters(config, 5000), gpu_gib=A100_40)
    assert (found.n_gpus, found.tensor_parallel, found.utilization) == (8, 2, 0.5)
    assert (found.prompt, found.response, found.max_model_len) == (1024, 6144, 9216)
    assert (found.micro_batch, found.log_prob_micro_batch, found.ulysses) == (2, 2, 2)
    assert (found.max_tokens, found.log_prob_max_tokens, found.entropy_chunk) == (16_384, 8192, 2048)
    assert (found.lora_rank, found.max_num_batched_tokens, found.max_num_seqs) == (64, 9216, 256)


def test_auto_micro_batches_are_those_of_the_engine_on_gpus() -> None:
    config = practitioner(micro_batch=1)
    root = {**root_hyperparameters(config, 5000)}
    root["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] = "auto"
    assert setup_of(config, root, gpu_gib=A100_40).micro_batch == MICRO_BATCH_LIMIT["gpu"]


def test_a_value_of_the_wrong_type_is_said() -> None:
    config = practitioner(micro_batch=1, overrides={"actor_rollout_ref.rollout.enforce_eager": "yes"})
    with pytest.raises(ConfigError, match="enforce_eager is 'yes'; must be true or false"):
        setup_of(config, root_hyperparameters(config, 5000), gpu_gib=A100_40)


# --- shipped presets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_a_shipped_preset_fits_whatever_a_phase_may_ask_for(size: str) -> None:
    config = load_config(ROOT / preset(size))
    gpu_gib = config.slots.gpu_memory_gib
    assert gpu_gib == A100_40
    root = setup_of(config, root_hyperparameters(config, None), gpu_gib=gpu_gib)
    longest = replace(root, response=config.engine.max_response_length, temperature=0.7)
    for phase in (root, longest):
        found = assess(read_shape(str(config.model.path)), phase)
        assert found.status == "fits", found.reason
        # A server is of use with several sequences at once.
        assert found.cache_tokens > 8 * phase.max_model_len


@pytest.mark.parametrize("size", SIZES)
def test_a_shipped_preset_trains_as_the_papers_practitioner(size: str) -> None:
    root = root_hyperparameters(load_config(ROOT / preset(size)), None)
    for name, value in TABLE_12.items():
        assert root[canonical(name)] == value, name
