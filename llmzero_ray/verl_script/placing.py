"""Maps the overrides of a VeRL script to places in a search.yaml.

`config_of` finds a place for each override: a hyper-parameter of the root, a field of search.yaml, or a raw
VeRL key of the engine. If it has no place, the reason is recorded. Overrides that depend on each other are
retried, so that their order does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from llmzero_ray.config import parse_config, set_key
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.hyperparameters import VERL_SPACE, VERL_VERSION
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.hyperparameters.verl_keys import OPEN_PREFIXES, VERL_KEYS, is_verl_key
from llmzero_ray.verl_script.reading import Script

_A, _R, _M = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
_FIELDS = {
    **{key: name for name, key in VERL_SPACE.from_config.items()},
    f"{_M}path": "model.path",
    "trainer.total_training_steps": "phase.n_steps",
    "trainer.test_freq": "phase.test_freq",
    "trainer.save_freq": "phase.save_freq",
    "trainer.nnodes": "slots.nodes",
    "trainer.n_gpus_per_node": "slots.gpus_per_node",
    f"{_R}agent.num_workers": "engine.agent_workers",
    "reward.num_workers": "engine.reward_workers",
    "trainer.experiment_name": "name",
}
"""VeRL's key -> equivalent field of search.yaml."""
_ELSEWHERE = {
    "data.train_files": "rows belong to the task: name its directory in task.dir",
    "data.val_files": "rows belong to the task: name its directory in task.dir",
    "trainer.total_epochs": "phases are counted in steps: phase.n_steps is rows / batch for each epoch",
    "trainer.logger": "name trackers in tracking.backends; the report needs none",
    "trainer.project_name": "it is tracking.project, where a tracker is named",
    "trainer.resume_mode": "a search decides where each phase resumes",
    "trainer.resume_from_path": "a search decides where each phase resumes",
    "trainer.val_before_train": "phase.validate_start says which phases validate first; the root always does",
    "data.prompt_key": "rows of a prepared task have VeRL's own columns",
    "data.reward_fn_key": "rows of a prepared task have VeRL's own columns",
}
_SAME = {
    f"{_R}name": "vllm",
    f"{_R}mode": "async",
    f"{_A}strategy": "fsdp2",
    "actor_rollout_ref.ref.strategy": "fsdp2",
    "actor_rollout_ref.hybrid_engine": True,
    "algorithm.adv_estimator": "grpo",
    "trainer.val_before_train": True,
    "trainer.device": "cuda",
    "trainer.use_v1": True,
}
"""VeRL's key -> value that every phase of a search has anyway."""
_RENAMED = {
    f"{_R}val_temperature": f"{_R}val_kwargs.temperature",
    f"{_R}val_top_p": f"{_R}val_kwargs.top_p",
    f"{_R}val_top_k": f"{_R}val_kwargs.top_k",
    f"{_R}val_do_sample": f"{_R}val_kwargs.do_sample",
    f"{_R}n_val": f"{_R}val_kwargs.n",
    f"{_R}n_agent": f"{_R}n",
    f"{_R}update_weights_bucket_megabytes": f"{_R}checkpoint_engine.update_weights_bucket_megabytes",
    f"{_R}multi_turn.max_turns": f"{_R}multi_turn.max_assistant_turns",
    f"{_R}micro_batch_size": f"{_R}log_prob_micro_batch_size_per_gpu",
    f"{_A}loss_mode": f"{_A}policy_loss.loss_mode",
    f"{_A}clip_cov_ratio": f"{_A}policy_loss.clip_cov_ratio",
    f"{_A}clip_cov_lb": f"{_A}policy_loss.clip_cov_lb",
    f"{_A}clip_cov_ub": f"{_A}policy_loss.clip_cov_ub",
    f"{_A}ppo_kl_coef": f"{_A}policy_loss.ppo_kl_coef",
    f"{_A}checkpoint.contents": f"{_A}checkpoint.save_contents",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
    "trainer.remove_previous_ckpt_in_save": "trainer.max_actor_ckpt_to_keep",
    "algorithm.rollout_is": "algorithm.rollout_correction.rollout_is",
    "algorithm.rollout_is_threshold": "algorithm.rollout_correction.rollout_is_threshold",
}
"""Key of an older VeRL or of a derived trainer -> key of the supported VeRL that replaces it."""
_OTHER_UNIT = frozenset(
    {"n_agent", "micro_batch_size", "contents", "rollout_is", "remove_previous_ckpt_in_save"}
)
"""Last parts of keys in `_RENAMED` whose values have another meaning under the new name."""
_KINDS = (
    (
        r".*\.megatron\..*|.*\.(use_mbridge|vanilla_mbridge)|.*\.override_(transformer|ddp)_config\..*"
        r"|.*\.override_optimizer_config\.(optimizer_\w+|overlap_cpu\w+|use_precision_aware\w+)"
        r"|.*\.optim\.(lr_decay_\w+|lr_warmup_init|lr_wsd_\w+|min_lr)|actor_rollout_ref\.model\.lora\.(?!merge).*",
        "the script trains with Megatron, a search with FSDP2",
    ),
    (r"critic\..*", "a critic is not supported"),
    (
        r"(reward|reward_model|custom_reward_function|sandbox_fusion|reward_kwargs)\..*",
        "the reward is the task's: name it in its manifest.json or task.yaml",
    ),
    (
        r"(.*\.)?(\w*profiler|profile_\w+|\w*nsight_options|trace|prometheus)(\..*)?",
        "profiling and tracing are not part of a configuration: what is needed goes to engine.overrides",
    ),
    (r"(ray_kwargs|ray_init|transfer_queue|hydra)\..*", "a search starts Ray and VeRL's processes itself"),
)
"""(pattern of keys, reason why a search does not take them)."""
_SWEEP = re.compile(r"(choice|range|interval|glob)\(.*\)")


@dataclass
class Translation:
    """Data of a search.yaml, and the script's overrides that are not in it, each with the reason."""

    data: dict[str, Any]
    taken: dict[str, str] = field(default_factory=dict)
    """Override -> its new place."""
    left: dict[str, str] = field(default_factory=dict)
    """Override, or several of one kind -> reason why it was not taken."""
    remarks: list[str] = field(default_factory=list)
    n_left: int = 0
    """Number of overrides that were not taken."""

    def leave(self, given: str, reason: str) -> None:
        """Record an override that is not taken."""
        self.left[given] = reason
        self.n_left += 1


@dataclass(frozen=True, order=True)
class _Placing:
    """One override with its place in a search.yaml. Overrides are tried in the order of their places."""

    place: str
    value: Any = field(compare=False)
    given: str = field(compare=False)
    renamed: str = field(default="", compare=False)


def config_of(script: Script, base: Mapping[str, Any]) -> Translation:
    """Data of a search.yaml: `base` with the script's settings.

    The result parses as a configuration. Its task and model need not exist yet.
    """
    made = Translation(dict(base), remarks=list(script.remarks))
    kinds: dict[str, list[str]] = {reason: [] for _, reason in _KINDS}
    if script.megatron:
        kinds[_KINDS[0][1]].append(script.megatron)
    for key, (given, reason) in script.unknown.items():
        made.leave(given, _ELSEWHERE.get(key) or reason)
    placings = list[_Placing]()
    values: dict[str, Any] = {}
    texts = {**script.own, **script.overrides}
    for key, text in texts.items():
        given = f"{key}={text}"
        kind = next((reason for pattern, reason in _KINDS if re.fullmatch(pattern, key)), None)
        if key.endswith(".strategy") and text == "megatron":
            kind = _KINDS[0][1]
        if kind is not None and key not in _FIELDS:
            kinds[kind].append(given)
            continue
        try:
            values[key] = _value(key, text)
        except ConfigError as error:
            made.leave(given, str(error))
            continue
        found = _placing(key, values[key], given)
        if isinstance(found, _Placing):
            placings.append(found)
        elif found is None:
            made.taken[given] = "so in every search"
        else:
            made.leave(given, found)
    _place(sorted(placings), made)
    in_order = (f"{key}={text}" for key, text in texts.items())
    made.taken = {given: made.taken[given] for given in in_order if given in made.taken}
    for reason, several in kinds.items():
        if several:
            shown = several if len(several) <= 4 else [*several[:3], f"{len(several) - 3} more of the kind"]
            made.left[", ".join(shown)] = reason
            made.n_left += len(several) - (script.megatron in several)
    cap = "data.max_response_length"
    if f"{cap}={texts.get(cap)}" in made.taken:  # for the engine and validation, too
        for place in ("engine.max_response_length", "eval.max_response_length"):
            set_key(made.data, place, values[cap])
    if not _trains_adapter(script, values):
        made.remarks.append(
            "the script trains all weights; a search trains a LoRA adapter (model.lora_rank "
            f"{parse_config(made.data).model.lora_rank}), which takes a learning rate about ten times as high"
        )
    return made


def _trains_adapter(script: Script, values: Mapping[str, Any]) -> bool:
    """Whether the script trains, or may train, an adapter."""
    named = (f"{_M}lora_rank", f"{_M}lora.rank", f"{_M}lora_adapter_path")
    given = {**values, **{key: text for key, text in script.overrides.items() if key not in values}}
    return script.partly or any(
        given.get(key) not in (None, 0, "0", "", "null") or key in script.unknown for key in named
    )


def _value(key: str, text: str) -> Any:
    """Value of an override, as hydra would parse it.

    Raises:
        ConfigError: it is not a single value.
    """
    if not text.strip():
        raise ConfigError("it is empty")
    if _SWEEP.fullmatch(text) or _splits(text):
        raise ConfigError("it is a sweep over several values: name one")
    if "${" in text:
        raise ConfigError("hydra looks it up: write the value itself")
    text = re.sub(r"\\([\\'\"()\[\]{}:=, ])", r"\1", text) if not text.startswith(("'", '"')) else text
    value = read_yaml(text, source=key)
    if (
        key == f"{_M}target_modules"
        and isinstance(value, list)
        and all(isinstance(each, str) for each in value)
    ):
        # PEFT treats a list of names like this pattern.
        return rf".*\.({'|'.join(map(re.escape, value))})"
    return value


def _splits(text: str) -> bool:
    """Whether there is a comma outside quotes and brackets."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)
    while (shorter := re.sub(r"\[[^\[\]]*\]|\{[^{}]*\}|\([^()]*\)", "", bare)) != bare:
        bare = shorter
    return "," in bare


def _placing(key: str, value: Any, given: str) -> _Placing | str | None:
    """Place of an override, or the reason why it has none. None if every search has that value anyway."""
    new = _RENAMED.get(key)
    if new is not None and not is_verl_key(key):
        found = (
            "it means something else there"
            if key.rpartition(".")[2] in _OTHER_UNIT
            else _placing(new, value, given)
        )
        if isinstance(found, _Placing):
            return _Placing(found.place, found.value, given, new)
        return f"VeRL {VERL_VERSION} has {new} in its place: {found or 'so in every search'}"
    if key in _SAME and _SAME[key] == value and type(_SAME[key]) is type(value):
        return None
    if _ELSEWHERE.get(key):
        return _ELSEWHERE[key]
    if key == "trainer.experiment_name":
        value = re.sub(r"[^a-z0-9_-]+", "-", str(value).lower()).strip("-_")[:63]
    if key == "algorithm.adv_estimator" and value == "gae":
        return "it needs a critic, which is not supported"
    if key == f"{_R}name":
        return "a search samples with vLLM"
    if key in _FIELDS:
        return _Placing(_FIELDS[key], value, given)
    if key.startswith("data.apply_chat_template_kwargs."):
        return _Placing(f"engine.overrides.+{key}", value, given)
    reason = VERL_SPACE.owned(key) if is_verl_key(key) or key in VERL_SPACE.by_key else None
    if reason is not None:
        return reason
    if key in VERL_SPACE.by_key:
        return _Placing(f"root.overrides.{VERL_SPACE.short(key)}", value, given)
    if is_verl_key(key):
        plus = "+" if key.startswith(OPEN_PREFIXES) else ""  # hydra needs it to add a key
        return _Placing(f"engine.overrides.{plus}{key}", value, given)
    near = _misspelt(key)
    return f"VeRL {VERL_VERSION} has no such key" + (f"; did you mean {near}?" if near else "")


def _misspelt(key: str) -> str | None:
    """VeRL key in the same block whose name differs in a letter or two, or None."""
    block, _, name = key.rpartition(".")
    plain = name.lower().replace("_", "")
    for known in sorted(VERL_KEYS):
        other = known.rpartition(".")[2].replace("_", "")
        if known.rpartition(".")[0] == block and (
            plain == other or (len(other) > 5 and SequenceMatcher(None, plain, other).ratio() >= 0.92)
        ):
            return known
    return None


def _place(placings: list[_Placing], made: Translation) -> None:
    """Add all values that are valid together. A value that is not valid yet is retried after the others."""
    steps = next((each.value for each in placings if each.place == "phase.n_steps"), None)
    given = {each.place for each in placings if not isinstance(each.value, int) or each.value > 0}
    reasons: dict[str, str] = {}
    while placings:
        waiting = [each for each in placings if not _try(each, made, reasons, given, steps)]
        if len(waiting) == len(placings):
            if "phase.test_freq" not in given:
                break
            given.discard("phase.test_freq")  # it does not fit the phase's length, which takes precedence
        placings = waiting
    for each in placings:
        made.leave(each.given, reasons[each.given])


def _try(placing: _Placing, made: Translation, reasons: dict[str, str], given: set[str], steps: Any) -> bool:
    """Put a value at its place. Returns False, with the reason in `reasons`, if the result is invalid."""
    data = dict(made.data)
    try:
        set_key(data, placing.place, placing.value)
        if placing.place == "phase.n_steps" and isinstance(steps, int) and steps > 0:
            phase = parse_config(made.data).phase
            set_key(data, "phase.max_steps", max(steps, phase.max_steps))
            if "phase.test_freq" not in given:
                set_key(data, "phase.test_freq", min(steps, phase.test_freq))
        parse_config(data)
        if placing.place.startswith("root.overrides."):
            VERL_SPACE.normalize(data["root"]["overrides"])
    except LlmzeroError as error:
        reasons[placing.given] = str(error).partition(": ")[2] or str(error)
        return False
    made.data = data
    made.taken[placing.given] = placing.place + (
        f" ({placing.renamed} in VeRL {VERL_VERSION})" if placing.renamed else ""
    )
    return True


def problem(data: Mapping[str, Any]) -> str | None:
    """Reason why the root of a configuration cannot be trained, or None if it can."""
    try:
        root_hyperparameters(parse_config(data), None)
    except LlmzeroError as error:
        return str(error)
    return None
