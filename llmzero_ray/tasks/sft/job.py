"""Prepares a warm start: checks task, base model and output, and encodes the examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from llmzero_ray.config.yaml_text import read_yaml, to_yaml
from llmzero_ray.errors import ConfigError, TaskError
from llmzero_ray.prepared.manifest import read_manifest
from llmzero_ray.prepared.model_dir import check_model_dir
from llmzero_ray.prepared.task import load_task
from llmzero_ray.prepared.verl_rows import read_first_rows
from llmzero_ray.tasks.sft.config import SftConfig
from llmzero_ray.tasks.sft.examples import EncodedExamples, encode
from llmzero_ray.tasks.sft.gold import demonstrations, gold_responses
from llmzero_ray.utils.files import replace_file
from llmzero_ray.utils.text import one_line

CONFIG, RESULT, CHECKPOINTS = "warm_start.yaml", "warm_start.json", "checkpoints"
_N_VAL = 512
"""Maximum validation rows for the held-out loss: the first ones of the split."""

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
    """Split -> number of rows: all, those with a gold answer, and those that are used."""


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
    """Prepare the job of a configuration, and write the configuration into the output directory.

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


def _tokenizer(model: str) -> Any:
    from transformers import AutoConfig, AutoTokenizer

    check_model_dir(model)
    try:
        AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises errors of many kinds
        raise TaskError(f"model directory {model} cannot be loaded: {one_line(str(error))}") from error
    for part in ("chat_template", "eos_token"):
        if not getattr(tokenizer, part):
            raise TaskError(f"the tokenizer of {model} has no {part}; use the instruct variant of the model")
    return tokenizer
