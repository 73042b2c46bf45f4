"""Real training with DeepSpeed in this process: gradients against plain torch, resumption, results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmzero_ray.errors import StorageError, TaskError
from llmzero_ray.tasks import PreparedTask, check_model_dir
from llmzero_ray.tasks.tiny_model import make_model, make_tokenizer
from llmzero_ray.tasks.warm_start import checkpoints
from llmzero_ray.tasks.warm_start.config import WarmStartConfig, parse_warm_start
from llmzero_ray.tasks.warm_start.course import Course
from llmzero_ray.tasks.warm_start.engine import alone, make_engine
from llmzero_ray.tasks.warm_start.examples import Examples
from llmzero_ray.tasks.warm_start.job import Job, only_one, open_job
from llmzero_ray.tasks.warm_start.plan import Plan
from llmzero_ray.tasks.warm_start.progress import GRAD_NORM, LOSS, VAL_LOSS
from llmzero_ray.tasks.warm_start.sampling import step_rows
from llmzero_ray.tasks.warm_start.training import mean_loss, train

# Prompts and responses of many lengths, so that every wrong mean shows.
EXAMPLES = Examples.of([([1, 2] + [5] * (i % 4), [10 + i] * (1 + i % 3) + [2]) for i in range(11)])


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with alone():
        yield


def plan(**changes: Any) -> Plan:
    base: dict[str, Any] = {
        "n_steps": 3, "batch_size": 8, "micro_batch_size": 4, "lr": 1e-3, "warmup_steps": 1,
        "final_lr_share": 0.5, "weight_decay": 0.01, "max_grad_norm": 1e9, "seed": 5,
    }  # fmt: skip
    return Plan(**{**base, **changes})


def reference(numbers: Plan) -> tuple[list[float], list[float], dict[str, Any]]:
    """Losses, gradient norms and final weights by plain torch, one example at a time."""
    model = make_model(make_tokenizer(), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=numbers.lr, weight_decay=numbers.weight_decay)
    losses, norms = [], []
    for step in range(1, numbers.n_steps + 1):
        rows = step_rows(len(EXAMPLES), numbers.batch_size, numbers.seed, step)
        optimizer.param_groups[0]["lr"] = numbers.learning_rate(step)
        optimizer.zero_grad()
        terms = [term for row in rows for term in token_losses(model, row)]
        loss = torch.stack(terms).mean()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), numbers.max_grad_norm)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, model.state_dict()


def token_losses(model: Any, row: int) -> list[Any]:
    """Loss of each response token of an example."""
    inputs, labels = EXAMPLES.padded([row], pad=0)
    logs = torch.log_softmax(model(input_ids=inputs).logits[0], dim=-1)
    return [-logs[place - 1, label] for place, label in enumerate(labels[0]) if label >= 0]


def taught(numbers: Plan, zero_stage: int) -> tuple[list[float], list[float], dict[str, Any]]:
    model = make_model(make_tokenizer(), seed=0)
    engine = make_engine(model, numbers, zero_stage=zero_stage, dtype="float32", use_gpu=False)
    losses, norms = list[float](), list[float]()

    def after_step(step: int, loss: float) -> None:
        losses.append(loss)
        if zero_stage:
            norms.append(float(engine.get_global_grad_norm()))

    train(engine, EXAMPLES, numbers, pad=0, after_step=after_step)
    return losses, norms, model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_size", [1, 4, 8])
def test_a_gradient_is_that_of_the_mean_loss_over_all_response_tokens(micro_batch_size: int) -> None:
    losses, norms, _ = reference(plan())
    found, found_norms, _ = taught(plan(micro_batch_size=micro_batch_size), zero_stage=1)
    assert found == pytest.approx(losses, rel=1e-4)
    assert found_norms == pytest.approx(norms, rel=1e-3)


@pytest.mark.parametrize(
    ("zero_stage", "max_grad_norm"),
    [
        pytest.param(stage, norm, marks=() if (stage, norm) == (1, 0.01) else pytest.mark.slow)
        for stage in (0, 1, 2)
        for norm in (1e9, 0.01)
    ],
)
def test_every_stage_takes_the_steps_of_plain_adamw(zero_stage: int, max_grad_norm: float) -> None:
    numbers = plan(max_grad_norm=max_grad_norm)
    losses, _, weights = reference(numbers)
    found, _, other = taught(numbers, zero_stage)
    assert found == pytest.approx(losses, rel=1e-4)
    moved = torch.cat([(weights[name] - other[name]).abs().flatten() for name in weights])
    assert float(moved.mean()) < 1e-3 * numbers.lr


@pytest.mark.slow
def test_the_held_out_loss_is_the_mean_over_response_tokens() -> None:
    model = make_model(make_tokenizer(), seed=0)
    terms = [float(term) for row in range(len(EXAMPLES)) for term in token_losses(model, row)]
    engine = make_engine(model, plan(), zero_stage=1, dtype="float32", use_gpu=False)
    found = mean_loss(engine, EXAMPLES, pad=0, micro_batch_size=3)
    assert found == pytest.approx(sum(terms) / len(terms), rel=1e-5)


@pytest.mark.slow
def test_the_same_training_gives_the_same_weights_and_another_seed_others() -> None:
    one, again, other = (taught(plan(seed=seed), zero_stage=2)[2] for seed in (5, 5, 6))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["model.norm.weight"], other["model.norm.weight"])


# --- whole warm starts


def config(task: PreparedTask, output: Path, **changes: Any) -> WarmStartConfig:
    base: dict[str, Any] = {
        "task": task.directory, "output": str(output), "n_steps": 6, "batch_size": 16, "micro_batch_size": 8,
        "lr": 1e-3, "warmup_steps": 1, "checkpoint_every": 2,
    }  # fmt: skip
    return parse_warm_start({**base, **changes})


def opened(settings: WarmStartConfig) -> Job:
    with only_one(Path(settings.output)):
        return open_job(settings, lambda doing: None)


def run(settings: WarmStartConfig) -> dict[str, Any]:
    """What warm_start.json says after one worker has done it all."""
    Course(opened(settings).order(), rank=0, n_workers=1).run()
    return dict(opened(settings).result or {})


class StoppedError(Exception):
    """What ends a training in the middle."""


def run_until(settings: WarmStartConfig, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a warm start that ends unexpectedly after a step's checkpoint."""
    course = Course(opened(settings).order(), rank=0, n_workers=1)
    tell = course._tell

    def stop(**line: Any) -> None:
        tell(**line)
        if line.get("saved") == step:
            raise StoppedError

    monkeypatch.setattr(course, "_tell", stop)
    with pytest.raises(StoppedError):
        course.run()


def lines(output: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().split("\n") if line]


def weights_of(directory: Path) -> dict[str, Any]:
    return dict(load_file(directory / "model.safetensors"))


@pytest.mark.slow
def test_a_warm_start_lowers_the_loss_and_leaves_a_model_that_loads(
    echo_task: PreparedTask, tmp_path: Path
) -> None:
    result = run(config(echo_task, tmp_path))
    assert result["val_loss_after"] < result["val_loss_before"]
    check_model_dir(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.chat_template == make_tokenizer().chat_template
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "model" / name).read_bytes() == (
            Path(str(echo_task.model_path)) / name
        ).read_bytes()
    before = AutoModelForCausalLM.from_pretrained(str(echo_task.model_path)).state_dict()
    assert not torch.equal(model.state_dict()["lm_head.weight"], before["lm_head.weight"])
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        "identity.json", "metrics.jsonl", "model", "warm_start.json",
    ]  # fmt: skip
    told = lines(tmp_path)
    assert [line["step"] for line in told if LOSS in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in told if VAL_LOSS in line] == [0, 6]
    assert all(line[GRAD_NORM] > 0 for line in told if LOSS in line)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"zero_stage": 2}, {"zero_stage": 0}, {"lora": {"rank": 4, "merge": False}}], ids=str
)
def test_an_interrupted_warm_start_ends_with_the_weights_of_an_undisturbed_one(
    echo_task: PreparedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    whole = run(config(echo_task, tmp_path / "whole", **changes))
    parted = config(echo_task, tmp_path / "parted", **changes)
    run_until(parted, 4, monkeypatch)
    assert [path.name for path in (tmp_path / "parted" / "checkpoints").iterdir()] == ["step_000004"]
    ended = run(parted)
    assert [line for line in lines(tmp_path / "parted") if "resumed" in line] == [{"resumed": 4}]
    for name in ("train_loss", "val_loss_before", "val_loss_after"):
        assert ended[name] == whole[name]
    kind, file = (
        ("adapter", "adapter_model.safetensors") if "lora" in changes else ("model", "model.safetensors")
    )
    one, other = (load_file(tmp_path / place / kind / file) for place in ("whole", "parted"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(
    echo_task: PreparedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(echo_task, tmp_path, checkpoints_kept=2)
    run_until(settings, 4, monkeypatch)
    saved = tmp_path / "checkpoints"
    assert checkpoints.newest(saved) == saved / "step_000004"
    file = max((saved / "step_000004").rglob("*.pt"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    assert checkpoints.newest(saved) == saved / "step_000002"
    (saved / "step_000002" / "manifest.json").unlink()
    assert checkpoints.newest(saved) is None


@pytest.mark.slow
def test_a_full_disk_is_a_storage_problem_and_keeps_the_checkpoints_before(
    echo_task: PreparedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    settings = config(echo_task, tmp_path)
    run_until(settings, 2, monkeypatch)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"step_000004: .*(cannot be written|File too large)"):
            run(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert checkpoints.newest(tmp_path / "checkpoints") == tmp_path / "checkpoints" / "step_000002"


@pytest.mark.slow
def test_an_adapter_and_the_merged_model_score_the_same(echo_task: PreparedTask, tmp_path: Path) -> None:
    from peft import PeftModel

    result = run(config(echo_task, tmp_path, lora={"rank": 4}))
    assert (result["adapter"], result["model"]) == ("adapter", "model")
    check_model_dir(tmp_path / "model")
    base = AutoModelForCausalLM.from_pretrained(str(echo_task.model_path))
    inputs = torch.arange(5, 60)[None]
    plain = base(inputs).logits
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))(inputs).logits
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model")(inputs).logits
    assert torch.allclose(adapted, merged, atol=1e-4)
    assert not torch.allclose(plain, merged, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"dtype": "bfloat16"}, {"gradient_checkpointing": True}, {"zero_stage": 3},
     {"dtype": "bfloat16", "zero_stage": 3, "lora": {"rank": 4}},
     {"gradient_checkpointing": True, "lora": {"targets": ["q_proj", "v_proj"]}}],
    ids=str,
)  # fmt: skip
def test_memory_can_be_saved(echo_task: PreparedTask, tmp_path: Path, changes: dict[str, Any]) -> None:
    result = run(config(echo_task, tmp_path, n_steps=3, **changes))
    assert result["val_loss_after"] < result["val_loss_before"]
    dtype = torch.bfloat16 if "dtype" in changes and "lora" not in changes else torch.float32
    assert weights_of(tmp_path / "model")["lm_head.weight"].dtype == dtype


def test_modules_that_do_not_exist_take_no_adapter(echo_task: PreparedTask, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"lora\.targets is query: .* Modules of this model: .*q_proj"):
        run(config(echo_task, tmp_path, lora={"targets": ["query"]}))


@pytest.mark.slow
def test_workers_of_an_earlier_command_write_nothing_once_another_goes_on(
    echo_task: PreparedTask, tmp_path: Path
) -> None:
    settings = config(echo_task, tmp_path)
    earlier = Course(opened(settings).order(), rank=0, n_workers=1)
    later = opened(settings)
    with pytest.raises(StorageError, match="a later command goes on with this warm start"):
        earlier.run()
    assert not (tmp_path / "checkpoints").exists()
    Course(later.order(), rank=0, n_workers=1).run()
    assert (tmp_path / "warm_start.json").is_file()


@pytest.mark.slow
def test_a_result_of_an_earlier_command_does_not_take_examples_and_checkpoints_away(
    echo_task: PreparedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(echo_task, tmp_path)
    earlier = Course(opened(settings).order(), rank=0, n_workers=1)
    tell = earlier._tell

    def go_on(**line: Any) -> None:
        tell(**line)
        if line.get("saved") == settings.n_steps:
            opened(settings)

    monkeypatch.setattr(earlier, "_tell", go_on)
    with pytest.raises(StorageError, match="a later command"):
        earlier.run()
    assert not (tmp_path / "warm_start.json").exists()
    result = run(settings)
    assert result["n_steps"] == settings.n_steps
    assert {"resumed": settings.n_steps}.items() <= lines(tmp_path)[-3].items()
