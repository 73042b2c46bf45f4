"""Check that a directory holds a model which VeRL and vLLM can load.

Looks at file names, sizes and JSON: configuration, weights, tokenizer, chat template; loads nothing. Not
here: end tokens (end_tokens.py), the vocabulary (vocabulary.py), whether the model fits into memory, or is
any good.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared.end_tokens import TokenFiles, check_end_tokens
from llmzero_ray.prepared.vocabulary import check_vocabulary
from llmzero_ray.utils.files import small_text

_TOKENIZERS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
    ("tekken.json",),
    ("tiktoken.model",),
)
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MOST_HEADER = 100_000_000
"""Maximum bytes of a safetensors header, as in the safetensors library."""
_AGAIN = "copy or download the model again"


def check_model_dir(path: str | Path) -> tuple[str, ...]:
    """Check a base model's directory. Returns one sentence for each oddity that does no harm.

    Raises:
        TaskError: something is missing or damaged; the message says what was found and what to do.
    """
    directory = Path(path)
    if not directory.is_dir():
        looked = "" if directory.is_absolute() else f" (looked for {directory.absolute()})"
        raise TaskError(
            f"model directory {directory} does not exist{looked}; it must hold config.json, weights and "
            "tokenizer. Download a model of the Hub first (hf download OWNER/NAME --local-dir DIRECTORY), or "
            "give a search model.path=hf://OWNER/NAME"
        )
    there = (names for names in _TOKENIZERS if all((directory / name).is_file() for name in names))
    tokenizer = next(there, None)
    if tokenizer is None:
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
    shapes = _weights(directory)
    for name in tokenizer:
        _check_content(directory / name)
    settings = _read_json_if_there(directory / "tokenizer_config.json") or {}
    files = TokenFiles(
        directory=directory,
        tokenizer=_read_json_if_there(directory / "tokenizer.json") or {},
        settings={**(_read_json_if_there(directory / "special_tokens_map.json") or {}), **settings},
        config=config,
        generation=_read_json_if_there(directory / "generation_config.json"),
        template=_chat_template(directory, settings),
    )
    return (*check_end_tokens(files), *check_vocabulary(files, shapes))


def _weights(directory: Path) -> dict[str, list[int]]:
    """Name of a weight -> its shape. Empty unless the weights are safetensors."""
    for name in _WEIGHTS:
        if (index := directory / f"{name}.index.json").is_file():
            return _shards(index)
        if _is_filled(directory / name):
            return _weight_file(directory / name)
    raise TaskError(
        f"model directory {directory} has no weights ({_listing(directory)}); it needs model.safetensors, or "
        "its .index.json with all shards. Save them there: model.save_pretrained(DIRECTORY)"
    )


def _shards(index: Path) -> dict[str, list[int]]:
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
    found: dict[str, list[int]] = {}
    for shard in sorted(shards):
        found |= _weight_file(index.parent / str(shard))
    return found


def _weight_file(path: Path) -> dict[str, list[int]]:
    """Shapes of the weights in a file, which must have the length that its header states."""
    _check_content(path)
    if path.suffix == ".safetensors":
        size = path.stat().st_size
        needed, shapes = _safetensors(path, size)
        if needed != size:
            found = "is cut off, or no safetensors file" if needed is None else f"must have {needed} bytes"
            raise TaskError(f"{path} {found}; it has {size} bytes. Copy or download the model again")
        return shapes
    if not zipfile.is_zipfile(path) and _head(path, 1) != b"\x80":  # torch's format, and its older one
        raise TaskError(f"{path} is cut off, or no file that torch.save has written; {_AGAIN}")
    return {}


def _safetensors(path: Path, size: int) -> tuple[int | None, dict[str, list[int]]]:
    """(size in bytes that a safetensors file must have by its header, shapes of its weights). The size is
    None if it has no complete header."""
    length = int.from_bytes(_head(path, 8), "little")
    if length > min(size - 8, _MOST_HEADER):
        return None, {}
    try:
        header = json.loads(_head(path, 8 + length)[8:])
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        return 8 + length + end, {name: [*entry["shape"]] for name, entry in entries.items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None, {}


def _check_content(path: Path) -> None:
    """Check that a file is neither empty nor a Git LFS pointer."""
    if not _is_filled(path):
        raise TaskError(f"{path} is empty; {_AGAIN}")
    if _head(path, len(_LFS_POINTER)) == _LFS_POINTER:
        raise TaskError(
            f"{path} is a git-lfs pointer of {path.stat().st_size} bytes, not the file itself; run `git lfs "
            f"pull` in {path.parent}, or download the model again: hf download NAME --local-dir {path.parent}"
        )


def _chat_template(directory: Path, settings: dict[str, Any]) -> str | None:
    """Template that prompts are rendered with. None if there is one, but in an unsupported form."""
    if (file := directory / "chat_template.jinja").is_file():
        _check_content(file)
        return file.read_text(encoding="utf-8", errors="replace")
    found = settings.get("chat_template")
    if not found:
        found = (_read_json_if_there(directory / "chat_template.json") or {}).get("chat_template")
    if isinstance(found, list):
        found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = found.get("default") or found
    if found:
        return found if isinstance(found, str) else None
    raise TaskError(
        f"the tokenizer in {directory} has no chat template, and VeRL renders every prompt with one; "
        "add chat_template.jinja there, or use the instruct variant of the model"
    )


def _head(path: Path, n: int) -> bytes:
    with path.open("rb") as file:
        return file.read(n)


def _is_filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _read_json_if_there(path: Path) -> dict[str, Any] | None:
    return _read_json(path) if path.is_file() else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.is_file():
            _check_content(path)
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
