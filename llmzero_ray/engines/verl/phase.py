"""Progress of a phase so far, and the outcome derived from it. Plain values, no VeRL.

It is kept in three places: in the process that embeds VeRL, in the engine (in case that process must be
killed), and in the rolling full checkpoint, so that a retry reports the whole phase.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.errors import EngineError
from llmzero_ray.hyperparameters.compute import ComputeClock
from llmzero_ray.hyperparameters.verl_keys import EXCLUDE_MODULES, LORA_ALPHA, LORA_RANK, TARGET_MODULES
from llmzero_ray.records import (
    Checkpoint,
    FailureClass,
    HyperparameterValue,
    MetricPoint,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
    ResumeFrom,
)
from llmzero_ray.records.metrics import VAL_TOKENS, best_validation
from llmzero_ray.storage.manifests import problem_of


@dataclass
class Progress:
    """Scores, checkpoints and clocks of a phase, including the attempts that it continues."""

    steps_done: int = 0
    scores: dict[int, float] = field(default_factory=dict)
    """Step -> validation score. Step 0 is the score of the phase's start."""
    saved: dict[int, str] = field(default_factory=dict)
    """Step -> directory of each adapter."""
    wall_s: float = 0.0
    """Seconds up to the full checkpoint that this attempt continues from, or 0 without one."""
    train_wall_s: float = 0.0
    """Seconds of `wall_s` since the first training step."""
    compute: float = 0.0
    """Compute in the unit of the phase's limit, or 0 without a limit."""
    val_tokens: float = 0.0
    """Tokens that its last validation sampled, or 0 if none was reported."""
    start_from: ResumeFrom | None = None
    """Node and step at which the score of step 0 was measured, if it was not measured in this phase."""

    @property
    def best(self) -> tuple[int, float] | None:
        """(step, score) of the best validation after step 0 (the earliest one in a tie)."""
        return best_validation(self.scores)

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """All adapters, by step, with their scores."""
        return tuple(
            Checkpoint(step=step, path=path, val_score=self.scores.get(step))
            for step, path in sorted(self.saved.items())
        )

    def saw(self, point: MetricPoint) -> None:
        """Record the metrics of a step."""
        self.steps_done = max(self.steps_done, point.step)
        if point.val_score is not None:
            self.scores[point.step] = point.val_score
        self.val_tokens = point.metrics.get(VAL_TOKENS, self.val_tokens)
        if point.step == 0:
            self.start_from = point.taken_from

    def result(self, spec: PhaseSpec, stop_reason: str) -> PhaseResult:
        """Outcome of a phase that ended. Its times cover earlier attempts; the caller adds this one's."""
        best, scored = self.best, [step for step in self.scores if step > 0]
        return PhaseResult(
            node=spec.node,
            status="early_stopped" if stop_reason.startswith("verdict") else "completed",
            stop_reason=stop_reason,
            steps_done=self.steps_done,
            best_score=best[1] if best else None,
            best_step=best[0] if best else None,
            start_score=self.scores.get(0),
            start_from=self.start_from,
            final_score=self.scores[max(scored)] if scored else None,
            checkpoints=self.checkpoints,
            wall_s=self.wall_s,
            train_wall_s=self.train_wall_s,
            gpu_hours=0.0,
            warm=False,
        )

    def failure(
        self, spec: PhaseSpec, failure_class: FailureClass, cause: str, log_tail: str = ""
    ) -> PhaseFailure:
        """Outcome of a phase that failed."""
        best = self.best
        return PhaseFailure(
            node=spec.node,
            failure_class=failure_class,
            cause=cause,
            log_tail=log_tail,
            steps_done=self.steps_done,
            best_step=best[0] if best else None,
            best_score=best[1] if best else None,
            start_score=self.scores.get(0),
            start_from=self.start_from,
            checkpoints=self.checkpoints,
        )

    def to_state(self) -> dict[str, Any]:
        """The progress as JSON values, for `from_state`."""
        names = {str(step): os.path.basename(path) for step, path in sorted(self.saved.items())}
        return {**dataclasses.asdict(self), "saved": sorted(self.saved), "saved_names": names}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], checkpoint_dir: str) -> Progress:
        """Inverse of `to_state`. Adapters are expected in `checkpoint_dir`, wherever they were saved."""
        names = state["saved_names"]
        return cls(
            steps_done=state["steps_done"],
            scores={int(step): score for step, score in state["scores"].items()},
            saved={step: os.path.join(checkpoint_dir, names[str(step)]) for step in state["saved"]},
            wall_s=state["wall_s"],
            train_wall_s=state["train_wall_s"],
            compute=state.get("compute", 0.0),
            val_tokens=state.get("val_tokens", 0.0),
            start_from=None if state.get("start_from") is None else ResumeFrom(**state["start_from"]),
        )


@dataclass
class PhaseState:
    """One attempt at a phase, for the trainer."""

    spec: PhaseSpec
    emit: Callable[[MetricPoint], None]
    saved: Callable[[Checkpoint], None]
    rolled: Callable[[str], None] = lambda _: None
    """Callback for each full checkpoint that is written but not yet committed."""
    stage: Callable[[str], None] = lambda _: None
    """Callback for each stage that begins."""
    skip: tuple[str, ...] = ()
    stop_asked: Callable[[], str | None] = lambda: None
    """Callback that returns the reason for a requested stop, or None."""
    restore: str | None = None
    """Full checkpoint to continue from."""
    progress: Progress = field(default_factory=Progress)
    began: float = field(default_factory=time.monotonic)
    ready: float | None = None
    train_began: float | None = None
    first_step: int = 1
    """First step that this attempt trains."""
    stop_reason: str | None = None
    clock: ComputeClock | None = None
    """Clock that counts compute towards `spec.compute`. Set when the first step is reported."""

    @property
    def wall_s(self) -> float:
        """Seconds of the whole phase so far, including set-up but not lost time."""
        return self.progress.wall_s + time.monotonic() - self.began

    @property
    def train_wall_s(self) -> float:
        """Seconds of `wall_s` since the first training step began."""
        here = 0.0 if self.train_began is None else time.monotonic() - self.train_began
        return self.progress.train_wall_s + here

    def result(self) -> PhaseResult:
        """Result so far, as known in this process."""
        return dataclasses.replace(
            self.progress.result(self.spec, self.stop_reason or "n_steps"),
            wall_s=self.wall_s,
            train_wall_s=self.train_wall_s,
            setup_s=(self.ready or time.monotonic()) - self.began,
        )

    def take_start(self) -> None:
        """Report the spec's known start score as the validation at step 0."""
        known = self.spec.known_start
        assert known is not None
        point = MetricPoint(
            node=self.spec.node,
            attempt=self.spec.attempt,
            step=0,
            global_step=self.spec.base_step,
            wall_s=self.wall_s,
            metrics={},
            val_score=known.score,
            taken_from=known.source,
        )
        self.progress.saw(point)
        self.emit(point)

    def to_state(self) -> dict[str, Any]:
        """Content of phase.json: the progress, including this attempt's clocks."""
        now = dataclasses.replace(self.progress, wall_s=self.wall_s, train_wall_s=self.train_wall_s)
        return now.to_state()


def refused_adapter(spec: PhaseSpec, progress: Progress) -> PhaseFailure | None:
    """Failure of a phase whose resume checkpoint is damaged. None if it is intact, or there is none."""
    if spec.adapter is None:
        return None
    problem = problem_of(Path(spec.adapter))
    if problem is None:
        return None
    return progress.failure(spec, "config", f"checkpoint {spec.adapter} cannot be used: {problem}")


def spec_for_adapter(like: PhaseSpec, adapter: str, settings: VerlSettings) -> PhaseSpec:
    """`like` with the LoRA rank, alpha and layers that `adapter`, a PEFT folder, was trained with.

    An adapter with another rank or other layers does not fit into the live module, and one with another alpha
    would silently act with another scale.

    Raises:
        EngineError: the folder's adapter_config.json cannot be read.
    """
    path = Path(adapter) / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        own: dict[str, HyperparameterValue] = {
            LORA_RANK: int(config["r"]),
            LORA_ALPHA: int(config["lora_alpha"]),
        }
        targets, excluded = config.get("target_modules"), config.get("exclude_modules")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EngineError(
            f"evaluate: {path} does not give the adapter's rank (r) and lora_alpha: "
            f"{type(error).__name__}: {error}"
        ) from error
    # PEFT replaces all-linear by the names of these layers; another text is kept as it was asked for.
    own[TARGET_MODULES] = targets if isinstance(targets, str) else "all-linear"
    own[EXCLUDE_MODULES] = excluded
    acting = {
        LORA_RANK: settings.lora_rank,
        LORA_ALPHA: settings.lora_alpha,
        TARGET_MODULES: settings.target_modules,
        EXCLUDE_MODULES: None,
        **like.hyperparameters,
    }
    changed = {key: value for key, value in own.items() if acting[key] != value}
    return dataclasses.replace(like, hyperparameters={**like.hyperparameters, **changed}) if changed else like
