"""Messages between the engine (engine.py) and the process with VeRL (driver.py): small picklable values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.records import Checkpoint, ItemOutcome, MetricPoint, PhaseFailure, PhaseResult, PhaseSpec


@dataclass(frozen=True)
class Start:
    """Start VeRL for the cold keys of `spec`."""

    settings: VerlSettings
    spec: PhaseSpec
    n_train: int
    ray_address: str
    runtime_env: dict[str, Any]


@dataclass(frozen=True)
class Ready:
    """Answer to Start."""

    failure: PhaseFailure | None
    lost: bool


@dataclass(frozen=True)
class Run:
    """Train one phase, from the full checkpoint `restore` if given. `skip` names parts that are not
    exchanged, to test that the read-back detects it. With `takes_start`, the spec's known start replaces the
    validation at step 0, provided that the servers are found to serve the policy."""

    spec: PhaseSpec
    run_id: int
    skip: tuple[str, ...] = field(default=())
    restore: str | None = None
    takes_start: bool = False


@dataclass(frozen=True)
class Stop:
    """End run `run_id` at its next step boundary. No-op if it has already ended."""

    reason: str
    run_id: int


@dataclass(frozen=True)
class Metric:
    """One step of the running phase."""

    point: MetricPoint


@dataclass(frozen=True)
class CheckpointSaved:
    """An adapter is complete on disk."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class StageBegan:
    """The running phase or evaluation entered a stage, at the time `at` of `time.monotonic`."""

    name: str
    at: float


@dataclass(frozen=True)
class StageProgressed:
    """The current stage made progress, at the time `at` of `time.monotonic`."""

    at: float


@dataclass(frozen=True)
class FullCheckpointWritten:
    """All files of a full checkpoint are written. It counts once the engine has passed on all earlier metrics
    and committed it."""

    path: str


@dataclass(frozen=True)
class ProcessDied:
    """Last message: a VeRL process died, and the driver ends."""

    what: str


@dataclass(frozen=True)
class Trained:
    """Answer to Run. `usable` says whether the next phase can start warm, `lost` whether a process died
    during the run."""

    outcome: PhaseResult | PhaseFailure
    usable: bool
    lost: bool


@dataclass(frozen=True)
class EvaluateRequest:
    """Score `adapter` on `parquet`. `like` has the rest of the configuration."""

    like: PhaseSpec
    adapter: str | None
    parquet: str
    max_tokens: int


@dataclass(frozen=True)
class Evaluated:
    """Answer to EvaluateRequest."""

    items: tuple[ItemOutcome, ...]
    error: str | None
