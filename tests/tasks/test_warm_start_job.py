"""`python -m jobs.warm_start` as a user runs it: real workers, and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmzero_ray.cli.main import main
from llmzero_ray.prepared import PreparedTask, check_model_dir
from llmzero_ray.tasks import tiny_model
from llmzero_ray.tasks.sft.config import load_sft
from llmzero_ray.tasks.sft.job import open_job
from llmzero_ray.tasks.sft.trainer import SftTrainer, training_arguments
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parent.parent.parent


def write(path: Path, task: PreparedTask, **changes: Any) -> Path:
    """A configuration whose output lies beside it."""
    base = {
        "task": task.directory, "model": str(Path(task.directory).with_name("model")),
        "output": str(path.with_suffix("")), "batch_size": 32, "micro_batch_size": 8, "lr": 1e-3,
        "warmup_steps": 5, "workers": 2,
    }  # fmt: skip
    path.write_text(yaml.safe_dump({**base, **changes}))
    return path


@pytest.fixture
def start() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def begin(config: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "jobs.warm_start", str(config)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield begin
    for command in started:
        command.kill()
        command.wait()


def plain(config: Path, tmp_path: Path) -> dict[str, Any]:
    """Weights after the same training in this process, without DeepSpeed."""
    from llmzero_ray.tasks.sft import worker

    settings = load_sft(config, {"output": str(tmp_path / "plain")})
    job = open_job(settings, lambda doing: None)
    model = worker._model(job)
    arguments = training_arguments(
        tmp_path / "plain", n_steps=settings.steps(len(job.train)), batch_size=32, micro_batch_size=8,
        final_lr_share=0.05, warmup_steps=5, learning_rate=1e-3, weight_decay=0.01, data_seed=0,
        use_cpu=True, save_strategy="no",
    )  # fmt: skip
    trainer = SftTrainer(model, arguments, job.train, pad=job.pad)
    trainer.train()
    return dict((model.merge_and_unload() if settings.lora else model).state_dict())


def assert_same(output: Path, config: Path, tmp_path: Path) -> None:
    """The weights in `output` are off from those of a plain training by less than 1 % of their movement."""
    weights = plain(config, tmp_path)
    base = Path(load_sft(config).model or "")
    found, before = (load_file(place / "model.safetensors") for place in (output / "model", base))
    off, moved = (
        float(torch.cat([(held[name] - weights[name]).abs().flatten() for name in found]).mean())
        for held in (found, before)
    )
    assert off < 0.01 * moved, (off, moved)


@pytest.mark.slow
def test_divided_weights_of_two_workers_become_the_merged_model_of_a_plain_training(
    untaught_task: PreparedTask, tmp_path: Path, start: Callable[[Path], subprocess.Popen[str]]
) -> None:
    config = write(tmp_path / "w.yaml", untaught_task, n_epochs=1, zero_stage=3, lora={"rank": 4})
    command = start(config)
    said = command.communicate(timeout=PATIENCE_S)[0]
    assert command.returncode == 0, said
    output = tmp_path / "w"
    assert sorted(path.name for path in output.iterdir() if path.name != ".lock") == [
        "model", "warm_start.json", "warm_start.yaml",
    ]  # fmt: skip
    check_model_dir(output / "model")
    model = AutoModelForCausalLM.from_pretrained(output / "model")
    assert model.config.use_cache is True
    template = AutoTokenizer.from_pretrained(output / "model").chat_template
    assert template == tiny_model.make_tokenizer().chat_template
    assert_same(output, config, tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_command_goes_on_where_it_was_and_survives_the_loss_of_a_worker(
    untaught_task: PreparedTask,
    tmp_path: Path,
    start: Callable[[Path], subprocess.Popen[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write(tmp_path / "w.yaml", untaught_task, n_steps=120, checkpoint_every=20)
    output = tmp_path / "w"
    snapshot = output / "checkpoints" / "checkpoint_manager_snapshot.json"

    def wait_for(step: int, command: subprocess.Popen[str]) -> None:
        def saved() -> bool:
            assert command.poll() is None, command.communicate()[0]
            return snapshot.exists() and f"checkpoint-{step}" in snapshot.read_text()

        wait_until(saved)

    first = start(config)
    wait_for(20, first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = start(config)
    wait_for(80, second)
    children = psutil.Process(second.pid).children(recursive=True)
    next(each for each in children if "TrainWorker" in " ".join(each.cmdline())).kill()
    said = second.communicate(timeout=PATIENCE_S)[0]
    assert second.returncode == 0, said
    assert said.count("continuing from checkpoint-") == 2
    assert "loading the model" not in said
    assert_same(output, config, tmp_path)
    assert main(["warm-start", str(config)]) == 0
    assert "this warm start is done; nothing was trained" in capsys.readouterr().out
    assert main(["warm-start", str(config), "--set", "lr=0.5"]) == 2
    assert "lr was 0.001, now 0.5" in capsys.readouterr().err
