"""Every preset for GPUs as VeRL's own configuration: accepted by its validation, and with the settings that a
run on GPUs stands or falls with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from llmzero_ray.config import SearchConfig, load_config
from llmzero_ray.engines.base import Slot
from llmzero_ray.engines.verl.driver import _check_config
from llmzero_ray.engines.verl.factory import idle_spec, verl_settings
from llmzero_ray.engines.verl.overrides import all_overrides, compose
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate import Estimate, with_server_sizes
from llmzero_ray.estimate.fit import Assessment, assess
from llmzero_ray.estimate.model_shape import read_shape
from llmzero_ray.estimate.setup import setup_of
from llmzero_ray.hyperparameters import resolve
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.tasks.task_yaml import load_task_file

CONFIGS = Path(__file__).parents[2] / "jobs" / "configs"
PRESETS = {
    path.name: with_server_sizes(Estimate(load_config(path)), lambda _: None)
    for path in sorted(CONFIGS.glob("*.yaml"))
    if path.name not in ("demo.yaml", "local.yaml", "smollm2_cpu.yaml")
}
ACTOR, MODEL, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "model", "rollout"))
EXPERT: dict[str, Any] = {
    "trainer.device": "cuda",
    "trainer.val_before_train": True,
    "trainer.v1.trainer_mode": "sync",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 4,
    "data.filter_overlong_prompts": True,
    "data.filter_overlong_prompts_workers": None,
    # VeRL's 2 GiB are a tenth of a small card, for an adapter of some MB.
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 256,
    f"{ACTOR}.strategy": "fsdp2",
    f"{ACTOR}.use_dynamic_bsz": True,
    f"{ACTOR}.use_kl_loss": True,
    # A loop over chunks is compiled again for each length, up to Dynamo's limit, and is eager from then on.
    f"{ACTOR}.fsdp_config.entropy_from_logits_with_chunking": True,
    f"{ACTOR}.fsdp_config.use_torch_compile": False,
    f"{ACTOR}.fsdp_config.dtype": "bfloat16",
    # Masters in float32: in bfloat16 a learning rate of 5e-5 is lost in rounding.
    f"{ACTOR}.fsdp_config.model_dtype": "fp32",
    f"{ACTOR}.fsdp_config.reshard_after_forward": True,
    f"{MODEL}.enable_gradient_checkpointing": True,
    f"{MODEL}.use_remove_padding": True,
    f"{ROLLOUT}.dtype": "bfloat16",
    f"{ROLLOUT}.enforce_eager": False,
    f"{ROLLOUT}.free_cache_engine": True,
    f"{ROLLOUT}.enable_prefix_caching": True,
    f"{ROLLOUT}.enable_chunked_prefill": True,
    # What rollouts are compared with the policy by, at every step.
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ROLLOUT}.logprobs_mode": "processed_logprobs",
    f"{ROLLOUT}.val_kwargs.do_sample": False,
    f"{ROLLOUT}.val_kwargs.n": 1,
    f"{ROLLOUT}.load_format": "safetensors",
    f"{ROLLOUT}.layered_summon": False,
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
}
"""What an expert would check by eye in every preset."""


def task(directory: Path) -> PreparedTask:
    return PreparedTask(
        directory=str(directory),
        name="t",
        family=None,
        train=str(directory / "train.parquet"),
        val=str(directory / "val.parquet"),
        test=str(directory / "test.parquet"),
        n_train=5000,
        n_val=500,
        n_test=500,
        data_sources=("t",),
        reward_module="llmzero_ray.tasks.rewards.marked_answer",
        reward_path="/x.py",
        reward_name="compute_score",
        max_prompt_tokens=None,
        max_answer_tokens=None,
        model_path=None,
        model_params=None,
        greedy_val_accuracy=None,
        licence=None,
        majority_baseline=None,
    )


def composed(config: SearchConfig, directory: Path) -> Any:
    """VeRL's configuration of the root, as the engine makes it."""
    slots, rows = config.slots, task(directory)
    groups = tuple(f"{i:02x}" for i in range(slots.nodes))
    slot = Slot(
        search=config.name,
        index=0,
        placement_groups=groups,
        gpus_per_node=slots.gpus_per_node,
        cpus_per_gpu=slots.cpus_per_gpu,
    )
    settings = verl_settings(config, rows, slot, str(directory))
    spec = idle_spec(config, rows.n_train, str(directory))
    found = resolve(
        spec.hyperparameters, n_gpus=settings.n_gpus, micro_batch_limit=settings.micro_batch_limit
    )
    object.__setattr__(spec, "hyperparameters", found)
    return compose(all_overrides(settings, spec, rows.n_train))


def judged(config: SearchConfig) -> Assessment:
    """The estimate of the root's GPU memory on the preset's own card."""
    assert config.model.path is not None and config.slots.gpu_memory_gib is not None
    setup = setup_of(config, root_hyperparameters(config, 5000), gpu_gib=config.slots.gpu_memory_gib)
    return assess(read_shape(config.model.path), setup)


@pytest.fixture(scope="module", params=sorted(PRESETS))
def preset(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, SearchConfig]:
    config = PRESETS[request.param]
    return composed(config, tmp_path_factory.mktemp("preset")), config


def test_every_preset_is_for_gpus_and_there_are_some() -> None:
    assert {config.engine.platform for config in PRESETS.values()} == {"gpu"}
    assert {"qwen3_0.6b.yaml", "qwen3_8b.yaml", "paper_4b.yaml"} <= set(PRESETS)


def test_verl_accepts_the_configuration(preset: tuple[Any, SearchConfig]) -> None:
    _check_config(preset[0])


def test_verls_own_settings_classes_take_it(preset: tuple[Any, SearchConfig]) -> None:
    """They refuse what the files of its configuration allow: the last check before workers start."""
    from verl.utils.config import omega_conf_to_dataclass

    parts = preset[0].actor_rollout_ref
    actor, rollout = omega_conf_to_dataclass(parts.actor), omega_conf_to_dataclass(parts.rollout)
    # What the engine is built with, once the classes have put their own defaults in.
    engine = actor.engine
    assert (engine.strategy, engine.use_torch_compile, engine.model_dtype) == ("fsdp2", False, "fp32")
    assert engine.entropy_from_logits_with_chunking and engine.mixed_precision is None  # bf16, sums in fp32
    assert (rollout.name, rollout.mode) == ("vllm", "async")


def test_a_prompts_answers_and_a_batch_divide_among_the_gpus(preset: tuple[Any, SearchConfig]) -> None:
    verl, config = preset
    batch = OmegaConf.select(verl, "data.train_batch_size")
    mini_batch = OmegaConf.select(verl, f"{ACTOR}.ppo_mini_batch_size")
    n = OmegaConf.select(verl, f"{ROLLOUT}.n")
    assert batch % mini_batch == 0
    assert (mini_batch * n) % config.slots.n_gpus == 0
    assert config.slots.n_gpus % config.engine.tensor_model_parallel_size == 0


def test_the_settings_are_those_of_an_expert(preset: tuple[Any, SearchConfig]) -> None:
    found = {key: OmegaConf.select(preset[0], key) for key in EXPERT}
    assert found == EXPERT


def test_attention_is_flash_attention(preset: tuple[Any, SearchConfig]) -> None:
    # What HFModelConfig takes where nothing is said.
    own = OmegaConf.select(preset[0], f"{MODEL}.override_config.attn_implementation", default=None)
    assert own in (None, "flash_attention_2")


def test_a_packed_micro_batch_and_a_server_hold_the_longest_sequence(
    preset: tuple[Any, SearchConfig],
) -> None:
    verl, config = preset
    engine = config.engine
    longest = engine.max_prompt_length + max(engine.max_response_length, config.eval.max_response_length)
    for key in (
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
        f"{ROLLOUT}.max_model_len",
    ):
        assert OmegaConf.select(verl, key) >= longest, key
    assert config.eval.max_response_length >= config.root.overrides["resp"]


def test_shards_stay_within_a_machine(preset: tuple[Any, SearchConfig]) -> None:
    verl, config = preset
    size = OmegaConf.select(verl, f"{ACTOR}.fsdp_config.fsdp_size")
    assert size == (-1 if config.slots.nodes == 1 else config.slots.gpus_per_node)


def test_a_step_has_the_time_it_needs(preset: tuple[Any, SearchConfig]) -> None:
    config = preset[1]
    root, estimate = root_hyperparameters(config, 5000), Estimate(config)
    limits = estimate.time_limits(root, rows=500)
    assert config.engine.hang_min_s is None and config.engine.stop_deadline_s is None
    stages = estimate.stage_times(root, rows=500)
    assert stages is not None
    assert limits.hang_s >= max(600, 1.5 * stages.longest_s)
    assert limits.stop_s >= max(600, 1.5 * (stages.rollout_s + stages.update_s))
    assert config.slots.timeout_s >= 600 and config.engine.start_timeout_s >= 900


def test_the_root_is_estimated_to_fit_its_card(preset: tuple[Any, SearchConfig]) -> None:
    found = judged(preset[1])
    assert found.status == "fits", found.reason


@pytest.mark.parametrize(
    ("name", "gpus"),
    [("qwen3_0.6b.yaml", n) for n in (1, 2, 4, 8)] + [("qwen3_1.7b.yaml", n) for n in (2, 4, 8)],
)
def test_small_models_fit_slots_of_few_gpus(name: str, gpus: int) -> None:
    config = load_config(CONFIGS / name, [f"slots.gpus_per_node={gpus}"])
    assert judged(config).status == "fits"


def test_presets_for_one_gpu_need_no_cluster_and_name_the_task_that_ships() -> None:
    own = {name: config for name, config in PRESETS.items() if name.startswith("one_gpu")}
    assert {config.slots.gpu_memory_gib for config in own.values()} == {22.0, 39.4, 79.2}
    made = load_task_file(CONFIGS / "tasks" / "gsm_symbolic.yaml")
    for name, config in own.items():
        text = (CONFIGS / name).read_text()
        assert config.slots.n_gpus == config.slots.count == 1
        assert (config.agents.backend, config.journal) == ("expert", None)
        assert config.task.dir == made.dir and "\nstorage: runs\n" in text
        assert f"jobs/configs/{name}" in text and f"models/{Path(config.model.path or '').name}" in text


FASTER: dict[str, dict[str, Any]] = {
    "old log-probs as vLLM gave them": {"algorithm.rollout_correction.bypass_mode": True},
    "Liger's kernels": {f"{MODEL}.use_liger": True},
    "four times the queue units": {"transfer_queue.backend.SimpleStorage.num_data_storage_units": 16},
}
"""Settings of `engine.overrides` that VeRL's configuration takes; none of them was trained with."""
BYPASS = "old log-probs as vLLM gave them"


def with_overrides(config: SearchConfig, overrides: dict[str, Any]) -> SearchConfig:
    engine = config.engine.model_copy(update={"overrides": {**config.engine.overrides, **overrides}})
    return config.model_copy(update={"engine": engine})


def test_verl_accepts_merged_weights_where_their_setting_asks_for_them(tmp_path: Path) -> None:
    config = load_config(CONFIGS / "qwen3_4b.yaml", ["engine.serve_merged=true"])
    verl = composed(config, tmp_path)
    assert verl.actor_rollout_ref.model.lora.merge is True
    _check_config(verl)


@pytest.mark.parametrize("name", FASTER)
def test_verl_accepts_the_settings_for_speed(name: str, tmp_path: Path) -> None:
    one_update = ["root.overrides.mini_batch=128"] if name == BYPASS else []
    config = load_config(CONFIGS / "qwen3_4b.yaml", one_update)
    verl = composed(with_overrides(config, FASTER[name]), tmp_path)
    assert {key: OmegaConf.select(verl, key) for key in FASTER[name]} == FASTER[name]
    _check_config(verl)


def test_log_probs_of_the_rollouts_as_the_old_ones_need_one_update_a_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bypass_mode is true, and .* several updates .* is 64 of"):
        composed(with_overrides(PRESETS["qwen3_4b.yaml"], FASTER[BYPASS]), tmp_path)
