"""Proposers for any space of hyper-parameters: random steps and random draws, without a diagnosis.

They only know the space, so progress comes from the search's choice of the phase to continue. Equal requests
give equal proposals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence

from llmzero_ray.agents.expert.perturbation import Dimension
from llmzero_ray.agents.expert.resume import best_scored
from llmzero_ray.dynamics.gains import known_nodes
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import Parameter, Space, format_value
from llmzero_ray.records import Change, Diagnosis, Hyperparameters, HyperparameterValue, Proposal, ResumeFrom
from llmzero_ray.records.agents import OfferedCheckpoint, ProposalRequest

TRIES = 32
"""Maximum samples to find one that is no duplicate of a known phase. Each is wider than the previous one."""
SWITCHES = 0.3
"""Share of the proposals that also change one switch or choice."""
_LINEAR_STEP = 0.15
"""Step on a linear scale, as a share of the bounds' width."""


class AnySpaceProposer:
    """Proposes steps of one to three numbers, sometimes also a switch, from the best checkpoint offered."""

    agent = "local"
    """Author of a proposal."""
    described = "A local step"
    """Beginning of its rationale."""

    def __init__(self, space: Space, *, seed: int = 1) -> None:
        self._space, self._seed = space, seed

    def propose(self, request: ProposalRequest) -> Proposal:
        """Proposal of the next phase below `request.on`; below a failed phase, its repair.

        It is always valid, and no duplicate of a known phase unless the bounds leave nothing else.
        """
        if request.on.status == "failed" and not request.from_scratch:
            return self._repaired(request)
        known = list(known_nodes(request).values())
        start = None if request.from_scratch else best_start(request.checkpoints)
        base = request.base(start)
        if request.from_scratch and request.best is not None and request.best.hyperparameters:
            base = request.best.hyperparameters
        rng = random.Random(f"{self._seed}:{request.node}:{request.tries}")
        full: Hyperparameters = base
        for attempt in range(TRIES):
            wanted = self._sampled(base, rng, 1 + attempt / 8)
            full = self._completed(base, wanted)
            if not any(
                view.resume_from == start and self._space.same_training(view.hyperparameters, full)
                for view in known
                if view.hyperparameters
            ):
                break
        return self._written(request, request.base(start), full, start)

    def _repaired(self, request: ProposalRequest) -> Proposal:
        """The failed phase with half of each change undone, or with all of them undone after the second
        failure.

        A phase without changes is retried once unchanged, because its configuration may not be the cause.
        After that each number moves down, half a step further with each failure.
        """
        failed, known = request.on, known_nodes(request)
        chain = [failed]
        while chain[-1].kind == "debug" and chain[-1].parent in known:
            chain.append(known[chain[-1].parent or 0])
        start = chain[-1].resume_from
        before = request.default if start is None else known[start.node].hyperparameters
        dimensions = self._dimensions(failed.hyperparameters)
        # Failures of the chain under repair, and of earlier repairs of the same failure.
        n_failed = len(chain) + sum(view.status == "failed" for view in request.siblings)
        wanted: dict[str, HyperparameterValue] = {}
        moved = self._space.diff(before, failed.hyperparameters)
        for key, (old, new) in moved.items():
            half = self._between(dimensions[key], old, new) if key in dimensions and n_failed == 1 else None
            wanted[key] = old if half is None else half
        if not moved and n_failed > 1:
            for key, dimension in dimensions.items():
                value = self._moved(
                    dimension, failed.hyperparameters[key], -0.5 * (n_failed - 1) * dimension.step
                )
                if value is not None:
                    wanted[key] = value
        full = self._completed(failed.hyperparameters, wanted)
        changes = self._changes(failed.hyperparameters, full)
        cause = failed.failure.cause if failed.failure is not None else "it failed"
        return Proposal(
            diagnosis=Diagnosis(state="failed", summary=cause),
            changes=changes,
            resume_from=start,
            n_steps=failed.n_steps or request.task.phase_steps,
            rationale="The change that failed is taken back in part." if changes else "Tried once more.",
            agent=self.agent,
        )

    # --- parts ----------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[Parameter]:
        for row in self._space.parameters:
            if self._space.forbidden(row.key) is None:
                yield row

    def _dimensions(self, base: Hyperparameters) -> dict[str, Dimension]:
        """The numbers that can move from here."""
        found = {}
        for row in self._rows():
            if row.kind not in ("float", "int"):
                continue
            log = row.scale == "log"
            step = math.log(2.0)
            if not log:
                width = (row.high - row.low) if row.low is not None and row.high is not None else 1.0
                step = _LINEAR_STEP * width or 1.0
            dimension = Dimension(key=row.key, step=step, log=log)
            if dimension.coordinate(base.get(row.key)) is not None:
                found[row.key] = dimension
        return found

    def _sampled(
        self, base: Hyperparameters, rng: random.Random, width: float
    ) -> dict[str, HyperparameterValue]:
        dimensions = self._dimensions(base)
        left = list(dimensions)
        wanted: dict[str, HyperparameterValue] = {}
        for _ in range(min(len(left), rng.choice((1, 1, 2, 2, 3)))):
            key = left.pop(rng.randrange(len(left)))
            distance = rng.choice((-1, 1)) * dimensions[key].step * rng.uniform(0.6, 1.4) * width
            value = self._moved(dimensions[key], base[key], distance)
            if value is None:  # at its bound: step the other way
                value = self._moved(dimensions[key], base[key], -distance)
            if value is not None:
                wanted[key] = value
        switches = [row for row in self._rows() if row.kind in ("bool", "choice") and row.key in base]
        if switches and (not wanted or rng.random() < SWITCHES):
            row = rng.choice(switches)
            others = [v for v in (row.choices or (True, False)) if v != base[row.key]]
            if others:
                wanted[row.key] = rng.choice(others)
        return wanted

    def _moved(
        self, dimension: Dimension, value: HyperparameterValue, distance: float
    ) -> HyperparameterValue | None:
        """Value at this distance, within its bounds. None if it does not move."""
        row, place = self._space.by_key[dimension.key], dimension.coordinate(value)
        if place is None or not isinstance(value, int | float):
            return None
        new = dimension.value(place + distance)
        if row.kind == "int":
            new = max(math.ceil(new), value + 1) if distance > 0 else min(math.floor(new), value - 1)
        else:
            new = float(f"{new:.3g}")
        new = new if row.high is None else min(new, row.high)
        new = new if row.low is None else max(new, row.low)
        if new == value:
            return None
        return int(new) if row.kind == "int" else new

    def _between(
        self, dimension: Dimension, old: HyperparameterValue, new: HyperparameterValue
    ) -> HyperparameterValue | None:
        there, here = dimension.coordinate(old), dimension.coordinate(new)
        return None if there is None or here is None else self._moved(dimension, new, (there - here) / 2)

    def _completed(self, base: Hyperparameters, wanted: Mapping[str, HyperparameterValue]) -> Hyperparameters:
        """The configuration with the wanted values, without those that break a coupling."""
        try:
            return self._space.complete(base, wanted)
        except HyperparameterError:
            full = dict(base)
            for key, value in wanted.items():
                try:
                    full = self._space.complete(full, {key: value})
                except HyperparameterError:
                    continue
            return full

    def _changes(self, base: Hyperparameters, full: Hyperparameters) -> tuple[Change, ...]:
        return tuple(
            Change(key=key, old=old, new=new, reason="drawn at random")
            for key, (old, new) in self._space.diff(base, full).items()
        )

    def _written(
        self,
        request: ProposalRequest,
        base: Hyperparameters,
        full: Hyperparameters,
        start: ResumeFrom | None,
    ) -> Proposal:
        changes = self._changes(base, full)
        moves = ", ".join(
            f"{self._space.short(c.key)} {format_value(c.key, c.old)} -> {format_value(c.key, c.new)}"
            for c in changes
        )
        return Proposal(
            diagnosis=Diagnosis(state="unknown", summary="Scores alone are read."),
            changes=changes,
            resume_from=start,
            n_steps=request.task.phase_steps,
            rationale=f"{self.described}: {moves}." if moves else "The settings are kept.",
            agent=self.agent,
        )


class RandomProposer(AnySpaceProposer):
    """Draws every value again within its bounds, from the best offered checkpoint.

    Numbers are drawn uniformly on the scale of their row, switches and choices uniformly. Values without
    bounds are kept. A failed phase is repaired as by `local`.
    """

    agent = "random"
    described = "Drawn at random"

    def _sampled(
        self,
        base: Hyperparameters,
        rng: random.Random,
        width: float,  # noqa: ARG002
    ) -> dict[str, HyperparameterValue]:
        drawn = {row.key: _drawn(row, rng) for row in self._rows() if row.key in base}
        return {key: value for key, value in drawn.items() if value is not None}


def _drawn(row: Parameter, rng: random.Random) -> HyperparameterValue:
    """Value of a row, or None if it has no bounds."""
    if row.kind in ("bool", "choice"):
        return rng.choice(row.choices or (True, False))
    if row.kind not in ("float", "int") or row.low is None or row.high is None:
        return None
    if row.scale == "log" and row.low > 0:
        value = math.exp(rng.uniform(math.log(row.low), math.log(row.high)))
    else:
        value = rng.uniform(row.low, row.high)
    value = float(f"{value:.3g}") if row.kind == "float" else round(value)
    value = min(max(value, row.low), row.high)
    return int(value) if row.kind == "int" else value


def best_start(offered: Sequence[OfferedCheckpoint]) -> ResumeFrom | None:
    """The checkpoint with the best score, otherwise the last one; None if none is offered."""
    return best_scored(offered).resume_from if offered else None
