"""A warm start before it begins: task, base model and output directory checked, the examples written down.

Runs where the command runs.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from llmzero_ray.errors import ConfigError, StorageError, TaskError
from llmzero_ray.prepared.manifest import MANIFEST, read_manifest
from llmzero_ray.prepared.model_dir import check_model_dir
from llmzero_ray.prepared.task import load_task
from llmzero_ray.tasks.sft import TRAINER_VERSION
from llmzero_ray.tasks.sft.config import CHANGEABLE, SftConfig
from llmzero_ray.tasks.sft.examples import EncodedExamples, encode
from llmzero_ray.tasks.sft.gold import gold_responses, read_examples
from llmzero_ray.tasks.sft.models import load_tokenizer
from llmzero_ray.utils.files import FileLock, file_digest, replace_file, storage_errors, text_digest

IDENTITY, RESULT, TURN = "identity.json", "warm_start.json", ".turn"
EXAMPLES = "examples"
TOO_LONG = "too long"
_FORMAT = 1
_PLACES = ("task", "model", "output")
"""Fields with locations, which may change. Their contents are compared."""

Say: TypeAlias = Callable[[str], None]
"""Callback for progress messages."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Warm start that is ready to train: everything is checked that can be checked without training."""

    config: SftConfig
    model: str
    """Directory of the base model."""
    identity: Mapping[str, Any]
    """All values that determine the result, flat."""
    n_train: int
    n_val: int
    dropped: Mapping[str, Mapping[str, int]]
    """Numbers of rows left out, by split and reason."""
    result: Mapping[str, Any] | None
    """Content of RESULT if the training has already ended."""
    turn: str
    """Id of this command. Only workers of the latest command may write to the output."""

    @property
    def output(self) -> Path:
        """Directory of checkpoints and result."""
        return Path(self.config.output)


def open_job(config: SftConfig, say: Say) -> Job:
    """Job of a configuration, with its examples in the output directory.

    Raises:
        TaskError: the task or the model cannot be used, or nothing is left to learn.
        ConfigError: the output directory holds something else.
        StorageError: it cannot be written.
    """
    say("checking the task and the model")
    task = load_task(config.task)
    model = config.model or task.model_path
    if model is None:
        raise ConfigError(
            f"model is null and the task in {task.directory} brings no model; set model to the directory "
            "of a base model"
        )
    check_model_dir(model)
    output, files = Path(config.output), {"train": task.train, "val": task.val}
    identity = _identity(config, model, files)
    _check_same(output, identity)
    result, turn = result_in(output), uuid4().hex
    if result is not None:
        counts = result["n_train"], result["n_val"], result["dropped"]
    else:
        # Workers of a command that was killed may live on for seconds.
        replace_file(output / TURN, turn)
        say("encoding prompts and gold responses")
        counts = _write_examples(config, model, files, output)
        replace_file(output / IDENTITY, json.dumps(identity, indent=1) + "\n")
    return Job(
        config=config,
        model=model,
        identity=identity,
        n_train=counts[0],
        n_val=counts[1],
        dropped=counts[2],
        result=result,
        turn=turn,
    )


def check_turn(job: Job) -> None:
    """Check that no later command has opened the job.

    Raises:
        StorageError: one has.
    """
    with storage_errors(job.output / TURN):
        now = (job.output / TURN).read_text(encoding="utf-8")
    if now != job.turn:
        raise StorageError(f"{job.output}: a later command goes on with this warm start; these workers end.")


@contextlib.contextmanager
def only_one(output: Path) -> Iterator[None]:
    """Keep other commands away from an output directory, which is made if need be; the lock ends with its
    process. Where the file system has no locks there is none.

    Raises:
        StorageError: another command is at work there, or it cannot be written.
    """
    lock = FileLock(output / ".lock")
    with storage_errors(output):
        taken = lock.acquire()
    if not taken:
        raise StorageError(
            f"{output}: another warm start is at work there. Wait for it, or choose another output."
        )
    try:
        yield
    finally:
        lock.release()


def _identity(config: SftConfig, model: str, files: Mapping[str, str]) -> dict[str, Any]:
    flat: dict[str, Any] = {"format": _FORMAT, "trainer": TRAINER_VERSION}
    for key, value in config.model_dump(mode="json").items():
        if key in CHANGEABLE or key in _PLACES:
            continue
        below = value if isinstance(value, Mapping) else None
        flat |= {f"{key}.{name}": held for name, held in below.items()} if below is not None else {key: value}
    read = {**files, "the manifest": str(Path(config.task) / MANIFEST)}
    flat |= {f"sha256 of {what}": _digest([Path(path)]) for what, path in read.items()}
    base = sorted(path for path in Path(model).iterdir() if path.is_file())
    return flat | {"sha256 of the model": _digest(base)}


def _digest(paths: list[Path]) -> str:
    """Digest over the names and contents of some files."""
    try:
        parts = [path.name.encode() + bytes.fromhex(file_digest(path)) for path in paths]
    except OSError as error:
        raise TaskError(f"{error.filename} cannot be read: {error.strerror or error}") from error
    return text_digest(b"".join(parts))


def _check_same(output: Path, identity: Mapping[str, Any]) -> None:
    """Check that the directory is empty or holds this warm start."""
    try:
        before = json.loads((output / IDENTITY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        held = sorted(
            path.name for path in output.iterdir() if not path.name.startswith(".") and path.name != EXAMPLES
        )
        if held:
            raise ConfigError(
                f"output {output} holds {', '.join(held[:8])}, and no warm start; choose another directory"
            ) from None
        return
    except (OSError, ValueError) as error:
        raise StorageError(f"{output / IDENTITY} cannot be read: {error}; choose another output") from error
    keys = [*before, *(key for key in identity if key not in before)]
    differences = [
        f"{key} was {before.get(key)!r}, now {identity.get(key)!r}"
        for key in keys
        if before.get(key) != identity.get(key)
    ]
    if differences:
        raise ConfigError(
            f"output {output} holds a warm start with other settings: {'; '.join(differences)}. Choose "
            "another output, continue with the settings it had, or remove that directory to start again."
        )


def result_in(output: Path) -> dict[str, Any] | None:
    """Result file of a finished warm start, or None if it is not finished.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        found = json.loads((output / RESULT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError(f"{output / RESULT} cannot be read: {error}; remove it to continue") from error
    return dict(found)


def _write_examples(
    config: SftConfig, model: str, files: Mapping[str, str], output: Path
) -> tuple[int, int, dict[str, dict[str, int]]]:
    """Rows to learn, rows to measure on, and the dropped ones by split and reason."""
    tokenizer = load_tokenizer(model)
    gold = gold_responses(read_manifest(Path(config.task)), config.gold_response)
    counts, dropped = dict[str, int](), dict[str, dict[str, int]]()
    for split, path in files.items():
        examples, reasons = read_examples(path, gold, config.rationale)
        pairs = encode(tokenizer, examples[: config.n_val] if split == "val" else examples)
        kept = [pair for pair in pairs if len(pair[0]) + len(pair[1]) <= config.max_length]
        reasons[TOO_LONG] += len(pairs) - len(kept)
        if not kept:
            listed = ", ".join(f"{n} {reason}" for reason, n in (+reasons).items()) or "it is empty"
            longest = max((len(prompt) + len(response) for prompt, response in pairs), default=0)
            hint = f"; the longest has {longest} tokens, max_length is {config.max_length}" if longest else ""
            raise TaskError(f"no row of {path} ({split}) can be learnt: {listed}{hint}")
        EncodedExamples.of(kept).save(output / EXAMPLES / f"{split}.parquet")
        counts[split], dropped[split] = len(kept), dict(+Counter(reasons))
    return counts["train"], counts["val"], dropped
