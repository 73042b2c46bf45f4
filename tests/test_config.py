"""search.yaml: what it accepts, what it says when it does not, and what it gives back."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from llmzero_ray.config import (
    REMOVED,
    SearchConfig,
    change_settings,
    load_config,
    parse_config,
    resolve_config,
    stored_config,
)
from llmzero_ray.config.changes import differing_keys
from llmzero_ray.config.yaml_text import read_yaml, replace_key
from llmzero_ray.errors import ConfigError


def refusal(data: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as error:
        parse_config({"name": "demo", **data})
    return str(error.value)


def submodels(model: type[BaseModel]) -> list[type[BaseModel]]:
    below = [f.annotation for f in model.model_fields.values()]
    found = [part for part in below if isinstance(part, type) and issubclass(part, BaseModel)]
    return [model, *(deeper for part in found for deeper in submodels(part))]


def test_a_name_is_all_that_must_be_given() -> None:
    config = parse_config({"name": "demo"})
    assert (config.budget.runs, config.phase.n_steps, config.engine.backend) == (16, 40, "verl")


@pytest.mark.parametrize(
    ("method", "stopped"), [("llmzero", True), ("skills", True), ("random", False), ("pbt", False)]
)
def test_planned_runs_go_to_their_end_unless_the_stopper_is_switched_on(method: str, stopped: bool) -> None:
    chosen = {"name": "demo", "search": {"method": method}}
    assert parse_config(chosen).stopper.enabled is stopped
    other = parse_config({**chosen, "stopper": {"min_steps": 5}}).stopper
    assert (other.enabled, other.min_steps) == (stopped, 5)
    for enabled in (True, False):
        assert parse_config({**chosen, "stopper": {"enabled": enabled}}).stopper.enabled is enabled


def test_every_field_says_what_it_means() -> None:
    silent = [
        f"{model.__name__}.{name}"
        for model in submodels(SearchConfig)
        for name, field in model.model_fields.items()
        if not field.description and not (field.default is not None and isinstance(field.default, BaseModel))
    ]
    assert silent == []


def test_an_unknown_key_is_named_with_the_nearest_one_and_all_known_ones() -> None:
    output = refusal({"slots": {"gpu_per_node": 8}})
    assert "unknown key 'gpu_per_node' in slots; did you mean 'gpus_per_node'?" in output
    assert (
        "Known keys: count, nodes, gpus_per_node, cpus_per_gpu, gpu_memory_gib, reserve, timeout_s, "
        "max_infra_retries." in output
    )


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"slots": {"count": True}}, "slots.count is true (slots); must be a whole number >= 1"),
        ({"slots": {"count": 1.5}}, "must be a whole number >= 1"),
        ({"slots": {"count": "2"}}, "slots.count is '2'"),
        ({"final": {"test": 1}}, "final.test is 1; must be true or false"),
        ({"budget": {"target": "high"}}, "must be a number or null"),
        ({"budget": {"gpu_hours": 0}}, "must be a number > 0 or null"),
        ({"budget": 3}, "budget is 3; must be a block of keys and values"),
        ({"name": "a b"}, "must be 1 to 63 of a-z"),
        ({"storage": ""}, "must be text that is not empty"),
        ({"task": {"family": 3}}, "must be text or null"),
        ({"engine": {"backend": "my.engine"}}, "must be a name or package.module:factory"),
        ({"phase": {"test_freq": 41}}, "phase.test_freq is 41; must be <= phase.n_steps, which is 40"),
        ({"phase": {"max_steps": 10}}, "phase.max_steps is 10; must be >= phase.n_steps"),
        ({"eval": {"max_response_length": 2048}}, "must be <= engine.max_response_length"),
        ({"engine": {"tensor_model_parallel_size": 2}}, "must divide the 1 GPUs of a slot"),
        ({"search": {"C": -1}}, "search.C is -1; must be a number >= 0"),
        ({"stopper": {"min_steps": 0}}, "stopper.min_steps is 0"),
        ({"root": {"overrides": {"a": {"b": 1}}}}, "Write nested keys with dots"),
        ({"budget": {"gpu_hours": float("inf")}}, "must be a number > 0 or null"),
        ({"model": {"target_modules": "*_proj"}}, "target_modules: '*_proj' is not a pattern"),
        (
            {"search": {"schedule": "~nosuch/x"}},
            "~nosuch/x begins with the home directory of a user who does",
        ),
    ],
)
def test_wrong_values_are_refused(block: dict[str, object], expected: str) -> None:
    assert expected in refusal(block)


def test_a_configuration_is_frozen() -> None:
    config = parse_config({"name": "demo"})
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]


def test_what_is_written_out_is_read_back_the_same(tmp_path: Path) -> None:
    config = parse_config(
        {"name": "demo", "root": {"overrides": {"lr": 1e-3, "betas": [0.9, 0.95]}}, "search": {"C": 2.0}}
    )
    assert parse_config(json.loads(json.dumps(config.to_json()))) == config
    assert parse_config(yaml.safe_load(config.to_yaml())) == config


# --- files --------------------------------------------------------------------------------------------------


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "search.yaml"
    path.write_text(text)
    return path


def test_numbers_with_an_exponent_are_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "name: demo\nroot: {overrides: {lr: 1e-3, kl: 5E-4}}\nbudget: {target: .5e0}\n")
    config = load_config(path)
    assert config.root.overrides == {"lr": 0.001, "kl": 0.0005}
    assert config.budget.target == 0.5


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n"])
def test_a_file_without_keys_and_values_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="must hold YAML keys and values"):
        load_config(written(tmp_path, text))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(tmp_path / "search.yaml")


@pytest.mark.parametrize("target", ["search.yaml", "gone.yaml"])
def test_a_link_that_leads_nowhere_is_refused_as_one(tmp_path: Path, target: str) -> None:
    (tmp_path / "search.yaml").symlink_to(target)
    with pytest.raises(ConfigError, match=f"search.yaml: is a link to {target}, which leads nowhere"):
        load_config(tmp_path / "search.yaml")


def test_code_in_yaml_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="broken YAML"):
        load_config(written(tmp_path, "name: !!python/object/apply:os.system ['true']\n"))


def test_relative_directories_count_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    config = load_config(written(tmp_path, "name: demo\nmodel: {path: model}\n"))
    assert config.storage == str(tmp_path / "runs")
    assert config.task.dir == str(tmp_path / "data" / "task")
    assert config.model.path == str(tmp_path / "model")


@pytest.mark.parametrize("key", ["storage", "task.dir", "model.path", "agents.prompts"])
def test_the_home_of_a_user_who_does_not_exist_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="~nosuch/x begins with the home directory of a user who does not"):
        load_config("local", [f"{key}=~nosuch/x"])


def test_a_model_that_is_no_directory_here_is_kept_as_a_name(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "name: demo\nmodel: {path: Qwen/Qwen3-4B}\n"))
    assert config.model.path == "Qwen/Qwen3-4B"


# --- settings on the command line ---------------------------------------------------------------------------


def test_settings_are_applied_in_order(tmp_path: Path) -> None:
    config = load_config(
        written(tmp_path, "name: demo\nbudget: {runs: 4}\n"),
        ["budget.runs=6", "budget.runs=8", "final.test=false", "budget.target=null", "search.C=2"],
    )
    assert (config.budget.runs, config.final.test, config.budget.target, config.search.C) == (
        8,
        False,
        None,
        2,
    )


def test_dots_below_overrides_belong_to_the_key(tmp_path: Path) -> None:
    config = load_config(
        written(tmp_path, "name: demo\n"),
        ["root.overrides.actor_rollout_ref.actor.optim.lr=1e-4", "engine.overrides.trainer.x=[1, 2]"],
    )
    assert config.root.overrides == {"actor_rollout_ref.actor.optim.lr": 1e-4}
    assert config.engine.overrides == {"trainer.x": [1, 2]}


def test_a_setting_replaces_the_value_of_a_hyperparameter_under_any_name() -> None:
    names = {"lr": "optim.lr", "rate": "optim.lr", "n": "rollout.n"}
    data = {"name": "demo", "root": {"overrides": {"lr": 1e-3, "n": 4}}}
    for key in ("rate", "optim.lr", "lr"):
        found = resolve_config(data, [f"root.overrides.{key}=1e-4"], names)
        assert found.root.overrides == {key: 1e-4, "n": 4}
    changed = copy.deepcopy(data)
    change_settings(changed, {"root": {"overrides": {"rate": 1e-4}}}, names)
    assert changed["root"] == {"overrides": {"rate": 1e-4, "n": 4}}
    twice = {"name": "demo", "root": {"overrides": {"lr": 1e-3, "rate": 1e-4}}}  # refused later, as a slip
    assert resolve_config(twice, ["root.overrides.n=4"], names).root.overrides == {
        "lr": 1e-3,
        "rate": 1e-4,
        "n": 4,
    }


@pytest.mark.parametrize("setting", ["budget.runs", "=3"])
def test_a_setting_without_key_or_value_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form key=value"):
        load_config(written(tmp_path, "name: demo\n"), [setting])


def test_one_value_may_be_read_without_a_file() -> None:
    assert read_yaml("3e-4", source="x") == 3e-4


def test_a_block_that_is_null_is_made_for_the_keys_below_it() -> None:
    data = {"lora": None, "other": 1}
    replace_key(data, ["lora", "rank"], 4)
    assert data == {"lora": {"rank": 4}, "other": 1}


# --- comparing ----------------------------------------------------------------------------------------------


def test_differences_are_listed_key_by_key_and_a_moved_storage_is_none() -> None:
    old = parse_config({"name": "demo", "storage": "/a", "root": {"overrides": {"lr": 1e-3}}})
    new = parse_config({"name": "demo", "storage": "/b", "budget": {"runs": 8}})
    assert differing_keys(old, new) == {"budget.runs": (16, 8), "root.overrides.lr": (1e-3, None)}
    assert differing_keys(old, old) == {}


# --- settings that went -------------------------------------------------------------------------------------


def with_setting(name: str) -> dict[str, Any]:
    dotted, _, value = name.partition(": ")
    block, key = dotted.split(".")
    return {"name": "old", block: {key: value or 1}}


@pytest.mark.parametrize("name", REMOVED)
def test_a_setting_that_went_is_refused_in_one_sentence_with_what_to_do(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(with_setting(name))
    (line,) = str(refused.value).splitlines()
    assert line == f"search.yaml: {name} does not exist since 0.2: {REMOVED[name]}"


@pytest.mark.parametrize("name", REMOVED)
def test_a_stored_search_with_a_setting_that_went_still_opens(name: str) -> None:
    given = with_setting(name)
    assert stored_config(given, source="journal") == parse_config({"name": "old"})
    assert given == with_setting(name)


def test_whatever_else_is_wrong_in_a_stored_configuration_is_said() -> None:
    with pytest.raises(ConfigError, match="journal: unknown key 'colour'"):
        stored_config({"name": "old", "colour": 1, "agents": {"race": 0.5}}, source="journal")
