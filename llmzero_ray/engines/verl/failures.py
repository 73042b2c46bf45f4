"""Classifies failures: maps an exception or a dead process to a class and a one-line cause. Pure text
processing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from llmzero_ray.engines.base import CARD_FAULT
from llmzero_ray.errors import ConfigError, EffectiveConfigError, NonFiniteError, RewardError
from llmzero_ray.records import FailureClass

_OOM = re.compile(
    r"out of memory|OutOfMemoryError|No available memory for the cache|MemoryError|Cannot allocate memory"
    r"|not enough memory|failed to allocate|larger than the available KV cache",
    re.IGNORECASE,
)
_LOST = re.compile(
    r"ActorDiedError|ActorUnavailableError|NodeDiedError|WorkerCrashedError|LocalRayletDiedError|OwnerDiedError"
)
_HARDWARE = re.compile(
    CARD_FAULT + r"|unspecified launch failure|ncclRemoteError|ncclSystemError"
    r"|remote process exited or there was a network error|Watchdog caught collective operation timeout",
    re.IGNORECASE,
)
"""Messages of CUDA, its driver and NCCL about a failed GPU or connection."""
_NOISE = re.compile(r"^(ray::|\s|File |Traceback|During handling|The above exception|full_key)")
_CORE_FAILED = "Engine core initialization failed"
"""vLLM's message in the process that started the core. Only the core's output has the cause."""
_SERVER_LINE = re.compile(r"^(?:\x1b\[\d+m)*\(RecordingServer pid=[^)]*\)(?:\x1b\[\d+m)* ?(.*)$")
"""Ray's prefix of output from a vLLM server and its child processes."""
_MARKS = re.compile(r"^(?:\((?:EngineCore|Worker)[^)]*\) ?|(?:ERROR|CRITICAL) \d\S* \S+ \[[^\]]*\] )*")
"""vLLM's own prefixes: the process, then level, time and place."""
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): (?!.*root cause)\S")
_REPEATED = re.compile(r"(?:\x1b\[\d+m)* ?\[repeated \d+x across cluster\].*$")
_LIMIT = 600
_TAIL_BYTES = 20_000


def failure_class(error: BaseException) -> FailureClass:
    """Failure class of an exception that ended a phase."""
    if isinstance(error, EffectiveConfigError):
        return "mismatch"
    if isinstance(error, ConfigError):
        return "config"
    if isinstance(error, NonFiniteError):
        return "nan"
    if isinstance(error, RewardError):
        return "reward"
    text = f"{type(error).__name__}: {error}"
    return "oom" if isinstance(error, MemoryError) or _OOM.search(text) else "engine"


def is_lost_process(error: BaseException) -> bool:
    """Whether an exception shows an infrastructure failure (a process, node, GPU, or the network between
    GPUs).

    A worker that reports out-of-memory is the phase's own failure.
    """
    text = f"{type(error).__name__}: {error}"
    return bool(_LOST.search(text) or _HARDWARE.search(text)) and not _OOM.search(text)


def one_line(error: BaseException) -> str:
    """Cause in one line: the last informative line of the innermost exception, at most 600 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not _NOISE.match(line)]
    text = lines[-1] if lines else ""
    name = type(error).__name__
    if name.startswith("RayTaskError"):
        name = ""
    line = f"{name}: {text}" if name and not text.startswith(name) else text
    return _limited(line)


def is_core_failure(error: BaseException) -> bool:
    """Whether vLLM's engine core failed to start, so that only the log has the cause."""
    return _CORE_FAILED in str(error)


def cause_of_core_failure(log: str) -> str | None:
    """Exception that ended vLLM's engine core or one of its workers, from the driver's log since its start.
    None if there is none yet."""
    return _last_raised(log, lambda text: _CORE_FAILED not in text)


def memory_cause(log: str) -> str | None:
    """Out-of-memory message of vLLM's processes in the driver's log of a phase. None if there is none.

    A server that dies of it looks like lost hardware, because the caller's exception only says that it died.
    """
    found = _last_raised(log, lambda text: bool(_OOM.search(text)))
    return None if found is None else _limited(found)


def _last_raised(log: str, counts: Callable[[str], bool]) -> str | None:
    """Last exception printed by vLLM's processes for which `counts` is true."""
    found = None
    for line in log.splitlines():
        if (server := _SERVER_LINE.match(line)) is None:
            continue
        text = _REPEATED.sub("", _MARKS.sub("", server[1])).strip()
        if _RAISED.match(text) and counts(text):
            found = text
    return found


def _limited(line: str) -> str:
    return line if len(line) <= _LIMIT else line[: _LIMIT - 1] + "…"


def size(path: str) -> int:
    """Current size of a log file in bytes."""
    return os.path.getsize(path) if os.path.exists(path) else 0


def since(path: str, began: int) -> str:
    """Content of a log file from byte `began` on. Empty if there is no file."""
    try:
        with open(path, "rb") as log:
            log.seek(began)
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""


def tail(path: str, n_lines: int = 60) -> str:
    """Last lines of a log file. Empty if there is no file."""
    text = since(path, max(0, size(path) - _TAIL_BYTES))
    return "\n".join(text.splitlines()[-n_lines:])
