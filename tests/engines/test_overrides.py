"""Settings and a phase become VeRL's configuration, through VeRL's own hydra files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf, open_dict

from llmzero_ray.engines.verl.overrides import (
    MERGE,
    all_overrides,
    compose,
    engine_overrides,
    hydra_literal,
    phase_overrides,
)
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import canonical, complete, defaults, resolve
from llmzero_ray.records import PhaseSpec
from tests.builders import verl_settings

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def spec(**changes: Any) -> PhaseSpec:
    """A phase of 40 steps with the default configuration; names with __ for dots."""
    full = resolve(
        complete(
            defaults(),
            {"resp": 24, "max_prompt_length": 32, **{k.replace("__", "."): v for k, v in changes.items()}},
        )
    )
    return PhaseSpec(
        search="s",
        node=3,
        kind="evolve",
        parent=0,
        resume_from=None,
        adapter=None,
        base_step=0,
        n_steps=40,
        hyperparameters=full,
        seed=2**40 + 7,
        save_freq=10,
        test_freq=5,
        checkpoint_dir="/runs/c",
    )


@pytest.mark.parametrize(
    ("changes", "composed"),
    [
        (
            {
                "lr": 3e-5,
                "weight_decay": 0.1,
                "betas": [0.9, 0.95],
                "grad_clip": 0.5,
                "kl": 0.005,
                "temperature": 0.85,
                "clip_low": 0.15,
                "clip_high": 0.31,
                "adv_norm": True,
                "entropy_coeff": 0.0,
                "n": 12,
                "batch": 96,
                "resp": 48,
                "tp": 1,
                "max_num_seqs": 64,
            },
            {
                f"{ACTOR}.optim.lr": 3e-5,
                f"{ACTOR}.optim.weight_decay": 0.1,
                f"{ACTOR}.optim.betas": [0.9, 0.95],
                f"{ACTOR}.optim.clip_grad": 0.5,
                f"{ACTOR}.kl_loss_coef": 0.005,
                f"{ROLLOUT}.temperature": 0.85,
                f"{ACTOR}.clip_ratio_low": 0.15,
                f"{ACTOR}.clip_ratio_high": 0.31,
                "algorithm.norm_adv_by_std_in_grpo": True,
                f"{ACTOR}.entropy_coeff": 0.0,
                f"{ROLLOUT}.n": 12,
                "data.train_batch_size": 96,
                f"{ACTOR}.ppo_mini_batch_size": 96,
                "data.max_response_length": 48,
                f"{ROLLOUT}.response_length": 48,
                f"{ROLLOUT}.tensor_model_parallel_size": 1,
                f"{ROLLOUT}.max_num_seqs": 64,
            },
        ),
        (
            {"algo_kl": 0.002, "clip_ratio": 0.3},
            {
                "algorithm.kl_ctrl.kl_coef": 0.002,
                "algorithm.use_kl_in_reward": True,
                f"{ACTOR}.clip_ratio_low": 0.3,
                f"{ACTOR}.clip_ratio_high": 0.3,
            },
        ),
    ],
    ids=["most", "what excludes one of them"],
)
def test_a_hyper_parameter_arrives_at_its_place_in_verls_configuration(
    changes: dict[str, Any], composed: dict[str, Any]
) -> None:
    config = compose(all_overrides(verl_settings(), spec(**changes), 5000))
    assert {path: OmegaConf.select(config, path) for path in composed} == composed


@pytest.mark.parametrize(
    ("key", "decided"),
    [
        ("gradient_checkpointing", True),
        ("param_offload", False),
        ("optimizer_offload", False),
        ("exclude_modules", None),
        ("max_num_batched_tokens", 8192),
        ("max_model_len", 32 + 64),
        ("algorithm.rollout_correction.rollout_is", None),
    ],
)
def test_null_leaves_a_key_to_the_engine_or_verl(key: str, decided: Any) -> None:
    config = compose(all_overrides(verl_settings(platform="gpu"), spec(**{key: None}), 5000))
    assert OmegaConf.select(config, canonical(key)) == decided


def test_every_known_hyper_parameter_composes_at_its_default() -> None:
    config = compose(all_overrides(verl_settings(), spec(), 5000))
    for key, want in spec().hyperparameters.items():
        got = OmegaConf.select(config, key)
        assert (list(want) if isinstance(want, tuple) else want) == got, key


def test_a_configuration_that_was_asked_for_before_is_the_callers_own() -> None:
    """The driver changes what it is given."""
    asked = all_overrides(verl_settings(), spec(), 5000)
    first = compose(asked)
    kept = OmegaConf.to_container(first)
    with open_dict(first):
        first.trainer.total_epochs, first.data.max_response_length = -1, -1
        first.added = 1
    assert OmegaConf.to_container(compose(asked)) == kept


def test_steps_end_a_phase_and_epochs_never_do() -> None:
    config = compose(all_overrides(verl_settings(), spec(batch=128), 256))
    assert config.trainer.total_training_steps == 40
    assert config.trainer.total_epochs * (256 // 128) > 40


def test_paths_reward_lora_and_cadence_follow_settings_and_phase() -> None:
    config = compose(all_overrides(verl_settings(), spec(lora_rank=8), 5000))
    assert config.data.train_files == "/data/train.parquet"
    assert config.reward.custom_reward_function.path == "pkg://llmzero_ray.tasks.rewards.marked_answer"
    assert (config.actor_rollout_ref.model.lora_rank, config.trainer.test_freq, config.trainer.save_freq) == (
        8,
        5,
        10,
    )
    assert config.actor_rollout_ref.rollout.max_model_len == 32 + 64
    assert config.data.seed == (2**40 + 7) % 2**31


def test_the_gpu_configuration_keeps_verls_own_kernels_and_sleep_mode() -> None:
    config = compose(all_overrides(verl_settings(platform="gpu", n_gpus_per_node=8), spec(), 5000))
    assert config.actor_rollout_ref.rollout.free_cache_engine is True
    assert (
        config.actor_rollout_ref.rollout.enforce_eager is not True
        or config.actor_rollout_ref.rollout.enforce_eager is False
    )
    assert config.trainer.device == "cuda" and config.trainer.n_gpus_per_node == 8
    assert config.actor_rollout_ref.actor.strategy == "fsdp2"


def test_on_gpus_long_prompts_are_left_out_without_a_fork_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets.arrow_dataset
    import pyarrow as pa
    import pyarrow.parquet as pq
    from verl.utils.dataset.rl_dataset import RLHFDataset

    class Tokenizer:
        def apply_chat_template(self, messages: Any, **_: Any) -> list[int]:
            return [0] * len(messages[0]["content"])

    def pool(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows are filtered by forks of the driver")

    monkeypatch.setattr(datasets.arrow_dataset.mp, "Pool", pool)
    prompts = [[{"role": "user", "content": "x" * n}] for n in (3, 32, 33)]
    pq.write_table(pa.table({"prompt": prompts}), tmp_path / "rows.parquet")
    given = verl_settings(platform="gpu", overrides={"+data.cache_dir": str(tmp_path / "cache")})
    config = compose(all_overrides(given, spec(), 5000)).data
    assert config.max_prompt_length == 32
    assert len(RLHFDataset(str(tmp_path / "rows.parquet"), Tokenizer(), config)) == 2


def test_on_gpus_an_adapter_travels_in_small_pieces_and_whole_weights_in_verls() -> None:
    key = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
    found = [
        OmegaConf.select(compose(all_overrides(verl_settings(platform="gpu", **each), spec(), 5000)), key)
        for each in ({}, {"serve_merged": True}, {"overrides": {key: 64}})
    ]
    assert found == [256, 2048, 64]


def test_fixed_overrides_of_the_user_win_over_the_engines_own() -> None:
    given = verl_settings(
        overrides={
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes": 123,
            "data.shuffle": False,
        }
    )
    config = compose(all_overrides(given, spec(), 5000))
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes == 123
    assert config.data.shuffle is False


def test_an_unknown_key_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        compose(all_overrides(verl_settings(overrides={f"{ACTOR}.optim.learning_rate": 1e-3}), spec(), 5000))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (MERGE, True),
        (f"+{MERGE}", True),
        (MERGE, False),
        (MERGE.removesuffix(".merge"), {"merge": True}),
        (f"+{MERGE.removesuffix('.merge')}", {"merge": True, "rank": 8}),
        (MERGE.removesuffix(".lora.merge"), {"lora": {"merge": True}}),
    ],
)
def test_the_raw_key_of_merged_weights_is_refused_by_the_settings_name(key: str, value: Any) -> None:
    for asked in (True, False):
        with pytest.raises(
            ConfigError, match=r"Set engine\.serve_merged to true or false, and remove the key"
        ):
            engine_overrides(verl_settings(overrides={key: value}, serve_merged=asked))
    engine_overrides(verl_settings(overrides={"actor_rollout_ref.model.lora": {"rank": 8}}))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("asked", [True, False])
def test_merged_weights_are_served_where_that_is_asked_for(platform: str, asked: bool) -> None:
    config = compose(all_overrides(verl_settings(platform=platform, serve_merged=asked), spec(), 5000))
    assert config.actor_rollout_ref.model.lora.merge is asked
    assert config.actor_rollout_ref.rollout.load_format == "safetensors"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("+actor_rollout_ref.rollout.quantization", "fp8"),
        ("actor_rollout_ref.rollout.load_format", "dummy"),
        (f"{ACTOR}.ulysses_sequence_parallel_size", 2),
    ],
)
def test_merged_weights_are_refused_beside_what_cannot_send_them(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"serve_merged is true, .* Remove one of the two"):
        engine_overrides(verl_settings(overrides={key: value}, serve_merged=True))
    engine_overrides(verl_settings(overrides={key: value}))


@pytest.mark.parametrize("key", [f"{ACTOR}.strategy", f"+{ACTOR}.fsdp_config.strategy"])
def test_fsdp1_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r"strategy to 'fsdp'; phases exchange .* FSDP2 alone"):
        engine_overrides(verl_settings(overrides={key: "fsdp"}))
    engine_overrides(verl_settings(overrides={key: "fsdp2"}))


def test_a_phase_without_a_batch_size_is_refused() -> None:
    bare = dataclasses.replace(spec(), hyperparameters={})
    with pytest.raises(ConfigError, match=r"data\.train_batch_size is None"):
        phase_overrides(bare, 100)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.001, "0.001"),
        (7, "7"),
        ("it's", r"'it\'s'"),
        ((0.9, 0.95), "[0.9,0.95]"),
        ({"a": 1, "b": "x"}, "{a:1,b:'x'}"),
    ],
)
def test_values_are_written_in_hydras_grammar(value: Any, text: str) -> None:
    assert hydra_literal(value) == text


def test_a_value_hydra_cannot_express_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be a object"):
        hydra_literal(object())
