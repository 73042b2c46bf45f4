"""Work of each worker of a supervised training, from the base model or the newest checkpoint to the result.

Called on every worker in a process group that exists. Needs torch, transformers and deepspeed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from llmzero_ray.tasks.sft import checkpoints, models
from llmzero_ray.tasks.sft.examples import EncodedExamples
from llmzero_ray.tasks.sft.job import EXAMPLES, RESULT, Job, check_turn
from llmzero_ray.tasks.sft.progress import ProgressWriter
from llmzero_ray.tasks.sft.trainer import ProgressCallback, SftTrainer, training_arguments
from llmzero_ray.utils.files import replace_file

_PACKAGES = ("llmzero-ray", "torch", "deepspeed", "transformers", "accelerate", "peft", "ray")


class JobTrainer(SftTrainer):
    """Trainer of a job. It adds a manifest to each checkpoint, and writes only while no later command has
    taken over."""

    def __init__(self, job: Job, *more: Any, **named: Any) -> None:
        super().__init__(*more, **named)
        self._job = job

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        check_turn(self._job)
        target = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with checkpoints.checkpoint_errors(target):
            super()._save_checkpoint(model, trial)
            dist.barrier()
            if self.args.should_save:
                checkpoints.complete(self._job.output, target, kept=self._job.config.checkpoints_kept)
            dist.barrier()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights for transformers; checkpoints go without, as DeepSpeed's state has them."""
        if not _internal_call:
            super().save_model(output_dir)


def train(job: Job, rank: int, n_workers: int) -> None:
    """Train to the end and write the result.

    Raises:
        StorageError: checkpoint or result cannot be written, or a later command has taken over.
        TaskError: the model cannot be loaded, or the adapter does not fit it.
    """
    config, output = job.config, job.output
    report = ProgressWriter(output).write if rank == 0 else lambda _line: None
    report({"doing": "loading the model"})
    tokenizer = models.load_tokenizer(job.model)
    resumed = checkpoints.newest(output)
    # The model is loaded before the DeepSpeed configuration exists: every worker reads all weights.
    model = models.load_model(job.model, config.torch_dtype)
    if config.lora is not None:
        model = models.with_adapter(model, config.lora, config.seed)
    if config.gradient_checkpointing and config.lora is not None:
        model.enable_input_require_grads()
    trainer = JobTrainer(
        job,
        model,
        _arguments(job, n_workers, evaluate_first=resumed is None),
        EncodedExamples.load(output / EXAMPLES / "train.parquet"),
        pad=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        eval_dataset=EncodedExamples.load(output / EXAMPLES / "val.parquet"),
        callbacks=[ProgressCallback(report)],
    )
    if resumed is not None:
        report({"resumed": checkpoints.step_of(resumed)})
    trainer.train(resume_from_checkpoint=str(resumed) if resumed is not None else None)
    report({"doing": "writing the model"})
    # Else a model that is loaded from here on, to merge the adapter, would be divided by ZeRO 3.
    unset_hf_deepspeed_config()
    check_turn(job)
    models.write_result(trainer.save_model, output, base=job.model, lora=config.lora, rank=rank)
    if rank == 0:
        check_turn(job)
        result = _result(job, trainer.state.log_history)
        replace_file(output / RESULT, json.dumps(result, indent=1) + "\n")
        for name in (checkpoints.CHECKPOINTS, EXAMPLES):
            shutil.rmtree(output / name, ignore_errors=True)


def _arguments(job: Job, n_workers: int, *, evaluate_first: bool) -> TrainingArguments:
    config = job.config
    _prepare_deepspeed(use_gpu=config.use_gpu)
    n_steps = config.steps(job.n_train)
    return training_arguments(
        job.output / checkpoints.CHECKPOINTS / job.turn,
        n_steps=n_steps,
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        n_workers=n_workers,
        final_lr_share=config.final_lr_share,
        warmup_steps=config.warmup_steps,
        learning_rate=config.lr,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        seed=config.seed,
        data_seed=config.seed,
        bf16=config.torch_dtype == "bfloat16",
        gradient_checkpointing=config.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        eval_strategy="steps",
        eval_steps=n_steps,
        eval_on_start=evaluate_first,
        save_steps=config.checkpoint_every,
        use_cpu=not config.use_gpu,
        accelerator_config={"use_configured_state": True},
        deepspeed=deepspeed_config(config.zero_stage, config.torch_dtype),
    )


def deepspeed_config(zero_stage: int, dtype: str) -> dict[str, Any]:
    """DeepSpeed's configuration. "auto" values come from the TrainingArguments."""
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": zero_stage, "stage3_gather_16bit_weights_on_model_save": True},
        "bf16": {"enabled": "auto"},
        "steps_per_print": 2**31 - 1,
    }
    if dtype == "bfloat16":
        # The losses of micro-batches are added up: in bfloat16 the small ones would vanish.
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings


def _prepare_deepspeed(*, use_gpu: bool) -> None:
    """Have accelerate use DeepSpeed on the process group that exists; on CPUs it would not by itself."""
    from accelerate import PartialState
    from accelerate.state import AcceleratorState

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed  # type: ignore[import-untyped]
        from deepspeed.utils import logger  # type: ignore[import-untyped]
    for named in (logger, logging.getLogger("accelerate")):
        named.setLevel(logging.ERROR)
    # Its reduction in shared memory would be built with a C++ compiler at first use.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if use_gpu else "gloo"
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    PartialState(backend=backend)


def _result(job: Job, log: list[dict[str, float]]) -> dict[str, Any]:
    lora = job.config.lora
    losses = [line["eval_token_loss"] for line in log if "eval_token_loss" in line]
    return {
        "config": job.config.model_dump(mode="json"),
        "base": job.model,
        "model": models.MODEL if lora is None or lora.merge else None,
        "adapter": models.ADAPTER if lora is not None else None,
        "n_steps": job.config.steps(job.n_train),
        "train_loss": [line["loss"] for line in log if "loss" in line][-1],
        "val_loss_before": losses[0],
        "val_loss_after": losses[-1],
        "n_train": job.n_train,
        "n_val": job.n_val,
        "dropped": job.dropped,
        **{key: held for key, held in job.identity.items() if key.startswith("sha256")},
        "versions": {package: version(package) for package in _PACKAGES},
    }
