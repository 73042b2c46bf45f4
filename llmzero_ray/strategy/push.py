"""Push the best adapter of a search, with its card, to a repository on the Hugging Face Hub.

`plan_push` selects the files and checks them offline; `send` sends exactly these in one commit. Only four
named files of best/ are sent.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from llmzero_ray.config import HUB_ID
from llmzero_ray.errors import ConfigError
from llmzero_ray.report.best import ADAPTER_FILES, CARD, CHECKSUMS
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.outcome import adapter_in_best, is_of_best_strategy
from llmzero_ray.report.render import card_text
from llmzero_ray.utils.api_key import SECRET_VARIABLES, TRACKER_KEYS
from llmzero_ray.utils.hub import hub_api, hub_errors, required_token
from llmzero_ray.utils.text import one_line

ADAPTER_CONFIG, WEIGHTS = ADAPTER_FILES
_SECRETS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "a token of the Hub"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), "an API key"),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), "an AWS key"),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{30,}"), "a token of GitHub"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"), "a private key"),
)
_SECRET_NAMES = (
    *SECRET_VARIABLES,
    *TRACKER_KEYS,
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "RAY_AUTH_TOKEN",
)
_SHORTEST_SECRET = 8
_TRAINED = re.compile(r"lora_|modules_to_save|lm_head|embed_tokens")
"""Pattern found in the names of an adapter's tensors, but not in those of an optimizer."""
MESSAGE = "Adapter and card of a search by llmzero_ray"


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One file as it will be sent."""

    name: str
    content: bytes | Path
    size: int
    """Bytes."""


@dataclass(frozen=True, kw_only=True)
class PushPlan:
    """Files that a push sends, and those that it omits."""

    repo_id: str
    files: tuple[Upload, ...]
    left: tuple[str, ...]
    """Other files of best/, which are not sent."""
    base_model: str | None
    """Id of the base model on the Hub, or None if not known."""


def plan_push(facts: SearchFacts, repo_id: str) -> PushPlan:
    """Select and check the files for `repo_id`, without using the network.

    In adapter_config.json, the base model's path is replaced with its id or the name of its directory.

    Raises:
        ConfigError: the id is invalid, there is no adapter, it is no longer the best one, or a file contains
            confidential data.
        StorageError: the adapter differs from the one that was written.
    """
    if not re.fullmatch(HUB_ID, repo_id):
        raise ConfigError(
            f"{one_line(repo_id)!r} is not an id of a repository; write OWNER/NAME, such as ann/demo."
        )
    best = facts.paths.best
    digests = adapter_in_best(facts)
    _check_is_best(facts, digests)
    config = json.loads((best / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = facts.base_model_name
    adapter_config = (json.dumps(config, indent=2) + "\n").encode()
    digests[ADAPTER_CONFIG] = sha256(adapter_config).hexdigest()
    texts = {
        CARD: card_text(facts, place=repo_id).encode(),
        ADAPTER_CONFIG: adapter_config,
        CHECKSUMS: "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode(),
    }
    _check_texts(texts, facts)
    _check_weights(best / WEIGHTS, facts)
    files = [Upload(name=name, content=content, size=len(content)) for name, content in texts.items()]
    files.append(Upload(name=WEIGHTS, content=best / WEIGHTS, size=(best / WEIGHTS).stat().st_size))
    others = sorted(path.name for path in best.iterdir() if path.name not in {*texts, WEIGHTS})
    return PushPlan(
        repo_id=repo_id,
        files=tuple(files),
        left=tuple(others),
        base_model=facts.base_model_id,
    )


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Result of a push."""

    address: str
    """Address of the repository."""
    changed: bool
    """Whether there was anything to send."""


def send(plan: PushPlan, *, public: bool) -> Sent:
    """Send the files of a plan in one commit.

    The repository is created if missing. Idempotent: files of earlier pushes are not sent again, and a
    repository that already has all of them gets no commit.

    Raises:
        ConfigError: there is no token, the repository has other content, or it is public or private against
            `public`.
        HubError: the Hub cannot be reached, or rejects the request.
    """
    token = required_token()
    api = hub_api(token)
    from huggingface_hub import CommitOperationAdd

    with hub_errors(f"push to {plan.repo_id}", token):
        address = api.create_repo(plan.repo_id, private=not public, exist_ok=True)
        found = api.repo_info(plan.repo_id)
        if not public and not found.private:
            raise ConfigError(
                f"{plan.repo_id} exists and is public. Give --public, or name another repository."
            )
        if public and found.private:
            raise ConfigError(
                f"{plan.repo_id} exists and is private. Make it public in its settings on the Hub, or leave "
                "--public out."
            )
        _check_is_ours(plan, [file.rfilename for file in found.siblings or ()])
        # CommitOperationAdd takes a path as text.
        operations = [
            CommitOperationAdd(
                file.name, file.content if isinstance(file.content, bytes) else str(file.content)
            )
            for file in plan.files
        ]
        commit = api.create_commit(plan.repo_id, operations, commit_message=MESSAGE)
    return Sent(address=str(address), changed=commit.oid != found.sha)


def _check_is_ours(plan: PushPlan, names: list[str]) -> None:
    """Check that the repository is empty or comes from an earlier push, because its adapter and card are
    replaced."""
    others = sorted({*names} - {".gitattributes"})
    if others and CHECKSUMS not in others:
        raise ConfigError(
            f"{plan.repo_id} exists and holds what no push wrote ({', '.join(map(one_line, others[:4]))}). "
            "Name another repository."
        )


def _check_is_best(facts: SearchFacts, digests: Mapping[str, str]) -> None:
    """Check that best/ agrees with the journal, because a running search does not always update best/."""
    if not is_of_best_strategy(facts, digests):
        raise ConfigError(
            f"{facts.paths.best} is not the adapter of the best strategy any more. Write it again with "
            f"`llmzero report {shlex.quote(str(facts.paths.root))}`."
        )


def _check_texts(texts: Mapping[str, bytes], facts: SearchFacts) -> None:
    for name, content in texts.items():
        _check_text(name, content.decode(), facts)


def _check_text(name: str, text: str, facts: SearchFacts) -> None:
    for pattern, what in _SECRETS:
        if pattern.search(text):
            raise ConfigError(f"{name} holds {what}; nothing was sent. Remove it from the search first.")
    for variable in _SECRET_NAMES:
        value = os.environ.get(variable, "").strip()
        if len(value) >= _SHORTEST_SECRET and value in text:
            raise ConfigError(f"{name} holds the value of {variable}; nothing was sent. Remove it first.")
    for path in _machine_paths(facts):
        if path in text:
            raise ConfigError(f"{name} names a path of this machine ({path}); nothing was sent.")


def _machine_paths(facts: SearchFacts) -> Iterator[str]:
    """Absolute paths of the search, its task, its model, and the user's home."""
    config, task = facts.config, facts.task
    named = (
        config.storage,
        config.task.dir,
        config.model.path,
        task.get("directory"),
        task.get("model_path"),
    )
    for path in (*named, str(facts.paths.root), str(Path.home())):
        if path and os.path.isabs(str(path)) and len(Path(str(path)).parts) > 2:
            yield str(path)


def _check_weights(path: Path, facts: SearchFacts) -> None:
    """Check that a safetensors file has only tensors of an adapter, no optimizer state, and no secret in its
    metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            names, notes = list(file.keys()), dict(file.metadata() or {})
    except SafetensorError as error:
        raise ConfigError(f"{path} is not a safetensors file ({error}); nothing was sent.") from error
    strange = [name for name in names if not _TRAINED.search(name)]
    if strange or not names:
        shown = one_line(strange[0]) if strange else "none at all"
        raise ConfigError(f"{path} holds tensors that are not an adapter's ({shown}); nothing was sent.")
    _check_text(path.name, json.dumps([names, notes]), facts)


def plan_facts(search: Any, base_model: str | None) -> SearchFacts:
    """Facts of a search. `base_model` is the Hub id of its base model, if the user gave one.

    Raises:
        ConfigError: `base_model` is not an id, or there is no search.
    """
    if base_model is not None and not re.fullmatch(HUB_ID, base_model):
        raise ConfigError(
            f"{one_line(base_model)!r} is not an id of a model; write OWNER/NAME, such as Qwen/Qwen3-4B."
        )
    return SearchFacts(search, base_model_id=base_model)
