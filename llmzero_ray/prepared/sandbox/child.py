"""Process that runs one reward inside the sandbox: it reads a setup line and rows, and writes one result per
line.

Run as a file; imports nothing of this project. It drops its privileges before it imports the reward, and only
answers requests from its pipe. A row that kills it is counted by the caller.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

_MAX_TEXT = 2_000
_MAX_KEYS = 64
_STACK = 8 * 2**20
_SIGNALS = 64
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> int:
    """Score rows until there are no more. Returns 0 also if the reward cannot be used, which it reports
    first."""
    rows, results = _take_pipes()
    function, cpu_s = _prepared(rows, results)
    if function is None:
        return 0
    _send(results, {"ready": True})
    while message := rows.readline():
        number, row = json.loads(message)
        _allow_cpu(cpu_s)
        try:
            found = _plain(function(**row))
        except BaseException as error:  # noqa: BLE001
            found = {"raised": _words(error)}
        _send(results, [number, found])
    return 0


def _prepared(rows: BinaryIO, results: int) -> tuple[Callable[..., Any] | None, int]:
    """(the reward's function, or None if it cannot be used; processor seconds per row). No stack frame holds
    the set-up while the reward is imported."""
    setup = json.loads(rows.readline())
    path, module, name, sha256_given = (setup[key] for key in ("path", "module", "name", "sha256"))
    # Read before privileges are dropped: the other user may not be allowed to.
    source = b"" if module else Path(path).read_bytes()
    _confine(setup["limits"], setup["uid"])
    cpu_s = setup["limits"]["cpu_s"]
    sys.path.append(str(Path(__file__).parents[3]))  # rewards may import those of this package
    if sha256_given is not None and (digest := sha256(source).hexdigest()) != sha256_given:
        _send(results, {"changed": digest})
        return None, cpu_s
    del setup, sha256_given
    try:
        if module:
            sys.path.append(str(Path(path).parent))
            loaded = import_module(module)
        else:
            loaded = _loaded(path, source)
        function = getattr(loaded, name, None)
    except BaseException as error:  # noqa: BLE001  a user's file may raise anything
        line = error.lineno if isinstance(error, SyntaxError) else None
        _send(results, {"error": _words(error), "line": line})
        return None, cpu_s
    if not callable(function):
        held = [named for named, value in vars(loaded).items() if inspect.isfunction(value)]
        _send(results, {"missing": held[:_MAX_KEYS]})
        return None, cpu_s
    if inspect.iscoroutinefunction(function):
        _send(results, {"asynchronous": True})
        return None, cpu_s
    return function, cpu_s


def _take_pipes() -> tuple[BinaryIO, int]:
    """The two pipes, moved off the standard streams, which the reward's code may read or print to."""
    rows, results = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    return rows, results


def _confine(limits: Mapping[str, Any], uid: int | None) -> None:
    """Drop privileges irrevocably, except for the soft limit of processor time.

    Everything else that a process inherits is the same for all, so that the reward cannot detect who started
    it.
    """
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN and number not in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
    hard = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_FSIZE: limits["file_size"],
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_DATA: limits["memory"],
        resource.RLIMIT_RSS: limits["memory"],
        resource.RLIMIT_STACK: _STACK,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_SIGPENDING: _SIGNALS,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_RTTIME: 0,
    }
    for kind, value in hard.items():
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (limits["start_cpu_s"], limits["all_rows_cpu_s"]))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def _allow_cpu(seconds: int) -> None:
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _, all_rows = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (min(math.ceil(used) + seconds, all_rows), all_rows))


_MODULE = "llmzero_reward"


def _loaded(path: str, source: bytes) -> ModuleType:
    """A file as a module. `source` is its content as read, so that the hashed content is what runs."""
    module = ModuleType(_MODULE)
    module.__file__ = path
    # Dataclasses look their module up by name, already while it is being executed.
    sys.modules[_MODULE] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def _words(error: BaseException) -> str:
    """Class and message of an exception that may lie about both."""
    name = _text(type(error), "__name__")
    message = _text(error, "msg") if isinstance(error, SyntaxError) else _text(error)
    return f"{name}: {message}" if message else name


def _text(thing: Any, attribute: str = "") -> str:
    try:
        return str(getattr(thing, attribute) if attribute else thing)[:_MAX_TEXT]
    except BaseException:  # noqa: BLE001
        return "(unreadable)"


def _plain(returned: Any) -> dict[str, Any]:
    """Returned value as JSON: a mapping of scalars, or the name of its class."""
    if not isinstance(returned, Mapping):
        return {"other": type(returned).__name__}
    pairs = list(returned.items())[:_MAX_KEYS]
    return {"result": {str(key)[:_MAX_TEXT]: _scalar(value) for key, value in pairs}}


def _scalar(value: Any) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        text = str(value)
        digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... (sha256 {digest})"
    return {"class": str(type(value).__name__)[:_MAX_TEXT]}


def _send(results: int, message: Any) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(results, data) :]


if __name__ == "__main__":
    sys.exit(main())
