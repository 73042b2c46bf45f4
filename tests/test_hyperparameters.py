"""The space of hyper-parameters: names, values, couplings, and who may touch what."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray import hyperparameters as hp
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import Parameter, canonical, rate_depends_on_length
from llmzero_ray.hyperparameters.space import typed
from llmzero_ray.hyperparameters.verl_keys import (
    ALGO_KL,
    CLIP_HIGH,
    CLIP_LOW,
    CLIP_RATIO,
    GRAD_CLIP,
    KL_LOSS_COEF,
    LOG_PROB_MICRO,
    LORA_ALPHA,
    LORA_RANK,
    LR,
    MAX_RESPONSE,
    MAX_TOKENS,
    MICRO_BATCH,
    MINI_BATCH,
    REF_MICRO,
    ROLLOUT_N,
    TEMPERATURE,
    TRAIN_BATCH,
    USE_KL_IN_REWARD,
    USE_KL_LOSS,
    VERL_KEYS,
)

BASE = hp.defaults()
ROWS = pytest.mark.parametrize("row", hp.SPACE, ids=lambda row: row.alias)


# --- the table ----------------------------------------------------------------------------------------------


@ROWS
def test_every_row_is_a_key_of_verl_named_by_its_alias_with_an_allowed_default(row: Parameter) -> None:
    assert row.key in VERL_KEYS
    assert {hp.canonical(name) for name in (row.key, row.alias, *row.also)} == {row.key}
    assert hp.normalize({row.alias: row.default}) == {row.key: row.default}


@pytest.mark.parametrize("row", [row for row in hp.SPACE if row.low is not None], ids=lambda row: row.alias)
def test_values_just_outside_the_bounds_of_a_row_are_refused_and_name_it(row: Parameter) -> None:
    assert row.low is not None
    assert row.high is not None
    step = 1 if row.kind == "int" else 1e-3
    for value in (row.low - step, row.high + step):
        given: Any = (0.9, value) if row.kind == "betas" else value
        with pytest.raises(HyperparameterError, match=f"{row.alias}=.*must be"):
            hp.normalize({row.key: given})
    edge: Any = (row.low, row.high) if row.kind == "betas" else row.low
    assert typed(row, edge) == edge


def test_names_are_unique() -> None:
    names = [name for row in hp.SPACE for name in (row.alias, *row.also)]
    assert len(names) == len(set(names))
    assert len(hp.BY_KEY) == len(hp.SPACE)


def test_the_floor_of_a_cosine_needs_no_new_engine() -> None:
    assert hp.is_hot("actor_rollout_ref.actor.optim.min_lr_ratio")
    assert not hp.is_hot("actor_rollout_ref.actor.optim.num_cycles")


def test_a_key_without_a_row_is_cold() -> None:
    assert not hp.is_hot("actor_rollout_ref.model.use_liger")
    assert not hp.is_hot("no.such.key")


@pytest.mark.verl
def test_known_keys_are_those_of_the_installed_verl() -> None:
    composed = composed_keys()
    assert {row.key for row in hp.SPACE} <= composed
    assert composed >= VERL_KEYS
    training = ("actor_rollout_ref.actor.optim.", "algorithm.", "data.")
    assert {key for key in composed if key.startswith(training)} == {
        key for key in VERL_KEYS if key.startswith(training)
    }


@pytest.mark.verl
def test_defaults_that_only_repeat_verl_are_those_of_the_installed_verl() -> None:
    # Ours on purpose: the paper's recipe (Table 12), batches of a LoRA run, GRPO, and one GPU per server.
    ours = {
        "lr", "n", "batch_size", "mini_batch_size", "clip_high", "use_kl_loss", "adv_norm", "adv_estimator",
        "max_response_length", "max_prompt_length", "lora_rank", "lora_alpha", "total_epochs",
        "tensor_model_parallel_size", "micro_batch_size", "log_prob_micro_batch_size", "ref_micro_batch_size",
    }  # fmt: skip
    composed = composed_values()
    for row in hp.SPACE:
        if row.alias not in ours and row.default is not None:
            theirs = composed[row.key]
            assert row.default == (tuple(theirs) if isinstance(theirs, list) else theirs), row.key


def composed_values() -> dict[str, Any]:
    """VeRL's own composed configuration, flat; read from its YAML files, VeRL itself is not imported."""
    hydra = pytest.importorskip("hydra")
    omegaconf = pytest.importorskip("omegaconf")
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        pytest.skip("verl is not installed")
    folder = Path(spec.origin).parent / "trainer" / "config"
    with hydra.initialize_config_dir(str(folder), version_base=None):
        config = hydra.compose("ppo_trainer")
    flat: dict[str, Any] = {}
    _flatten(omegaconf.OmegaConf.to_container(config, resolve=False), "", flat)
    return flat


def _flatten(value: Any, prefix: str, flat: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(inner, f"{prefix}.{key}" if prefix else str(key), flat)
    else:
        flat[prefix] = value


def composed_keys() -> set[str]:
    return {key for key in composed_values() if not key.endswith("_target_")}


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("lr", LR),
        ("optim.lr", LR),
        ("kl", KL_LOSS_COEF),
        ("T", TEMPERATURE),
        ("rollout.n", ROLLOUT_N),
        ("resp", MAX_RESPONSE),
        ("grad_clip", GRAD_CLIP),
        ("algo_kl", ALGO_KL),
        ("actor_rollout_ref.model.use_liger", "actor_rollout_ref.model.use_liger"),
    ],
)
def test_people_may_write_aliases_ends_of_keys_or_keys(name: str, key: str) -> None:
    assert hp.canonical(name) == key


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("temprature", "temperature"),
        ("lrr", "lr"),
        ("actor_rollout_ref.actor.optim.lrr", "actor_rollout_ref.actor.optim.lr"),
        ("data.train_batchsize", "data.train_batch_size"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(HyperparameterError, match=rf"did you mean '{nearest}'"):
        hp.canonical(name)


def test_an_end_that_two_keys_share_names_neither() -> None:
    with pytest.raises(HyperparameterError):
        hp.canonical("log_prob_micro_batch_size_per_gpu")


def test_two_names_of_one_parameter_are_refused() -> None:
    with pytest.raises(HyperparameterError, match="same hyper-parameter"):
        hp.normalize({"lr": 1e-3, "learning_rate": 1e-3})


# --- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("lr", "1e-3", 1e-3),
        ("n", "12", 12),
        ("n", 12.0, 12),
        ("adv_norm", "true", True),
        ("betas", "0.9, 0.95", (0.9, 0.95)),
        ("betas", [0.9, 0.95], (0.9, 0.95)),
        ("micro_batch_size", "auto", "auto"),
        ("exclude_modules", None, None),
        ("lr", 0, 0.0),
    ],
)
def test_values_are_read_as_the_type_of_their_key(name: str, written: Any, value: Any) -> None:
    (read,) = hp.normalize({name: written}).values()
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("lr", "fast"),
        ("lr", float("nan")),
        ("lr", True),
        ("lr", None),
        ("n", 8.5),
        ("n", "auto"),
        ("adv_norm", 1),
        ("adv_norm", "yes"),
        ("betas", (0.9,)),
        ("kl_loss_type", "exact"),
        ("target_modules", ""),
        ("actor_rollout_ref.model.use_liger", "${oc.env:HOME}"),
        ("target_modules", "${oc.env:HOME}"),
        ("actor_rollout_ref.model.use_liger", {"a": 1}),
        ("actor_rollout_ref.actor.tau_pos", float("inf")),
    ],
)
def test_values_of_another_type_are_refused(name: str, written: Any) -> None:
    with pytest.raises(HyperparameterError, match=r"must be|not allowed"):
        hp.normalize({name: written})


def test_normalizing_twice_changes_nothing() -> None:
    assert hp.normalize(BASE) == BASE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5e-5, "5e-5"),
        (2.5e-5, "2.5e-5"),
        (0.001, "0.001"),
        (0.0, "0"),
        (1.0, "1"),
        (16, "16"),
        (True, "true"),
        (None, "null"),
        ((0.9, 0.999), "(0.9, 0.999)"),
        ("auto", "auto"),
    ],
)
def test_values_are_shown_as_people_write_them(value: Any, text: str) -> None:
    assert hp.format_value(LR, value) == text


def test_a_difference_lists_old_and_new_in_the_order_of_the_table() -> None:
    changed = hp.complete(BASE, {"temperature": 0.9, "lr": 1e-4})
    assert list(hp.diff(BASE, changed).items()) == [(LR, (5e-5, 1e-4)), (TEMPERATURE, (1.0, 0.9))]
    assert hp.diff(BASE, {**BASE, "actor_rollout_ref.actor.optim.betas": [0.9, 0.999]}) == {}
    assert hp.diff({"a": 1}, {"a": True}) == {"a": (1, True)}


# --- couplings ----------------------------------------------------------------------------------------------


def changed(changes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {key: new for key, (_, new) in hp.diff(BASE, hp.complete(BASE, changes, **more)).items()}


def test_the_clip_ratio_moves_both_sides_since_alone_it_would_do_nothing() -> None:
    assert changed({"clip_ratio": 0.3}) == {CLIP_RATIO: 0.3, CLIP_LOW: 0.3, CLIP_HIGH: 0.3}
    assert changed({"clip_ratio": 0.3, "clip_high": 0.4})[CLIP_HIGH] == 0.4


def test_the_mini_batch_follows_the_batch_and_keeps_the_number_of_updates() -> None:
    assert changed({"batch": 96}) == {TRAIN_BATCH: 96, MINI_BATCH: 96}
    two_updates = hp.complete(BASE, {"mini_batch_size": 64})
    assert hp.complete(two_updates, {"batch": 96})[MINI_BATCH] == 48
    # A prime has no half: one update is nearer to two than ninety-seven are.
    assert hp.complete(two_updates, {"batch": 97})[MINI_BATCH] == 97


def test_a_kl_coefficient_switches_its_term_on() -> None:
    assert changed({"algo_kl": 0.002}) == {ALGO_KL: 0.002, USE_KL_IN_REWARD: True, USE_KL_LOSS: False}
    off = hp.complete(BASE, {"use_kl_loss": False})
    assert hp.complete(off, {"kl": 0.01})[USE_KL_LOSS] is True
    assert hp.complete(off, {"kl": 0.01, "use_kl_loss": False})[USE_KL_LOSS] is False
    assert hp.complete(off, {"lr": 1e-4})[USE_KL_LOSS] is False


@pytest.mark.parametrize(
    ("changes", "in_loss", "in_reward"),
    [
        # Tables 9 and 11 of the paper name both weights.
        ({"kl": 0.002, "algo_kl": 0.002}, True, False),
        ({"algo_kl": 0.002}, False, True),
        ({"use_kl_in_reward": True}, False, True),
        ({"kl": 0.002, "algo_kl": 0.002, "use_kl_in_reward": True}, False, True),
        ({"kl": 0.0, "algo_kl": 0.002}, False, True),
        ({"use_kl_loss": False, "algo_kl": 0.002}, False, True),
        ({"use_kl_loss": False}, False, False),
        ({"algo_kl": 0.002, "use_kl_in_reward": False}, True, False),
        # Whoever names both switches wants both.
        ({"use_kl_loss": True, "use_kl_in_reward": True}, True, True),
    ],
)
def test_one_kl_is_paid_at_a_time(changes: dict[str, Any], in_loss: bool, in_reward: bool) -> None:
    full = hp.complete(BASE, changes)
    assert (full[USE_KL_LOSS], full[USE_KL_IN_REWARD]) == (in_loss, in_reward)


def test_the_kl_goes_back_from_the_reward_to_the_loss() -> None:
    in_reward = hp.complete(BASE, {"algo_kl": 0.002})
    back = hp.complete(in_reward, {"kl": 0.002})
    assert (back[USE_KL_LOSS], back[USE_KL_IN_REWARD]) == (True, False)


def test_micro_batches_become_a_divisor_no_larger_than_before() -> None:
    base = hp.complete(BASE, {"micro_batch_size": 32})
    # 96 prompts x 12 = 1152 sequences; 32 divides them. 100 x 8 = 800: 32 does. 100 x 9 = 900: 30 is the
    # largest.
    assert hp.complete(base, {"batch": 96, "n": 12})[MICRO_BATCH] == 32
    assert hp.complete(base, {"batch": 100, "n": 9})[MICRO_BATCH] == 30
    with pytest.raises(HyperparameterError, match="must divide the 900 sequences"):
        hp.complete(base, {"batch": 100, "n": 9, "micro_batch_size": 32})


def test_a_packed_micro_batch_may_hold_a_part_of_a_sequence_that_gpus_share() -> None:
    packed = {"dynamic_bsz": True, "max_token_len_per_gpu": 7000}
    assert hp.complete(BASE, packed, n_gpus=2)[MAX_TOKENS] == 7000


def test_micro_batches_need_not_divide_while_they_are_packed_by_tokens() -> None:
    assert hp.complete(BASE, {"dynamic_bsz": True, "micro_batch_size": 7})[MICRO_BATCH] == 7


def test_auto_micro_batches_resolve_to_the_largest_divisor_below_the_limit() -> None:
    full = hp.complete(BASE, {"batch": 100, "mini_batch_size": 50})
    found = hp.resolve(full, n_gpus=2, micro_batch_limit=16)
    # Per GPU: 50 x 8 / 2 = 200 sequences of an update, 100 x 8 / 2 = 400 of a step.
    assert (found[MICRO_BATCH], found[LOG_PROB_MICRO], found[REF_MICRO]) == (10, 16, 16)
    assert hp.resolve(hp.complete(full, {"micro_batch_size": 25}))[MICRO_BATCH] == 25


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch": 96, "mini_batch_size": 64},
            "batch_size=96, mini_batch_size=64.*multiple of the mini batch",
        ),
        ({"mini_batch_size": 256}, "multiple of the mini batch"),
        ({"resp": 9000}, "together 10024 tokens.*context length is 9216"),
        ({"batch": 8192}, "5000 training items"),
        (
            {"actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True},
            "log_prob_use_dynamic_bsz=true, dynamic_bsz=false: both must be the same",
        ),
        (
            {"dynamic_bsz": True, "max_token_len_per_gpu": 7000},
            "max_token_len_per_gpu=7000, .*, max_response_length=6144: .*have 7168 tokens",
        ),
    ],
)
def test_broken_couplings_are_refused_with_the_values_at_hand(changes: dict[str, Any], message: str) -> None:
    limits = hp.Limits(max_model_len=9216, n_train=5000)
    with pytest.raises(HyperparameterError, match=message):
        hp.complete(BASE, changes, limits=limits)


def test_an_update_must_divide_over_the_gpus_of_a_slot() -> None:
    hp.complete(BASE, {"batch": 96, "n": 12}, n_gpus=64)
    with pytest.raises(HyperparameterError, match="mini batch x n = 24 sequences must divide over 16 GPUs"):
        hp.complete(BASE, {"batch": 4, "n": 6}, n_gpus=16)
    with pytest.raises(HyperparameterError, match="must divide the 2 GPUs"):
        hp.complete(BASE, {"tp": 4}, n_gpus=2)


def test_the_longest_response_of_the_search_bounds_every_phase() -> None:
    with pytest.raises(HyperparameterError, match="at most 4096"):
        hp.complete(BASE, {}, limits=hp.Limits(max_response_length=4096))


def test_values_exactly_at_a_limit_are_allowed() -> None:
    limits = hp.Limits(max_model_len=6144 + 1024, max_response_length=6144, n_train=128)
    assert hp.complete(BASE, {}, limits=limits) == BASE


def test_a_kl_coefficient_of_zero_switches_its_term_in_the_reward_off() -> None:
    on = hp.complete(BASE, {"algo_kl": 0.002})
    assert hp.complete(on, {"algo_kl": 0})[USE_KL_IN_REWARD] is False
    assert hp.complete(on, {"algo_kl": 0, "use_kl_in_reward": True})[USE_KL_IN_REWARD] is True


def test_a_micro_batch_limit_defaults_to_sixteen_sequences_on_one_gpu() -> None:
    assert hp.resolve(BASE)[MICRO_BATCH] == 16


def test_an_incomplete_configuration_is_refused_and_says_what_is_missing() -> None:
    with pytest.raises(HyperparameterError, match="lacks lr"):
        hp.validate({key: value for key, value in BASE.items() if key != LR})


def test_a_learning_rate_of_zero_is_allowed() -> None:
    assert changed({"lr": 0}) == {LR: 0.0}


@pytest.mark.parametrize("alias", ["lora_rank", "lora_alpha"])
def test_a_resume_keeps_the_shape_of_the_adapter(alias: str) -> None:
    child = hp.complete(BASE, {alias: 32})
    with pytest.raises(HyperparameterError, match=f"{alias} changes from 64 to 32 at a resume"):
        hp.check_transition(BASE, child)
    hp.check_transition(BASE, hp.complete(BASE, {"lr": 1e-4}))


@given(
    batch=st.integers(1, 300),
    mini=st.integers(1, 300),
    n=st.integers(2, 40),
    micro=st.integers(1, 64),
    new_batch=st.integers(1, 300),
    new_n=st.integers(2, 40),
)
def test_changing_batch_and_rollouts_of_a_valid_configuration_gives_a_valid_one(
    batch: int, mini: int, n: int, micro: int, new_batch: int, new_n: int
) -> None:
    mini = hp.largest_divisor(batch, mini)
    micro = hp.largest_divisor(mini * n, micro)
    start = {"batch": batch, "mini_batch_size": mini, "n": n, "micro_batch_size": micro}
    base = hp.complete(BASE, start)
    full = hp.complete(base, {"batch": new_batch, "n": new_n})
    hp.validate(full)
    assert int(str(full[MICRO_BATCH])) <= int(str(base[MICRO_BATCH]))
    assert (full[MINI_BATCH] == new_batch) or mini != batch


@given(number=st.integers(1, 5000), limit=st.integers(1, 5000))
def test_the_largest_divisor_divides_and_none_larger_fits(number: int, limit: int) -> None:
    found = hp.largest_divisor(number, limit)
    assert number % found == 0
    assert found <= max(1, limit)
    assert not [d for d in range(found + 1, min(limit, number) + 1) if number % d == 0]


def test_nothing_of_the_reference_acts_since_it_is_the_policy_without_its_adapter() -> None:
    changed = hp.complete(BASE, {"ref_micro_batch_size": 1})
    assert REF_MICRO in hp.VERL_SPACE.inert(changed)
    assert hp.VERL_SPACE.same_training(BASE, changed)
    offered = {row.key for row in hp.VERL_SPACE.proposable}
    assert not {key for key in offered if key.startswith("actor_rollout_ref.ref.")}


# --- who may touch what -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.model.lora_adapter_path",
        "actor_rollout_ref.model.trust_remote_code",
        "actor_rollout_ref.model.external_lib",
        "actor_rollout_ref.model.custom_chat_template",
        "actor_rollout_ref.model.override_config.auto_map",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.served_model_name",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path",
        "actor_rollout_ref.actor.optim.optimizer_impl",
        "data.custom_cls.path",
        "data.train_files",
        "data.val_files",
        "data.tokenizer",
        "data.max_prompt_length",
        "reward.custom_reward_function.path",
        "reward.reward_manager.name",
        "trainer.default_local_dir",
        "trainer.logger",
        "trainer.checkpoint_callback_class",
        "trainer.total_epochs",
        "actor_rollout_ref.rollout.val_kwargs.temperature",
        "actor_rollout_ref.rollout.ignore_eos",
        "actor_rollout_ref.hybrid_engine",
        "data.filter_overlong_prompts",
        "data.return_raw_chat",
    ],
)
def test_a_proposer_never_touches_code_paths_rewards_logs_or_the_measurement(key: str) -> None:
    assert hp.canonical(key) == key
    assert hp.forbidden(key)


@ROWS
def test_a_proposer_may_change_every_training_parameter(row: Parameter) -> None:
    expected = row.group in ("duration", "fixed") or row.alias == "max_prompt_length"
    assert (hp.forbidden(row.key) is not None) == expected


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("trainer.total_epochs", "phase.n_steps"),
        ("trainer.test_freq", "phase.test_freq"),
        (LORA_RANK, "model.lora_rank"),
        (LORA_ALPHA, "model.lora_alpha"),
        ("actor_rollout_ref.rollout.max_num_seqs", "engine.max_num_seqs"),
        ("actor_rollout_ref.actor.grad_clip", "grad_clip"),
        ("actor_rollout_ref.model.path", "model.path"),
        ("data.train_files", "task.dir"),
    ],
)
def test_keys_that_another_setting_owns_say_which(key: str, instead: str) -> None:
    assert instead in str(hp.owned(key))


def test_users_may_set_training_parameters_and_other_keys_of_verl_at_the_root() -> None:
    assert hp.owned(LR) is None
    assert hp.owned("actor_rollout_ref.actor.policy_loss.loss_mode") is None
    assert {hp.canonical(key) for key in hp.VERL_SPACE.from_config.values()} == set(
        hp.VERL_SPACE.from_config.values()
    )


@pytest.mark.parametrize(
    ("given", "depends"),
    [
        ({}, False),
        ({"lr_scheduler": "cosine"}, True),
        ({"lr_warmup_ratio": 0.1}, True),
        ({"lr_warmup_ratio": 0.1, "lr_warmup_steps": 0}, True),
        ({"lr_warmup_ratio": 0.1, "lr_warmup_steps": 3}, False),
    ],
)
def test_a_rate_depends_on_the_length_if_it_falls_or_warms_up_by_a_share(
    given: dict[str, Any], depends: bool
) -> None:
    assert rate_depends_on_length({canonical(name): value for name, value in given.items()}) is depends
