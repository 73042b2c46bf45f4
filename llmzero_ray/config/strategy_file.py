"""Format of strategy.yaml, for strategies of all kinds of searches.

`read_strategy` gives the strategy of a search on VeRL, or of one under Ray Tune, checked as a file; whether
its hyper-parameters can be trained is checked by `load_strategy` (storage/strategy.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from llmzero_ray.config.yaml_text import AS_TUPLE, StrictModel, expanded, read_yaml, to_yaml, validated
from llmzero_ray.errors import ConfigError
from llmzero_ray.records import NodeKind

TUNE_FORMAT: Literal["tune-1"] = "tune-1"
"""Format of strategies of searches under Ray Tune."""
FORMAT: Literal[1] = 1
"""Format version, raised if an older version could misread a newer file."""

_LORA_RANK = "actor_rollout_ref.model.lora_rank"
_SCHEDULER = "actor_rollout_ref.actor.optim.lr_scheduler_type"
_WARM_UP = "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"


class Source(StrictModel):
    """The checkpoint a phase starts from."""

    phase: int = Field(ge=1)
    """Number of the phase, from 1."""
    step: int = Field(ge=1)
    """Step inside that phase at which it is cut."""


class StrategyChange(StrictModel):
    """A hyper-parameter that differs from the phase before."""

    key: str
    """VeRL's key."""
    old: Any
    new: Any
    reason: str


class StrategyPhase(StrictModel):
    """One phase: everything that trains it again."""

    phase: int = Field(ge=1)
    """Number, from 1."""
    node: int = Field(ge=0)
    """Node of the search that trained it."""
    kind: NodeKind
    resume_from: Source | None
    """Null: the base model with a fresh adapter."""
    base_step: int = Field(ge=0)
    """Global step it starts from."""
    n_steps: int = Field(ge=1)
    """Training steps it was planned for; schedules of the learning rate run over them."""
    cut_step: int = Field(ge=1)
    """Step of it that the strategy keeps: the next phase starts there; of the last one it is the adapter."""
    seed: int = Field(ge=0)
    test_freq: int = Field(ge=1)
    """Training steps between two validations."""
    save_freq: int = Field(ge=1)
    """Training steps between two adapters that are kept."""
    validation_at_start: float | None
    validation_at_cut: float | None
    """Null when that step was not validated."""
    diagnosis: str
    """Observations in the phase it was proposed from; empty for the first."""
    rationale: str
    changes: Annotated[tuple[StrategyChange, ...], AS_TUPLE]
    hyperparameters: dict[str, Any]
    """VeRL's key -> value, complete."""

    @property
    def end_step(self) -> int:
        """Global step at which the strategy leaves this phase."""
        return self.base_step + self.cut_step

    @property
    def steps_to_train(self) -> int:
        """Steps that must be trained to get the policy at the cut: with a constant learning rate only up to
        the cut, because nothing else depends on the planned length."""
        constant = self.hyperparameters.get(_SCHEDULER) == "constant"
        warm_up = self.hyperparameters.get(_WARM_UP) or 0.0
        return self.cut_step if constant and not warm_up else self.n_steps

    @model_validator(mode="after")
    def _consistent(self) -> StrategyPhase:
        if self.cut_step > self.n_steps:
            raise ValueError(
                f"phase {self.phase}: cut_step is {self.cut_step}; must be <= n_steps, which is "
                f"{self.n_steps}."
            )
        return self


class Measured(StrictModel):
    """A mean accuracy; standard error over items, null when their number was not known."""

    mean: float
    standard_error: float | None
    n: int | None
    macro: float | None = None
    """Test split of one of the paper's tasks: the mean over its parts; null elsewhere."""
    macro_error: float | None = None


class Scores(StrictModel):
    """Scores of the three policies on one split. Null if not measured."""

    base: Measured | None
    default_recipe: Measured | None
    best: Measured | None


class Confirmed(StrictModel):
    """The last phase's adapter on fresh validation items, in no split, once the search was over.

    The validation figure to quote: the validation score itself is the highest of many.
    """

    mean: float
    standard_error: float | None
    n: int = Field(ge=1)
    interval: Annotated[tuple[float, float], AS_TUPLE]
    """95 %, over the items alone."""
    among: int = Field(ge=1)
    """Strategies that were confirmed; this is the best of them."""


class Origin(StrictModel):
    """The search that found the strategy."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    seed: int
    state: str
    """`finished`, or the stage it was in when this was written."""
    end_reason: str | None
    runs: int
    """Phases that had an outcome."""


class Setting(StrictModel):
    """Environment of the phases: with another setting the same numbers give another result."""

    eval_max_response_length: int = Field(ge=1)
    """Tokens; of every validation and test score."""
    gpus_per_slot: int = Field(ge=1)
    engine: dict[str, Any]
    """The engine block of the search's configuration, raw VeRL overrides included."""


class Strategy(StrictModel):
    """A strategy: phases one after the other, each starting from a checkpoint of the one before."""

    format: Literal[1]
    search: Origin
    base_model: str = Field(min_length=1)
    task: dict[str, Any]
    """Facts of the task: name, sizes, data sources, hashes of the splits where they were recorded."""
    setting: Setting
    total_steps: int = Field(ge=1)
    """Training steps of all phases, each counted to its cut."""
    scores: dict[Literal["validation", "test"], Scores]
    confirmed: Confirmed | None = None
    """Null: nothing was confirmed (`confirm.k`)."""
    adapter: dict[str, str]
    """File below best/ -> SHA-256; empty when the adapter was not there to be copied."""
    software: dict[str, str]
    phases: Annotated[tuple[StrategyPhase, ...], AS_TUPLE] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_a_chain(self) -> Strategy:
        first = self.phases[0]
        if first.resume_from is not None or first.base_step != 0 or first.phase != 1:
            raise ValueError("phase 1 must start from the base model: resume_from null, base_step 0.")
        for before, phase in pairwise(self.phases):
            expected = Source(phase=before.phase, step=before.cut_step)
            if phase.phase != before.phase + 1 or phase.resume_from != expected:
                raise ValueError(
                    f"phase {phase.phase} (node {phase.node}) must be number {before.phase + 1} and resume "
                    f"from phase {expected.phase}, step {expected.step}: where that one is cut."
                )
            if phase.base_step != before.end_step:
                raise ValueError(
                    f"phase {phase.phase}: base_step is {phase.base_step}; must be {before.end_step}, where "
                    f"phase {before.phase} ends."
                )
        if self.total_steps != self.phases[-1].end_step:
            raise ValueError(
                f"total_steps is {self.total_steps}; must be {self.phases[-1].end_step}, where the last "
                "phase ends."
            )
        return self

    @property
    def lora_rank(self) -> int | None:
        """Rank of its adapters, or None if the file does not say."""
        found = self.phases[0].hyperparameters.get(_LORA_RANK)
        return found if isinstance(found, int) else None

    def to_yaml(self) -> str:
        """The file; `load_strategy` gives the same strategy back."""
        absent = {"confirmed"} if self.confirmed is None else set()
        return _HEADER + to_yaml(self.model_dump(mode="json", exclude=absent))


_HEADER = """\
# A multi-stage training strategy. Phases train one after the other; each starts from the adapter that the
# one before had at its cut_step, with a fresh data order and a fresh optimizer. Steps count inside a
# phase from 0, base_step and total_steps along the whole strategy. Hyper-parameters are VeRL's own keys.
"""


class TuneStrategyPhase(StrictModel):
    """One phase of a strategy that was found under Tune."""

    node: int = Field(ge=0)
    """Node of the search that trained it."""
    trial: str
    """Id of that trial."""
    cut_step: int = Field(ge=1)
    """Results of this phase after which the strategy leaves it."""
    config: dict[str, Any]


class TuneStrategy(StrictModel):
    """The strategy.yaml of a search under Tune."""

    format: Literal["tune-1"]
    metric: str
    mode: Literal["max", "min"]
    value: float
    """Value of the metric at the end of the last phase."""
    phases: Annotated[tuple[TuneStrategyPhase, ...], AS_TUPLE] = Field(min_length=1)

    def to_yaml(self) -> str:
        """The file; `read_strategy` gives the same strategy back."""
        return to_yaml(self.model_dump(mode="json"))


_Kind = TypeVar("_Kind", Strategy, TuneStrategy)


def read_strategy(path: str | Path) -> Strategy | TuneStrategy:
    """The strategy in a file.

    Raises:
        ConfigError: no such file, broken YAML, unknown keys or values out of bounds, or phases that do not
        follow each other.
    """
    path = expanded(path)
    if not path.is_file():
        raise ConfigError(f"strategy file {path} does not exist; name the strategy.yaml of a search.")
    return parse_strategy(read_yaml(path), path.name)


def parse_strategy(data: Mapping[str, Any], source: str) -> Strategy | TuneStrategy:
    """The strategy in the data of a file; `source` opens the messages.

    Raises:
        ConfigError: as `read_strategy`.
    """
    found = data.get("format")
    if found not in (FORMAT, TUNE_FORMAT):
        raise ConfigError(
            f"{source}: format is {found!r}; this version reads {FORMAT}, and {TUNE_FORMAT!r} of searches "
            "under Ray Tune. Write it again with the version that made it, or use that one."
        )
    if found == TUNE_FORMAT:
        return _parsed(TuneStrategy, TuneStrategyPhase, data, source)
    return _parsed(Strategy, StrategyPhase, data, source)


def _parsed(kind: type[_Kind], of_phase: type[StrictModel], data: Mapping[str, Any], source: str) -> _Kind:
    phases = data.get("phases")
    for number, phase in enumerate(phases if isinstance(phases, list) else (), start=1):
        validated(of_phase, phase, f"{source}: phase {number}")  # first, as its messages are nearer
    return validated(kind, data, source)


def of_verl(strategy: Strategy | TuneStrategy, source: str) -> Strategy:
    """The strategy, if it is one of a search on VeRL.

    Raises:
        ConfigError: it was found under Ray Tune.
    """
    if isinstance(strategy, TuneStrategy):
        raise ConfigError(
            f"{source} is the strategy of a search under Ray Tune (format {strategy.format}); train it again "
            "with StrategyRetraining in a Tuner."
        )
    return strategy


def check_rank(found: int | None, lora_rank: int) -> None:
    """Check that a strategy found with adapters of rank `found` is repeated with the same rank. `found` is
    None if its file does not say.

    Raises:
        ConfigError: adapters have another rank.
    """
    if found not in (None, lora_rank):
        raise ConfigError(
            f"model.lora_rank is {lora_rank}; the strategy was found with {found}, and its learning rates "
            f"hold for that rank. Set model.lora_rank to {found}, or repeat another strategy."
        )


def other_model(found: str | None, base_model: str | None) -> str | None:
    """Sentence about a base model other than the one a strategy was `found` on. None if it is the same, or
    one of the two is not known."""
    if found is None or base_model in (None, found):
        return None
    return f"the base model is {base_model}, the strategy's was {found}."
