"""Metrics of phases on disk: written step by step while a phase runs, compacted after its end.

    nodes/0003/parts/000.jsonl         attempt 000, one MetricPoint per line, without items
    nodes/0003/parts/000.items.jsonl   attempt 000, one validated item per line
    nodes/0003/metrics.parquet         all points that count, once the phase has ended
    nodes/0003/val_items.parquet       all validated items that count
    nodes/0003/sampled.json            a few answers that training sampled in the last validated step

A line is written before its point is published. A later attempt replaces an earlier one from its own first
step on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from llmzero_ray.hyperparameters.compute import measured_cost, plus, tokens_of
from llmzero_ray.records import (
    Answer,
    Checkpoint,
    ItemOutcome,
    MetricPoint,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
    ResumeFrom,
    TokenCounts,
)
from llmzero_ray.records.metrics import VAL_TOKENS, Curves, best_validation, curves_of, validations
from llmzero_ray.records.significance import paired
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.files import replace_file, storage_errors

Outcome = TypeVar("Outcome", PhaseResult, PhaseFailure)
_SYNC_S = 0.5
"""Minimum seconds between two syncs to disk, except at validations."""
_FIXED = ("attempt", "step", "global_step", "wall_s", "val_score")


class MetricWriter:
    """Writer of the points of one attempt at a phase. Use it as a context manager.

    Raises:
        StorageError: the node's directory cannot be written.
    """

    def __init__(self, storage: SearchStorage, node: int, attempt: int) -> None:
        self._directory, self._sampled = storage.paths.parts(node), _sampled(storage, node)
        self._attempt = attempt
        self._synced = 0.0
        with storage_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            # If the runner is called again for the same attempt, that starts over.
            self._points: IO[str] = open(_part(self._directory, attempt), "w", encoding="utf-8")  # noqa: SIM115
            self._items: IO[str] = open(_items_part(self._directory, attempt), "w", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._points.close()
        self._items.close()

    def write(self, point: MetricPoint) -> MetricPoint:
        """Write a point to disk and return it without its items and sampled answers.

        Raises:
            StorageError: the disk is full or gone.
        """
        with storage_errors(self._directory):
            for item in point.items:
                self._items.write(json.dumps({"step": point.step, **vars(item)}) + "\n")
            body: dict[str, Any] = {
                "step": point.step,
                "global_step": point.global_step,
                "wall_s": point.wall_s,
            }
            if point.taken_from is not None:
                body["taken_from"] = dataclasses.asdict(point.taken_from)
            self._points.write(
                json.dumps({**body, "val_score": point.val_score, "metrics": dict(point.metrics)}) + "\n"
            )
            self._keep(with_items=bool(point.items))
            if point.sampled:
                replace_file(self._sampled, json.dumps([vars(answer) for answer in point.sampled]))
        return MetricPoint(**{**vars(point), "items": (), "sampled": ()})

    def _keep(self, *, with_items: bool) -> None:
        """Flush the files. Also sync them at validations and after slow steps, because a full checkpoint may
        follow, and after a power cut it must not exist without its point."""
        synced = with_items or time.monotonic() - self._synced >= _SYNC_S
        for file in (self._items, self._points) if with_items else (self._points,):
            file.flush()
            if synced:
                os.fsync(file.fileno())
        if synced:
            self._synced = time.monotonic()


def load_points(storage: SearchStorage, node: int) -> tuple[MetricPoint, ...]:
    """All points of a node that count, in order of steps, without items. A torn last line is skipped."""
    return tuple(_point(node, row) for row in _read_rows(storage, node))


def load_curves(storage: SearchStorage, node: int, *, gains: bool = False) -> Curves:
    """A node's metrics as series for agents and stopping rules. Empty if nothing was logged.

    `gains` adds each validation's paired difference to the phase's start, from the stored outcomes.
    """
    curves = curves_of(load_points(storage, node))
    return dataclasses.replace(curves, val_gains=_val_gains(storage, node, curves)) if gains else curves


def _val_gains(storage: SearchStorage, node: int, curves: Curves) -> tuple[tuple[float, float] | None, ...]:
    items = load_items(storage, node, responses=False)
    start = items.get(0, ())
    differences = (paired(items.get(step, ()), start) for step in curves.val_steps)
    return tuple(None if d is None else (d.gain, d.standard_error) for d in differences)


def load_items(
    storage: SearchStorage, node: int, *, responses: bool = True
) -> dict[int, tuple[ItemOutcome, ...]]:
    """Step -> per-item outcomes of each validation of a node. Without `responses`, the responses are empty,
    which saves reading them from a compacted file."""
    names = ("index", "data_source", "score", "acc", "cut", "pred", *(("response",) if responses else ()))
    rows = _read_item_rows(storage, node, ("attempt", "step", *names))
    found: dict[int, list[ItemOutcome]] = {}
    for row in rows:
        fields = {key: row[key] for key in names if key in row}  # version 0.1 kept fewer
        found.setdefault(row["step"], []).append(ItemOutcome(**fields))
    return {step: tuple(items) for step, items in found.items()}


def load_sampled(storage: SearchStorage, node: int) -> tuple[Answer, ...]:
    """Answers that a node's training sampled in its last validated step. Empty if none are stored."""
    file = _sampled(storage, node)
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else ()
    return tuple(Answer(**row) for row in rows)


def stored_items(storage: SearchStorage, at: ResumeFrom) -> tuple[ItemOutcome, ...]:
    """Per-item outcomes, with responses, of the validation at a node's step. Empty if none are stored."""
    return load_items(storage, at.node).get(at.step, ())


def with_gain(storage: SearchStorage, result: PhaseResult) -> PhaseResult:
    """The result with the paired gain of its best step over its start. Unchanged if the stored outcomes that
    it needs are missing."""
    if result.best_step is None:
        return result
    items = load_items(storage, result.node, responses=False)
    found = paired(items.get(result.best_step, ()), items.get(0, ()))
    if found is None:
        return result
    return dataclasses.replace(result, gain=found.gain, gain_error=found.standard_error)


def with_tokens(storage: SearchStorage, spec: PhaseSpec, outcome: Outcome) -> Outcome:
    """The outcome with its token counts and seconds per token, and each adapter with the tokens up to its
    step."""
    total, at = TokenCounts(), dict[int, TokenCounts]()
    points = load_points(storage, spec.node)
    for point in points:
        total = plus(total, tokens_of(spec.hyperparameters, point.metrics))
        at[point.step] = total
    kept = tuple(dataclasses.replace(one, tokens=at.get(one.step)) for one in outcome.checkpoints)
    cost = measured_cost((spec.hyperparameters, point.metrics) for point in points)
    sampled = [point.metrics[VAL_TOKENS] for point in points if point.metrics.get(VAL_TOKENS) is not None]
    return dataclasses.replace(
        outcome,
        tokens=total,
        val_tokens=statistics.fmean(sampled) if sampled else None,
        cost=cost,
        checkpoints=kept,
    )


def compact(storage: SearchStorage, node: int, attempt: int) -> None:
    """Compact the parts of a phase that ended in `attempt` into metrics.parquet and val_items.parquet.

    Does nothing if a later attempt has begun, because this attempt was then given up.

    Raises:
        StorageError: the files could not be written; the parts are kept.
    """
    directory, parts = storage.paths.node(node), storage.paths.parts(node)
    rows = _read_rows(storage, node)
    if not rows or max(_attempts(parts), default=attempt) > attempt:
        return
    items = _read_item_rows(storage, node)
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    columns = {key: [row[key] for row in rows] for key in _FIXED}
    columns |= {
        name: [_float(row["metrics"].get(name)) for row in rows] for name in names if name not in _FIXED
    }
    write_parquet(directory / "metrics.parquet", columns)
    if items:
        write_parquet(directory / "val_items.parquet", {key: [row[key] for row in items] for key in items[0]})
    for ended in [number for number in _attempts(parts) if number <= attempt]:
        _part(parts, ended).unlink(missing_ok=True)
        _items_part(parts, ended).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a later attempt has begun meanwhile
        parts.rmdir()


def lost_phase(storage: SearchStorage, node: int, reason: str, *, n_gpus: int, attempt: int) -> PhaseFailure:
    """Failure of a phase whose runner was lost, with the results that it saved. Its slot has `n_gpus` GPUs.

    Scores and checkpoints are those of all attempts, wall time and GPU hours those of this attempt only.
    """
    points = load_points(storage, node)
    before = [point.wall_s for point in points if point.attempt < attempt]
    own = [point.wall_s for point in points if point.attempt == attempt]
    wall_s = own[-1] - (before[-1] if before else 0.0) if own else 0.0
    scored = validations(points)
    best = best_validation(scored)
    start = next((point for point in points if point.step == 0), None)
    return PhaseFailure(
        node=node,
        failure_class="resource",
        cause=f"its runner was lost: {reason}",
        log_tail=storage.log_tail(node),
        steps_done=points[-1].step if points else 0,
        best_score=None if best is None else best[1],
        best_step=None if best is None else best[0],
        start_score=None if start is None else start.val_score,
        start_from=None if start is None else start.taken_from,
        checkpoints=saved_adapters(storage, node, points),
        wall_s=max(0.0, wall_s),
        gpu_hours=max(0.0, wall_s) / 3600 * n_gpus,
    )


def saved_adapters(
    storage: SearchStorage, node: int, points: Sequence[MetricPoint]
) -> tuple[Checkpoint, ...]:
    """Adapters of a phase without an outcome. If several attempts reached a step, the adapter is from the one
    whose point counts."""
    attempts = {point.step: point.attempt for point in points}
    return storage.checkpoints(node, validations(points), attempts)


def write_parquet(path: Path, columns: Mapping[str, list[Any]]) -> None:
    """Write columns as one parquet file, atomically.

    Raises:
        StorageError: it could not be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    body = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(columns)), body)
    replace_file(path, body.getvalue().to_pybytes())


def _part(directory: Path, attempt: int) -> Path:
    return directory / f"{attempt:03d}.jsonl"


def _items_part(directory: Path, attempt: int) -> Path:
    return directory / f"{attempt:03d}.items.jsonl"


def _sampled(storage: SearchStorage, node: int) -> Path:
    return storage.paths.node(node) / "sampled.json"


def _attempts(directory: Path) -> list[int]:
    return sorted(
        int(path.name.split(".")[0]) for path in directory.glob("*.jsonl") if ".items." not in path.name
    )


def _read_rows(storage: SearchStorage, node: int) -> list[dict[str, Any]]:
    """Rows of all attempts, compacted or not, without those that a later attempt replaced."""
    parquet, parts = storage.paths.node(node) / "metrics.parquet", storage.paths.parts(node)
    rows = _read_parquet(parquet) if parquet.is_file() else []
    for attempt in _attempts(parts):
        own = [{"attempt": attempt, **row} for row in _lines(_part(parts, attempt))]
        rows = _without(rows, attempt if own else None) + own
    kept: list[dict[str, Any]] = []
    for attempt in sorted({row["attempt"] for row in rows}):
        counts = [row for row in rows if row["attempt"] == attempt]
        kept = [row for row in kept if row["step"] < counts[0]["step"]] + counts
    return kept


def _read_item_rows(
    storage: SearchStorage, node: int, names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Validated items of the rows that count. `names` limits the columns that are read from a compacted
    file."""
    parquet, parts = storage.paths.node(node) / "val_items.parquet", storage.paths.parts(node)
    rows = parquet_rows(parquet, names) if parquet.is_file() else []
    if not (attempts := _attempts(parts)):
        return rows
    for attempt in attempts:
        own = [{"attempt": attempt, **row} for row in _lines(_items_part(parts, attempt))]
        rows = _without(rows, attempt if own else None) + own
    counted = {(row["attempt"], row["step"]) for row in _read_rows(storage, node)}
    return [row for row in rows if (row["attempt"], row["step"]) in counted]


def _without(rows: list[dict[str, Any]], attempt: int | None) -> list[dict[str, Any]]:
    """Rows of all attempts but this one."""
    return [row for row in rows if row["attempt"] != attempt]


def _lines(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:  # there is none, or it has been compacted
        return rows
    for line in text.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break  # torn by a crash; nothing after it was published
    return rows


def parquet_rows(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows of a parquet file, with only the given columns or with all."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:  # `pq.read_table` imports pandas
        rows: list[dict[str, Any]] = file.read(None if columns is None else list(columns)).to_pylist()
    return rows


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    rows = []
    for row in parquet_rows(path):
        metrics = {key: value for key, value in row.items() if key not in _FIXED and value is not None}
        rows.append({**{key: row[key] for key in _FIXED}, "metrics": metrics})
    return rows


def _point(node: int, row: Mapping[str, Any]) -> MetricPoint:
    taken = row.get("taken_from")  # compacted files lack it, but the outcome has it
    return MetricPoint(
        node=node,
        **{key: row[key] for key in (*_FIXED, "metrics")},
        taken_from=None if taken is None else ResumeFrom(**taken),
    )


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def write_items(path: Path, items: Sequence[ItemOutcome]) -> None:
    """Write the per-item outcomes of one evaluation as parquet.

    Raises:
        StorageError: it could not be written.
    """
    names = ("index", "data_source", "score", "acc", "response")
    write_parquet(path, {name: [getattr(item, name) for item in items] for name in names})


def last_points(storage: SearchStorage, node: int, attempt: int) -> tuple[MetricPoint | None, float | None]:
    """(newest point, best validation score so far) of a running attempt, each None if there is none."""
    rows = _lines(_part(storage.paths.parts(node), attempt))
    scores = [row["val_score"] for row in rows if row["step"] > 0 and row["val_score"] is not None]
    return (_point(node, {"attempt": attempt, **rows[-1]}) if rows else None), max(scores, default=None)


def last_written(storage: SearchStorage, node: int) -> float | None:
    """Unix seconds at which a running phase last reported a step. None before the first."""
    return max((part.st_mtime for part in part_stats(storage, node)), default=None)


def part_stats(storage: SearchStorage, node: int) -> list[os.stat_result]:
    """Sizes and times of the files of a running phase. Empty before the first, and after compaction."""
    found: list[os.stat_result] = []
    with contextlib.suppress(FileNotFoundError):  # they are being compacted
        for path in storage.paths.parts(node).glob("*.jsonl"):
            found.append(path.stat())
    return found
