"""Probes of one machine, as plain values: versions, free space, sandbox, files, the storage, its clock.

Each function but `clock_offsets` runs as a Ray task on one node. Not here: starting it there
(launch/nodes.py), interpretation of the results (machine_findings.py).
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmzero_ray import version
from llmzero_ray.errors import LlmzeroError, StorageError
from llmzero_ray.launch.nodes import Node, NoResult, run_on_nodes
from llmzero_ray.prepared.sandbox import Isolation, find_isolation
from llmzero_ray.utils.files import file_digest, storage_errors, text_digest
from llmzero_ray.utils.plugins import installed_versions

PACKAGES = ("ray", "verl", "vllm", "torch", "transformers", "peft", "numpy")
SCRATCH = ("/tmp", "/dev/shm")
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_LOOK_S = 0.2
_CLOCK_TRIES = 3


def probe_machine(backend: str, engine_platform: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, the engine's objection to them (None if it has none), why the processor is slow for the
    overrides (None if it is not), path -> (free, total) bytes, and bytes of memory."""
    versions = {"python": platform.python_version(), **installed_versions(PACKAGES)}
    versions["llmzero_ray"] = f"{version.__version__} ({_sources_digest()})"
    refused = slow = None
    if backend == "verl":
        from llmzero_ray.engines.verl.internals import check_versions, slow_dtype, uses_flash_attention
        from llmzero_ray.estimate import resolve_platform

        its_platform = resolve_platform(engine_platform)
        slow = slow_dtype(its_platform, overrides)
        try:
            check_versions(its_platform, flash_attention=uses_flash_attention(overrides))
        except LlmzeroError as error:
            refused = str(error)
    usage = {path: shutil.disk_usage(path) for path in SCRATCH if os.path.isdir(path)}
    free_space = {path: (found.free, found.total) for path, found in usage.items()}
    found = {"versions": versions, "refused": refused, "slow": slow}
    return {**found, "free space": free_space, "memory": memory_bytes()}


def probe_sandbox() -> Isolation:
    """Isolation that is available for reward code here, determined by trying it."""
    # Wrapped because Ray does not accept a cached function.
    return find_isolation()


def memory_bytes() -> int:
    """Bytes of memory available to processes here: the machine's, or the container's."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # absent, or "max"
            total = min(total, int(Path(path).read_text()))
    return total


def digests(paths: Sequence[str]) -> dict[str, str | None]:
    """Path -> digest of a file's content, or of a directory's names and sizes. None if the path does not
    exist."""
    return {path: _digest(Path(path)) for path in paths}


def write_probe(directory: str, name: str) -> float:
    """Write and sync a small file into an existing directory, and return the seconds it took.

    Raises:
        StorageError: the directory does not exist, or cannot be written.
    """
    if not os.path.isdir(directory):
        raise StorageError(f"does not see {directory}")
    began, path = time.monotonic(), Path(directory) / name
    with storage_errors(path), open(path, "wb") as file:
        file.write(content_of(name))
        file.flush()
        os.fsync(file.fileno())
    return time.monotonic() - began


def write_own_probe(directory: str, names: Mapping[str, str]) -> float:
    """`write_probe` under the name that `names` has for this node's id."""
    import ray

    return write_probe(directory, names[ray.get_runtime_context().get_node_id()])


def read_probes(directory: str, names: Sequence[str], patience_s: float) -> list[str]:
    """Named files that exist with the right bytes, waiting a while for missing ones."""
    deadline = time.monotonic() + patience_s
    while True:
        found = [name for name in names if _read(Path(directory) / name) == content_of(name)]
        if len(found) == len(names) or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_S)


def content_of(name: str) -> bytes:
    """Content of a probe of that name."""
    return (name * 64).encode()


def _read(path: Path) -> bytes | None:
    try:
        os.listdir(path.parent)  # on NFS this refreshes the client's cache of absent names
        return path.read_bytes()
    except OSError:
        return None


def _digest(path: Path) -> str | None:
    try:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            text = "\n".join(f"{file.relative_to(path)} {file.stat().st_size}" for file in files)
            return text_digest(text)
        return file_digest(path)
    except OSError:
        return None


def _sources_digest() -> str:
    root = Path(version.__file__).parent
    parts = (str(path.relative_to(root)).encode() + path.read_bytes() for path in sorted(root.rglob("*.py")))
    return text_digest(b"".join(parts))[:8]


def now() -> float:
    """Unix time of this machine's clock."""
    return time.time()


def clock_offsets(nodes: Sequence[Node], *, limit_s: float) -> dict[str, tuple[float, float] | NoResult]:
    """Label -> (seconds by which a node's clock is ahead of this one, uncertainty in seconds).

    The one-way time is half of the shortest of a few round trips.
    """
    found: dict[str, tuple[float, float] | NoResult] = {}
    for node in nodes:
        tries = []
        for _ in range(_CLOCK_TRIES):
            began = time.time()
            there = run_on_nodes([node], now, limit_s=limit_s)[node.label]
            ended = time.time()
            if isinstance(there, NoResult):
                found[node.label] = there
                break
            tries.append((there - (began + ended) / 2, (ended - began) / 2))
        else:
            found[node.label] = min(tries, key=lambda offset: offset[1])
    return found
