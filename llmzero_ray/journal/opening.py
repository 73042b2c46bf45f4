"""Open the store for a directory or an address, and check that it can be used."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from llmzero_ray.config.yaml_text import OBJECT_STORES
from llmzero_ray.errors import ConfigError, StorageError
from llmzero_ray.journal.base import JournalStore
from llmzero_ray.journal.local import LocalStore
from llmzero_ray.journal.object_store import ObjectStore, brief, store_errors
from llmzero_ray.utils.text import one_line
from llmzero_ray.utils.threads import in_thread

CONNECT_S, REQUEST_S, ATTEMPTS = 5.0, 10.0, 3
"""Limits of a request: seconds to connect, seconds until the response, maximum tries."""
OPEN_S = 60.0
"""Timeout for listing a store, in seconds."""

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_S3_OPTIONS = ("endpoint_override", "region", "scheme")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGION = re.compile(r"[A-Za-z0-9-]+")
_KNOWN = "a directory, file:///dir, s3://bucket/prefix, gs://bucket/prefix or abfs://..."
_CODE = re.compile(r"<Code>(\w+)</Code>|status code: (\d+)")
_DENIED = re.compile(r"AccessDenied|Forbidden|AccessKey|Signature|Credential|Token|\b40[13]\b", re.IGNORECASE)
_MISSING = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound", re.IGNORECASE)


_trusted = set[str]()


def trust(address: str | None) -> None:
    """Allow this process to read the journal at `address`, because it runs the search and its user gave the
    address. None is ignored."""
    if address is not None:
        _trusted.add(address)


def is_trusted(address: str) -> bool:
    """Whether this process runs the search whose journal has this address."""
    return address in _trusted


def check_server(address: str) -> None:
    """Check that requests signed with the user's keys do not go to a server that only the address names. The
    address may come from someone else's search.yaml.

    Raises:
        ConfigError: the address names a server that the environment does not name.
    """
    endpoint = _endpoint(_s3_options(urlsplit(address))) if address[:5].lower() == "s3://" else None
    known = [os.environ.get(name, "").rstrip("/") for name in _ENDPOINT_VARIABLES]
    if endpoint is not None and endpoint not in known:
        raise ConfigError(
            f"{one_line(_without_secrets(address))}: search.yaml names the server {one_line(endpoint)}, "
            f"which your keys would sign requests to; nothing was sent. If it is yours, set "
            f"AWS_ENDPOINT_URL={one_line(endpoint)}; else put a copy of the journal next to search.yaml, as "
            "journal/."
        )


def open_store(where: str | PathLike[str] | JournalStore) -> JournalStore:
    """Open the store at a directory or an address such as s3://bucket/prefix?endpoint_override=host:9000. A
    store is returned unchanged.

    S3 takes its keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, otherwise from the profile AWS_PROFILE
    in ~/.aws/credentials or from the machine's role. GCS and Azure take theirs from the environment. An
    object store is listed once before this returns, to check that it can be used.

    Raises:
        ConfigError: the address cannot be understood.
        StorageError: the bucket is missing, access is denied, or the server does not respond.
    """
    if not isinstance(where, str | PathLike):
        return where
    text = fspath(where)
    match = _ADDRESS.match(text)
    if match is None:
        return LocalStore(Path(text))
    shown = _without_secrets(text)
    scheme = match[1].lower()
    if scheme == "file":
        return _directory(text)
    if scheme not in OBJECT_STORES:
        raise ConfigError(f"{shown}: cannot be used as a storage. Give {_KNOWN}.")
    connect = _s3 if scheme == "s3" else _any
    return _within(OPEN_S, lambda: _listed(connect(text, shown), shown), shown)


def _listed(store: Any, shown: str) -> JournalStore:
    """Journal store on an obstore store, after one listing as a check."""
    found = ObjectStore(store, address=shown.partition("?")[0])
    try:
        found.names()
    except StorageError as error:
        raise _explained(error.__cause__ or error, shown) from error
    return found


def _directory(text: str) -> LocalStore:
    """Directory of a file:// address."""
    parts = urlsplit(text)
    if parts.netloc or not parts.path.startswith("/"):
        raise ConfigError(f"{text}: cannot be used as a storage: it names a host. Give {_KNOWN}.")
    return LocalStore(Path(unquote(parts.path)))


def _any(text: str, shown: str) -> Any:
    """obstore store for a GCS or Azure address."""
    from obstore.store import from_url

    address = re.sub(r"^gcs://", "gs://", text, flags=re.IGNORECASE)
    try:
        return from_url(address, client_options=_client_options(), retry_config=_retry_config())
    except store_errors() as error:
        raise ConfigError(f"{shown}: cannot be used as a storage ({brief(error)}). Give {_KNOWN}.") from error


def _s3(text: str, shown: str) -> Any:
    """S3 store for an address, which may contain endpoint and region but no keys."""
    from obstore.store import S3Store

    parts = urlsplit(text)
    bucket, options = parts.netloc, _s3_options(parts)
    unknown = sorted(set(options) - set(_S3_OPTIONS))
    if not bucket or unknown or "@" in bucket:
        problem = "gives a key, and keys come from the environment" if bucket else "names no bucket"
        problem = f"has unknown options {', '.join(unknown)}" if unknown else problem
        raise ConfigError(
            f"{shown}: {problem}. An address in S3 is s3://bucket/prefix?option=value&...; options: "
            f"{', '.join(_S3_OPTIONS)}."
        )
    endpoint = _endpoint(options)
    region = options.get("region") or _region(bucket, shown, has_host=endpoint is not None)
    if not _REGION.fullmatch(region):  # it becomes part of a host's name
        raise ConfigError(f"{shown}: region is {one_line(region)!r}; must be letters, digits and -.")
    settings: dict[str, Any] = {"region": region}
    if endpoint is not None:
        settings["endpoint"] = endpoint
    if not os.environ.get("AWS_ACCESS_KEY_ID"):
        settings |= _profile_keys()
    try:
        return S3Store(
            bucket,
            prefix=unquote(parts.path).strip("/") or None,
            client_options=_client_options(allow_http=(endpoint or "").startswith("http://")),
            retry_config=_retry_config(),
            **settings,
        )
    except store_errors() as error:
        raise _explained(error, shown) from error


def _s3_options(parts: SplitResult) -> dict[str, str]:
    return dict(parse_qsl(parts.query, keep_blank_values=True))


def _endpoint(options: Mapping[str, str]) -> str | None:
    """URL of the server that an S3 address names, or None if it names none."""
    scheme, separator, host = options.get("endpoint_override", "").rpartition("://")
    return f"{scheme if separator else options.get('scheme', 'https')}://{host.rstrip('/')}" if host else None


def _region(bucket: str, shown: str, *, has_host: bool) -> str:
    """Region of a bucket: from the environment, otherwise from AWS. Self-hosted servers accept any region."""
    known = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if known or has_host:
        return known or "us-east-1"
    from pyarrow.fs import resolve_s3_region

    try:
        region: str = resolve_s3_region(bucket)
    except OSError as error:
        raise _explained(error, shown) from error
    return region


def _profile_keys() -> dict[str, str]:
    """Keys of the current profile in ~/.aws/credentials, which obstore does not read. Empty if there are
    none."""
    place = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or str(Path.home() / ".aws" / "credentials")
    profiles = configparser.ConfigParser(interpolation=None)
    try:
        profiles.read(place)
        profile = profiles[os.environ.get("AWS_PROFILE") or "default"]
    except (KeyError, configparser.Error, OSError, UnicodeDecodeError):
        return {}
    names = {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    }
    return {option: profile[name] for option, name in names.items() if name in profile}


def _client_options(*, allow_http: bool = False) -> dict[str, Any]:
    return {
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "timeout": timedelta(seconds=REQUEST_S),
        "allow_http": allow_http,
    }


def _retry_config() -> dict[str, Any]:
    return {"max_retries": ATTEMPTS - 1, "retry_timeout": timedelta(seconds=OPEN_S)}


def _explained(error: BaseException, shown: str) -> StorageError:
    """One-line error for a failed request to a store, with the remedy."""
    text = str(brief(error))
    code = _CODE.search(text)
    what = (code[1] or f"HTTP status {code[2]}") if code else text[:300]
    if _MISSING.search(text):
        bucket = urlsplit(shown).netloc
        return StorageError(
            f"{shown}: there is no bucket {bucket!r}. Make it, or set `journal` to another place."
        )
    if code and _DENIED.search(what):
        return StorageError(
            f"{shown}: access is denied ({what}). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the "
            "machine's role) to an account that may list, read, write and delete there."
        )
    if not code and ("HTTP error" in text or "NETWORK" in text):
        return StorageError(
            f"{shown}: does not answer ({text.rpartition(' - ')[2][:200]}). See that address and network are "
            "right, then run the same command again."
        )
    return StorageError(f"{shown}: cannot be used ({what}). Set `journal` to another place.")


def _within(limit_s: float, open_it: Callable[[], JournalStore], shown: str) -> JournalStore:
    """Call `open_it` with a timeout, because the store libraries may block for minutes."""
    try:
        return in_thread(open_it).result(limit_s)
    except TimeoutError:
        raise StorageError(
            f"{shown}: does not answer within {limit_s:.0f} s. See that address and network are right, then "
            "run the same command again."
        ) from None


def _without_secrets(text: str) -> str:
    return re.sub(r"://[^/]*@", "://", text)
