"""Merge the best adapter of a search into its base model. The result is a complete model with tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from llmzero_ray.errors import CapacityError, ConfigError, StorageError, TaskError
from llmzero_ray.prepared import check_model_dir
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.outcome import adapter_in_best
from llmzero_ray.utils.files import replace_directory, storage_errors
from llmzero_ray.utils.text import one_line, size

MEMORY_FACTOR, DISK_FACTOR = 1.2, 1.05
"""Memory and disk that merging takes, as multiples of the size of the base model's weights. These are loaded
once, changed in place layer by layer, and written once."""


def merge_best(facts: SearchFacts, out: Path, base: str | None = None) -> Path:
    """Write base model and best adapter as one model to `out`, in the base model's precision. Returns `out`.

    `base` is the directory of the base model if it was moved. `out` only appears once it is complete.

    Raises:
        ConfigError: the search has no adapter, or `out` is not empty.
        TaskError: the base model cannot be loaded, or the adapter does not belong to it.
        CapacityError: this machine has too little free memory.
        StorageError: the disk is too full, or the adapter is not what was saved.
    """
    refuse_used(out)
    adapter = facts.paths.best
    adapter_in_best(facts)
    made_in = facts.task.get("directory")
    directory = Path(base or facts.storage.base_model_here(facts.config, facts.base_model, made_in))
    check_model_dir(directory)
    check_room(directory, out)
    merged, tokenizer = merged_model(directory, adapter)
    with storage_errors(out, setting="--out"), replace_directory(out) as folder:
        _save(merged, tokenizer, directory, folder)
        refuse_used(out)
    return out


def _save(model: Any, tokenizer: Any, base: Path, folder: Path) -> None:
    """Write a model, its tokenizer, and the base model's settings for generation as they are."""
    settings = base / "generation_config.json"
    if settings.is_file():
        # transformers reads settings that it refuses to write, such as a temperature without sampling.
        model.generation_config = type(model.generation_config)()
    model.save_pretrained(folder)
    if settings.is_file():
        shutil.copyfile(settings, folder / settings.name)
    tokenizer.save_pretrained(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o644)  # safetensors writes files that only their owner can read


def refuse_used(out: Path) -> None:
    """Check that `out` does not exist or is an empty directory.

    Raises:
        ConfigError: it is a file, or a directory that is not empty.
    """
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} is not empty; name a new directory with --out. Nothing was changed in it.")


def check_room(base: Path, out: Path) -> None:
    """Check that there is enough memory and disk space for the merged model.

    Raises:
        CapacityError, StorageError: there is too little; the message has the available and the needed size.
    """
    import psutil

    weights = sum(path.stat().st_size for kind in ("*.safetensors", "*.bin") for path in base.glob(kind))
    needed, available = MEMORY_FACTOR * weights, psutil.virtual_memory().available
    if available < needed:
        raise CapacityError(
            f"merging needs about {size(needed)} of memory for the weights of {base}; {size(available)} are "
            "available. End other programs, or merge on a machine with more."
        )
    needed = DISK_FACTOR * weights
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(
            f"{out}: the merged model takes about {size(needed)}; {size(free)} are free there. Free space, "
            "or name another directory with --out."
        )


def merged_model(base: Path, adapter: Path) -> tuple[Any, Any]:
    """(base model with the adapter merged into its weights, tokenizer).

    Raises:
        ConfigError: a library is missing.
        TaskError: the model cannot be loaded, or the adapter does not belong to it.
    """
    try:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            f"merging needs torch, transformers and peft ({error}): pip install 'llmzero-ray[verl]'."
        ) from error
    try:
        here = {"local_files_only": True, "trust_remote_code": False}
        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", **here)
        tokenizer = AutoTokenizer.from_pretrained(base, **here)
    except Exception as error:  # transformers raises errors of many libraries
        raise TaskError(
            f"the base model in {base} cannot be loaded ({type(error).__name__}: {one_line(str(error))}). "
            "Name its directory with --model."
        ) from error
    try:
        with_adapter = PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
        return with_adapter.merge_and_unload(safe_merge=True), tokenizer
    except Exception as error:  # a size mismatch is a RuntimeError, a NaN a ValueError, ...
        raise TaskError(
            f"the adapter in {adapter} cannot be merged into the model in {base} ({type(error).__name__}: "
            f"{one_line(str(error))}). It belongs to another base model, or is damaged."
        ) from error
