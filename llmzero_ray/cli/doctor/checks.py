"""Table of the doctor's checks, from cheap to expensive.

A check is one function of the results so far. It returns its finding, or raises an error whose message is the
finding of the failed check.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from llmzero_ray.agents.backend import needs_key
from llmzero_ray.cli.doctor import agents, cluster, files, machine_findings, memory, training
from llmzero_ray.cli.doctor.gpu_probe import PROBE_S, probe_gpus
from llmzero_ray.cli.doctor.probes import clock_offsets, probe_sandbox
from llmzero_ray.cli.doctor.rows import CheckFinding, Kind, Row, skipped
from llmzero_ray.cli.doctor.scratch import Scratch
from llmzero_ray.config import SearchConfig
from llmzero_ray.engines.verl.internals import uses_flash_attention
from llmzero_ray.errors import ConfigError, LlmzeroError
from llmzero_ray.estimate import Estimate, is_for_gpus, with_server_sizes
from llmzero_ray.launch import actors
from llmzero_ray.launch.nodes import Node, NoResult, run_on_nodes
from llmzero_ray.launch.preflight import check_platform
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.presence import owner
from llmzero_ray.utils.api_key import KEY_ENVS, key_file

Stage: TypeAlias = Literal["files", "cluster", "slots", "machines", "training"]
_CHECK_S = 180.0
_FILES_S = 400.0
_CLOCK_S = 20.0


@dataclass(kw_only=True)
class Context:
    """State of one doctor run: results of earlier checks that later ones need."""

    config: SearchConfig
    step: bool
    """Whether to run training steps."""
    scratch: Scratch
    rows: list[Row] = field(default_factory=list)
    task: PreparedTask | None = None
    private_head: bool = False
    """Whether the cluster is a head of this command only."""
    reserved: bool = False
    """Whether the hardware of the slots was requested and must be released."""
    nodes: Sequence[Node] = ()
    probed: Mapping[str, Any | NoResult] = field(default_factory=dict)
    """Label of a node -> its versions and its free space."""
    estimate: Estimate | None = None
    """Needs of the root on a GPU."""
    seconds: list[dict[str, float]] = field(default_factory=list)
    """Seconds of each slot that trained: `slot`, `step_s`, `startup_s`, `validation_s`."""
    logs: dict[str, str] = field(default_factory=dict)
    """Slot -> log, for slots whose steps failed."""

    def failed(self, name: str) -> bool:
        """Whether that check ran and failed."""
        return any(row.name == name and row.status == "FAIL" for row in self.rows)

    @property
    def model_path(self) -> str | None:
        """Directory of the base model."""
        return Estimate(self.config, self.task).model_path


@dataclass(frozen=True, kw_only=True)
class Check:
    """One row of the table."""

    name: str
    kind: Kind
    """Kind of problem if it fails, which determines the exit code."""
    stage: Stage
    run: Callable[[Context], CheckFinding | list[Row]]
    """Function that returns its finding, or one row for each named part."""
    limit_s: float | None = _CHECK_S
    """Time limit in seconds. If None, the check ends by itself and runs in the main thread."""
    limit_per_node_s: float = 0.0
    """Seconds added to the limit for each machine."""
    applies: Callable[[Context], bool] = lambda _: True
    """Whether the check applies. If not, it has no row."""
    skip: Callable[[Context], str] = lambda _: ""
    """Reason why the check is pointless now. Empty if it is not."""
    needed_for_training: bool = True
    """Whether a training step is pointless if this check fails."""
    listed_without_cluster: bool = True
    """Whether it has a row if no cluster can be joined."""


def _task(context: Context) -> CheckFinding:
    """Check that the prepared task can be read as its manifest says."""
    context.task = task = load_task(context.config.task.dir)
    sizes: list[str] = []
    with contextlib.suppress(ConfigError):  # the root's own check reports it
        context.config = with_server_sizes(Estimate(context.config, task), sizes.append)
    found = f"{task.name}: {task.n_train} train, {task.n_val} val, {task.n_test} test"
    return CheckFinding("ok", "; ".join([found, *sizes]))


def _free_space(context: Context) -> CheckFinding:
    """Check that the search's directory is writable here, and that no other doctor runs in it."""
    found = files.own_storage(context.config, context.task)
    context.scratch.take()
    return found


def _cluster(context: Context) -> CheckFinding:
    """Check that a cluster answers, or that a head could be started for this command only."""
    try:
        check_platform(context.config)
        context.private_head = actors.head.connect(context.config)
    except LlmzeroError as error:
        return CheckFinding("FAIL", str(error))
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds; other checks continue
        todo = "see that RAY_ADDRESS, RAY_AUTH_MODE and Ray's version are those of the cluster"
        return CheckFinding("FAIL", f"Ray cannot be joined: {type(error).__name__}: {error}", todo)
    return cluster.resources_of_all(private_head=context.private_head)


def _slots(context: Context) -> CheckFinding:
    """Check that the cluster provides the slots. Later checks examine the hardware that the search will
    get."""
    context.reserved = True
    return training.reserve(context.config, private_head=context.private_head)


def _agents(context: Context) -> CheckFinding:
    """Check that the agents can call their model from the head: key, price, server."""
    config, key = context.config, None
    env = KEY_ENVS.get(config.agents.provider)
    if env is not None and needs_key(config.agents):
        key = key_file(config.storage, private_head=context.private_head, key_env=env)
    return agents.agents_from(context.nodes[0], config.to_json(), key)


def _task_files(context: Context) -> CheckFinding:
    """Check that every machine reads the same splits and the same reward."""
    assert context.task is not None
    return files.task_files(context.task, context.nodes)


def _model_files(context: Context) -> CheckFinding:
    """Check that every machine sees the same files of the base model."""
    assert context.model_path is not None
    return files.model_files(context.model_path, context.nodes)


def _gpu_memory(context: Context) -> CheckFinding:
    """Check by estimate that the root fits on the GPUs."""
    card_gib = memory.card_of(context.config, context.nodes, limit_s=_CHECK_S / 2)
    found, context.estimate = memory.on_cards(context.config, context.task, card_gib)
    return found


def _gpus(context: Context) -> CheckFinding:
    """Check that the GPUs of every machine compute and reach each other."""
    nodes = [node for node in context.nodes if node.gpus >= 1]
    if not nodes:
        return skipped("no machine with GPUs is up")
    answers: dict[str, Any | NoResult] = {}
    for n_gpus in sorted({int(node.gpus) for node in nodes}):
        alike = [node for node in nodes if int(node.gpus) == n_gpus]
        given = (n_gpus, "cuda", uses_flash_attention(context.config.engine.overrides))
        answers |= run_on_nodes(alike, probe_gpus, *given, limit_s=PROBE_S + _CHECK_S / 2)
    return machine_findings.gpus(answers)


def _sandbox(context: Context) -> CheckFinding:
    """Check that the task's reward can be confined on the machines that score answers."""
    assert context.task is not None
    scoring = [node for node in context.nodes if node.gpus > 0] or list(context.nodes)
    answers = run_on_nodes(scoring, probe_sandbox, limit_s=_CHECK_S / 2)
    return machine_findings.sandbox(context.task, answers)


def _sockets(context: Context) -> CheckFinding:
    """Check that neighbours on the network cannot run code through Ray."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return machine_findings.sockets(private_head=context.private_head, has_token=is_token_auth_enabled())


def _training(context: Context) -> list[Row]:
    """Run two steps of the root on every slot. The saved adapters must reproduce their scores."""
    assert context.task is not None
    rows, context.seconds, context.logs = training.train_on_all_slots(
        context.config, context.task, private_head=context.private_head
    )
    return rows


def _why_not_reserve(context: Context) -> str:
    must_grow = any(row.found.startswith(cluster.MUST_GROW) for row in context.rows)
    if not context.step and not must_grow:
        return "--no-step"
    return _why_pointless(context)


def _why_not_train(context: Context) -> str:
    if not context.step:
        return "--no-step"
    if any(row.name == "slots" and row.status == "skipped" for row in context.rows):
        return _why_pointless(context) or "no slot is reserved"
    return _why_pointless(context)


def _why_pointless(context: Context) -> str:
    someone = owner(SearchStorage(context.config.storage, context.config.name).paths.root)
    if someone:
        return f"{someone} is working on this search"
    harmless = {check.name for check in CHECKS if not check.needed_for_training}
    failed = [row.name for row in context.rows if row.status == "FAIL" and row.name not in harmless]
    return f"{', '.join(failed)} failed" if failed else ""


CHECKS: tuple[Check, ...] = (
    Check(name="task", kind="config", stage="files", run=_task, limit_s=_FILES_S),
    Check(
        name="configuration",
        kind="config",
        stage="files",
        run=lambda context: cluster.root_and_engine(context.config, context.task),
    ),
    Check(
        name="model",
        kind="config",
        stage="files",
        run=lambda context: files.model_directory(context.config, context.task),
    ),
    Check(name="free space", kind="storage", stage="files", run=_free_space),
    Check(name="cluster", kind="capacity", stage="cluster", run=_cluster, limit_s=None),
    Check(
        name="resources",
        kind="capacity",
        stage="slots",
        run=lambda context: cluster.slots_fit(context.config),
    ),
    Check(
        name="slots",
        kind="capacity",
        stage="slots",
        run=_slots,
        limit_s=None,
        skip=_why_not_reserve,
        listed_without_cluster=False,
    ),
    Check(name="agents", kind="config", stage="machines", run=_agents, needed_for_training=False),
    Check(
        name="storage",
        kind="storage",
        stage="machines",
        run=lambda context: files.shared_storage(context.config, context.nodes),
        skip=lambda context: "it cannot be used from here" if context.failed("free space") else "",
    ),
    Check(
        name="task files",
        kind="storage",
        stage="machines",
        run=_task_files,
        limit_s=_FILES_S,
        applies=lambda context: context.task is not None,
    ),
    Check(
        name="model files",
        kind="storage",
        stage="machines",
        run=_model_files,
        limit_s=_FILES_S,
        applies=lambda context: context.model_path is not None and not context.failed("model"),
    ),
    Check(
        name="gpu memory",
        kind="capacity",
        stage="machines",
        run=_gpu_memory,
        applies=lambda context: is_for_gpus(context.config),
        needed_for_training=False,  # an estimate is not a measurement
        listed_without_cluster=False,
    ),
    Check(
        name="machine memory",
        kind="capacity",
        stage="machines",
        run=lambda context: memory.on_machines(context.estimate, context.nodes, context.probed),
        applies=lambda context: is_for_gpus(context.config),
        needed_for_training=False,  # an estimate is not a measurement
        listed_without_cluster=False,
    ),
    Check(
        name="versions",
        kind="engine",
        stage="machines",
        run=lambda context: machine_findings.versions(context.nodes, context.probed),
    ),
    Check(
        name="gpus",
        kind="engine",
        stage="machines",
        run=_gpus,
        limit_s=PROBE_S + _CHECK_S,
        applies=lambda context: is_for_gpus(context.config),
        listed_without_cluster=False,
    ),
    Check(
        name="sandbox",
        kind="capacity",
        stage="machines",
        run=_sandbox,
        applies=lambda context: context.task is not None,
        listed_without_cluster=False,
    ),
    Check(
        name="/tmp and /dev/shm",
        kind="capacity",
        stage="machines",
        run=lambda context: machine_findings.free_space(context.nodes, context.probed),
        needed_for_training=False,
    ),
    Check(
        name="clocks",
        kind="capacity",
        stage="machines",
        run=lambda context: machine_findings.clocks(clock_offsets(context.nodes, limit_s=_CLOCK_S)),
        limit_per_node_s=_CLOCK_S,
        needed_for_training=False,
    ),
    Check(
        name="sockets",
        kind="capacity",
        stage="machines",
        run=_sockets,
        needed_for_training=False,
        listed_without_cluster=False,
    ),
    Check(name="step", kind="engine", stage="training", run=_training, limit_s=None, skip=_why_not_train),
)
"""Checks in the order in which they run."""
