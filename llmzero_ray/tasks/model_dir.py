"""Check that a directory holds a model which VeRL and vLLM can load.

Looks at file names and JSON: configuration, weights, tokenizer, chat template; loads nothing. Not here:
whether the model fits into memory, or is any good.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.files import small_text

_TOKENIZERS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
    ("tekken.json",),
    ("tiktoken.model",),
)
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def check_model_dir(path: str | Path) -> None:
    """Return quietly when `path` can serve as a base model.

    Raises:
        TaskError: what is missing, what was found, what to do.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise TaskError(
            f"model directory {directory} does not exist; model.path must name a directory with config.json, "
            "weights and tokenizer. Download a model of the hub first: hf download NAME --local-dir DIRECTORY"
        )
    if not any(all((directory / name).is_file() for name in names) for names in _TOKENIZERS):
        raise TaskError(
            f"model directory {directory} has no tokenizer ({_listing(directory)}); it needs one of: "
            f"{', '.join(' + '.join(names) for names in _TOKENIZERS)}. "
            "Save it there: tokenizer.save_pretrained(DIRECTORY)"
        )
    config = _read_json(directory / "config.json")
    if not config.get("model_type") and not config.get("architectures"):
        raise TaskError(
            f"{directory / 'config.json'} names neither model_type nor architectures: not a transformers "
            "model"
        )
    _check_weights(directory)
    _check_chat_template(directory)


def _check_weights(directory: Path) -> None:
    for name in _WEIGHTS:
        if (index := directory / f"{name}.index.json").is_file():
            _check_shards(index)
            return
        if _is_filled(directory / name):
            return
    raise TaskError(
        f"model directory {directory} has no weights ({_listing(directory)}); it needs model.safetensors, or "
        "its .index.json with all shards. Save them there: model.save_pretrained(DIRECTORY)"
    )


def _check_shards(index: Path) -> None:
    weight_map = _read_json(index).get("weight_map")
    shards = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    if not shards:
        raise TaskError(f"{index} names no weight shards; save the model again")
    missing = sorted(shard for shard in shards if not _is_filled(index.parent / str(shard)))
    if missing:
        raise TaskError(
            f"model directory {index.parent} misses {len(missing)} of {len(shards)} weight shards, e.g. "
            f"{missing[0]}; copy or download it again"
        )


def _check_chat_template(directory: Path) -> None:
    if (directory / "chat_template.jinja").is_file() or (directory / "chat_template.json").is_file():
        return
    settings = directory / "tokenizer_config.json"
    if settings.is_file() and _read_json(settings).get("chat_template"):
        return
    raise TaskError(
        f"the tokenizer in {directory} has no chat template, and VeRL renders every prompt with one; "
        "add chat_template.jinja there, or use the instruct variant of the model"
    )


def _is_filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(small_text(path))
    except FileNotFoundError:
        raise TaskError(
            f"model directory {path.parent} has no {path.name} ({_listing(path.parent)})"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TaskError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise TaskError(f"{path} must hold a JSON object; it holds {type(content).__name__}")
    return content


def _listing(directory: Path) -> str:
    names = sorted(entry.name for entry in directory.iterdir())
    return f"it holds {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "it is empty"
