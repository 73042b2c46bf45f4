"""Work of each worker of a warm start, from the base model or the newest checkpoint to the result.

Ray Train calls it in a process group. Needs torch, transformers and deepspeed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, CheckpointUploadMode
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from llmzero_ray.strategy.merge import merged_model
from llmzero_ray.tasks.sft.job import CHECKPOINTS, RESULT, Job, Say
from llmzero_ray.tasks.sft.trainer import SftTrainer, StepCallback, training_arguments
from llmzero_ray.utils.files import replace_directory, replace_file, storage_errors

_N_REPORTS = 20


class _RayCallback(TrainerCallback):  # type: ignore[misc]
    """Reports each checkpoint that the Trainer has written into Ray Train's directory. Once all workers have
    reported it, Ray Train accepts it and removes the previous one."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report a checkpoint."""
        del control
        written = Checkpoint(str(Path(args.output_dir, f"checkpoint-{state.global_step}")))
        ray.train.report(
            {"step": state.global_step}, written, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD
        )


def train(job: Job, say: Say) -> None:
    """Train to the end and write the result.

    Raises:
        StorageError: the result cannot be written.
    """
    config, rank = job.config, ray.train.get_context().get_world_rank()
    n_steps, checkpoint = config.steps(len(job.train)), ray.train.get_checkpoint()
    resumed = None if checkpoint is None else checkpoint.path
    if not config.use_gpu:
        torch.set_num_threads(config.cpus_per_worker)

    def report(step: int, loss: float) -> None:
        if rank == 0 and (step % -(-n_steps // _N_REPORTS) == 0 or step == n_steps):
            say(f"step {step} of {n_steps}, loss {loss:.4f}")

    if rank == 0:
        say("loading the model" if resumed is None else f"continuing from {Path(resumed).name}")
    # The model is loaded before the DeepSpeed configuration exists: every worker reads all weights.
    trainer = SftTrainer(
        _model(job),
        _arguments(job, n_steps, evaluate_first=resumed is None),
        job.train,
        pad=job.pad,
        eval_dataset=job.val,
        processing_class=AutoTokenizer.from_pretrained(job.model),
        callbacks=[StepCallback(report), _RayCallback()],
    )
    trainer.train(resume_from_checkpoint=resumed)
    written = Path(trainer.args.output_dir) / "result"
    trainer.save_model(str(written))  # all workers call it, because the weights may be sharded
    if rank == 0:
        say("writing the model")
        _write_model(job, written)
        log = trainer.state.log_history
        held_out = [line["eval_loss"] for line in log if "eval_loss" in line]
        result = {
            "n_steps": n_steps,
            "train_loss": [line["loss"] for line in log if "loss" in line][-1],
            "val_loss_before": held_out[0],
            "val_loss_after": held_out[-1],
            "rows": job.rows,
            "base": job.model,
        }
        replace_file(Path(config.output) / RESULT, json.dumps(result, indent=1) + "\n")


def _model(job: Job) -> Any:
    config = job.config
    dtype = "bfloat16" if config.use_gpu else "float32"
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype, trust_remote_code=False)
    if config.lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(
        task_type="CAUSAL_LM", r=config.lora.rank, lora_alpha=config.lora.alpha, target_modules="all-linear"
    )
    torch.manual_seed(config.seed)
    model = get_peft_model(model, adapter)
    if config.gradient_checkpointing:
        model.enable_input_require_grads()
    return model


def _arguments(job: Job, n_steps: int, *, evaluate_first: bool) -> TrainingArguments:
    import deepspeed  # type: ignore[import-untyped]
    from accelerate import PartialState

    config = job.config
    # DeepSpeed's shared-memory reduction would be built with a C++ compiler at first use.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # On CPUs, the Trainer does not use DeepSpeed by itself.
    PartialState(backend="nccl" if config.use_gpu else "gloo")
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {
            "stage": config.zero_stage,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "bf16": {"enabled": "auto"},
    }
    if config.use_gpu:
        # The losses of micro-batches are added up: in bfloat16 the small ones would vanish.
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return training_arguments(
        Path(config.output) / CHECKPOINTS,
        n_steps=n_steps,
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        n_workers=config.workers,
        final_lr_share=0.05,
        warmup_steps=config.warmup_steps,
        learning_rate=config.lr,
        weight_decay=0.01,
        seed=config.seed,
        data_seed=config.seed,
        bf16=config.use_gpu,
        gradient_checkpointing=config.gradient_checkpointing,
        per_device_eval_batch_size=config.micro_batch_size,
        eval_strategy="steps",
        eval_steps=n_steps,
        eval_on_start=evaluate_first,
        save_steps=config.checkpoint_every,
        use_cpu=not config.use_gpu,
        accelerator_config={"use_configured_state": True},
        deepspeed=settings,
    )


def _write_model(job: Job, written: Path) -> None:
    """Write the model's directory from what the Trainer has written: all weights, or the adapter."""
    target = Path(job.config.output) / "model"
    (written / "training_args.bin").unlink()
    with storage_errors(target, setting="output"), replace_directory(target) as folder:
        if job.config.lora is None:
            shutil.copytree(written, folder, dirs_exist_ok=True)
        else:
            # Otherwise ZeRO 3 would shard the base model while it is loaded.
            unset_hf_deepspeed_config()
            for part in merged_model(Path(job.model), written):
                part.save_pretrained(folder)
        for path in folder.iterdir():
            path.chmod(0o644)  # safetensors lets only its own user read
