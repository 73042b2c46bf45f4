"""Runner of one slot: trains one phase after another on an engine and streams the metrics.

`run`, `evaluate` and `close` run one at a time on the main thread; `poll`, `stop` and `health` run
concurrently. Every call is idempotent.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any

from llmzero_ray.config import parse_config
from llmzero_ray.dynamics.answers import phase_doubts
from llmzero_ray.engines.base import Engine, Slot, failure_of
from llmzero_ray.errors import EngineError, StorageError
from llmzero_ray.prepared.task import validation_golds
from llmzero_ray.records import (
    ItemOutcome,
    MetricPoint,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
    from_json,
    to_json,
)
from llmzero_ray.records.metrics import checked_point
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import (
    MetricWriter,
    compact,
    load_points,
    saved_adapters,
    stored_items,
    with_gain,
    with_tokens,
)
from llmzero_ray.utils.failpoints import reach
from llmzero_ray.utils.logs import logging_to

from .metric_buffer import MetricBuffer, PhaseKey

logger = logging.getLogger(__name__)
_OF_ENGINE = ("task", "model", "engine", "eval")
"""Blocks of the configuration that an engine is built from, along with its slot."""


class PhaseRunner:
    """Runner of one slot, which lives as long as the slot. runner_pool.py wraps it as an actor."""

    def __init__(self, config: dict[str, Any], storage: str, slot: Slot) -> None:
        self._config, self._slot = parse_config(config, source="search.yaml"), slot
        self._storage = SearchStorage(storage, self._config.name)
        self._engine: Engine | None = None
        self._buffer = MetricBuffer()
        self._ended: dict[PhaseKey, PhaseResult | PhaseFailure] = {}
        self._stops: dict[PhaseKey, str] = {}

    def __repr__(self) -> str:
        return f"PhaseRunner(search={self._slot.search}, slot={self._slot.index})"

    def use(self, config: dict[str, Any], storage: str) -> None:
        """Serve another search from now on. The engine stays if its configuration and task are the same."""
        given = parse_config(config, source="search.yaml")
        if any(getattr(given, block) != getattr(self._config, block) for block in _OF_ENGINE):
            self.close()
        self._config, self._storage = given, SearchStorage(storage, given.name)
        self._buffer, self._ended, self._stops = MetricBuffer(), {}, {}

    def run(self, spec: PhaseSpec) -> PhaseResult | PhaseFailure:
        """Train a phase to its end. If it has already ended, return its stored outcome.

        Raises:
            EngineError: the engine cannot start or was lost; the phase itself has not failed.
            StorageError: metrics can no longer be written.
        """
        key = (spec.node, spec.attempt)
        known = self._ended.get(key) or self._storage.result(*key, since=spec.first_attempt)
        if known is not None:
            return known
        self._buffer.begin(key)
        if spec.restore:
            self._storage.adopt_full_checkpoint(*key)
        try:
            with MetricWriter(self._storage, *key) as writer, logging_to(self._storage.paths.log(spec.node)):
                outcome = self._train(spec, writer)
            if isinstance(outcome, PhaseResult):
                outcome = with_tokens(self._storage, spec, with_gain(self._storage, outcome))
                outcome = dataclasses.replace(outcome, doubts=self._doubts(spec, outcome))
            else:
                outcome = with_tokens(self._storage, spec, outcome)
            self._storage.write_result(*key, outcome)  # from here on the phase is safe
            reach("phase.result_written")
            self._storage.drop_full_checkpoints(*key)
            compact(self._storage, *key)
            self._ended = {key: outcome}
        finally:
            self._buffer.end()
        return outcome

    def _train(self, spec: PhaseSpec, writer: MetricWriter) -> PhaseResult | PhaseFailure:
        """Train the phase. An exception of the phase becomes a `PhaseFailure`."""

        def publish(point: MetricPoint) -> None:
            if point.taken_from is not None:
                point = dataclasses.replace(point, items=stored_items(self._storage, point.taken_from))
            self._buffer.publish(writer.write(checked_point(point)))
            if reason := self._stops.get((spec.node, spec.attempt)):
                engine.stop(reason)  # the stop was requested before the engine began the phase

        engine = self._made_engine()
        try:
            outcome: PhaseResult | PhaseFailure = from_json(to_json(engine.run(spec, publish)))
            return outcome  # in the form in which it will be read back, with Python's own numbers
        except (EngineError, StorageError):
            raise
        except Exception as error:
            logger.exception("node=%d phase failed", spec.node)
            done = self._buffer.last_step or 0
            saved = saved_adapters(self._storage, spec.node, load_points(self._storage, spec.node))
            return failure_of(spec.node, error, steps_done=done, checkpoints=saved)

    def _doubts(self, spec: PhaseSpec, outcome: PhaseResult) -> tuple[str, ...]:
        golds = validation_golds(self._config.task.dir)
        return phase_doubts(self._storage, spec.node, spec.hyperparameters, outcome.best_step, golds)

    def evaluate(self, adapter: str | None, parquet: str, max_tokens: int) -> tuple[ItemOutcome, ...]:
        """Outcome of each row under greedy decoding. If `adapter` is None, the base model is scored.

        Raises:
            EngineError: the rows could not be scored.
        """
        return self._made_engine().evaluate(adapter, parquet, max_tokens)

    def close(self) -> None:
        """End the engine with all its processes. The next phase starts cold."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def poll(
        self, node: int, attempt: int, cursor: int, wait_s: float = 10.0, gather_s: float = 0.0
    ) -> tuple[tuple[MetricPoint, ...], bool]:
        """Points from number `cursor` on, and whether no more will come (`MetricBuffer.poll`)."""
        return self._buffer.poll((node, attempt), cursor, wait_s, gather_s)

    def stop(self, node: int, attempt: int, reason: str) -> None:
        """End a phase at its next step boundary, or at its first if it has not begun yet. Later calls do not
        change the reason."""
        key = (node, attempt)
        self._stops.setdefault(key, reason)
        engine = self._engine
        if engine is not None and self._buffer.current == key:
            engine.stop(self._stops[key])

    def health(self) -> dict[str, Any]:
        """Health report: process id, search, current phase with its newest values, and the engine's stage
        with the time spent in it."""
        engine = self._engine
        stage = engine.stage() if engine is not None else None
        return {
            "pid": os.getpid(),
            "search": self._config.name,
            "current": self._buffer.current,
            "step": self._buffer.last_step,
            "newest": self._buffer.newest,
            "stage": None if stage is None else dataclasses.asdict(stage),
        }

    def _made_engine(self) -> Engine:
        if self._engine is None:
            from llmzero_ray.engines.registry import make_engine
            from llmzero_ray.prepared import load_task

            log_dir = self._storage.paths.logs / f"slot-{self._slot.index}"
            log_dir.mkdir(parents=True, exist_ok=True)
            task = load_task(self._config.task.dir)
            self._engine = make_engine(self._config, task, self._slot, str(log_dir))
        return self._engine
