"""A warm start: task, base model and output checked, the examples, and the training as a Ray Train job.

Ray Train keeps checkpoints, and its list of them, in `output/checkpoints`. The same command continues from
the newest one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from llmzero_ray.config.yaml_text import read_yaml, to_yaml
from llmzero_ray.errors import CapacityError, ConfigError, EngineError, TaskError
from llmzero_ray.launch import actors
from llmzero_ray.prepared.manifest import read_manifest
from llmzero_ray.prepared.model_dir import check_model_dir
from llmzero_ray.prepared.task import load_task
from llmzero_ray.prepared.verl_rows import read_first_rows
from llmzero_ray.tasks.sft.config import SftConfig
from llmzero_ray.tasks.sft.examples import EncodedExamples, encode
from llmzero_ray.tasks.sft.gold import demonstrations, gold_responses
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.text import one_line
from llmzero_ray.utils.threads import in_thread

CONFIG, RESULT, CHECKPOINTS = "warm_start.yaml", "warm_start.json", "checkpoints"
_N_VAL = 512
"""Maximum validation rows for the held-out loss: the first ones of the split."""
_MAX_FAILURES = 3
"""Number of times that Ray Train continues from the newest checkpoint after a worker was lost."""

Say: TypeAlias = Callable[[str], None]
"""Callback for progress messages."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Warm start that is ready to train."""

    config: SftConfig
    model: str
    """Directory of the base model."""
    pad: int
    """Token id that fills up rows."""
    train: EncodedExamples
    val: EncodedExamples
    rows: Mapping[str, Mapping[str, int]]
    """Number of rows by split: all, those with a gold answer, and those that are used."""


def result_in(config: SftConfig) -> dict[str, Any] | None:
    """Facts of a finished warm start in the output directory, or None if it is not finished.

    Raises:
        ConfigError: the directory holds something else, or a warm start with other settings.
    """
    output, now = Path(config.output), config.model_dump(mode="json")
    if not (output / CONFIG).exists():
        held = sorted(path.name for path in output.iterdir() if not path.name.startswith("."))
        if held:
            raise ConfigError(
                f"output {output} holds {', '.join(held[:8])}, and no warm start; choose another directory"
            )
        return None
    before = {**read_yaml(output / CONFIG), "output": now["output"]}
    if before != now:
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        listed = "; ".join(f"{key} was {before.get(key)!r}, now {now.get(key)!r}" for key in changed)
        raise ConfigError(
            f"output {output} holds a warm start with other settings: {listed}. Choose another output, "
            "continue with the settings it had, or remove that directory to start again."
        )
    found = output / RESULT
    return dict(json.loads(found.read_text(encoding="utf-8"))) if found.exists() else None


def open_job(config: SftConfig, say: Say) -> Job:
    """Job of a configuration, which is written into its output directory.

    Raises:
        ConfigError: no model is named.
        TaskError: the task or the model cannot be used, or nothing is left to learn.
        StorageError: the output cannot be written.
    """
    say("checking the task and the model")
    task = load_task(config.task)
    model = config.model or task.model_path
    if model is None:
        raise ConfigError(
            f"model is null and the task in {task.directory} brings no model; set model to the directory "
            "of a base model"
        )
    tokenizer = _tokenizer(model)
    say("encoding prompts and gold responses")
    gold = gold_responses(read_manifest(Path(config.task)))
    examples, rows = dict[str, EncodedExamples](), dict[str, dict[str, int]]()
    for split, path, most in (("train", task.train, None), ("val", task.val, _N_VAL)):
        held = read_first_rows(path, most)
        pairs = encode(tokenizer, demonstrations(held, gold))
        kept = [pair for pair in pairs if len(pair[0]) + len(pair[1]) <= config.max_length]
        rows[split] = {"all": len(held), "with a gold answer": len(pairs), "used": len(kept)}
        found = f"{len(held)} rows, {len(pairs)} with a gold answer, {len(kept)} of these within max_length"
        if not kept:
            raise TaskError(f"no row of {path} ({split}) can be learnt: {found}, {config.max_length} tokens")
        say(f"{split}: {found}")
        examples[split] = EncodedExamples(kept)
    replace_file(Path(config.output) / CONFIG, to_yaml(config.model_dump(mode="json")))
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return Job(config=config, model=model, pad=pad, rows=rows, **examples)


def train_on_ray(job: Job, say: Say) -> None:
    """Train until the result is written, from the newest checkpoint in the output directory if there is one:
    on the existing cluster, or else on a private head with this machine's resources.

    Raises:
        CapacityError: there is no cluster, and this machine has too little.
        EngineError: workers failed or were lost too often.
    """
    say(actors.head.start_text())
    from ray.exceptions import RayError
    from ray.train.v2.api.exceptions import TrainingFailedError
    from ray.util.queue import Empty, Queue

    with actors.head.disconnecting():
        _connect(job.config, say)
        lines = Queue(actor_options={"num_cpus": 0})
        try:
            # In a thread of its own: Ray Train takes over Ctrl-C where it runs in the main one.
            training = in_thread(_trainer(job, lines.put).fit)
            while not (training.done() and lines.empty()):
                with contextlib.suppress(Empty):
                    say(f"warm start: {lines.get(timeout=1)}")
            training.result()
        except (TrainingFailedError, RayError) as error:
            log = Path(job.config.output) / "failure.log"
            replace_file(log, f"{error}\n")
            last = str(error).strip().splitlines()[-1]
            raise EngineError(
                f"the warm start failed: {one_line(last)} (all of it in {log}). The same command continues "
                f"from the newest checkpoint; it begins again once {log.with_name(CHECKPOINTS)} is removed."
            ) from error


def _connect(config: SftConfig, say: Say) -> None:
    import ray

    one = _resources(config)
    asked = f"{config.workers} worker(s) with {' and '.join(f'{n:g} {name}' for name, n in one.items())} each"
    if actors.head.join_if_there():
        say(f"joined the Ray cluster; Ray Train waits until there is room for {asked}")
        return
    actors.head.start_private_head()
    there = ray.cluster_resources()
    if any(config.workers * n > there.get(name, 0) for name, n in one.items()):
        raise CapacityError(
            f"asked: {asked}, which is more than there is: {there.get('CPU', 0):g} CPU, "
            f"{there.get('GPU', 0):g} GPU. Lower workers or cpus_per_worker, change use_gpu, or start Ray."
        )


def _trainer(job: Job, say: Say) -> Any:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    config = job.config
    environment = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        # What DeepSpeed runs on, in place of its guess.
        "DS_ACCELERATOR": "cuda" if config.use_gpu else "cpu",
        # Waiting threads give way instead of spinning: workers may share cores.
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return TorchTrainer(
        _work,
        train_loop_config={"job": job, "say": say},
        torch_config=TorchConfig(backend="nccl" if config.use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.workers, use_gpu=config.use_gpu, resources_per_worker=_resources(config)
        ),
        run_config=RunConfig(
            name=CHECKPOINTS,
            storage_path=config.output,
            failure_config=FailureConfig(max_failures=_MAX_FAILURES),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            worker_runtime_env={"env_vars": environment},
        ),
    )


def _work(given: Mapping[str, Any]) -> None:
    from llmzero_ray.tasks.sft.worker import train

    train(given["job"], given["say"])


def _resources(config: SftConfig) -> dict[str, float]:
    """Ray's resources of one worker."""
    return {"CPU": float(config.cpus_per_worker), **({"GPU": 1.0} if config.use_gpu else {})}


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    check_model_dir(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of many kinds
        raise TaskError(f"the tokenizer of {model} cannot be loaded: {one_line(str(error))}") from error
    for part in ("chat_template", "eos_token"):
        if not getattr(tokenizer, part):
            raise TaskError(f"the tokenizer of {model} has no {part}; use the instruct variant of the model")
    return tokenizer
