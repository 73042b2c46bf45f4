"""Python interface: `run` a search, `open` its results as tables, `prepare` its task.

All functions block on files and on Ray and start no event loop, so they work in scripts, in threads and in
notebooks, where a loop is already running.
"""

from __future__ import annotations

import asyncio
import copy
import html
import logging
import numbers
import os
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from llmzero_ray.config import SearchConfig, change_settings, resolve_config
from llmzero_ray.config.yaml_text import read_yaml
from llmzero_ray.coordinator import run_of
from llmzero_ray.coordinator.follow import RunStatus, run_status, stage_now
from llmzero_ray.errors import ConfigError, SearchBusyError
from llmzero_ray.hyperparameters import VERL_SPACE
from llmzero_ray.launch.start import LOOK_S, LaunchedSearch, Say, launch, raise_if_broken
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.prepared.directory import progress_lines
from llmzero_ray.prepared.maker import is_task_file, prepare_task_file, task_of
from llmzero_ray.report import Strategy, write_outcome
from llmzero_ray.report.best_strategy import best_strategy
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.report.outcome import best_adapter
from llmzero_ray.report.tables import (
    CHANGES,
    ITEMS,
    NODES,
    SCORES,
    change_rows,
    metric_rows,
    node_rows,
    score_rows,
    table,
)
from llmzero_ray.storage.locate import find
from llmzero_ray.storage.presence import request
from llmzero_ray.strategy.retrain import (
    RetrainComparison,
    compare,
    find_strategy,
    plan_retraining,
    task_of_strategy,
    write_comparison,
)
from llmzero_ray.utils.plugins import extension

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("llmzero_ray.api")


def _log(line: str) -> None:
    logger.info("%s", line)


# --- running ------------------------------------------------------------------------------------------------


class RunningSearch:
    """Handle of a search that `run` started, or found running or ended.

    `with run(...) as search:` leaves the cluster at the end of the block; `wait` leaves it at the end of the
    search. On a cluster that outlives this process, the search continues after you leave. On a private Ray
    head it ends with this process, and the same call of `run` resumes it later.
    """

    def __init__(self, launched: LaunchedSearch, config: SearchConfig) -> None:
        self._launched, self.config = launched, config
        self._follower = launched.follower
        self._has_ended = launched.end_check()
        self._left = launched.had_ended

    @property
    def root(self) -> Path:
        """Directory of the search."""
        return self._follower.storage.paths.root

    @property
    def done(self) -> bool:
        """Whether no process runs the search any more: it has ended, was paused, or its processes died.

        Raises:
            LlmzeroError: its coordinator could not read or write the journal.
        """
        return self._left or self._has_ended()

    def status(self) -> RunStatus:
        """Current status of the search."""
        self._follower.poll()
        return run_status(self._follower)

    def wait(self, timeout_s: float | None = None) -> Search:
        """Wait until the search has ended or was paused, and return its results. In an event loop, `await`
        the handle instead.

        Raises:
            TimeoutError: the search still runs after `timeout_s` seconds; it is not stopped.
            LlmzeroError: the search could not continue; the same `run` resumes it once the cause is fixed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.done:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{self.config.name} is still running after {timeout_s:g} s")
            time.sleep(LOOK_S)
        self.close()
        self._follower.poll()
        raise_if_broken(self._follower)
        return Search(self.root)

    def __await__(self) -> Generator[Any, None, Search]:
        return asyncio.to_thread(self.wait).__await__()

    def stop(self, reason: str = "stopped from Python", *, deadline_s: float | None = None) -> None:
        """Ask the search to end. Running phases end at their next step. `wait` then returns the results.

        After `deadline_s` seconds, phases that have not ended are killed; 0 kills them at once.
        """
        self._request("stop", reason, deadline_s=deadline_s)

    def pause(self, reason: str = "paused from Python") -> None:
        """Ask the search to end its processes and release its hardware. The same call of `run` resumes it."""
        self._request("pause", reason)

    def hint(self, text: str) -> None:
        """Give the proposer a hint, which is part of every later request to it."""
        self._request("hint", "", text=text)

    def approve(
        self,
        node: int,
        changes: Mapping[str, Any] | None = None,
        *,
        n_steps: int | None = None,
        refuse: bool = False,
        reason: str = "",
    ) -> None:
        """Answer the proposal of a node in `status().waiting`: accept it, optionally with `changes`
        (hyper-parameter -> value) or another number of steps, or `refuse` it. The agents see the reason."""
        self._request(
            "approve", reason, node=node, changes=dict(changes or {}), n_steps=n_steps, refuse=refuse
        )

    def _request(self, kind: Any, reason: str, **fields: Any) -> None:
        if self.done:
            raise ConfigError(f"{self.root} is not running: it takes no request.")
        request(self.root, kind, reason, **fields)

    def close(self) -> None:
        """Leave the cluster. Idempotent. A search that still runs on a private Ray head is interrupted."""
        if not self._left:
            self._left = True
            self._launched.leave()
            _private.discard(self)

    def __enter__(self) -> RunningSearch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repr_html_(self) -> str | None:
        """Current page of the search, for notebooks. None before the search has begun."""
        self._follower.poll()
        return None if self._follower.core.started is None else Search(self.root)._repr_html_()

    def __repr__(self) -> str:
        return f"<search {self.config.name} in {self.root}: {self.status().stage}>"


_private: set[RunningSearch] = set()
"""Searches of this process that run on a private Ray head."""


def run(
    config: str | os.PathLike[str] | Mapping[str, Any] | SearchConfig,
    /,
    *,
    progress: Say = _log,
    **settings: Any,
) -> RunningSearch:
    """Start a search, or attach to or resume the one of the same name. Returns once it has started.

    `config` is the path of a search.yaml, its data, or a `SearchConfig`. Keyword arguments replace fields of
    it: blocks (`budget={"runs": 8}`, other fields of the block stay) or dotted keys
    (`**{"budget.runs": 8}`). The callback `progress` gets a line for each step of the preparation; by
    default, lines are logged.

    The search runs on the cluster to which this process is connected (`ray.init`), on that of RAY_ADDRESS or
    `ray start`, or otherwise on a private Ray head, which ends with this process.

    Raises:
        ConfigError: the configuration is wrong, or differs from the one with which the search began.
        TaskError: there is no task, or another one than the search began with.
        CapacityError: a cluster is named and does not answer, or Ray does not start.
        StorageError: the directory cannot be used.
        SearchBusyError: another search of this process runs on a private Ray head.
    """
    wanted, given = _resolved(config, settings)
    for other in tuple(_private):
        if other.done:
            other.close()
        elif other.config.name != wanted.name or other.config.storage != wanted.storage:
            raise SearchBusyError(
                f"{other.config.name} is running on a Ray head that this process started for it alone. Wait "
                "for its end, or start a cluster with `ray start --head` to have several searches at once."
            )
    started = launch(wanted, given, task_of, progress)
    search = RunningSearch(started, wanted)
    if started.private_head:
        _private.add(search)
    return search


def _resolved(
    config: str | os.PathLike[str] | Mapping[str, Any] | SearchConfig, settings: Mapping[str, Any]
) -> tuple[SearchConfig, list[str]]:
    """(configuration with these settings, keys of the settings)."""
    source = "the configuration"
    if isinstance(config, SearchConfig):
        data = config.model_dump(mode="json", exclude_unset=True)
    elif isinstance(config, Mapping):
        data = copy.deepcopy(dict(config))
    elif isinstance(config, str | os.PathLike):
        path = Path(config)
        data, source = read_yaml(path), path.name
    else:
        raise ConfigError(
            f"a configuration cannot be a {type(config).__name__}; give the path of a search.yaml, its data "
            "as a dict, or a SearchConfig."
        )
    change_settings(data, settings, VERL_SPACE.names)
    return resolve_config(data, source=source), list(settings)


def _path(name: str, given: object) -> str:
    """A path argument as text.

    Raises:
        ConfigError: it is not a path.
    """
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        if "\0" in path:
            raise ConfigError(f"{name} is {path!r}; a path contains no null character.")
        return path
    raise ConfigError(f"{name} cannot be a {type(given).__name__}; give a path, such as 'runs/demo'.")


def retrain(
    strategy: str | os.PathLike[str] | Strategy,
    /,
    *,
    task: str | os.PathLike[str] | None = None,
    model: str | None = None,
    seeds: int = 1,
    keep_steps: bool = False,
    name: str | None = None,
    storage: str | os.PathLike[str] = "runs",
    progress: Say = _log,
    **settings: Any,
) -> RetrainComparison:
    """Train a strategy again, phase by phase, once for each of `seeds` seeds. Returns when all have ended.

    `strategy` is a strategy.yaml, a search's directory or name, or a `Strategy`. With another `task` (the
    directory of a prepared one), steps are rescaled to the same number of epochs, unless `keep_steps`.
    `settings` replace fields of the configuration, as in `run`. Each seed is a search `<name>-<number>` in
    `storage`, so the same call continues after an interruption. The result compares validation and test
    scores with the original; its `deviations` list phases that were not trained as in the strategy.

    Raises:
        ConfigError: there is no strategy, the settings are wrong, or searches of these names train another
            strategy.
        TaskError: the task cannot be used.
        LlmzeroError: a search could not continue.
    """
    place = _path("storage", storage)
    known = (
        strategy if isinstance(strategy, Strategy) else find_strategy(_path("a strategy", strategy), place)
    )
    plan = plan_retraining(
        known,
        task_of_strategy(known, None if task is None else _path("task", task)),
        name=name,
        storage=place,
        model=model,
        seeds=seeds,
        keep_steps=keep_steps,
        settings=settings,
    )
    for note in plan.unsaid:
        progress(note)
    roots = [run(config, progress=progress).wait().root for config in plan.configs]
    found = compare(plan, roots)
    write_comparison(found, Path(place).absolute())
    return found


# --- results ------------------------------------------------------------------------------------------------


def open(search: str | os.PathLike[str], *, storage: str | os.PathLike[str] = "runs") -> Search:  # noqa: A001
    """Results of a search so far. The search is given by its directory, its search.yaml, or its name in
    `storage`.

    Raises:
        ConfigError: there is no search, or it has not started.
        JournalError: its journal is damaged.
    """
    return Search(find(_path("a search", search), _path("storage", storage)).paths.root)


class Search:
    """Results of one search when it was opened. Open it again to see newer ones.

    Tables are Arrow tables (`pyarrow.Table`); `to_pandas()` converts them to data frames.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._facts = SearchFacts(Path(_path("a search", root)))

    @property
    def root(self) -> Path:
        """Directory of the search."""
        return self._facts.paths.root

    @property
    def name(self) -> str:
        """Name of the search."""
        return self._facts.name

    @property
    def config(self) -> SearchConfig:
        """Configuration of the search, including changes made while it ran."""
        return self._facts.config

    @property
    def stage(self) -> str:
        """searching, measuring, writing, finished or interrupted."""
        return stage_now(self._facts.core, self.root)

    @property
    def best(self) -> int | None:
        """Node with whose best step the best strategy ends. None if no node has a score yet."""
        return None if self._facts.best is None else self._facts.best.node

    @property
    def adapter(self) -> Path | None:
        """Directory of the best strategy's PEFT adapter. None if there is none yet, or if Ray Tune keeps the
        checkpoints."""
        if not self._facts.path:
            return None
        last = self._facts.path[-1]
        place = last.run.adapter(self._facts.paths, last.cut)
        return None if place.is_file() else place

    def nodes(self) -> pa.Table:
        """One row per node: kind, start, length, scores, the reason for it and how it ended."""
        return table(node_rows(self._facts), NODES)

    def metrics(self, node: int | None = None) -> pa.Table:
        """One row per step of a node, or of all nodes. VeRL's metrics keep their names.

        Raises:
            ConfigError: there is no such node.
        """
        import pyarrow as pa

        nodes = self._facts.runs if node is None else (self._known(node),)
        rows = [row for number in nodes for row in metric_rows(self._facts, number)]
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    def items(self, node: int, step: int | None = None) -> pa.Table:
        """Validated items of a node, with scores and responses, for one step of its phase or for all.

        Raises:
            ConfigError: there is no such node.
        """
        from llmzero_ray.storage.metric_files import load_items

        node = self._known(node)
        found = load_items(self._facts.storage, node)
        rows = [
            {"node": node, "step": at, **vars(item)}
            for at, items in sorted(found.items())
            if step in (None, at)
            for item in items
        ]
        return table(rows, ITEMS)

    def changes(self, node: int | None = None) -> pa.Table:
        """Hyper-parameters in which nodes differ from the phase that they continue, with reasons. Values are
        JSON.

        Raises:
            ConfigError: there is no such node.
        """
        nodes = tuple(self._facts.runs) if node is None else (self._known(node),)
        return table(change_rows(self._facts, nodes), CHANGES)

    def scores(self) -> pa.Table:
        """Scores of base model, default recipe and best strategy on the validation and the test split."""
        return table(score_rows(self._facts), SCORES)

    def strategy(self) -> Strategy | None:
        """Best strategy so far, as in strategy.yaml. None if there is none yet. Without checksums in
        `adapter` if its adapter cannot be read."""
        return best_strategy(self._facts, best_adapter(self._facts).checksums)

    def write_report(self) -> Path:
        """Write current versions of report.md, report.html, strategy.yaml and best/. Returns the path of
        report.md.

        Raises:
            StorageError: the directory cannot be written.
        """
        write_outcome(self._facts.storage)
        return self._facts.paths.report

    def _repr_html_(self) -> str:
        """Page of the search for notebooks: report.html in an iframe."""
        page = extension("llmzero_ray.pages", "report")(self._facts)
        return f'<iframe srcdoc="{html.escape(page)}" width="100%" height="900" style="border:0"></iframe>'

    def _known(self, node: int) -> int:
        if isinstance(node, bool) or not isinstance(node, numbers.Real):  # NumPy has numbers too
            raise ConfigError(f"a node is {node!r}; must be its number.")
        return run_of(self._facts.runs, node, self.name).node

    def __repr__(self) -> str:
        best = "" if self._facts.best is None else f", best node {self.best}: {self._facts.best.score}"
        return f"<search {self.name}, {self.stage}: {len(self._facts.runs)} nodes{best}>"


# --- tasks --------------------------------------------------------------------------------------------------


def prepare(
    task: str | os.PathLike[str] | Mapping[str, Any] | SearchConfig,
    /,
    *,
    progress: Callable[[str], None] = _log,
    **settings: Any,
) -> PreparedTask:
    """Prepared task of a task.yaml, or of a search.yaml, its data or a `SearchConfig`. It is prepared if it
    does not exist yet.

    Keyword arguments replace keys of the file, as in `run`.

    Raises:
        ConfigError: the file or the data is wrong.
        TaskError: the task cannot be prepared, or its directory has another one.
        StorageError: it cannot be written.
    """
    if isinstance(task, str | os.PathLike) and is_task_file(Path(task)):
        with progress_lines(progress) as of_parts:
            made: PreparedTask = prepare_task_file(Path(task), settings, progress=of_parts).task
        return made
    config, _ = _resolved(task, settings)
    return task_of(config, progress)
