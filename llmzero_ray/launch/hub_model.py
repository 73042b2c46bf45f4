"""Download of a base model that is named by its id on the Hugging Face Hub.

The files go to `huggingface_hub`'s cache (HF_HOME), which every machine of a slot must see. Only weights in
safetensors, configuration, tokenizer and chat template are downloaded: nothing that Python would run or
unpickle.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmzero_ray.config import SearchConfig, hub_model
from llmzero_ray.errors import HubError
from llmzero_ray.utils.hub import endpoint, find_token, hub_api, hub_errors

FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "LICENSE*", "README.md")
"""Files that are downloaded from the top level of a repository."""


def with_model_here(
    config: SearchConfig, known: SearchConfig | None, say: Callable[[str], None]
) -> SearchConfig:
    """The configuration with `model.path` as a directory if it names a model of the Hub (`hub_model`).

    `model.hub_id` is then set to the id. An existing search (`known`) keeps the commit with which it began,
    unless `model.path` names a revision.
    Any other path is kept: a directory, or one that only the machines of a cluster see.

    Raises:
        HubError: there is no such model, it may not be read, or there is neither a network nor a cached copy.
        ConfigError: `huggingface_hub` is not installed.
    """
    path = config.model.path
    if path is None or config.engine.backend != "verl":
        return config
    repo_id, revision = hub_model(path)
    if repo_id is None:
        return config
    began = None if known is None else _directory_of(known, repo_id)
    if began is not None and not revision and Path(began).is_dir():
        directory = began
    else:
        say(f"looking for the model {path.removeprefix('hf://')} at {endpoint()} and in the cache ...")
        directory = download(repo_id, revision)
    model = config.model.model_copy(update={"path": directory, "hub_id": config.model.hub_id or repo_id})
    return config.model_copy(update={"model": model})


def _directory_of(known: SearchConfig, repo_id: str) -> str | None:
    """Directory of the base model of a search, if it is this model of the Hub."""
    path = known.model.path
    # Where the file gives a `hub_id` of its own, the cache's folder says which model it is.
    cached = path is not None and f"models--{repo_id.replace('/', '--')}" in Path(path).parts
    return path if cached or known.model.hub_id == repo_id else None


def download(repo_id: str, revision: str | None) -> str:
    """Download one commit of a model. Returns its directory, whose last part is the commit.

    Cached files are not downloaded again. Without a network, a cached commit is used.

    Raises:
        HubError, ConfigError: as `with_model_here`.
    """
    token = find_token()
    api = hub_api(token)
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    named = repo_id if revision is None else f"{repo_id}@{revision}"
    doing = f"model.path {named} names a model of the Hub"
    with hub_errors(f"{doing}, which cannot be downloaded", token):
        try:
            return str(
                api.snapshot_download(
                    repo_id, revision=revision, allow_patterns=list(FILES), ignore_patterns=["*/*"]
                )
            )
        except GatedRepoError:
            raise HubError(
                f"{doing}, which is gated: accept its conditions at "
                f"{endpoint()}/{repo_id}, and sign in with `hf auth login` or HF_TOKEN."
            ) from None
        except RepositoryNotFoundError:
            raise HubError(
                f"{doing}, and {endpoint()} shows none of that name to "
                f"{'this token' if token else 'visitors'}. Check the id, write ./ before a directory, or "
                "sign in with `hf auth login` if the model is private."
            ) from None
        except LocalEntryNotFoundError:
            raise HubError(
                f"{doing}, {endpoint()} cannot be asked, and the cache has no copy. Name a directory, set "
                f"HF_HOME to a cache that holds it, or download it where a network is: hf download {repo_id} "
                "--local-dir DIRECTORY"
            ) from None
