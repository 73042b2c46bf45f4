"""strategy.yaml: the best strategy of a search as a readable file that can be trained again.

`load_strategy` gives a checked, frozen `Strategy`; `phase_specs` turns it into the phases an engine takes.
Not here: which strategy is the best one (recipe.py), and running it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from llmzero_ray.config_text import StrictModel, read_yaml, to_yaml, validated
from llmzero_ray.errors import ConfigError, HyperparameterError
from llmzero_ray.hyperparameters import check_transition, normalize
from llmzero_ray.hyperparameters.table import LR_SCHEDULER, WARMUP_RATIO
from llmzero_ray.records import Hyperparameters, NodeKind, PhaseSpec, ResumeFrom
from llmzero_ray.storage import SearchPaths

FORMAT: Literal[1] = 1
"""Raised when an older version could misread what a newer one writes."""

_Tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)


class Source(StrictModel):
    """The checkpoint a phase starts from."""

    phase: int = Field(ge=1)
    """Number of the phase, from 1."""
    step: int = Field(ge=1)
    """Step inside that phase: where it is cut."""


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
    """What was seen in the phase it was proposed from; empty for the first."""
    rationale: str
    changes: Annotated[tuple[StrategyChange, ...], _Tuple]
    hyperparameters: dict[str, Any]
    """VeRL's key -> value, complete."""

    @property
    def end_step(self) -> int:
        """Global step at which the strategy leaves this phase."""
        return self.base_step + self.cut_step

    @property
    def steps_to_train(self) -> int:
        """Steps that must be trained to have the policy of the cut: with a constant learning rate no more
        than up to it, as nothing else depends on the planned length."""
        constant = self.hyperparameters.get(LR_SCHEDULER) == "constant"
        warm_up = self.hyperparameters.get(WARMUP_RATIO) or 0.0
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
    """The three policies on one split; null where one was not measured."""

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
    interval: Annotated[tuple[float, float], _Tuple]
    """95 %, over the items alone."""
    among: int = Field(ge=1)
    """Strategies that were confirmed; this is the best of them."""


class Origin(StrictModel):
    """The search that found the strategy."""

    name: str
    seed: int
    state: str
    """`finished`, or the stage it was in when this was written."""
    end_reason: str | None
    runs: int
    """Phases that had an outcome."""


class Setting(StrictModel):
    """What the phases ran in: with another setting the same numbers give another result."""

    eval_max_response_length: int = Field(ge=1)
    """Tokens; of every validation and test score."""
    gpus_per_slot: int = Field(ge=1)
    engine: dict[str, Any]
    """The engine block of the search's configuration, raw VeRL overrides included."""


class Strategy(StrictModel):
    """A recipe: phases one after the other, each starting from a checkpoint of the one before."""

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
    phases: Annotated[tuple[StrategyPhase, ...], _Tuple] = Field(min_length=1)

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

    def to_yaml(self) -> str:
        """The file; `load_strategy` gives the same strategy back."""
        # Older versions read a strategy without a confirmed score as ever.
        absent = {"confirmed"} if self.confirmed is None else set()
        return _HEADER + to_yaml(self.model_dump(mode="json", exclude=absent))


_HEADER = """\
# A multi-stage training recipe. Phases train one after the other; each starts from the adapter that the
# one before had at its cut_step, with a fresh optimizer and data order. Steps count inside a phase from 0,
# base_step and total_steps along the whole recipe. Hyper-parameters are VeRL's own keys.
"""


def load_strategy(path: str | Path) -> Strategy:
    """The strategy in a file.

    Raises:
        ConfigError: no such file, broken YAML, unknown keys or values out of bounds, or phases that do not
        follow each other.
    """
    path = Path(path)
    source = path.name
    data = read_yaml(path)
    if data.get("format") != FORMAT:
        raise ConfigError(
            f"{source}: format is {data.get('format')!r}; this version reads {FORMAT}. Write it again "
            "with the version that made it, or use that one."
        )
    phases = data.get("phases")
    for number, phase in enumerate(phases if isinstance(phases, list) else (), start=1):
        validated(StrategyPhase, phase, f"{source}: phase {number}")  # first, as its messages are nearer
    strategy = validated(Strategy, data, source)
    _check_hyperparameters(strategy, source)
    return strategy


def _check_hyperparameters(strategy: Strategy, source: str) -> None:
    before: Hyperparameters | None = None
    for phase in strategy.phases:
        try:
            typed = normalize(phase.hyperparameters)
            if before is not None:
                check_transition(before, typed, resumed=True)
        except HyperparameterError as error:
            raise ConfigError(f"{source}: phase {phase.phase}: {error}") from error
        before = typed


def phase_specs(strategy: Strategy, root: str | Path, name: str) -> tuple[PhaseSpec, ...]:
    """The phases as an engine takes them, their files below `root`: phase 1 is node 0, and so on.

    Each trains for its `n_steps` as in the search and keeps the adapter of its `cut_step` on the way; it may
    be stopped after that step.
    """
    paths = SearchPaths(root=Path(root).absolute())
    return tuple(_spec(phase, paths, name) for phase in strategy.phases)


def _spec(phase: StrategyPhase, paths: SearchPaths, name: str) -> PhaseSpec:
    node, source = phase.phase - 1, phase.resume_from
    resume = None if source is None else ResumeFrom(node=source.phase - 1, step=source.step)
    return PhaseSpec(
        search=name,
        node=node,
        kind="root" if resume is None else "evolve",
        parent=None if resume is None else resume.node,
        resume_from=resume,
        adapter=None if resume is None else str(paths.adapter(resume.node, resume.step)),
        base_step=phase.base_step,
        n_steps=phase.n_steps,
        hyperparameters=normalize(phase.hyperparameters),
        seed=phase.seed,
        save_freq=phase.save_freq,
        test_freq=phase.test_freq,
        checkpoint_dir=str(paths.checkpoints(node)),
    )


def plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Values as YAML writes them: lists for tuples."""
    return {str(key): _plain(value) for key, value in mapping.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain(value)
    return [_plain(member) for member in value] if isinstance(value, list | tuple) else value
