"""What every worker of a warm start does, from the base model or the newest checkpoint to the result.

Called by Ray Train on every worker (on_ray.py), in a process group that exists. Not here: checking the job
(job.py), single steps (training.py).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llmzero_ray.files import replace_file
from llmzero_ray.tasks.warm_start import checkpoints, models
from llmzero_ray.tasks.warm_start.config import WarmStartConfig, parse_warm_start
from llmzero_ray.tasks.warm_start.engine import gathered, make_engine
from llmzero_ray.tasks.warm_start.examples import Examples
from llmzero_ray.tasks.warm_start.job import EXAMPLES, RESULT, check_turn
from llmzero_ray.tasks.warm_start.progress import GRAD_NORM, LOSS, LR, VAL_LOSS, Teller
from llmzero_ray.tasks.warm_start.training import mean_loss, train

_CHECKPOINTS = "checkpoints"
_PACKAGES = ("llmzero-ray", "torch", "deepspeed", "transformers", "peft", "ray")


class Course:
    """One worker's way through a warm start; `order` is what `Job.order` gives."""

    def __init__(self, order: Mapping[str, Any], rank: int, n_workers: int) -> None:
        self._order, self._rank, self._n_workers = order, rank, n_workers
        self._config: WarmStartConfig = parse_warm_start(order["config"])
        self._output = Path(self._config.output)
        self._plan = self._config.plan(order["n_train"])
        self._place = checkpoints.Place(rank=rank, trainable_only=self._config.lora is not None)
        self._teller = Teller(self._output) if rank == 0 else None
        self._state: dict[str, Any] = {"val_before": None, "train_loss": None}
        """What a checkpoint carries beside weights and optimizer."""

    def run(self) -> None:
        """Train to the end and write the result.

        Raises:
            StorageError: checkpoint or result cannot be written, or a later command has taken over.
            TaskError: the model cannot be loaded, or takes no adapter like that.
        """
        config = self._config
        self._tell(doing="loading the model")
        tokenizer = models.load_tokenizer(self._order["model"])
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        engine = make_engine(
            self._load(),
            self._plan,
            zero_stage=config.zero_stage,
            dtype=config.torch_dtype,
            use_gpu=config.use_gpu,
            n_workers=self._n_workers,
        )
        done = self._begin(engine, pad)

        def after_step(step: int, loss: float) -> None:
            self._state["train_loss"] = loss
            norm = engine.get_global_grad_norm()  # without ZeRO, DeepSpeed does not say
            metrics = {LOSS: loss, LR: self._plan.learning_rate(step)}
            metrics |= {} if norm is None else {GRAD_NORM: float(norm)}
            self._tell(step=step, of=self._plan.n_steps, **metrics)
            if step % config.checkpoint_every == 0 or step == self._plan.n_steps:
                self._save(engine, step)

        examples = Examples.load(self._output / EXAMPLES / "train.npz")
        workers = {"pad": pad, "rank": self._rank, "n_workers": self._n_workers}
        train(engine, examples, self._plan, done=done, after_step=after_step, **workers)
        self._finish(engine, self._val_loss(engine, pad))

    def _load(self) -> Any:
        model = models.load_model(self._order["model"], self._config.torch_dtype)
        if self._config.lora is not None:
            model = models.with_adapter(model, self._config.lora, self._config.seed)
        if self._config.gradient_checkpointing:
            models.checkpoint_activations(model)
        return model

    def _begin(self, engine: Any, pad: int) -> int:
        """Go back to the newest checkpoint, or measure the base model; steps that are done."""
        saved = checkpoints.newest(self._output / _CHECKPOINTS)
        if saved is not None:
            state = checkpoints.restore(engine, saved, place=self._place)
            self._state = {key: state[key] for key in self._state}
            done = checkpoints.step_of(saved)
            self._tell(resumed=done)
            return done
        self._state["val_before"] = self._val_loss(engine, pad)
        self._tell(step=0, **{VAL_LOSS: self._state["val_before"]})
        return 0

    def _val_loss(self, engine: Any, pad: int) -> float:
        examples = Examples.load(self._output / EXAMPLES / "val.npz")
        return mean_loss(
            engine,
            examples,
            pad=pad,
            micro_batch_size=self._config.micro_batch_size,
            rank=self._rank,
            n_workers=self._n_workers,
        )

    def _save(self, engine: Any, step: int) -> None:
        self._check_turn()
        directory, kept = self._output / _CHECKPOINTS, self._config.checkpoints_kept
        checkpoints.save(engine, directory, step, state=self._state, place=self._place, kept=kept)
        self._tell(saved=step)

    def _finish(self, engine: Any, val_after: float) -> None:
        self._tell(step=self._plan.n_steps, **{VAL_LOSS: val_after})
        config = self._config
        weights = gathered(engine.module, trainable_only=config.lora is not None, keep=self._rank == 0)
        if self._rank != 0:
            return
        self._tell(doing="writing the model")
        self._check_turn()
        models.write_result(engine.module, weights, self._output, base=self._order["model"], lora=config.lora)
        self._check_turn()
        replace_file(self._output / RESULT, json.dumps(self._result(val_after), indent=1) + "\n")
        for name in (_CHECKPOINTS, EXAMPLES):
            shutil.rmtree(self._output / name, ignore_errors=True)

    def _check_turn(self) -> None:
        check_turn(self._output, self._order["turn"])

    def _result(self, val_after: float) -> dict[str, Any]:
        lora = self._config.lora
        merged = lora is None or lora.merge
        return {
            "config": self._config.model_dump(mode="json"),
            "base": self._order["model"],
            "model": models.MODEL if merged else None,
            "adapter": models.ADAPTER if lora is not None else None,
            "n_steps": self._plan.n_steps,
            "train_loss": self._state["train_loss"],
            "val_loss_before": self._state["val_before"],
            "val_loss_after": val_after,
            **{key: self._order[key] for key in ("n_train", "n_val", "dropped")},
            **{key: held for key, held in self._order["identity"].items() if key.startswith("sha256")},
            "versions": {package: version(package) for package in _PACKAGES},
        }

    def _tell(self, **line: Any) -> None:
        if self._teller is not None:
            self._teller.tell(line)
