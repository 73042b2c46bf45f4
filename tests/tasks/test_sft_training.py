"""Real training with DeepSpeed in this process: gradients against plain torch, resumption, results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmzero_ray.config.yaml_text import validated
from llmzero_ray.errors import StorageError, TaskError
from llmzero_ray.prepared import PreparedTask, check_model_dir
from llmzero_ray.tasks.sft import checkpoints, worker
from llmzero_ray.tasks.sft.config import SftConfig
from llmzero_ray.tasks.sft.examples import EncodedExamples
from llmzero_ray.tasks.sft.job import Job, only_one, open_job
from llmzero_ray.tasks.sft.progress import GRAD_NORM, LOSS, VAL_LOSS, ProgressWriter
from llmzero_ray.tasks.sft.trainer import (
    ProgressCallback,
    SftTrainer,
    StepSampler,
    collate,
    training_arguments,
)
from llmzero_ray.tasks.tiny_model import make_model, make_tokenizer
from tests.tasks.process_group import alone

# Prompts and responses of many lengths, so that every wrong mean shows.
EXAMPLES = EncodedExamples.of([([1, 2] + [5] * (i % 4), [10 + i] * (1 + i % 3) + [2]) for i in range(11)])
N_STEPS, BATCH, LR, DECAY = 3, 8, 1e-3, 0.01


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with alone():
        yield


def reference(max_grad_norm: float) -> tuple[list[float], list[float], dict[str, Any]]:
    """Losses, gradient norms and final weights by plain torch, one example at a time."""
    model = make_model(make_tokenizer(), seed=0)
    decayed, others = ([w for w in model.parameters() if (w.ndim > 1) is matrix] for matrix in (True, False))
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    rows = list(StepSampler(EXAMPLES.lengths, BATCH, n_steps=N_STEPS, seed=5))
    losses, norms = [], []
    for step, rate in enumerate((0.5, 1.0, 0.75)):  # a share of 0.5, one step of warm-up, two of decay
        for group in optimizer.param_groups:
            group["lr"] = LR * rate
        optimizer.zero_grad()
        batch = rows[step * BATCH : (step + 1) * BATCH]
        loss = torch.cat([token_losses(model, row) for row in batch]).mean()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, model.state_dict()


def token_losses(model: Any, row: int) -> Any:
    """Loss of each response token of an example."""
    batch = collate([EXAMPLES[row]], pad=0)
    logs = torch.log_softmax(model(input_ids=batch["input_ids"]).logits[0], dim=-1)
    labels = batch["labels"][0].tolist()
    return torch.stack([-logs[place - 1, label] for place, label in enumerate(labels) if label >= 0])


def trained(
    tmp_path: Path, zero_stage: int | None, *, micro_batch_size: int = 4, max_grad_norm: float = 1e9
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Reported lines and final weights by the trainer; without DeepSpeed when the stage is None."""
    model = make_model(make_tokenizer(), seed=0)
    lines = list[dict[str, Any]]()
    more: dict[str, Any] = {}
    if zero_stage is not None:
        worker._prepare_deepspeed(use_gpu=False)
        more = {
            "deepspeed": worker.deepspeed_config(zero_stage, "float32"),
            "accelerator_config": {"use_configured_state": True},
        }
    arguments = training_arguments(
        tmp_path, n_steps=N_STEPS, batch_size=BATCH, micro_batch_size=micro_batch_size, final_lr_share=0.5,
        warmup_steps=1, learning_rate=LR, weight_decay=DECAY, max_grad_norm=max_grad_norm, data_seed=5,
        use_cpu=True, save_strategy="no", eval_strategy="steps", eval_on_start=True, eval_steps=N_STEPS,
        **more,
    )  # fmt: skip
    trainer = SftTrainer(
        model,
        arguments,
        EXAMPLES,
        pad=0,
        eval_dataset=EXAMPLES,
        callbacks=[ProgressCallback(lambda line: lines.append(dict(line)))],
    )
    trainer.train()
    return lines, model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_size", [1, 4, 8])
def test_a_gradient_is_that_of_the_mean_loss_over_all_response_tokens(
    micro_batch_size: int, tmp_path: Path
) -> None:
    losses, norms, _ = reference(1e9)
    lines, _ = trained(tmp_path, 1, micro_batch_size=micro_batch_size)
    assert [line[LOSS] for line in lines if LOSS in line] == pytest.approx(losses, rel=1e-4)
    assert [line[GRAD_NORM] for line in lines if LOSS in line] == pytest.approx(norms, rel=1e-3)


@pytest.mark.parametrize(
    ("zero_stage", "max_grad_norm"),
    [
        pytest.param(stage, norm, marks=() if (stage, norm) == (1, 0.01) else pytest.mark.slow)
        for stage in (None, 0, 1, 2)
        for norm in (1e9, 0.01)
    ],
)
def test_every_stage_takes_the_steps_of_plain_adamw(
    zero_stage: int | None, max_grad_norm: float, tmp_path: Path
) -> None:
    losses, _, weights = reference(max_grad_norm)
    lines, other = trained(tmp_path, zero_stage, max_grad_norm=max_grad_norm)
    assert [line[LOSS] for line in lines if LOSS in line] == pytest.approx(losses, rel=1e-4)
    moved = torch.cat([(weights[name] - other[name]).abs().flatten() for name in weights])
    assert float(moved.mean()) < 1e-3 * LR


def test_the_held_out_loss_is_the_mean_over_response_tokens(tmp_path: Path) -> None:
    model = make_model(make_tokenizer(), seed=0)
    terms = torch.cat([token_losses(model, row) for row in range(len(EXAMPLES))])
    found = [line[VAL_LOSS] for line in trained(tmp_path, 1, micro_batch_size=2)[0] if VAL_LOSS in line]
    assert found[0] == pytest.approx(float(terms.detach().mean()), rel=1e-5)
    assert len(found) == 2


# --- whole warm starts


def config(task: PreparedTask, output: Path, **changes: Any) -> SftConfig:
    base: dict[str, Any] = {
        "task": task.directory, "output": str(output), "n_steps": 6, "batch_size": 16, "micro_batch_size": 8,
        "lr": 1e-3, "warmup_steps": 1, "checkpoint_every": 2,
    }  # fmt: skip
    return validated(SftConfig, {**base, **changes}, "warm_start.yaml")


def opened(settings: SftConfig) -> Job:
    with only_one(Path(settings.output)):
        return open_job(settings, lambda doing: None)


def run(settings: SftConfig) -> dict[str, Any]:
    """What warm_start.json says after one worker has done it all."""
    worker.train(opened(settings), rank=0, n_workers=1)
    return dict(opened(settings).result or {})


class StoppedError(Exception):
    """What ends a training in the middle."""


@pytest.fixture
def after_saving(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Has something happen once, after the checkpoint of a step."""

    def arrange(step: int, happen: Callable[[], None]) -> None:
        write, left = ProgressWriter.write, [happen]

        def write_and_stop(self: ProgressWriter, line: Mapping[str, Any]) -> None:
            write(self, line)
            if line.get("saved") == step and left:
                left.pop()()

        monkeypatch.setattr(ProgressWriter, "write", write_and_stop)

    return arrange


AfterSaving: TypeAlias = Callable[[int, Callable[[], None]], None]


def stop() -> None:
    raise StoppedError


def run_until(settings: SftConfig, step: int, after_saving: AfterSaving) -> None:
    """Begin a warm start that ends unexpectedly after a step's checkpoint."""
    after_saving(step, stop)
    with pytest.raises(StoppedError):
        worker.train(opened(settings), rank=0, n_workers=1)


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
    echo_task: PreparedTask, tmp_path: Path, after_saving: AfterSaving, changes: dict[str, Any]
) -> None:
    whole = run(config(echo_task, tmp_path / "whole", **changes))
    parted = config(echo_task, tmp_path / "parted", **changes)
    run_until(parted, 4, after_saving)
    assert [path.name for path in (tmp_path / "parted").glob("checkpoints/*/*")] == ["checkpoint-4"]
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
def test_checkpoints_may_be_more_frequent_after_an_interruption(
    echo_task: PreparedTask, tmp_path: Path, after_saving: AfterSaving
) -> None:
    run_until(config(echo_task, tmp_path), 4, after_saving)
    run_until(config(echo_task, tmp_path, checkpoint_every=1), 5, after_saving)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(
    echo_task: PreparedTask, tmp_path: Path, after_saving: AfterSaving
) -> None:
    settings = config(echo_task, tmp_path, checkpoints_kept=2)
    run_until(settings, 4, after_saving)
    saved = {path.name: path for path in tmp_path.glob("checkpoints/*/*")}
    assert checkpoints.newest(tmp_path) == saved["checkpoint-4"]
    file = max(saved["checkpoint-4"].rglob("*.pt"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    assert checkpoints.newest(tmp_path) == saved["checkpoint-2"]
    (saved["checkpoint-2"] / "manifest.json").unlink()
    assert checkpoints.newest(tmp_path) is None


def test_checkpoints_of_a_training_that_could_not_be_resumed_go_first(tmp_path: Path) -> None:
    for turn, step in (("old", 20), ("old", 60), ("old", 40), ("new", 40)):
        path = tmp_path / "checkpoints" / turn / f"checkpoint-{step}"
        path.mkdir(parents=True)
        (path / "weights").write_text("w")
        if turn == "new":
            checkpoints.complete(tmp_path, path, kept=2)
    left = [path.relative_to(tmp_path / "checkpoints") for path in tmp_path.glob("checkpoints/*/*")]
    assert sorted(map(str, left)) == ["new/checkpoint-40", "old/checkpoint-40"]


@pytest.mark.slow
def test_a_full_disk_is_a_storage_problem_and_keeps_the_checkpoints_before(
    echo_task: PreparedTask, tmp_path: Path, after_saving: AfterSaving
) -> None:
    import resource

    settings = config(echo_task, tmp_path)
    run_until(settings, 2, after_saving)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"checkpoint-4.*(cannot be written|File too large)"):
            run(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert checkpoints.step_of(checkpoints.newest(tmp_path) or Path("checkpoint-0")) == 2


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
    earlier = opened(settings)
    later = opened(settings)
    with pytest.raises(StorageError, match="a later command goes on with this warm start"):
        worker.train(earlier, rank=0, n_workers=1)
    assert checkpoints.newest(tmp_path) is None
    worker.train(later, rank=0, n_workers=1)
    assert (tmp_path / "warm_start.json").is_file()


@pytest.mark.slow
def test_a_result_of_an_earlier_command_does_not_take_examples_and_checkpoints_away(
    echo_task: PreparedTask, tmp_path: Path, after_saving: AfterSaving
) -> None:
    settings = config(echo_task, tmp_path)
    earlier = opened(settings)
    after_saving(settings.n_steps or 0, lambda: opened(settings) and None)
    with pytest.raises(StorageError, match="a later command"):
        worker.train(earlier, rank=0, n_workers=1)
    assert not (tmp_path / "warm_start.json").exists()
    result = run(settings)
    assert result["n_steps"] == settings.n_steps
    assert {"resumed": settings.n_steps} in lines(tmp_path)
