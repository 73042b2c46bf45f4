"""`python -m jobs.warm_start` as a user runs it: what it refuses, and real workers that are killed."""

from __future__ import annotations

import contextlib
import json
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
from transformers import AutoModelForCausalLM

from llmzero_ray.cli.main import main
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.tasks import tiny_model
from llmzero_ray.tasks.prepare import prepare
from llmzero_ray.tasks.sft.config import load_sft
from llmzero_ray.tasks.sft.job import only_one, open_job
from llmzero_ray.tasks.sft.progress import GRAD_NORM, LOSS
from tests.tasks.process_group import alone
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> PreparedTask:
    """A task with a model beside it that has learnt nothing, and is made at once."""
    place: Path = tmp_path_factory.mktemp("warm")
    tokenizer = tiny_model.make_tokenizer()
    tiny_model.save(tiny_model.make_model(tokenizer, seed=0), tokenizer, place / "model")
    sizes = {"n_train": 256, "n_val": 32, "n_test": 32}
    return prepare(dir=place / "echo", family="echo", make_model=False, **sizes)


def write(path: Path, prepared: PreparedTask, /, **changes: Any) -> Path:
    """A configuration whose output lies beside it."""
    base = {
        "task": prepared.directory, "model": str(Path(prepared.directory).with_name("model")),
        "output": str(path.with_suffix("")), "n_steps": 60, "batch_size": 32,
        "micro_batch_size": 8, "lr": 1e-3, "warmup_steps": 5, "checkpoint_every": 20,
    }  # fmt: skip
    path.write_text(yaml.safe_dump({**base, **changes}))
    return path


def output_of(config: Path) -> Path:
    return config.with_suffix("")


class Command:
    """The job in a process of its own, with everything that it starts."""

    def __init__(self, config: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobs.warm_start", str(config)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._seen: set[psutil.Process] = set()

    def below(self) -> set[psutil.Process]:
        """Every process that was seen below it so far."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen |= set(psutil.Process(self.process.pid).children(recursive=True))
        return self._seen

    def workers(self) -> list[psutil.Process]:
        return [each for each in self.below() if "TrainWorker" in title(each)]

    def until(self, happened: Callable[[], bool]) -> None:
        def reached() -> bool:
            if happened():
                return True
            assert self.process.poll() is None, self.process.communicate()[0]
            self.below()
            return False

        wait_until(reached, every_s=0.02)

    def ended(self) -> tuple[int, str]:
        said = self.process.communicate(timeout=PATIENCE_S)[0]
        return self.process.returncode, said

    def until_all_gone(self) -> None:
        """Until nothing is left that it started, but for what nobody has buried yet."""

        def left() -> list[str]:
            return [title(each) for each in self.below() if is_alive(each) and not is_agent(each)]

        wait_until(lambda: not left(), left, every_s=0.1)


def is_agent(process: psutil.Process) -> bool:
    """Whether it is one of Ray's agents, which take a minute to notice that their head was killed."""
    return title(process).startswith(("ray::DashboardAgent", "ray::RuntimeEnvAgent"))


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def start() -> Iterator[Callable[[Path], Command]]:
    started: list[Command] = []

    def begin(config: Path) -> Command:
        started.append(Command(config))
        return started[-1]

    yield begin
    for command in started:
        for process in command.below():
            if is_alive(process):
                process.kill()
        command.process.kill()
        command.process.wait()


def title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def undisturbed(config: Path) -> Path:
    """Where the same warm start lies, done by one worker in this process."""
    settings = load_sft(config)
    settings = settings.model_copy(update={"output": settings.output + "-alone", "workers": 1})
    with only_one(Path(settings.output)), alone():
        from llmzero_ray.tasks.sft.worker import train

        train(open_job(settings, lambda doing: None), rank=0, n_workers=1)
    return Path(settings.output)


def steps(output: Path) -> dict[int, dict[str, float]]:
    """Metrics by step, the later of two lines."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().split("\n") if line]
    return {line["step"]: line for line in lines if LOSS in line}


def resumptions(output: Path) -> list[int]:
    lines = (output / "metrics.jsonl").read_text().split("\n")
    return [json.loads(line)["resumed"] for line in lines if "resumed" in line]


def result(output: Path) -> dict[str, Any]:
    return dict(json.loads((output / "warm_start.json").read_text()))


def weights(output: Path) -> dict[str, Any]:
    return dict(load_file(output / "model" / "model.safetensors"))


# --- what is refused, before anything is started


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"batchsize": 3}, 2, "unknown key 'batchsize'; did you mean 'batch_size'?"),
        ({"batch_size": 30}, 2, "batch_size is 30 (items); must be a multiple of workers x micro_batch_size"),
        ({"task": "/nowhere"}, 2, "task directory /nowhere does not exist"),
        ({"model": "/nowhere"}, 2, "model directory /nowhere does not exist"),
        ({"max_length": 3}, 2, "can be learnt: 256 too long"),
        ({"rationale": "why"}, 2, "has no rationale 'why'"),
        ({"output": "/proc/warm"}, 3, "/proc/warm: cannot be written"),
        ({"output": "/tmp/working_dir_files/out"}, 2, "inside the job's temporary copy of the files"),
    ],
)
def test_wrong_input_is_one_line_and_an_exit_code(
    task: PreparedTask,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    code: int,
    said: str,
) -> None:
    assert main(["warm-start", str(write(tmp_path / "w.yaml", task, **changes))]) == code
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_settings_of_the_command_line_count(
    task: PreparedTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path / "w.yaml", task)
    assert main(["warm-start", str(config), "--set", "workers=3"]) == 2
    assert "3 x 8 = 24" in capsys.readouterr().err


# --- real workers


@pytest.mark.slow
@pytest.mark.long
def test_two_workers_of_which_one_is_killed_end_where_one_alone_ends(
    task: PreparedTask, tmp_path: Path, start: Callable[[Path], Command]
) -> None:
    config = write(tmp_path / "w.yaml", task, workers=2, n_val=21)  # the last batch is not full
    output = output_of(config)
    command = start(config)
    command.until(lambda: any(output.glob("checkpoints/*/checkpoint-20/manifest.json")))
    command.workers()[-1].send_signal(signal.SIGKILL)
    code, said = command.ended()
    assert code == 0, said
    command.until_all_gone()
    assert len(resumptions(output)) == 1
    alone_ = undisturbed(config)
    together, apart = steps(alone_), steps(output)
    assert list(apart) == list(range(1, 61))
    for step in (1, 2, 20, 60):
        assert apart[step][LOSS] == pytest.approx(together[step][LOSS], rel=1e-3)
        assert apart[step][GRAD_NORM] == pytest.approx(together[step][GRAD_NORM], rel=2e-2)
    assert apart[60][LOSS] < apart[1][LOSS]
    for name in ("val_loss_before", "val_loss_after"):
        assert result(output)[name] == pytest.approx(result(alone_)[name], rel=1e-3)
    one, other = weights(alone_), weights(output)
    assert all(torch.allclose(one[name], other[name], atol=2e-3) for name in one)


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_is_killed_leaves_nothing_running_and_goes_on_exactly(
    task: PreparedTask, tmp_path: Path, start: Callable[[Path], Command], capsys: pytest.CaptureFixture[str]
) -> None:
    # Workers may outlive their command for a second or two; they must not be done by then.
    config = write(tmp_path / "w.yaml", task, n_steps=120)
    output = output_of(config)
    first = start(config)
    first.until(lambda: any(output.glob("checkpoints/*/checkpoint-20/manifest.json")))
    os.kill(first.process.pid, signal.SIGKILL)
    assert first.ended()[0] == -signal.SIGKILL
    assert not (output / "warm_start.json").exists()
    code, said = start(config).ended()
    assert code == 0, said
    first.until_all_gone()
    [resumed] = resumptions(output)
    assert f"continuing from the checkpoint of step {resumed}" in said
    one, other = weights(undisturbed(config)), weights(output)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert main(["warm-start", str(config)]) == 0
    assert "this warm start is done; nothing was trained" in capsys.readouterr().out
    assert main(["warm-start", str(config), "--set", "lr=0.5"]) == 2
    assert "lr was 0.001, now 0.5" in capsys.readouterr().err


@pytest.mark.slow
def test_divided_weights_of_two_workers_are_gathered_into_a_merged_model(
    task: PreparedTask, tmp_path: Path, start: Callable[[Path], Command]
) -> None:
    changes = {"workers": 2, "zero_stage": 3, "lora": {"rank": 4}, "n_steps": 4, "checkpoint_every": 2}
    config = write(tmp_path / "w.yaml", task, **changes)
    code, said = start(config).ended()
    assert code == 0, said
    AutoModelForCausalLM.from_pretrained(output_of(config) / "model")
    one, other = weights(undisturbed(config)), weights(output_of(config))
    assert all(torch.allclose(one[name], other[name], atol=2e-3) for name in one)


@pytest.mark.slow
def test_more_workers_than_the_machine_has_are_refused(
    task: PreparedTask, tmp_path: Path, start: Callable[[Path], Command]
) -> None:
    config = write(tmp_path / "w.yaml", task, workers=4, cpus_per_worker=1000)
    code, said = start(config).ended()
    assert code == 4
    assert "asked: 4 worker(s) with 1000 CPU each, which is more than there is" in said
