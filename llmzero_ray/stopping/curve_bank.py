"""The curve bank: completed phases that decide the clear cases of early stopping before the agent is called.

CONTINUE is clear where stopping would be a guess: too little is known, the run leads or keeps up with a run
that won, something announces a take-off, or a phase in the bank gained as much as is missing from the same
level and age. STOP is clear only by overwhelming evidence of the bank, and only where it is allowed. All else
is left to the agent. The run's own trend never stops it: extrapolation stopped nearly every eventual winner.

Only phases that ran to their end are banked. One that was stopped shows a part chosen for looking bad: as
evidence against its likes it would only repeat the judgement that stopped it. So the bank knows the better
phases better, and errs towards CONTINUE.

Not here: when to decide (policy.py), pathologies of train metrics (signals.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmzero_ray.agents.base import NodeView, StopRequest
from llmzero_ray.agents.dynamics import Dynamics, Validation, fit, observe
from llmzero_ray.agents.expert.early_stopper import best_score, takes_off
from llmzero_ray.agents.observations import stands_still
from llmzero_ray.metrics import Series

FEWEST_VALIDATIONS = 2
"""Validations, the one at the phase's start included, below which a trajectory is not judged."""
FEWEST_PHASES = 8
"""Comparable phases below which the bank stops nothing. Were all phases of one kind, the next one would beat
the best of n with chance 1 / (n + 1): about 0.11 at 8, before the factor and the margins below."""
GENEROSITY = 1.3
"""Factor on the best banked gain that a run is granted before the bank stops it."""
OLD = 0.6
"""Share of its steps before which the bank stops no phase."""
LIKELY = 0.5
"""Share of the comparable banked phases, 2 at least, that must have gained what is missing for CONTINUE."""

Answer = Literal["continue", "stop", "ask"]
Points = tuple[tuple[int, float], ...]
"""(step, validation score), in order."""


@dataclass(frozen=True, kw_only=True)
class BankedPhase:
    """A completed phase: its validations in its own steps, the start (step 0) first where it was measured."""

    base_step: int
    n_steps: int
    """Steps that were trained."""
    points: Points

    @property
    def best(self) -> float:
        """Best score of the phase, its start excluded."""
        return max(score for step, score in self.points if step > 0)

    def gains(self, *, level: float, band: float, since: int, left: int) -> list[BankedGain]:
        """Gain within `left` steps of each validation near `level` (within `band`), from step `since` on."""
        return [
            BankedGain(
                gain=max(
                    0.0,
                    max((s for at, s in self.points[i + 1 :] if at - step <= left), default=score) - score,
                ),
                whole=self.n_steps - step >= left,
            )
            for i, (step, score) in enumerate(self.points)
            if step >= since and abs(score - level) <= band and step < self.n_steps
        ]


@dataclass(frozen=True, kw_only=True)
class BankedGain:
    """The most that validation rose above a point of a banked curve."""

    gain: float
    whole: bool
    """Whether the phase lasted as long as the run has left; a shorter one gives a lower bound."""


@dataclass(frozen=True, kw_only=True)
class BankDecision:
    """Decision of the bank on a running phase."""

    answer: Answer
    reason: str
    category: str
    """The kind of reason, one word or two: for counting."""


class CurveBank:
    """Completed phases of a search, and of earlier searches of the same task if they are added.

    `n_val` (validation items) gives the noise of scores.
    """

    def __init__(self, *, n_val: int = 500) -> None:
        self._n_val = n_val
        self._phases: Mapping[tuple[str, int], BankedPhase] = {}

    def __len__(self) -> int:
        return len(self._phases)

    def add(self, view: NodeView, search: str = "") -> bool:
        """Bank a phase that ran to its end; False (and nothing changes) for any other, and without a score.

        A phase added again under the same search and node replaces itself. Earlier searches belong here only
        if task, base model and validation set are the same: scores must be comparable.
        """
        phase = _banked(view) if view.status == "completed" else None
        if phase is None:
            return False
        # A new mapping: `judge` may be reading the old one on another thread.
        self._phases = {**self._phases, (search, view.node): phase}
        return True

    def judge(self, request: StopRequest, *, may_stop: bool = False) -> BankDecision:
        """CONTINUE or STOP in a clear case, else `ask`; never STOP without `may_stop`."""
        running = request.running
        d = observe(running.curves, running.hyperparameters, n_val=self._n_val)
        target = best_score(request)
        if target is None:
            return _continue("no target", "there is no score to beat yet")
        v = d.validation
        steps = () if v is None else v.steps if v.start is None else (0, *v.steps)
        if v is None or len(steps) < FEWEST_VALIDATIONS:
            return _continue("too early", f"{len(steps)} validations, its start included: too few to judge")
        left = running.n_steps - d.last_step
        if left <= steps[-1] - steps[-2]:
            return _continue("last check", f"its last validation is {max(0, left)} steps away")
        if stands_still(d):
            return BankDecision(answer="ask", reason="nothing moves", category="dead")
        clear = (
            _leads(v, target)
            or _announces(d)
            or self._keeps_up(running, request.incumbent_path, v, target)
            or _within_pace(v, left, target)
        )
        return clear or self._by_precedent(running.n_steps, d, v, target, may_stop=may_stop)

    def _keeps_up(self, running: NodeView, path: Points, v: Validation, target: float) -> BankDecision | None:
        """CONTINUE for a run that gains, and is where a winner was at this global step.

        A winner is a path that got to the target within the steps that the run has left.
        """
        at, end = running.base_step + v.steps[-1], running.base_step + running.n_steps
        level = target - v.margin
        winners = [p for p in (path, *map(_globally, self._phases.values())) if _reaches(p, level, end)]
        scores = [score for winner in winners if (score := _score_at(winner, at)) is not None]
        if not scores or v.last < min(scores) or not _gains(v):
            return None
        comparison = f"{v.last:.3f} against {min(scores):.3f} at global step {at}"
        return _continue(
            "keeps up", f"it gains and is not behind a run that then reached {level:.3f} ({comparison})"
        )

    def _by_precedent(
        self, n_steps: int, d: Dynamics, v: Validation, target: float, *, may_stop: bool
    ) -> BankDecision:
        """CONTINUE where banked phases gained what is missing, STOP where none came near it, else `ask`."""
        level, left = max(v.scores[-2:]), n_steps - d.last_step
        missing = target - level
        # From half of the run's age on: the fast gains of first steps are no precedent for late ones.
        per_phase = [
            phase.gains(level=level, band=2 * v.margin, since=d.last_step // 2, left=left)
            for phase in self._phases.values()
        ]
        known = [gains for gains in per_phase if gains]
        best = max((g.gain for gains in known for g in gains), default=0.0)
        enough = sum(any(g.gain >= missing for g in gains) for gains in known)
        comparison = (
            f"{missing:.3f} is missing in {left} steps from {level:.3f}; {enough} of {len(known)} banked"
        )
        comparison += f" phases gained that much from there, the best {best:.3f}"
        if enough >= LIKELY * len(known) and enough >= 2:
            return _continue("precedent", comparison)
        lasting = sum(any(g.whole for g in gains) for gains in known)
        old = d.last_step >= OLD * n_steps
        far = GENEROSITY * best + 2 * v.se + v.margin < missing
        if may_stop and old and far and lasting >= FEWEST_PHASES:
            return BankDecision(answer="stop", reason=comparison, category="hopeless")
        return BankDecision(answer="ask", reason=comparison, category="ask")


def _banked(view: NodeView) -> BankedPhase | None:
    curves = view.curves
    scored = zip(curves.val_steps, curves.val_scores, strict=True)
    pairs = [(step, score) for step, score in scored if step > 0 and math.isfinite(score)]
    if not pairs:
        return None
    start = curves.start_score
    known = [(0, start)] if start is not None and math.isfinite(start) else []
    last = max((*curves.steps, pairs[-1][0]))
    return BankedPhase(base_step=view.base_step, n_steps=last, points=(*known, *pairs))


def _globally(phase: BankedPhase) -> Points:
    return tuple((phase.base_step + step, score) for step, score in phase.points)


def _reaches(path: Points, level: float, end: int) -> bool:
    return any(score >= level for step, score in path if step <= end)


def _continue(category: str, reason: str) -> BankDecision:
    return BankDecision(answer="continue", reason=reason, category=category)


def _leads(v: Validation, target: float) -> BankDecision | None:
    return _continue("leads", f"it already beats {target:.3f} with {v.best:.3f}") if v.best > target else None


def _announces(d: Dynamics) -> BankDecision | None:
    announced = takes_off(d)
    return _continue("take-off", announced) if announced else None


def _score_at(path: Points, global_step: int) -> float | None:
    """The last score at or before a global step; None outside the path."""
    before = [score for step, score in path if step <= global_step]
    return before[-1] if before and path[-1][0] >= global_step else None


def _gains(v: Validation) -> bool:
    """Whether validation has risen in this phase and lately, by more than a fourth of what counts."""
    before = v.start if v.start is not None else v.scores[0]
    return v.last - before > v.margin / 2 and v.recent_gain > 0


def _within_pace(v: Validation, left: int, target: float) -> BankDecision | None:
    """CONTINUE for a run whose fitted pace, not only the good end of its error, leads to the target."""
    steps = (0, *v.steps) if v.start is not None else v.steps
    scores = (v.start, *v.scores) if v.start is not None else v.scores
    rate = fit(Series("validation", steps, scores)).slope
    if rate <= 0 or max(v.scores[-2:]) + rate * left < target:
        return None
    return _continue("within reach", f"at {rate:+.4f} a step it may reach {target:.3f} in {left} more")
