"""Which store a directory or an address means, and whether it can be used at all.

Not here: what stores do (stores.py, arrow.py).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from llmzero_ray.errors import ConfigError, LlmzeroError, StorageError
from llmzero_ray.journals.arrow import ArrowStore, arrow_errors
from llmzero_ray.journals.stores import JournalStore, LocalStore

CONNECT_S, REQUEST_S, ATTEMPTS = 5.0, 10.0, 3
"""Limits of a request to S3: seconds to connect, seconds without a byte received, how often it is sent."""
OPEN_S = 60.0
"""Seconds until a store must have shown that it can be listed."""

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_BUCKETS = ("s3", "gcs", "abfs")
_S3_OPTIONS = ("endpoint_override", "region", "scheme")
_KNOWN = "a directory, file:///dir, s3://bucket/prefix, gs://bucket/prefix, abfs://... or hdfs://..."
_CODE = re.compile(r"AWS Error ([A-Z_]+|UNKNOWN \(HTTP status \d+\))")
_DENIED = re.compile(
    r"ACCESS_DENIED|FORBIDDEN|ACCESS_KEY|SIGNATURE|CREDENTIALS|TOKEN|HTTP status 40[13]|\b40[13]\b"
)


def open_store(where: str | PathLike[str] | JournalStore) -> JournalStore:
    """The store at a directory or an address such as s3://bucket/prefix?endpoint_override=host:9000; a store
    is given back as it is.

    S3 takes its keys from the address (s3://key:secret@bucket), else from AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY, ~/.aws, or the machine's role. A store that is no directory is listed once before
    this returns.

    Raises:
        ConfigError: the address cannot be understood.
        StorageError: the bucket is missing, access is denied, or nobody answers.
    """
    if not isinstance(where, str | PathLike):
        return where
    text = fspath(where)
    match = _ADDRESS.match(text)
    if match is None:
        return LocalStore(Path(text))
    shown = _without_secrets(text)
    connect = _s3 if match[1].lower() == "s3" else _any
    return _within(OPEN_S, lambda: _opened(*connect(text, shown), shown), shown)


def _opened(filesystem: Any, path: str, shown: str) -> JournalStore:
    """The store at `path`, once it has been listed."""
    from pyarrow.fs import FileType

    if filesystem.type_name == "local":
        return LocalStore(Path(path))
    store = ArrowStore(filesystem, path, address=shown.partition("?")[0])
    try:
        # A bucket that does not exist lists like an empty one.
        if not store.names() and filesystem.type_name in _BUCKETS:
            bucket = path.partition("/")[0]
            (info,) = filesystem.get_file_info([bucket])
            if info.type == FileType.NotFound:
                raise StorageError(
                    f"{shown}: there is no bucket {bucket!r}. Make it, or set `storage` to another place."
                )
    except StorageError as error:
        raise _explained(error.__cause__ or error, shown) from error
    except arrow_errors() as error:
        raise _explained(error, shown) from error
    return store


def _any(text: str, shown: str) -> tuple[Any, str]:
    """Filesystem and path of an address that pyarrow understands."""
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(text)
    except arrow_errors() as error:
        what = str(error).split("\n", maxsplit=1)[0].replace(text, shown)
        raise ConfigError(f"{shown}: cannot be used as a storage ({what}). Give {_KNOWN}.") from error
    return filesystem, path


def _s3(text: str, shown: str) -> tuple[Any, str]:
    """As `_any`, with limits on the time a request may take, which an address cannot carry."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    parts = urlsplit(text)
    account, _, bucket = parts.netloc.rpartition("@")
    key, _, secret = account.partition(":")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_S3_OPTIONS))
    if not bucket or unknown or bool(key) != bool(secret):
        problem = "names no bucket" if not bucket else "gives a key without its secret"
        problem = f"has unknown options {', '.join(unknown)}" if unknown else problem
        raise ConfigError(
            f"{shown}: {problem}. An address in S3 is s3://[key:secret@]bucket/prefix?option=value&...; "
            f"options: {', '.join(_S3_OPTIONS)}."
        )
    scheme, separator, endpoint = options.get("endpoint_override", "").rpartition("://")
    region = options.get("region")
    try:
        filesystem = S3FileSystem(
            access_key=unquote(key) or None,
            secret_key=unquote(secret) or None,
            region=region or ("us-east-1" if endpoint else resolve_s3_region(bucket)),
            scheme=scheme if separator else options.get("scheme", "https"),
            endpoint_override=endpoint or None,
            connect_timeout=CONNECT_S,
            request_timeout=REQUEST_S,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            background_writes=False,
            allow_delayed_open=True,  # one request for a small object instead of three
        )
    except arrow_errors() as error:
        raise _explained(error, shown) from error
    return filesystem, f"{bucket}{unquote(parts.path)}".rstrip("/")


def _explained(error: BaseException, shown: str) -> StorageError:
    """One line that says what is wrong with a store and what to do."""
    text = " ".join(str(error).split())
    if isinstance(error, StorageError) and "bucket" in text:
        return error
    code = _CODE.search(text)
    what = code[1] if code else text[:300]
    if code and "NETWORK" in code[1]:
        detail = text.rpartition("Details: ")[2]
        return StorageError(
            f"{shown}: does not answer ({detail[:200]}). See that address and network are right, then run "
            "the same command again."
        )
    if _DENIED.search(what):
        return StorageError(
            f"{shown}: access is denied ({what}). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the "
            "machine's role) to an account that may list, read, write and delete there."
        )
    return StorageError(f"{shown}: cannot be used ({what}). Set `storage` to another place.")


def _within(limit_s: float, open_it: Callable[[], JournalStore], shown: str) -> JournalStore:
    """What `open_it` returns or raises; libraries below may wait for minutes."""
    outcome: list[JournalStore | LlmzeroError] = []

    def work() -> None:
        try:
            outcome.append(open_it())
        except LlmzeroError as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name="open-store", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not outcome:
        raise StorageError(
            f"{shown}: does not answer within {limit_s:.0f} s. See that address and network are right, then "
            "run the same command again."
        )
    if isinstance(outcome[0], LlmzeroError):
        raise outcome[0]
    return outcome[0]


def _without_secrets(text: str) -> str:
    return re.sub(r"://[^/@]*:[^/@]*@", "://", text)
