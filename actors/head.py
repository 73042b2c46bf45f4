"""Ray cluster of a search: an existing one, or a private head for this command only."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.capacity import private_head_resources
from llmzero_ray.engines.verl.environment import python_path
from llmzero_ray.errors import CapacityError
from llmzero_ray.estimate import resolve_platform
from llmzero_ray.utils.api_key import TRACKER_KEYS, key_hidden, remove_key_file
from llmzero_ray.utils.text import one_line

from .names import NAMESPACE

logger = logging.getLogger("llmzero_ray.actors.head")
_TRIES = 3
_CLOCK_S = 1.0
"""Tolerance for the start time that the system reports of a process, in seconds."""
_END_S = 10.0
_ANSWER_S = 3.0
_QUIET = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}


def connect(config: SearchConfig) -> bool:
    """Join the cluster of RAY_ADDRESS or of `ray start`, or start a private head if there is none. Returns
    whether the head is private.

    A process that has called `ray.init` stays on its cluster. Heads that other programs started for
    themselves are never joined, because they end with those programs.

    Raises:
        CapacityError: the cluster that RAY_ADDRESS names does not answer.
    """
    if join_if_there():
        return False
    has_gpus = resolve_platform(config.engine.platform) == "gpu"
    hidden = TRACKER_KEYS if config.tracking.backends else ()
    start_private_head(hidden, **private_head_resources(config, has_gpus=has_gpus))
    return True


def start_text() -> str:
    """Message about what `connect` is going to do. It is printed first, because importing and starting Ray
    takes seconds."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address not in ("", "local"):
        return f"joining the Ray cluster at {address} ..."
    return "starting Ray on this machine, unless a cluster runs here ..."


def join_if_there() -> bool:
    """Join a cluster that outlives this process, or stay on the one that this process has joined. Returns
    whether there is one.

    Raises:
        CapacityError: RAY_ADDRESS names one and it does not answer.
    """
    import ray

    if not is_to_be_joined():
        return False
    if not ray.is_initialized():
        ray.init(**_QUIET)
    return True


def is_to_be_joined() -> bool:
    """Whether there is a cluster that `connect` joins, or that this process has joined.

    Raises:
        CapacityError: RAY_ADDRESS names one and it does not answer.
    """
    import ray

    return ray.is_initialized() or _shared_address() is not None


@contextlib.contextmanager
def disconnecting() -> Iterator[None]:
    """Context that leaves the cluster at its end, which ends a private head. A cluster that this process had
    joined before stays joined."""
    import ray

    joined_before = ray.is_initialized()
    try:
        yield
    finally:
        if not joined_before:
            ray.shutdown()
            remove_key_file()


def start_private_head(hidden: Iterable[str] = (), **options: Any) -> None:
    """Start a Ray head that ends with this process. `options` are passed to `ray.init`.

    The head and its workers listen on loopback only. They inherit this process's environment, except the
    variables of API keys and those in `hidden`.

    Raises:
        CapacityError: Ray did not start in three tries, for example because the machine is too busy for its
            time limits. Nothing is left running.
    """
    _prepare_environment()
    with key_hidden(*hidden), _on_loopback():
        for n_tries in itertools.count(1):
            before = time.time()
            try:
                _start_ray(options)
                return
            except Exception as error:  # Ray raises plain Exception if a part does not come up in time
                _end_what_started(since=before)
                if n_tries == _TRIES or isinstance(error, ValueError | TypeError):  # wrong options
                    raise CapacityError(_start_failure(error)) from error
                logger.warning(
                    "Ray did not start (%s); the machine may be busy. Trying again (%d of %d) ...",
                    one_line(str(error)), n_tries + 1, _TRIES,
                )  # fmt: skip


def environment() -> dict[str, str]:
    """Environment variables with which a child process joins the cluster of this process.

    Raises:
        RuntimeError: this process is not connected to a cluster.
    """
    import ray
    from ray._private import ray_constants

    address = ray.get_runtime_context().gcs_address
    found = {**os.environ, "RAY_ADDRESS": address}
    if address.startswith("127.0.0.1:"):  # a child would replace it with the machine's address
        found[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    return found


def _start_ray(options: Mapping[str, Any]) -> None:
    import ray

    alone = {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(**alone, **options, **_QUIET)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Context in which Ray starts a head on loopback, as it does on a laptop. Otherwise Ray replaces loopback
    with the machine's address, and all its processes listen on every address."""
    from ray._private import ray_constants

    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    may_grow, given = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(name)
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[name] = False, "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = may_grow
        del os.environ[name]
        if given is not None:
            os.environ[name] = given


def _end_what_started(since: float) -> None:
    """End the processes left of a head that this process tried to start after `since` (Unix seconds). An
    agent outlives a raylet that has given up."""
    import psutil
    import ray

    ray.shutdown()
    session = re.compile(rf"/session_[\d_-]+_{os.getpid()}(/|\b)")  # Ray names it by its starter
    left = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        started = process.info["create_time"] or 0.0
        if started >= since - _CLOCK_S and session.search(" ".join(process.info["cmdline"] or ())):
            left.append(process)
            with contextlib.suppress(psutil.Error):
                process.kill()
    psutil.wait_procs(left, timeout=_END_S)


def _start_failure(error: Exception) -> str:
    load, cores = os.getloadavg()[0], os.cpu_count()
    return (
        f"Ray did not start on this machine: {' '.join(str(error).split())} The load average is {load:.1f} "
        f"on {cores} cores. Start the command again when less is running; the logs of Ray's processes are in "
        f"{os.environ.get('RAY_TMPDIR', '/tmp')}/ray/session_latest/logs."
    )


def _prepare_environment() -> None:
    # Ray enables authentication for its own head and its child processes. Given a token, it does not write
    # one into the user's home, which may not be writable.
    if os.environ.get("RAY_AUTH_MODE", "token") == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A raylet gives its agents less time than a busy machine with a cold bytecode cache takes.
    os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
    os.environ["PYTHONPATH"] = python_path()


def _shared_address() -> str | None:
    """Address of a cluster that outlives this process, or None if there is none.

    Raises:
        CapacityError: RAY_ADDRESS names one and it does not answer.
    """
    from ray._private.utils import read_ray_address

    named = os.environ.get("RAY_ADDRESS", "")
    address = named or read_ray_address() or "local"
    if address == "local":
        return None
    if _answers(address):
        return address
    if named:
        raise CapacityError(
            f"RAY_ADDRESS is {named!r} and no cluster answers there. Start it, correct RAY_ADDRESS, or unset "
            "it to search on this machine alone."
        )
    return None  # the file of a cluster that is gone


def is_alive() -> bool:
    """Whether the head that this process is connected to accepts connections. Ray itself takes a minute to
    report a dead head."""
    import ray

    return _answers(ray.get_runtime_context().gcs_address)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_S):
            return True
    except (OSError, ValueError):
        return False
