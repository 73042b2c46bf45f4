"""Export a strategy as scripts for plain VeRL: one `python -m verl.trainer.main_ppo` command per phase.

The exported folder has everything but the base model. It can be moved, because paths in it are relative to
it. Not here: training the strategy with this project (retrain.py), VeRL's keys (engines/verl/overrides.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import shlex
import shutil
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.config.strategy_file import Strategy, StrategyPhase
from llmzero_ray.engines.base import Slot
from llmzero_ray.engines.capacity import private_head_resources
from llmzero_ray.engines.verl.environment import plain_vars
from llmzero_ray.engines.verl.factory import verl_settings
from llmzero_ray.engines.verl.overrides import MODEL, all_overrides, hydra_literal
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import resolve
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.storage.strategy import phase_specs
from llmzero_ray.utils.files import replace_file, storage_errors
from llmzero_ray.utils.text import one_line

_HERE = "@HERE@"
"""Placeholder for the folder in values. In a script, it becomes the variable HERE."""
_MODEL = "@MODEL@"
_REWARD = "reward.custom_reward_function"
_SAVED = "checkpoints/phase_{phase}/global_step_{step}/actor"
_ADAPTER = "adapters/phase_{phase}/lora_adapter"


def export_verl(
    strategy: Strategy, config: SearchConfig, task: PreparedTask, directory: Path
) -> tuple[Path, ...]:
    """Write the strategy into `directory`, which must be new or empty, and is empty again after an error.
    Returns the scripts, in order of phases.

    `config` is the search's configuration, from which engine and hardware settings are taken. `task` is its
    task, whose rows and reward are copied.

    Raises:
        ConfigError: the directory is not empty, the engine is not VeRL, or the reward cannot be exported.
        StorageError: the directory cannot be written.
    """
    if config.engine.backend != "verl":
        raise ConfigError(
            f"--verl writes scripts of VeRL, and this strategy was trained by {config.engine.backend!r}."
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is not empty. Give --verl a new directory, or empty this one.")
    settings = _settings(config, task)
    reward = _reward_keys(task)
    with storage_errors(directory), _emptied_after_error(directory):
        _copy_task(task, directory)
        replace_file(directory / "strategy.yaml", strategy.to_yaml())
        replace_file(directory / "README.md", _readme(strategy, settings, task))
        scripts = []
        # A model that was made for the task is in the folder, wherever the task was during the search.
        own = task.model_path is not None and config.model.path in (None, task.model_path)
        model = '"$HERE/model"' if own else shlex.quote(strategy.base_model)
        for phase in strategy.phases:
            keys = _keys(strategy, phase, settings, task.n_train) | reward | _ray_keys(config, settings)
            path = directory / f"phase_{phase.phase}.sh"
            replace_file(path, _script(strategy, phase, keys, settings, model))
            path.chmod(0o755)
            scripts.append(path)
        everything = directory / "all.sh"
        lines = "".join(f'bash "$HERE/{path.name}" "$@"\n' for path in scripts)
        replace_file(everything, f"{_HEAD}{lines}")
        everything.chmod(0o755)
    return tuple(scripts)


@contextlib.contextmanager
def _emptied_after_error(directory: Path) -> Iterator[None]:
    """Context in an empty directory, which is made. After an error, whatever it holds is removed."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "data").mkdir()  # fails if another process exports into it
    try:
        yield
    except BaseException:
        for path in directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        raise


def _settings(config: SearchConfig, task: PreparedTask) -> VerlSettings:
    """Settings that stay the same for all phases, with paths in the folder."""
    slots = config.slots
    slot = Slot(
        search=config.name,
        index=0,
        placement_groups=("",) * slots.nodes,
        gpus_per_node=slots.gpus_per_node,
        cpus_per_gpu=slots.cpus_per_gpu,
    )
    placed = config.model_copy(update={"model": config.model.model_copy(update={"path": _MODEL})})
    return dataclasses.replace(
        verl_settings(placed, task, slot, "."),
        train_parquet=f"{_HERE}/data/train.parquet",
        val_parquet=f"{_HERE}/data/val.parquet",
        rollout_calls="per_request",  # plain VeRL only has its agent loops
    )


def _reward_keys(task: PreparedTask) -> dict[str, Any]:
    """VeRL's keys for the reward function, which it loads in its own processes.

    Raises:
        ConfigError: the reward is part of a package that cannot be exported, or its file does not exist.
    """
    if task.reward_module is not None and task.reward_top is None:
        _check_importable(task.reward_module, task.reward_name)
        source = f"pkg://{task.reward_module}"
    elif Path(task.reward_top or task.reward_path).is_file():
        source = f"{_HERE}/reward.py"
    elif task.reward_top is None:
        raise ConfigError(
            f"the reward file {task.reward_path}, which the task names, does not exist, so that the scripts "
            "could not score anything. Put it back, or prepare the task again with the file's new place."
        )
    else:
        raise ConfigError(
            f"the reward {task.reward_module}:{task.reward_name} is part of the package {task.reward_top}, "
            "which a folder of scripts cannot take along. Write in_place: true next to `module` into the "
            "manifest if VeRL's environment has the package, or put the function into a file of its own."
        )
    return {f"{_REWARD}.path": source, f"{_REWARD}.name": task.reward_name}


def _check_importable(module: str, name: str) -> None:
    """Check that the module can be found here, because the scripts will import it by the same name.

    Raises:
        ConfigError: this environment has no such module.
    """
    top, *below = module.split(".")
    found = importlib.util.find_spec(top)
    for number in range(len(below)):  # part by part: finding the full name would import the parent packages
        if found is not None:
            name_there = ".".join([top, *below[: number + 1]])
            found = PathFinder.find_spec(name_there, found.submodule_search_locations or [])
    if found is None:
        raise ConfigError(
            f"the reward {module}:{name} cannot be imported here, and the scripts import it by that name. "
            "Install its package into this environment and the one of VeRL, or put the function into a file "
            "of its own and prepare the task with that."
        )


def _ray_keys(config: SearchConfig, settings: VerlSettings) -> dict[str, Any]:
    """VeRL's keys for Ray, which it starts itself. Without GPUs, they declare logical ones."""
    if settings.platform == "gpu":
        return {}
    there = private_head_resources(config, has_gpus=False)
    return {
        "ray_kwargs.ray_init.num_cpus": there["num_cpus"],
        "+ray_kwargs.ray_init.num_gpus": settings.n_gpus,
    }


def _keys(strategy: Strategy, phase: StrategyPhase, settings: VerlSettings, n_train: int) -> dict[str, Any]:
    """VeRL's key -> value for one phase: the keys that this project sets, adapted to plain VeRL."""
    spec = phase_specs(strategy, "/", strategy.search.name)[phase.phase - 1]
    full = resolve(spec.hyperparameters, n_gpus=settings.n_gpus, micro_batch_limit=settings.micro_batch_limit)
    spec = dataclasses.replace(spec, hyperparameters=full, n_steps=phase.steps_to_train)
    keys = all_overrides(settings, spec, n_train)
    keys.pop(f"+{_REWARD}.reward_kwargs", None)
    keys |= {
        "trainer.logger": ["console"],
        "trainer.project_name": strategy.search.name,
        "trainer.experiment_name": f"phase_{phase.phase}",
        "trainer.default_local_dir": f"{_HERE}/checkpoints/phase_{phase.phase}",
        "trainer.save_freq": phase.cut_step,
    }
    if phase.resume_from is not None:
        keys[f"{MODEL}.lora_adapter_path"] = f"{_HERE}/{_ADAPTER.format(phase=phase.resume_from.phase)}"
    return keys


_HEAD = """\
#!/usr/bin/env bash
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
quote="'"
"""


def _script(
    strategy: Strategy,
    phase: StrategyPhase,
    keys: Mapping[str, Any],
    settings: VerlSettings,
    model: str,
) -> str:
    """Text of a phase's script. `model` is the usual path of the base model as a shell word."""
    begin = f"global step {phase.base_step}" if phase.resume_from else "the base model"
    scored = (
        "" if phase.validation_at_cut is None else f"; validation was {phase.validation_at_cut:.4f} there"
    )
    saved = _SAVED.format(phase=phase.phase, step=phase.cut_step)
    adapter = f'"$HERE/{Path(_ADAPTER.format(phase=phase.phase)).parent}"'
    lines = [
        _HEAD.rstrip("\n"),
        f"# Phase {phase.phase} of {len(strategy.phases)} of the strategy that {strategy.search.name} found: "
        f"from {begin} to global step {phase.end_step}{scored}.",
        f"usual_model={model}",
        'MODEL="${MODEL:-$usual_model}"',
        *(f"export {name}={shlex.quote(value)}" for name, value in plain_vars(settings).items()),
        "# In the words of hydra, which reads a quote in a path as the end of the text.",
        "hydra_HERE=${HERE//$quote/\\\\$quote} hydra_MODEL=${MODEL//$quote/\\\\$quote}",
        'cd "$HERE"',
        "python -m verl.trainer.main_ppo \\",
        *(f"  {argument} \\" for argument in _arguments(keys)),
        '  "$@"',
        "# VeRL's own merger turns the checkpoint into a PEFT adapter, which the next phase starts from.",
        "python -m verl.model_merger merge --backend fsdp \\",
        f'  --local_dir "$HERE/{saved}" --target_dir {adapter}',
    ]
    return "\n".join(lines) + "\n"


def _arguments(keys: Mapping[str, Any]) -> Iterator[str]:
    """Hydra overrides as quoted shell words."""
    for key, value in keys.items():
        text = f"{key}={hydra_literal(value)}"
        plain = not set(text) & set('"$`\\!')
        word = f'"{text}"' if plain and set(text) & set("'[{ ") else shlex.quote(text)
        for name in (_HERE, _MODEL):
            # A single-quoted word is closed for the variable, which is in double quotes.
            variable = f"$hydra_{name.strip('@')}"
            word = word.replace(name, variable if plain else f"'\"{variable}\"'")
        yield word


def _copy_task(task: PreparedTask, directory: Path) -> None:
    for name, path in (("train", task.train), ("val", task.val), ("test", task.test)):
        shutil.copyfile(path, directory / "data" / f"{name}.parquet")
    if task.reward_module is None or task.reward_top is not None:
        shutil.copyfile(task.reward_top or task.reward_path, directory / "reward.py")
    if task.model_path is not None:
        shutil.copytree(task.model_path, directory / "model")


def _readme(strategy: Strategy, settings: VerlSettings, task: PreparedTask) -> str:
    n, search = len(strategy.phases), strategy.search.name
    longest = {int(phase.hyperparameters["data.max_response_length"]) for phase in strategy.phases}
    cap = strategy.setting.eval_max_response_length
    notes = [
        "Each phase starts with a fresh optimizer from the adapter of the phase before, at its cut "
        "(strategy.yaml, `cut_step`). Where the learning rate is constant a phase ends at its cut; with a "
        "schedule it trains all its steps, and the cut is taken.",
        "Validations are VeRL's: step 0 of phase 2 repeats the validation of phase 1 at its cut.",
        "Random numbers of rollouts and of fresh adapters are VeRL's own: scores differ from the search's as "
        "those of another seed would.",
    ]
    if longest != {cap}:
        notes.append(
            f"The search validated with at most {cap} tokens a response, whatever a phase trained with "
            f"({', '.join(map(str, sorted(longest)))}); plain VeRL validates with the phase's own cap."
        )
    if task.reward_module is not None and task.reward_top is None:
        module = one_line(task.reward_module)
        notes.append(f"The reward is the module {module}: its package must be installed.")
    elif task.reward_sha256 is not None:
        notes.append("reward.py runs inside VeRL's processes here, without the sandbox of the search.")
    if settings.platform == "cpu":
        notes.append("For the CPU VeRL needs the plug-in of llmzero_ray, which must be installed.")
    verl = one_line(strategy.software.get("verl", ""))
    listed = "\n".join(f"- {note}" for note in notes)
    return (
        f"# {search}: a strategy of {n} phases for plain VeRL {verl}\n\n"
        f"    bash all.sh                       # phase_1.sh to phase_{n}.sh, one after the other\n"
        "    MODEL=/path/to/model bash all.sh  # another place of the base model\n\n"
        "`data/` holds the rows, `strategy.yaml` the strategy; further words are handed to VeRL as overrides."
        f" The adapter of the strategy is {_ADAPTER.format(phase=n)}.\n\n{listed}\n"
    )
