"""Checks that every machine sees the same files: the storage, the task, the model."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence

from llmzero_ray.cli.doctor.machine_findings import same_files, storage
from llmzero_ray.cli.doctor.probes import digests, read_probes, write_own_probe, write_probe
from llmzero_ray.cli.doctor.rows import CheckFinding
from llmzero_ray.cli.doctor.scratch import scratch_of
from llmzero_ray.config import SearchConfig
from llmzero_ray.estimate import Estimate
from llmzero_ray.launch.nodes import HERE, Node, NoResult, run_on_nodes
from llmzero_ray.prepared import PreparedTask, check_model_dir
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.text import GIB

FILES_S = 300.0
"""Maximum wait, in seconds, for machines to read a task's files."""
STORAGE_S = 60.0
_PATIENCE_S = 15.0
"""Seconds within which a file written by another machine must appear."""


def own_storage(config: SearchConfig, task: PreparedTask | None) -> CheckFinding:
    """Check that the search's directory can be created and written here, and has space for all saved files.

    Raises:
        StorageError: it cannot.
    """
    place = SearchStorage(config.storage, config.name)
    place.check()
    free = shutil.disk_usage(place.paths.root).free
    needed = Estimate(config, task).disk_bytes("planned") or 0
    limit = config.checkpoints.max_gib
    if limit is not None:
        needed = min(needed, int(limit * GIB))
    found = f"{place.paths.root}: {free / GIB:.1f} GiB free"
    if needed > free:
        found += f", the adapters will take about {needed / GIB:.1f} GiB"
        todo = "free space, set checkpoints.max_gib, or raise phase.save_freq"
        return CheckFinding("warn", found, todo)
    return CheckFinding("ok", found)


def shared_storage(config: SearchConfig, nodes: Sequence[Node]) -> CheckFinding:
    """Check that every machine can write a file into the storage, and that this process and every machine can
    read all of these files.

    Raises:
        StorageError: this process cannot write there.
    """
    scratch = scratch_of(config)
    written: dict[str, float | NoResult] = {HERE: write_probe(str(scratch), "driver")}
    names = {"driver": HERE, **{f"node-{node.id}": node.label for node in nodes}}
    own = {node.id: f"node-{node.id}" for node in nodes}
    written |= run_on_nodes(nodes, write_own_probe, str(scratch), own, limit_s=STORAGE_S)
    there = [name for name, label in names.items() if not isinstance(written[label], NoResult)]
    seen: dict[str, list[str] | NoResult] = {HERE: read_probes(str(scratch), there, _PATIENCE_S)}
    seen |= run_on_nodes(nodes, read_probes, str(scratch), there, _PATIENCE_S, limit_s=STORAGE_S)
    readers: dict[str, Collection[str] | NoResult] = {
        label: files if isinstance(files, NoResult) else {names[name] for name in files}
        for label, files in seen.items()
    }
    free = f"{shutil.disk_usage(scratch).free / GIB:.0f} GiB free"
    return storage(config.storage, written, readers, free)


def task_files(task: PreparedTask, nodes: Sequence[Node]) -> CheckFinding:
    """Check that splits and reward have the same SHA-256 on every machine."""
    reward = [] if task.reward_module else [task.reward_path]
    paths = [f"{task.directory}/manifest.json", task.train, task.val, task.test, *reward]
    todo = "put the task where every machine sees it under the same path, and set task.dir to it"
    return same_files(todo, _digests(paths, nodes))


def model_directory(config: SearchConfig, task: PreparedTask | None) -> CheckFinding:
    """Check that the base model's directory is complete.

    Raises:
        TaskError: it is not a model that VeRL and vLLM can load.
    """
    path = Estimate(config, task).model_path
    if path is None:
        found = "model.path is null and the task brings no model"
        todo = "set model.path to a model's directory"
        return CheckFinding("FAIL", found, todo)
    notes = check_model_dir(path) if config.engine.backend == "verl" else ()
    if notes:
        return CheckFinding("warn", "; ".join(notes), "see docs/data.md")
    return CheckFinding("ok", path)


def model_files(path: str, nodes: Sequence[Node]) -> CheckFinding:
    """Check that every machine has the same files with the same sizes."""
    todo = "copy the model to every machine under that path, or to a directory that all of them mount"
    return same_files(todo, _digests([path], nodes))


def _digests(paths: Sequence[str], nodes: Sequence[Node]) -> dict[str, dict[str, str | None] | NoResult]:
    return {HERE: digests(paths), **run_on_nodes(nodes, digests, list(paths), limit_s=FILES_S)}
