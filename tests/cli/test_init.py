"""`llmzero init`: shipped configurations by name, and scripts that start VeRL's trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from llmzero_ray.cli.init import schema_text
from llmzero_ray.cli.main import main
from llmzero_ray.config import load_config, presets
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.verl_script import read_script

ROOT = Path(__file__).parents[2]
SCRIPT = r"""#!/usr/bin/env bash
# GRPO on one node
set -x
MODEL=${MODEL:-/models/Qwen3-4B}
export lr=1e-6
DATA=(
    data.train_files=$HOME/gsm8k/train.parquet  # rows

    data.train_batch_size=64
)
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo "${DATA[@]}" \
    data.max_response_length=2048 \
    # data.shuffle=False \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.actor.optim.lr=$lr \
    +actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.ppo_mini_batchsize=7 \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.temperature=$TEMP \
    critic.optim.lr=1e-5 \
    trainer.experiment_name='My Run' trainer.n_gpus_per_node=8 \
    trainer.total_training_steps=300 trainer.test_freq=5 trainer.total_epochs=15 $@ 2>&1 | tee log.txt
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(SCRIPT)
    return tmp_path / "run.sh"


def init(*words: str) -> None:
    assert main(["init", *words]) == 0


def test_the_commands_to_run_next_begin_with_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = "model smollm2 --out models/SmolLM2-135M-Instruct\n  llmzero prepare smollm2"
    for preset, first in (
        ("one_gpu", "prepare gsm_symbolic"),
        ("4b", "doctor 4b.yaml"),
        ("smollm2_cpu", model),
        ("smollm2_gpu", model),
    ):
        assert main(["init", "--model", preset, "--out", f"{preset}.yaml"]) == 0
        assert f"then run:\n  llmzero {first}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "name"), [("4b", "qwen3_4b"), ("one_gpu", "one_gpu"), ("0.6B", "qwen3_0.6b")]
)
def test_a_shipped_configuration_is_copied_with_its_comments(given: str, name: str, tmp_path: Path) -> None:
    out = tmp_path / "search.yaml"
    init("--model", given, "--out", str(out))
    assert load_config(out) == load_config(ROOT / "jobs" / "configs" / f"{name}.yaml") == load_config(name)
    assert out.read_text().startswith("# yaml-language-server: $schema=file://")
    assert out.read_text().count("\n  # ") >= 3


def test_every_override_of_a_script_is_taken_or_named_with_the_reason(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init("--from", "run.sh")
    config, said = load_config("search.yaml"), capsys.readouterr().out
    assert config.root.overrides == {
        "batch_size": 64, "max_response_length": 2048, "lr": 1e-6, "mini_batch_size": 32, "n": 5,
    }  # fmt: skip
    assert (config.name, config.model.path) == ("my-run", "/models/Qwen3-4B")
    assert (config.slots.gpus_per_node, config.engine.tensor_model_parallel_size) == (8, 2)
    assert (config.phase.n_steps, config.phase.max_steps, config.phase.test_freq) == (300, 300, 5)
    assert config.engine.max_response_length == config.eval.max_response_length == 2048
    assert root_hyperparameters(config, None)["actor_rollout_ref.actor.optim.lr"] == 1e-6
    for text in (said, (script.parent / "search.yaml").read_text()):
        assert f"data.train_files={Path.home()}/gsm8k/train.parquet: rows belong to the task" in text
        assert (
            "ppo_mini_batchsize=7: VeRL 0.9.1 has no such key; did you mean actor_rollout_ref.actor." in text
        )
        assert "critic.optim.lr=1e-5: a critic is not supported" in text
        assert "trainer.total_epochs=15: phases are counted in steps" in text
        assert "temperature=$TEMP: TEMP is not set in the script" in text
        assert "trains all weights; a search trains a LoRA adapter" in text
        assert "shuffle" not in text
    read = read_script(script)
    n_given = len(read.overrides) + len(read.unknown)
    assert f"taken: {n_given - 5} of {n_given} overrides" in said


def test_a_script_is_added_to_a_preset_that_is_named(script: Path) -> None:
    init("--from", "run.sh", "--model", "8b")
    assert load_config("search.yaml").engine.overrides == load_config("qwen3_8b").engine.overrides
    assert load_config("search.yaml").root.overrides["lr"] == 1e-6


@pytest.mark.parametrize("name", presets.names())
def test_a_setting_can_be_put_into_every_preset(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init("--model", name, "budget.runs=9", "--out", str(tmp_path / "new.yaml"))
    assert load_config(tmp_path / "new.yaml").budget.runs == 9
    assert "new.yaml, from" in capsys.readouterr().out


def test_a_setting_under_another_name_replaces_that_of_the_preset(tmp_path: Path) -> None:
    init("--model", "one_gpu", "batch_size=32", "--out", str(tmp_path / "new.yaml"))
    overrides = load_config(tmp_path / "new.yaml").root.overrides
    assert (overrides["batch_size"], "batch" in overrides) == (32, False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "5b", "--out", "x.yaml"], "no such preset: '5b'. Presets: demo, local, one_gpu"),
        (["--from", "nowhere.sh", "--out", "x.yaml"], "nowhere.sh: cannot be read"),
        (
            ["--from", "search.yaml", "--out", "x.yaml"],
            "no command `python -m verl.trainer.main_ppo ...` was",
        ),
        ([], "search.yaml exists. Give --force"),
        (["--model", "4b", "lr=abc", "--out", "x.yaml"], "must be a number in [0, 0.1]"),
        (["lr=-1", "--force"], "must be a number in [0, 0.1]"),
    ],
)
def test_what_cannot_be_written_is_one_message(
    words: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.yaml").write_text("name: mine\n")
    assert main(["init", *words]) == 2
    assert expected in capsys.readouterr().err
    assert (tmp_path / "search.yaml").read_text() == "name: mine\n"
    assert not (tmp_path / "x.yaml").exists()


# --- names and the schema


def test_a_file_comes_before_a_shipped_configuration_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("local").name == "local"
    (tmp_path / "local").write_text("name: mine\n")
    assert load_config("local").name == "mine"
    assert presets.path_of("../local") == Path("../local")


def test_the_schema_is_that_of_the_settings_classes() -> None:
    """After a change of a setting: llmzero init --schema > llmzero_ray/search.schema.json"""
    assert presets.SCHEMA.read_text() == schema_text()


def test_the_schema_accepts_what_is_shipped_and_refuses_a_wrong_key() -> None:
    check = Draft202012Validator(json.loads(presets.SCHEMA.read_text()))
    assert len(presets.names()) >= 9
    for name in presets.names():
        assert list(check.iter_errors(read_yaml(presets.path_of(name)))) == []
    wrong = {"name": "demo", "budget": {"runs": 1}, "slot": {"count": 2}}
    assert len(list(check.iter_errors(wrong))) == 2
