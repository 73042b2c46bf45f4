"""Frozen values that are exchanged between the pure core, the actors, the engine and the disk.

Every record is a keyword-only frozen dataclass of JSON values, tuples and other records. `to_json` gives
plain JSON data with the class name under `"type"`; `from_json` restores the record and rejects unknown
fields. Steps count from 0 inside the phase, unless the name says `global`.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from llmzero_ray.errors import JournalError

HyperparameterValue: TypeAlias = bool | int | float | str | None | tuple[float, ...]
Hyperparameters: TypeAlias = Mapping[str, HyperparameterValue]
"""VeRL's dotted config key -> value: the complete configuration of one phase, not just its changes."""

NodeKind: TypeAlias = Literal["root", "evolve", "debug", "scratch"]
PhaseStatus: TypeAlias = Literal["completed", "early_stopped", "failed"]
FailureClass: TypeAlias = Literal[
    "oom", "nan", "config", "mismatch", "reward", "engine", "timeout", "resource"
]
"""`oom`: out of memory · `nan`: a loss, gradient or reward was not finite · `config`: VeRL refused the
configuration · `mismatch`: the effective configuration differs from the requested one · `reward`: the reward
could not be started or scored hardly any answer · `engine`: any other exception of VeRL or vLLM · `timeout`:
it did not stop in time · `resource`: its process or node was lost."""


# --- phases -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ResumeFrom:
    """A checkpoint: `step` of `node`, counted inside that node's phase."""

    node: int
    step: int


@dataclass(frozen=True, kw_only=True)
class KnownStart:
    """Score that an earlier phase measured for the policy that a phase starts from."""

    source: ResumeFrom
    """Node and step at which it was measured. For the base model, step 0 of a phase that started from it."""
    score: float
    on_cpu: bool = False
    """Whether it may also be reused on the CPU, not only on GPUs."""
    val_tokens: float = 0.0
    """Mean tokens that a validation of that phase sampled, or 0 if not known."""


@dataclass(frozen=True, kw_only=True)
class RecordedStop:
    """Stop of a phase by a verdict in the recorded search that is repeated."""

    step: int
    """Training steps of the phase until the stop."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """Tokens that a phase processed."""

    rollout: float = 0.0
    """Tokens sampled in rollouts and validations."""
    trained: float = 0.0
    """Tokens trained on, including prompts, once for each pass of an update."""


@dataclass(frozen=True, kw_only=True)
class TokenCost:
    """Cost of one token: seconds of an engine, or 1 if tokens themselves are counted."""

    rollout: float = 1.0
    trained: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ComputeLimit:
    """Maximum compute of a phase."""

    amount: float
    cost: TokenCost = TokenCost()


@dataclass(frozen=True, kw_only=True)
class PhaseSpec:
    """One validated phase: everything that an engine needs to train it, with no decision left open."""

    search: str
    node: int
    kind: NodeKind
    parent: int | None
    """Node it was created from (None for the root)."""
    resume_from: ResumeFrom | None
    """Checkpoint that it starts from. None if it starts from the base model with a new adapter."""
    adapter: str | None = None
    """Directory of the PEFT adapter of `resume_from`. None without `resume_from`. Like all directories here,
    it is set only when the phase starts."""
    base_step: int
    """Global step of the resume point: global step = base_step + step."""
    n_steps: int
    """Training steps of this phase."""
    hyperparameters: Hyperparameters
    seed: int
    save_freq: int
    """Steps between two saved adapters. New bests and the last step are always saved."""
    test_freq: int
    """Steps between validations."""
    checkpoint_dir: str = ""
    """Absolute directory for adapters, which `adapter_name` names by step and attempt."""
    attempt: int = 0
    """Number of the attempt, from 0. Each start after lost hardware or an interruption is a new attempt."""
    first_attempt: int = 0
    """First attempt with this start and length. Earlier ones trained another phase."""
    max_wall_s: float | None = None
    """The phase ends (as completed) at the next step boundary after this many seconds of training."""
    compute: ComputeLimit | None = None
    """Compute at which the phase ends (as completed), at the step nearest to it. None if there is no
    limit."""
    stop_after: RecordedStop | None = None
    """Recorded step at which to end, with its reason. None if no recorded search stopped here."""
    rolling_dir: str | None = None
    """Absolute directory for the full checkpoint (adapter, optimizer, data position, random states) of this
    attempt, from which a retry after lost hardware continues. None if none is kept. The engine does not
    delete it; that happens once the outcome is durable."""
    rolling_freq: int = 0
    """Steps between two full checkpoints, or 0 if none is kept."""
    restore: bool = False
    """Whether to continue from the full checkpoint in `rolling_dir`, or from the start if there is none."""
    known_start: KnownStart | None = None
    """Known score that replaces the validation at step 0, once the engine has shown that it continues
    checkpoints correctly. None if step 0 must be validated."""

    def adapter_dir(self, step: int) -> str:
        """Directory for the adapter of this attempt after `step`."""
        return os.path.join(self.checkpoint_dir, adapter_name(step, self.attempt))


@dataclass(frozen=True, kw_only=True)
class ItemOutcome:
    """One row of a data set, answered once by a policy."""

    index: int
    data_source: str
    score: float
    acc: float
    response: str = ""
    pred: str | None = None
    """Answer that the reward extracted from the response, or None if the reward does not report it."""
    cut: bool | None = None
    """Whether the response ended at the cap, or None if not known."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A prompt with a phase's answer. All texts come from a data set or a model and are untrusted."""

    prompt: str
    response: str
    score: float
    acc: float
    pred: str | None = None
    """Answer that the reward extracted from the response, or None if the reward does not report it."""
    expected: str | None = None
    """Right answer according to the row, or None if it is not text."""
    cut: bool = False
    """Whether the response ended at the length cap of validation or training."""
    step: int | None = None
    """Training step that sampled it, or None for a greedy answer to a validation item."""
    below: tuple[int, str, bool] | None = None
    """(node of the newest phase below this one, its last answer to the same prompt, whether it is right)."""


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """Metrics of one training step (or of the validation at step 0), under VeRL's names."""

    node: int
    attempt: int
    step: int
    global_step: int
    wall_s: float
    """Seconds since the phase began to train."""
    metrics: Mapping[str, float]
    val_score: float | None = None
    """Mean accuracy over the validation rows, if this step was validated. At step 0 it is a continuity check
    and not a score of the phase."""
    items: tuple[ItemOutcome, ...] = ()
    """Per-item validation outcomes. Removed once they are on disk."""
    sampled: tuple[Answer, ...] = ()
    """A few answers that this step trained on, if it was validated. Removed once they are on disk."""
    taken_from: ResumeFrom | None = None
    """Checkpoint whose stored validation replaces that of step 0. None if step 0 was validated here."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A saved PEFT adapter, with its validation score if that was measured."""

    step: int
    path: str
    val_score: float | None = None
    tokens: TokenCounts | None = None
    """Tokens from the phase's start to this step, including validations. None if the engine did not count
    them, or the phase has not ended."""

    @property
    def attempt(self) -> int:
        """Attempt at the phase that saved it, according to the directory's name."""
        named = read_adapter_name(os.path.basename(self.path))
        return 0 if named is None else named[1]


def adapter_name(step: int, attempt: int = 0) -> str:
    """Name of an adapter's directory: `step_000120`, or `step_000120.002` for the third attempt at a phase.

    Each attempt has its own directories, because the runner of a given-up attempt may still be alive.
    """
    return f"step_{step:06d}" + (f".{attempt:03d}" if attempt else "")


def read_adapter_name(name: str) -> tuple[int, int] | None:
    """(step, attempt) of a directory named by `adapter_name`, or None if it is not one."""
    match = re.fullmatch(r"step_(\d+)(?:\.(\d+))?", name)
    return None if match is None else (int(match[1]), int(match[2] or 0))


@dataclass(frozen=True, kw_only=True)
class PhaseResult:
    """Outcome of a phase that ended at its length, by a verdict, at a limit, or by the user."""

    node: int
    status: Literal["completed", "early_stopped"]
    stop_reason: str
    """`n_steps`, `verdict: …`, `max_hours`, `compute`, `budget: …` or `user`."""
    steps_done: int
    best_score: float | None
    """Best validation score over the steps of this phase, without step 0."""
    best_step: int | None
    start_score: float | None
    """Validation score at step 0: the continuity check, or the stored score of `start_from`."""
    final_score: float | None
    checkpoints: tuple[Checkpoint, ...]
    wall_s: float
    """Seconds from the start of the phase's setup to its end."""
    train_wall_s: float
    """Seconds from the start of the first training step to the end."""
    gpu_hours: float
    warm: bool
    """Whether the engine's processes were reused."""
    cold_reason: str | None = None
    """Reason for a cold start (a key, `first phase`, `engine lost`)."""
    setup_s: float = 0.0
    """Seconds from the request until the phase was ready for its first step, without the validation at step
    0."""
    gain: float | None = None
    """Score of the best step minus that of step 0, over the same rows. None if outcomes were not stored row
    by row."""
    gain_error: float | None = None
    """Standard error of `gain`, paired by row."""
    tokens: TokenCounts | None = None
    """Tokens of the steps that count. None if the engine did not count them."""
    val_tokens: float | None = None
    """Mean tokens that one of its validations sampled. None if there was none, or none was counted."""
    cost: TokenCost | None = None
    """Seconds per token in its own steps. None if the engine did not time them."""
    start_from: ResumeFrom | None = None
    """Node and step at which `start_score` was measured, if another phase did. None if this phase did."""
    doubts: tuple[str, ...] | None = None
    """Reasons not to trust its score, as sentences about its answers (dynamics/answers.py). None if the
    answers were not checked."""


@dataclass(frozen=True, kw_only=True)
class PhaseFailure:
    """Outcome of a phase that failed."""

    node: int
    failure_class: FailureClass
    cause: str
    """Cause in one line."""
    log_tail: str
    steps_done: int = 0
    best_score: float | None = None
    best_step: int | None = None
    start_score: float | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    wall_s: float = 0.0
    gpu_hours: float = 0.0
    warm: bool = False
    cold_reason: str | None = None
    tokens: TokenCounts | None = None
    """Same as `PhaseResult.tokens`."""
    val_tokens: float | None = None
    """Same as `PhaseResult.val_tokens`."""
    cost: TokenCost | None = None
    """Same as `PhaseResult.cost`."""
    start_from: ResumeFrom | None = None
    """Same as `PhaseResult.start_from`."""


# --- decisions of agents and rules ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StopDecision:
    """STOP or CONTINUE with its reason. `rule` is the name of the rule that decided, or `early_stopper`."""

    stop: bool
    reason: str
    rule: str
    hard: bool = False
    """Whether it applies even while the coordinator cannot be reached, as for non-finite metrics."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Resources that stopping a running phase would free for other phases."""

    steps: int
    """Remaining training steps of the phase."""
    seconds: float | None = None
    """Seconds of slot time for these steps, at the phase's mean so far. None if no step was timed."""
    share: float | None = None
    """Share of the whole budget: of the compute or else the GPU hours, if limited and known, otherwise of the
    runs."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Change of one hyper-parameter in a proposal, with the reason for it."""

    key: str
    old: HyperparameterValue
    new: HyperparameterValue
    reason: str


DiagnosisState: TypeAlias = Literal[
    "healthy", "slow", "plateau", "declining", "collapsing", "unstable", "truncated", "doubtful", "inactive",
    "failed", "unknown",
]  # fmt: skip
"""One word for a run's training dynamics."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """An agent's assessment of a run's dynamics."""

    state: DiagnosisState
    summary: str
    """One to three sentences for reports."""
    evidence: tuple[str, ...] = ()
    """One fact per entry, with numbers: `actor/kl_loss 0.02 -> 0.31 (x15) over steps 8-20`."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Next phase that an agent wants to train, not validated yet."""

    diagnosis: Diagnosis
    changes: tuple[Change, ...]
    resume_from: ResumeFrom | None
    """Checkpoint to resume from, or None for the base model."""
    n_steps: int
    rationale: str
    """Why these changes go together, and how often the phase passes over the data."""
    total_epochs: int | None = None
    """Ignored. Version 0.1 required it."""
    agent: str = "expert"
    predicted: float | None = None
    """Best validation score that the agent expects of the phase, or None if not stated."""


# --- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events. `source`, `attempt` and `sequence` identify a delivery; repeats are dropped."""

    source: str = "coordinator"
    attempt: int = 0
    sequence: int = 0
    time: float = 0.0
    """Unix seconds at which it was written. Used by displays and budgets, never by rules."""


R = TypeVar("R")


@cache
def _registry() -> dict[str, tuple[type, frozenset[str]]]:
    """Name -> (class, its field names and "type") of all records: those of this module, subclasses of
    `Event`, and registered ones."""
    found: dict[str, type] = {}
    todo: list[type] = [Event, *_EXTRA]
    while todo:
        cls = todo.pop()
        found[cls.__name__] = cls
        todo.extend(cls.__subclasses__())
    for value in list(globals().values()):
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            found[value.__name__] = value
    return {
        name: (cls, frozenset(f.name for f in dataclasses.fields(cls)) | {"type"})
        for name, cls in found.items()
    }


_EXTRA: list[type] = []
_RETIRED = {
    "Budget": frozenset({"max_share"}),
    "Proposed": frozenset({"prefetched"}),
    "ProposalRefused": frozenset({"price"}),
    "ProposalRequest": frozenset({"lessons"}),
    "TaskView": frozenset({"carries_optimizer"}),
}
"""Fields that version 0.1 or a recorded search of benchmarks/suite holds, and this one leaves out when it
reads a record."""


def register_record(cls: type[R]) -> type[R]:
    """Class decorator that makes a record of another module readable by `from_json`."""
    _EXTRA.append(cls)
    _registry.cache_clear()
    return cls


def to_json(record: Any) -> Any:
    """Plain JSON data of a record, mapping or sequence. Nested records keep their type."""
    cls = record.__class__
    if cls in _SCALARS:
        return record
    if dataclasses.is_dataclass(cls) and not isinstance(record, type):
        body = {f.name: to_json(getattr(record, f.name)) for f in dataclasses.fields(record)}
        return {"type": type(record).__name__, **body}
    if isinstance(record, Mapping):
        body = {str(k): to_json(v) for k, v in record.items()}
        # A mapping with a key "type", such as an engine's own overrides, would be read as a record.
        return {"type": _MAPPING, "items": list(body.items())} if "type" in body else body
    if isinstance(record, list | tuple):
        return [to_json(v) for v in record]
    number = as_number(record)
    return record if number is None else number


def as_number(value: Any) -> bool | int | float | None:
    """The value as a Python number or bool, or None if it is neither, such as text.

    Accepts numbers of numpy, torch and the like, arrays of one element, Decimal and Fraction. NaN stays NaN,
    and values too large for a float become infinite.
    """
    if not isinstance(value, Real | Decimal):
        try:
            value = value.item()
        except (AttributeError, RuntimeError, TypeError, ValueError):  # several elements, or something else
            return None
    if isinstance(value, bool):
        return value
    if not isinstance(value, Real | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    except ValueError:  # a signalling NaN
        return math.nan
    return int(value) if isinstance(value, Integral) else number


def from_json(data: Any) -> Any:
    """Restore a record from the data of `to_json`. Sequences become tuples.

    Raises:
        JournalError: the type is unknown, or its fields or their types are not those of this version.
    """
    # Most values are scalars, and most containers dicts and lists. Checking for these first, without a
    # function call, halves the time to replay a long journal.
    if data.__class__ is not dict:
        if data.__class__ is list or isinstance(data, list | tuple):
            return tuple([v if v.__class__ in _SCALARS else from_json(v) for v in data])
        if not isinstance(data, Mapping):
            return data
    values = {k: v if v.__class__ in _SCALARS else from_json(v) for k, v in data.items()}
    if "type" not in values:
        return values
    name = values["type"]
    if name == _MAPPING:
        try:
            return dict(values["items"])
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"a mapping cannot be read: {error}") from error
    if not isinstance(name, str):
        raise JournalError(f"a record's type is {name!r}; must be a text")
    cls, known = _registry().get(name, (None, frozenset[str]()))
    if cls is None:
        raise JournalError(f"record type {name!r} is unknown to this version")
    if not values.keys() <= known | _RETIRED.get(name, frozenset()):
        raise JournalError(f"record {name} has unknown fields {sorted(values.keys() - known)}")
    del values["type"]
    for retired in _RETIRED.get(name, ()):
        values.pop(retired, None)
    try:
        found = cls(**values)
    except TypeError as error:
        raise JournalError(f"record {name} is incomplete: {error}") from error
    try:
        msgspec.convert(values, cls)
    except TypeError:  # msgspec cannot check a field that allows several record types
        pass
    except msgspec.ValidationError as error:
        raise JournalError(f"record {name} has a value of another type: {error}") from error
    return found


_MAPPING = "Mapping"
"""Type name under which a mapping with a key `type` is written."""
_SCALARS = frozenset({str, int, float, bool, type(None)})
