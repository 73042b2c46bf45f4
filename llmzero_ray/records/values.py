"""Frozen values that are exchanged between the pure core, the actors, the engine and the disk.

Every record is a keyword-only frozen dataclass of JSON values, tuples and other records. `to_json` gives
plain JSON data with the class name under `"type"`; `from_json` restores the record and rejects unknown
fields. Steps count inside the phase from 0 unless the name says `global`.
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
"""VeRL's dotted config key -> value: the complete configuration of one phase, not a difference."""

NodeKind: TypeAlias = Literal["root", "evolve", "debug", "scratch"]
PhaseStatus: TypeAlias = Literal["completed", "early_stopped", "failed"]
FailureClass: TypeAlias = Literal[
    "oom", "nan", "config", "mismatch", "reward", "engine", "timeout", "resource"
]
"""`oom` out of memory · `nan` a loss, gradient or reward was not finite · `config` VeRL refused the
configuration · `mismatch` effective differs from asked · `reward` the reward could not be started or scored
hardly any answer · `engine` any other exception of VeRL or vLLM · `timeout` did not stop in time ·
`resource` process or node lost twice from the same point."""


# --- phases -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ResumeFrom:
    """A checkpoint: `step` of `node`, counted inside that node's phase."""

    node: int
    step: int


@dataclass(frozen=True, kw_only=True)
class KnownStart:
    """The validation, in an earlier phase, of the policy that a phase starts from."""

    source: ResumeFrom
    """Place where it was measured; step 0 of a phase that started from the base model is the base model."""
    score: float
    on_cpu: bool = False
    """Whether it may be taken over on the CPU too, and not on GPUs alone."""
    val_tokens: float = 0.0
    """Mean tokens that a validation of that phase sampled, or 0 if not known."""


@dataclass(frozen=True, kw_only=True)
class RecordedStop:
    """The end of a phase by a verdict, in the search whose answers are given again."""

    step: int
    """Training steps of the phase until then."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """Tokens that were computed with."""

    rollout: float = 0.0
    """Sampled, in rollouts and validations."""
    trained: float = 0.0
    """Trained on, prompts included, once for each pass of an update."""


@dataclass(frozen=True, kw_only=True)
class TokenCost:
    """Cost of one token: seconds of an engine, or 1 where tokens themselves are counted."""

    rollout: float = 1.0
    trained: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ComputeLimit:
    """Maximum compute of a phase."""

    amount: float
    cost: TokenCost = TokenCost()


@dataclass(frozen=True, kw_only=True)
class PhaseSpec:
    """One validated phase: everything an engine needs to train it, and nothing to decide."""

    search: str
    node: int
    kind: NodeKind
    parent: int | None
    """Node it was created from (None for the root)."""
    resume_from: ResumeFrom | None
    """Checkpoint that it starts from; None if it starts from the base model with a fresh adapter."""
    adapter: str | None = None
    """Directory of the PEFT adapter of `resume_from`; None with it. Like every directory here it is set when
    the phase starts: one that is only planned has none."""
    base_step: int
    """Global step of the resume point; global step = base_step + step."""
    n_steps: int
    """Training steps of this phase."""
    hyperparameters: Hyperparameters
    seed: int
    save_freq: int
    """Steps between adapters kept in any case (new bests and the last step are always saved)."""
    test_freq: int
    """Steps between validations."""
    checkpoint_dir: str = ""
    """Absolute directory that receives adapters, named by `adapter_name` with the attempt."""
    attempt: int = 0
    """Counts repeats after lost hardware."""
    first_attempt: int = 0
    """First attempt with this start and length; those before it were another phase."""
    max_wall_s: float | None = None
    """The phase ends (as completed) at the next step boundary after this many seconds of training."""
    compute: ComputeLimit | None = None
    """Compute at which the phase ends (as completed), with the step nearest to it. None if there is no
    limit."""
    stop_after: RecordedStop | None = None
    """Recorded step at which to end, with its reason. None if no recorded search asks for it."""
    rolling_dir: str | None = None
    """Absolute directory for the one full checkpoint (adapter, optimizer, data position, random states) of
    this attempt, from which a retry after lost hardware continues. None if none is kept. The engine leaves it
    there: it is deleted once the outcome is durable."""
    rolling_freq: int = 0
    """Steps between two full checkpoints, or 0 if none is kept."""
    restore: bool = False
    """Whether to continue from the full checkpoint in `rolling_dir`, or from the start if there is none."""
    known_start: KnownStart | None = None
    """Known scores that may replace the validation at step 0 once the engine has shown that it continues
    checkpoints. None if it is measured."""

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
    """Text that the reward took as the answer; None if the reward does not say."""
    cut: bool | None = None
    """Whether the response ended at the cap, or None if not known."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A prompt with a phase's answer. All texts are untrusted: they come from a data set or a model."""

    prompt: str
    response: str
    score: float
    acc: float
    pred: str | None = None
    """Answer that the reward extracted from the response, or None if the reward does not report it."""
    expected: str | None = None
    """Answer that the row gives as the right one, or None if it is not text."""
    cut: bool = False
    """Whether the response ended at the cap, of validation or of training."""
    step: int | None = None
    """Training step that sampled it, or None for a greedy answer to a validation item."""
    below: tuple[int, str, bool] | None = None
    """(newest phase below this one, its last answer to the same prompt, whether that is right)."""


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
    """Mean accuracy over the validation rows, when this step validated. At step 0 a continuity check, no
    score."""
    items: tuple[ItemOutcome, ...] = ()
    """Per-item validation outcomes; stripped once they are on disk."""
    sampled: tuple[Answer, ...] = ()
    """A few answers that this step trained on, when it validated; stripped once they are on disk."""
    taken_from: ResumeFrom | None = None
    """Checkpoint whose stored validation stands for that of step 0. None if step 0 was validated here."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A saved PEFT adapter: `step` inside the phase, its directory, its validation score if measured."""

    step: int
    path: str
    val_score: float | None = None
    tokens: TokenCounts | None = None
    """Tokens from the phase's start to here, validations included; None if the engine did not count them, or
    if the phase has not ended."""

    @property
    def attempt(self) -> int:
        """The attempt at the phase that saved it, by its directory's name."""
        named = read_adapter_name(os.path.basename(self.path))
        return 0 if named is None else named[1]


def adapter_name(step: int, attempt: int = 0) -> str:
    """Name of an adapter's directory: `step_000120`, of a repeated phase's third attempt `step_000120.002`.

    No two attempts write to one directory: a runner that was given up may still be alive somewhere.
    """
    return f"step_{step:06d}" + (f".{attempt:03d}" if attempt else "")


def read_adapter_name(name: str) -> tuple[int, int] | None:
    """(step, attempt) of a directory named by `adapter_name`, or None if it is not one."""
    match = re.fullmatch(r"step_(\d+)(?:\.(\d+))?", name)
    return None if match is None else (int(match[1]), int(match[2] or 0))


@dataclass(frozen=True, kw_only=True)
class PhaseResult:
    """A phase that came to an end by itself, by a verdict, a cap or a user."""

    node: int
    status: Literal["completed", "early_stopped"]
    stop_reason: str
    """`n_steps`, `verdict: …`, `max_hours`, `compute`, `budget: …` or `user`."""
    steps_done: int
    best_score: float | None
    """Best validation score over the steps executed in this phase (never step 0)."""
    best_step: int | None
    start_score: float | None
    """Validation at step 0: the continuity check, unless `start_from` says that it was taken over."""
    final_score: float | None
    checkpoints: tuple[Checkpoint, ...]
    wall_s: float
    """Seconds from the start of the phase's set-up to its end."""
    train_wall_s: float
    """Seconds of `wall_s` from the beginning of the first training step to the end."""
    gpu_hours: float
    warm: bool
    """Whether the engine's processes were re-used."""
    cold_reason: str | None = None
    """Reason for a cold start (a key, `first phase`, `engine lost`)."""
    setup_s: float = 0.0
    """Seconds from the request until the phase could have taken its first step; the validation at step 0 not
    counted."""
    gain: float | None = None
    """Score of the best step minus that of step 0, over the same rows; None if outcomes were not stored
    row by row."""
    gain_error: float | None = None
    """Standard error of `gain` over the rows, taken pair by pair."""
    tokens: TokenCounts | None = None
    """Tokens of the steps that count; None if the engine did not count them."""
    val_tokens: float | None = None
    """Mean tokens that one of its validations sampled. None if there was none, or none was counted."""
    cost: TokenCost | None = None
    """Seconds per token in its own steps; None if the engine did not time them."""
    start_from: ResumeFrom | None = None
    """Place where `start_score` was measured, if it was taken over. None if this phase measured it."""
    doubts: tuple[str, ...] | None = None
    """Reasons not to believe its score, sentences about its answers (dynamics/answers.py). None if the
    answers were not examined."""


@dataclass(frozen=True, kw_only=True)
class PhaseFailure:
    """A phase that failed: data for the search and for the error analyzer."""

    node: int
    failure_class: FailureClass
    cause: str
    """One line."""
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
    """STOP or CONTINUE with its reason. `rule` names its author (a rule's name or `early_stopper`)."""

    stop: bool
    reason: str
    rule: str
    hard: bool = False
    """Whether it is carried out even while the coordinator cannot be reached (non-finite metrics)."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Resources that the end of a running phase would leave to other phases."""

    steps: int
    """Training steps that are left of the phase."""
    seconds: float | None = None
    """Slot time for these steps in seconds, at the phase's mean so far. None if no step was timed."""
    share: float | None = None
    """Share of the whole budget: of its GPU hours if they are limited and known, otherwise of its runs."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One hyper-parameter changed by a proposal, with the causal reason."""

    key: str
    old: HyperparameterValue
    new: HyperparameterValue
    reason: str


DiagnosisState: TypeAlias = Literal[
    "healthy", "slow", "plateau", "declining", "collapsing", "unstable", "truncated", "doubtful", "inactive",
    "failed", "unknown",
]  # fmt: skip
"""The one word for a run's dynamics."""


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
    """Next phase that an agent wants to train; not validated yet."""

    diagnosis: Diagnosis
    changes: tuple[Change, ...]
    resume_from: ResumeFrom | None
    """Checkpoint to resume, or None for the base model."""
    n_steps: int
    rationale: str
    """Reason why these changes go together, and the passes over the data."""
    total_epochs: int | None = None
    """No effect; proposers of 0.1 had to give it."""
    agent: str = "expert"
    predicted: float | None = None
    """Best validation score that its author expects of the phase, or None if not stated."""


# --- events: what happened. Durable before acted on -------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events. `source`, `attempt`, `sequence` identify a delivery: a repeat is dropped."""

    source: str = "coordinator"
    attempt: int = 0
    sequence: int = 0
    time: float = 0.0
    """Unix seconds when it was written; for displays and budgets, used by no rule."""


R = TypeVar("R")


@cache
def _registry() -> dict[str, tuple[type, frozenset[str]]]:
    """All record classes by name with their field names and "type"; those of other modules included (they
    subclass or are registered)."""
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
"""Fields that version 0.1 wrote and this one leaves out when it reads a record."""


def register_record(cls: type[R]) -> type[R]:
    """Class decorator: make a record of another module readable by `from_json`."""
    _EXTRA.append(cls)
    _registry.cache_clear()
    return cls


def to_json(record: Any) -> Any:
    """Plain JSON data of a record (nested records carry their type), mappings and sequences alike."""
    cls = record.__class__
    if cls in _SCALARS:
        return record
    if dataclasses.is_dataclass(cls) and not isinstance(record, type):
        body = {f.name: to_json(getattr(record, f.name)) for f in dataclasses.fields(record)}
        return {"type": type(record).__name__, **body}
    if isinstance(record, Mapping):
        body = {str(k): to_json(v) for k, v in record.items()}
        # A key of that name would make a record of it, for example in an engine's own overrides.
        return {"type": _MAPPING, "items": list(body.items())} if "type" in body else body
    if isinstance(record, list | tuple):
        return [to_json(v) for v in record]
    number = as_number(record)
    return record if number is None else number


def as_number(value: Any) -> bool | int | float | None:
    """The value as a Python number or bool, or None if it is neither, such as a text.

    Accepted are numbers of numpy, torch and the like, arrays of one element, Decimal and Fraction. NaN stays
    NaN, and values too large for a float become infinite.
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
    """The record that `to_json` wrote; sequences come back as tuples.

    Raises:
        JournalError: the type is unknown, or its fields or their types are not those of this version.
    """
    # Most values are scalars, most containers dicts and lists: asked for first and without a call of their
    # own, a long journal is replayed in half the time.
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
    except TypeError:  # msgspec cannot check a field that holds one of several records
        pass
    except msgspec.ValidationError as error:
        raise JournalError(f"record {name} has a value of another type: {error}") from error
    return found


_MAPPING = "Mapping"
"""Type under which a mapping with a key `type` is written."""
_SCALARS = frozenset({str, int, float, bool, type(None)})
