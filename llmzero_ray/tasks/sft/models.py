"""The model of a supervised training: loaded, given an adapter, written.

Directories appear whole or not at all. Needs torch, transformers and (for adapters) peft, imported when
called.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.sft.config import LoraSettings
from llmzero_ray.utils.files import replace_directory, storage_error

MODEL, ADAPTER = "model", "adapter"
"""Directories of the result: all weights, and the LoRA adapter in PEFT's form."""
_TOKENIZER_FILES = (
    "tokenizer*.*",
    "vocab*.*",
    "merges.txt",
    "*.tiktoken",
    "tekken.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a model directory.

    Raises:
        TaskError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    return _loaded(AutoTokenizer.from_pretrained, path)


def load_model(path: str, dtype: str) -> Any:
    """The causal language model of a directory, on the CPU.

    Raises:
        TaskError: it cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    return _loaded(AutoModelForCausalLM.from_pretrained, path, dtype=dtype)


def with_adapter(model: Any, settings: LoraSettings, seed: int) -> Any:
    """The model with a fresh LoRA adapter, its own weights frozen; the same adapter for the same seed.

    Raises:
        TaskError: the targets are not modules of this model.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    targets = settings.targets[0] if settings.targets == ("all-linear",) else list(settings.targets)
    adapter = LoraConfig(
        task_type="CAUSAL_LM", r=settings.rank, lora_alpha=settings.alpha, target_modules=targets
    )
    torch.manual_seed(seed)
    try:
        return get_peft_model(model, adapter)
    except ValueError as error:
        names = sorted({name.rpartition(".")[2] for name, _ in model.named_modules() if name})
        raise TaskError(
            f"lora.targets is {', '.join(settings.targets)}: {error}. Modules of this model: "
            f"{', '.join(names)}; or write all-linear."
        ) from error


def write_result(
    save: Callable[[str], None], output: Path, *, base: str, lora: LoraSettings | None, rank: int
) -> None:
    """Write the result of a training: the model's directory, or the adapter's and, if wanted, the merged
    model's; each with the base model's tokenizer. All workers must call this, as `save` (the Trainer's
    `save_model`) gathers weights that are divided among them; the first one writes.

    Raises:
        StorageError: it cannot be written.
    """
    kind = MODEL if lora is None else ADAPTER
    with _whole(output / kind, base, rank) as part:
        save(str(part))
        (part / "training_args.bin").unlink(missing_ok=True)
    if rank == 0 and lora is not None and lora.merge:
        with _whole(output / MODEL, base, rank) as part:
            _merged(output / ADAPTER, base).save_pretrained(part)


def _merged(adapter: Path, base: str) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(load_model(base, "auto"), str(adapter)).merge_and_unload()


@contextlib.contextmanager
def _whole(target: Path, base: str, rank: int) -> Iterator[Path]:
    """Context manager that gives a directory to fill. When it is filled, it gets the base model's tokenizer
    and its final name."""
    from safetensors import SafetensorError

    if rank != 0:
        yield target
        return
    try:
        for left in target.parent.glob(f".{target.name}.*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        with replace_directory(target) as folder:
            yield folder
            # Copied, not saved again: a loaded tokenizer also writes down how it was loaded.
            for pattern in _TOKENIZER_FILES:
                for path in Path(base).glob(pattern):
                    shutil.copyfile(path, folder / path.name)
            mode = next(folder.glob("*config.json")).stat().st_mode
            for path in folder.iterdir():
                # safetensors writes for its user alone; the nodes of a cluster may read as another one.
                path.chmod(mode)
    except OSError as error:
        raise storage_error(target, error) from error
    except SafetensorError as error:
        raise storage_error(target, OSError(str(error))) from error


def _loaded(load: Callable[..., Any], path: str, **more: Any) -> Any:
    try:
        return load(path, local_files_only=True, trust_remote_code=False, **more)
    except Exception as error:  # transformers raises errors of many kinds
        raise TaskError(
            f"model directory {path} cannot be loaded ({type(error).__name__}: {error}); name a directory "
            "that transformers loads"
        ) from error
