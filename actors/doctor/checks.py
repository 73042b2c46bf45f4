"""The doctor's checks, from cheap to dear; one that fails keeps no other from running unless it makes it
pointless.

Not here: what a check looks at (cluster.py, files.py, agents.py, step.py).
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from llmzero_ray.config import SearchConfig
from llmzero_ray.memory import Assessment
from llmzero_ray.presence import owner
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks import PreparedTask, load_task

from ..gpu_memory import is_for_gpus
from .agents import agents_row
from .cluster import cluster_rows, configuration_row, joined, slots_fit
from .files import (
    model_files_row,
    model_path,
    model_row,
    own_storage_row,
    shared_storage_row,
    task_row,
)
from .memory import NAME, card_of, memory_row
from .nodes import Node, nodes_up
from .rows import Kind, Row, checked, skipped
from .scratch import Scratch

_CHECK_S = 180.0
_FILES_S = 400.0
_ON_CLUSTER: tuple[tuple[str, Kind], ...] = (
    ("agents", "config"),
    ("storage", "storage"),
    ("task files", "storage"),
    ("model files", "storage"),
    ("resources", "capacity"),
    ("/tmp and /dev/shm", "capacity"),
    ("clocks", "capacity"),
    ("versions", "engine"),
    ("step", "engine"),
)
_HARMLESS = ("agents", "clocks", "/tmp and /dev/shm", NAME)
"""Checks whose failure does not make a training step pointless: an estimate is not a measurement."""


class Examination:
    """The checks of one run."""

    rows: list[Row]
    seconds: list[dict[str, float]]
    """Of each slot that trained: `slot`, `step_s`, `startup_s`, `validation_s`."""
    logs: dict[str, str]
    """By slot, of those whose steps failed."""
    memory: Assessment | None
    """What the root takes of a GPU."""

    def __init__(self, config: SearchConfig, console: Console, *, step: bool) -> None:
        self._config, self._console, self._step = config, console, step
        self.rows, self.seconds, self.logs, self.memory = [], [], {}, None
        self.scratch = Scratch(config)
        self._task: PreparedTask | None = None

    def run(self) -> None:
        """Make all checks; rows are there afterwards, whatever failed."""
        from ..head import disconnecting
        from ..interrupts import hear_termination

        config = self._config
        with self._console.status("checking the configuration and the storage"):
            self._check("task", "config", self._open_task, _FILES_S)
            self._check("configuration", "config", lambda: configuration_row(config, self._task))
            self._check("model", "config", lambda: model_row(config, self._task))
            self._check("room", "storage", self._take_storage)
        with disconnecting():
            with self._console.status("joining the cluster"):
                row, private_head = joined(config)
            self.rows.append(row)
            if row.status == "FAIL":
                self.rows += [skipped(name, kind, "no cluster") for name, kind in _ON_CLUSTER]
                return
            hear_termination(self._console)
            try:
                with self._console.status("asking every machine"):
                    self._ask(nodes_up())
                self._train(private_head)
            except Exception as error:  # noqa: BLE001 - what was found so far is shown all the same
                found = f"could not go on: {type(error).__name__}: {error}"
                self.rows.append(Row(name="checks", kind="capacity", status="FAIL", found=found))

    def failed(self, name: str) -> bool:
        """Whether that check was made and failed."""
        return any(row.name == name and row.status == "FAIL" for row in self.rows)

    def _ask(self, nodes: list[Node]) -> None:
        config, task, path = self._config, self._task, model_path(self._config, self._task)
        self._check("agents", "config", lambda: agents_row(config.to_json(), nodes[0]))
        if self.failed("room"):
            self.rows.append(skipped("storage", "storage", "it cannot be used from here"))
        else:
            self._check("storage", "storage", lambda: shared_storage_row(config, nodes))
        if task is not None:
            self._check("task files", "storage", lambda: task_row(task, nodes), _FILES_S)
        if path is not None and not self.failed("model"):
            self._check("model files", "storage", lambda: model_files_row(path, nodes), _FILES_S)
        self._check("resources", "capacity", lambda: slots_fit(config))
        if is_for_gpus(config):
            self._check(NAME, "capacity", lambda: self._estimate_memory(nodes))
        self.rows += cluster_rows(config, nodes, limit_s=_CHECK_S)

    def _train(self, private_head: bool) -> None:
        from .step import STEPS, step_rows

        config = self._config
        someone = owner(SearchStorage(config.storage, config.name).paths.root)
        failed = [row.name for row in self.rows if row.status == "FAIL" and row.name not in _HARMLESS]
        why = f"{', '.join(failed)} failed" if failed else ""
        why = f"{someone} is at work on this search" if someone else why
        why = why if self._step else "--no-step"
        if why or self._task is None:
            self.rows.append(skipped("step", "engine", why))
            return
        with self._console.status(f"training {STEPS} steps on {config.slots.count} slot(s)"):
            rows, self.seconds, self.logs = step_rows(config, self._task, private_head=private_head)
        self.rows += rows

    def _estimate_memory(self, nodes: list[Node]) -> Row:
        card = card_of(self._config, nodes, limit_s=_CHECK_S / 2)
        row, self.memory = memory_row(self._config, self._task, card)
        return row

    def _open_task(self) -> Row:
        self._task = task = load_task(self._config.task.dir)
        found = f"{task.name}: {task.n_train} train, {task.n_val} val, {task.n_test} test"
        return Row(name="task", kind="config", status="ok", found=found)

    def _take_storage(self) -> Row:
        row = own_storage_row(self._config, self._task)
        self.scratch.take()
        return row

    def _check(self, name: str, kind: Kind, work: Callable[[], Row], limit_s: float = _CHECK_S) -> None:
        self.rows.append(checked(name, kind, work, limit_s=limit_s))
