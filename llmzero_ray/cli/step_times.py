"""Measured seconds for an estimate: given by the user, from another search, or from this search's doctor."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from llmzero_ray.config import SearchConfig, stored_config
from llmzero_ray.config.changes import differing_keys
from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate import MeasuredTimes, Tokens
from llmzero_ray.records import MetricPoint, PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.records.metrics import STEP_TIME, TESTING_TIME
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.locate import find
from llmzero_ray.storage.metric_files import load_points

DOCTOR_FILE = "doctor.json"
"""File in a search's directory with the findings and measurements of its doctor."""
FORMAT = 1
_COUNTS = ("model.", "root.", "engine.", "task.dir", "slots.nodes", "slots.gpus_per_node", "eval.")
"""Keys on which the duration of a step or of a validation depends."""


def measured(
    config: SearchConfig,
    *,
    seconds_per_step: float | None,
    like: str | None,
    estimated: MeasuredTimes | None = None,
) -> MeasuredTimes:
    """Measured seconds for the estimate: from `seconds_per_step`, otherwise from the search `like`, otherwise
    from this search's doctor, otherwise `estimated`.

    Raises:
        ConfigError: there are none, or the requested ones cannot be used.
        JournalError: the journal of the search `like` is damaged.
    """
    if seconds_per_step is not None:
        if not 0 < seconds_per_step < float("inf"):
            raise ConfigError(f"--seconds-per-step is {seconds_per_step:g}; must be a number > 0 (seconds).")
        return MeasuredTimes(source="--seconds-per-step", step_s=seconds_per_step)
    if like is not None:
        return _of_search(find(like, config.storage), config)
    found = _of_doctor(SearchStorage(config.storage, config.name), config) or estimated
    if found is None:
        raise ConfigError(
            "--dry-run: the length of a training step is not measured yet. Run `llmzero doctor` with the "
            "same configuration on the cluster, which trains two steps a slot and keeps the figures, or give "
            "--like SEARCH (another search's directory) or --seconds-per-step S."
        )
    return found


def step_seconds(points: Sequence[MetricPoint]) -> list[float]:
    """Seconds of each training step of a phase, in order: from VeRL's own timer, otherwise the time between
    points."""
    timed = [point.metrics[STEP_TIME] for point in points if point.step > 0 and STEP_TIME in point.metrics]
    return timed or [later.wall_s - earlier.wall_s for earlier, later in itertools.pairwise(points)]


def validation_seconds(points: Sequence[MetricPoint]) -> list[float]:
    """Seconds of each validation after a step, if VeRL's timer logged them."""
    return [point.metrics[TESTING_TIME] for point in points if TESTING_TIME in point.metrics]


def read_doctor(storage: SearchStorage) -> dict[str, Any] | None:
    """Measurements of the last doctor of a search. None if there are none, or another version wrote them."""
    try:
        found = json.loads((storage.paths.root / DOCTOR_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def _of_doctor(storage: SearchStorage, config: SearchConfig) -> MeasuredTimes | None:
    kept = (read_doctor(storage) or {}).get("measured")
    if not kept:
        return None
    slots = kept["slots"]
    return MeasuredTimes(
        source=str(storage.paths.root / DOCTOR_FILE),
        step_s=max(slot["step_s"] for slot in slots),  # all slots run at once, so the slowest counts
        validation_s=max(slot["validation_s"] for slot in slots),
        cold_start_s=max(slot["startup_s"] for slot in slots),
        notes=_differences(stored_config(kept["config"], source=DOCTOR_FILE), config),
    )


def _of_search(storage: SearchStorage, config: SearchConfig) -> MeasuredTimes:
    follower = Follower.of(storage)
    curves = [load_points(storage, node) for node in follower.core.runs]
    steps = [seconds for points in curves for seconds in step_seconds(points)]
    if not steps:
        raise ConfigError(f"--like {storage.paths.root}: no phase of it has finished a training step.")
    results = [run.outcome for run in follower.core.runs.values() if isinstance(run.outcome, PhaseResult)]
    calls = [
        event for event in follower.events if isinstance(event, ev.AgentCalled) and event.outcome == "ok"
    ]
    return MeasuredTimes(
        source=str(storage.paths.root),
        step_s=statistics.median(steps),
        validation_s=_median(seconds for points in curves for seconds in validation_seconds(points)),
        cold_start_s=_median(result.setup_s for result in results if not result.warm),
        warm_start_s=_median(result.setup_s for result in results if result.warm),
        proposal_s=_median(call.latency_s for call in calls if call.agent == "proposer"),
        tokens={agent: _tokens(calls, agent) for agent in dict.fromkeys(call.agent for call in calls)},
        notes=_differences(follower.core.config, config),
    )


def _tokens(calls: Iterable[ev.AgentCalled], agent: str) -> Tokens:
    own = [call for call in calls if call.agent == agent]
    return Tokens(
        system=statistics.fmean(call.cache_read_tokens + call.cache_creation_tokens for call in own),
        input=statistics.fmean(call.input_tokens for call in own),
        output=statistics.fmean(call.output_tokens for call in own),
    )


def _differences(then: SearchConfig, now: SearchConfig) -> tuple[str, ...]:
    """Differences between the measured run and the search. A model of the Hub is the same in any
    directory."""
    model = now.model.id_on_the_hub
    same = ("model.path", "model.hub_id") if model is not None and model == then.model.id_on_the_hub else ()
    return tuple(
        f"measured with {key}: {old!r}, not {new!r}"
        for key, (old, new) in differing_keys(then, now).items()
        if key.startswith(_COUNTS) and key not in same
    )


def _median(values: Iterable[float]) -> float | None:
    found: list[float] = list(values)
    return statistics.median(found) if found else None
