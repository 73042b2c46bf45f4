"""A strategy as scripts of plain VeRL: they are run with a `python` that notes what it is asked to do."""

from __future__ import annotations

import copy
import dataclasses
import errno
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmzero_ray.cli.main import main
from llmzero_ray.config import SearchConfig, load_config, parse_config
from llmzero_ray.engines.verl.overrides import config_dir
from llmzero_ray.errors import ConfigError, StorageError
from llmzero_ray.hyperparameters import resolve
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.report import Strategy, load_strategy
from llmzero_ray.strategy.export import export_verl
from llmzero_ray.tasks.prepare import prepare
from llmzero_ray.utils.files import storage_error
from tests.report.conftest import Written, finished
from tests.searches import CHECKOUT

__all__ = ["finished"]

NOTING = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done >> "$NOTES"
printf '\\0' >> "$NOTES"
env > "$NOTES.env"
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> PreparedTask:
    directory = tmp_path_factory.mktemp("task") / "echo"
    prepare(dir=directory, family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False)
    return load_task(directory)


@pytest.fixture(scope="module")
def strategy(finished: Written) -> Strategy:
    return load_strategy(finished.root / "strategy.yaml")


def config_of(finished: Written, task: PreparedTask, **blocks: Any) -> SearchConfig:
    config = load_config(finished.root / "search.yaml").to_json()
    config["task"]["dir"], config["model"]["path"] = task.directory, "/models/base"
    config["engine"]["platform"] = "cpu"
    for name, block in blocks.items():
        config[name].update(block)
    return parse_config(config)


@pytest.fixture(scope="module")
def exported(
    finished: Written, strategy: Strategy, task: PreparedTask, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    made = tmp_path_factory.mktemp("made") / "here"
    scripts = export_verl(strategy, config_of(finished, task), task, made)
    assert [path.name for path in scripts] == ["phase_1.sh", "phase_2.sh", "phase_3.sh"]
    moved = tmp_path_factory.mktemp("moved") / "a folder with 'quotes"
    shutil.move(made, moved)  # paths count from the folder
    return moved


def commands(script: Path, tmp_path: Path) -> tuple[list[list[str]], dict[str, str]]:
    """(what the script asks `python` to do, the environment in which it does)."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python").write_text(NOTING)
    (tools / "python").chmod(0o755)
    notes = tmp_path / "notes"
    subprocess.run(
        ["bash", str(script), "trainer.balance_batch=False"],
        env={"PATH": f"{tools}:/usr/bin:/bin", "NOTES": str(notes)},
        cwd=tmp_path,
        check=True,
    )
    asked = [call.split("\0") for call in notes.read_text().split("\0\0")[:-1]]
    lines = Path(f"{notes}.env").read_text().splitlines()
    return asked, dict(line.split("=", 1) for line in lines if "=" in line)


def composed(arguments: list[str]) -> Any:
    """VeRL's configuration as `main_ppo` composes it of its command line."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(config_dir()), version_base=None):
        config = compose("ppo_trainer", overrides=arguments)
    OmegaConf.resolve(config)
    return config


def test_the_configuration_of_each_script_is_that_of_the_strategy_key_by_key(
    exported: Path, strategy: Strategy, tmp_path: Path
) -> None:
    from omegaconf import OmegaConf

    n_compared = 0
    for phase in strategy.phases:
        place = tmp_path / str(phase.phase)
        place.mkdir()
        (train, _), _ = commands(exported / f"phase_{phase.phase}.sh", place)
        assert train[:2] == ["-m", "verl.trainer.main_ppo"]
        config = composed(train[2:])
        wanted = resolve(phase.hyperparameters, n_gpus=1, micro_batch_limit=128)
        for key, value in wanted.items():
            found = OmegaConf.select(config, key, throw_on_missing=True)
            found = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
            same = math.isclose(found, value) if isinstance(value, float) else found == value
            assert same or list(found) == list(value), (key, found, value)
            n_compared += 1
        assert config.data.seed == phase.seed
        assert config.trainer.test_freq == phase.test_freq
        assert config.trainer.total_training_steps == phase.steps_to_train == phase.cut_step
        assert config.trainer.save_freq == phase.cut_step
        assert config.trainer.balance_batch is False  # further words reach VeRL
    assert n_compared > 40 * len(strategy.phases)


def test_further_words_reach_each_phase(exported: Path, tmp_path: Path) -> None:
    asked, _ = commands(exported / "all.sh", tmp_path)
    trained = [words for words in asked if words[1] == "verl.trainer.main_ppo"]
    assert [words[-1] for words in trained] == ["trainer.balance_batch=False"] * 3


def test_a_script_uses_the_folder_wherever_it_is(exported: Path, strategy: Strategy, tmp_path: Path) -> None:
    (train, merge), environment = commands(exported / "phase_2.sh", tmp_path)
    config = composed(train[2:])
    assert Path(config.data.train_files) == exported / "data/train.parquet"
    assert Path(config.data.train_files).is_file()
    assert Path(config.data.val_files).is_file()
    assert config.actor_rollout_ref.model.path == strategy.base_model
    assert config.reward.custom_reward_function.path == "pkg://llmzero_ray.tasks.rewards.marked_answer"
    adapter = exported / "adapters/phase_1/lora_adapter"
    assert Path(config.actor_rollout_ref.model.lora_adapter_path) == adapter
    saved = exported / "checkpoints/phase_2"
    assert Path(config.trainer.default_local_dir) == saved
    assert merge[:4] == ["-m", "verl.model_merger", "merge", "--backend"]
    assert merge[merge.index("--local_dir") + 1] == str(saved / "global_step_10/actor")
    assert merge[merge.index("--target_dir") + 1] == str(exported / "adapters/phase_2")
    assert environment["VERL_PLATFORM"] == "cpu"
    assert config.ray_kwargs.ray_init.num_gpus == 1


def test_no_text_of_a_strategy_is_run_by_the_shell(
    finished: Written, strategy: Strategy, task: PreparedTask, tmp_path: Path
) -> None:
    hostile = f"$(touch {tmp_path}/ran)`touch {tmp_path}/ran`\"; touch {tmp_path}/ran #'!"
    first = strategy.phases[0]
    key = "actor_rollout_ref.model.target_modules"
    phase = first.model_copy(update={"hyperparameters": {**first.hyperparameters, key: hostile}})
    changed = strategy.model_copy(update={"phases": (phase,), "base_model": f"/models/{hostile}"})
    export_verl(changed, config_of(finished, task), task, tmp_path / "out")
    (train, _), _ = commands(tmp_path / "out" / "phase_1.sh", tmp_path)
    model = composed(train[2:]).actor_rollout_ref.model
    assert (model.target_modules, model.path) == (hostile, f"/models/{hostile}")
    assert not (tmp_path / "ran").exists()


def test_a_model_that_was_made_for_the_task_is_that_of_the_folder_after_a_move(
    finished: Written, strategy: Strategy, task: PreparedTask, tmp_path: Path
) -> None:
    model = tmp_path / "moved" / "model"
    model.mkdir(parents=True)
    config = config_of(finished, task, model={"path": None})
    own = dataclasses.replace(task, model_path=str(model))
    before = strategy.model_copy(update={"base_model": str(tmp_path / "task" / "model")})
    export_verl(before, config, own, out := tmp_path / "out")
    assert (out / "model").is_dir()
    assert 'usual_model="$HERE/model"' in (out / "phase_1.sh").read_text().splitlines()


def test_the_first_phase_starts_from_the_base_model(exported: Path, tmp_path: Path) -> None:
    (train, _), _ = commands(exported / "phase_1.sh", tmp_path)
    assert composed(train[2:]).actor_rollout_ref.model.lora_adapter_path is None


def test_a_schedule_trains_all_its_steps(strategy: Strategy) -> None:
    phase = strategy.phases[1]
    assert (phase.cut_step, phase.n_steps, phase.steps_to_train) == (10, 20, 10)
    for key, value in (("lr_scheduler_type", "cosine"), ("lr_warmup_steps_ratio", 0.1)):
        changed = {**phase.hyperparameters, f"actor_rollout_ref.actor.optim.{key}": value}
        assert phase.model_copy(update={"hyperparameters": changed}).steps_to_train == 20


def test_a_reward_of_ones_own_is_copied(
    finished: Written, strategy: Strategy, task: PreparedTask, tmp_path: Path
) -> None:
    import dataclasses

    reward = tmp_path / "mine.py"
    reward.write_text("def points(data_source, solution_str, ground_truth, extra_info=None): return 1.0\n")
    own = dataclasses.replace(task, reward_module=None, reward_path=str(reward), reward_name="points")
    export_verl(strategy, config_of(finished, task), own, tmp_path / "out")
    assert (tmp_path / "out" / "reward.py").read_text() == reward.read_text()
    place = tmp_path / "place"
    place.mkdir()
    (train, _), _ = commands(tmp_path / "out" / "phase_1.sh", place)
    function = composed(train[2:]).reward.custom_reward_function
    assert (function.path, function.name) == (str(tmp_path / "out" / "reward.py"), "points")
    package = dataclasses.replace(task, reward_module="pack.age", reward_top=str(CHECKOUT / "tests"))
    with pytest.raises(ConfigError, match="a folder of scripts cannot take along"):
        export_verl(strategy, config_of(finished, task), package, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_reward_that_is_not_there_is_refused_before_anything_is_written(
    finished: Written, strategy: Strategy, task: PreparedTask, tmp_path: Path
) -> None:
    import dataclasses

    config = config_of(finished, task)
    for module in ("nowhere_at_all", "llmzero_ray.no_such_part", "llmzero_ray.utils.text.inside"):
        lost = dataclasses.replace(task, reward_module=module, reward_top=None, reward_name="points")
        with pytest.raises(ConfigError, match=f"the reward {module}:points cannot be imported here"):
            export_verl(strategy, config, lost, tmp_path / "out")
    gone = dataclasses.replace(task, reward_module=None, reward_path=str(tmp_path / "gone.py"))
    with pytest.raises(ConfigError, match=r"the reward file .*gone\.py, which .* does not exist"):
        export_verl(strategy, config, gone, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported_is_refused(
    finished: Written, strategy: Strategy, task: PreparedTask, tmp_path: Path
) -> None:
    (tmp_path / "something").write_text("")
    with pytest.raises(ConfigError, match="is not empty"):
        export_verl(strategy, config_of(finished, task), task, tmp_path)
    other = config_of(finished, task, engine={"backend": "tests.fakes:make_engine"})
    with pytest.raises(ConfigError, match=r"trained by 'tests\.fakes:make_engine'"):
        export_verl(strategy, other, task, tmp_path / "new")


def test_the_command_writes_the_folder_and_says_how_to_run_it(
    finished: Written, task: PreparedTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = tmp_path / "search"
    shutil.copytree(finished.root, search, ignore=shutil.ignore_patterns("checkpoints", "plots"))
    out = tmp_path / "plain verl"
    command = ["export", str(search), "--verl", str(out), "--task", task.directory]
    code = main(command)
    output = capsys.readouterr()
    assert code == 0, output.err
    assert f"bash '{out / 'all.sh'}'" in output.out
    assert {path.name for path in out.iterdir()} >= {"README.md", "all.sh", "data", "strategy.yaml"}
    assert yaml.safe_load((out / "strategy.yaml").read_text())["total_steps"] == 50
    assert main(command) == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_full_disk_leaves_the_directory_empty_for_the_next_try(
    finished: Written,
    strategy: Strategy,
    task: PreparedTask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of(finished, task)

    def full(path: Path, content: str) -> None:
        raise storage_error(path, OSError(errno.ENOSPC, "No space left on device"))

    with monkeypatch.context() as patched:
        patched.setattr("llmzero_ray.strategy.export.replace_file", full)
        with pytest.raises(StorageError, match="run the same command again"):
            export_verl(strategy, config, task, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert export_verl(strategy, config, task, tmp_path / "out")


def strings_in(value: Any, *at: Any) -> Iterator[tuple[Any, ...]]:
    """Where a text stands in plain data."""
    if isinstance(value, str):
        yield at
    for key, held in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from strings_in(held, *at, key)


@pytest.mark.parametrize("payload", ["x\ntouch %s\n#", "x;touch %s", "@HERE@'\"$(touch %s)"])
def test_no_text_of_a_strangers_search_becomes_a_command(
    finished: Written, strategy: Strategy, task: PreparedTask, tmp_path: Path, payload: str
) -> None:
    """Each text of strategy.yaml in turn, and VeRL's keys and values in search.yaml: it is refused, or stays
    text."""
    touched = tmp_path / "touched"
    text = payload % touched
    plain = strategy.model_dump(mode="json")
    given: list[tuple[Any, dict[str, Any]]] = []
    for place in strings_in({**plain, "phases": plain["phases"][:1]}):
        changed = copy.deepcopy(plain)
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = text
        given.append((changed, {}))
    for overrides in ({"trainer.note": text}, {f"trainer.{text}": 1}, {"trainer.note": {text: [text]}}):
        given.append((plain, {"engine": {"overrides": overrides}}))
    given.append(({**plain, "base_model": text}, {"model": {"path": text}}))
    ran = refused = 0
    for number, (data, blocks) in enumerate(given):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "strategy.yaml").write_text(yaml.safe_dump(data))
        try:
            found = load_strategy(place / "strategy.yaml")
            scripts = export_verl(found, config_of(finished, task, **blocks), task, place / "made")
        except ConfigError:
            refused += 1
            continue
        commands(scripts[0], place)
        ran += 1
        assert "touch" not in (place / "made" / "README.md").read_text().partition("\n")[2], data
        assert not touched.exists(), (data, blocks)
    assert ran >= 10 and refused >= 1
