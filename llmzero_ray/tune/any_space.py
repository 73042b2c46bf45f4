"""Proposers for any space of hyper-parameters: a local search and random draws, without a diagnosis.

The local search moves each number by a step that success lengthens and failure reverses: the 1/5 success rule
per hyper-parameter. It only uses scores, on any scale: a phase's gain is compared with the gains of others
from the same start, in standard deviations of all gains. A phase that changed several numbers counts for each
by its share of the move. The state is computed from the request's nodes, so equal requests give equal
proposals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from llmzero_ray.agents.expert.levers import Lever
from llmzero_ray.dynamics.gains import known_nodes
from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters import Parameter, Space, format_value
from llmzero_ray.records import Change, Diagnosis, Hyperparameters, HyperparameterValue, Proposal, ResumeFrom
from llmzero_ray.records.agents import NodeView, OfferedCheckpoint, ProposalRequest

TRIES = 32
"""Maximum samples until one is no duplicate of a known phase. Each is wider than the previous one."""
SWITCHES = 0.3
"""Share of the proposals that also change one switch or choice."""
_LINEAR_STEP = 0.15
"""First step on a linear scale, as a share of the bounds' width."""
GROW, SHRINK = 1.5, 0.5
STANDS_OUT = 0.5
"""Standard errors from which a gain or a loss counts. A wrong one is soon contradicted."""
REVERSED_FROM = 0.3
"""Share of a failed move from which a hyper-parameter reverses its direction."""
_NARROWEST, _WIDEST = 0.25, 3.0
"""Bounds of a step, in first steps."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """State of one hyper-parameter."""

    size: float
    """Step size on the lever's scale."""
    direction: int = 0
    """Direction: 1 is up, -1 is down, 0 is unknown."""
    successes: float = 0.0
    failures: float = 0.0
    last: str = ""
    """Description of the transition that determined the direction."""


@dataclass(frozen=True, kw_only=True)
class Transition:
    """Move of one phase, and its result."""

    name: str
    moved: dict[str, float]
    """Key -> distance on its lever's scale; without what stayed."""
    z: float
    """Gain over other attempts from the same start (0 without any), in standard errors."""


class AnySpaceProposer:
    """Proposes steps of one to three numbers, at times a switch, from the best checkpoint that is offered."""

    agent = "local"
    """Author of a proposal."""
    described = "A local step"
    """Beginning of its rationale."""

    def __init__(self, space: Space, *, seed: int = 1) -> None:
        self._space, self._seed = space, seed

    def propose(self, request: ProposalRequest) -> Proposal:
        """Proposal of the next phase below `request.on`, which is always valid, and no duplicate as far as
        the bounds allow.

        Below a failed phase it is a repair.
        """
        if request.on.status == "failed" and not request.from_scratch:
            return self._repaired(request)
        known = list(known_nodes(request).values())
        chosen = None if request.from_scratch else best_checkpoint(request.checkpoints)
        start = None if chosen is None else ResumeFrom(node=chosen.node, step=chosen.step)
        base = request.base(start)
        if request.from_scratch and request.best is not None and request.best.hyperparameters:
            base = request.best.hyperparameters
        rng = random.Random(f"{self._seed}:{request.node}:{request.tries}")
        learnt = self._learnt(known, request.default)
        full: Hyperparameters = base
        for attempt in range(TRIES):
            wanted = self._sampled(base, learnt, rng, 1 + attempt / 8)
            full = self._completed(base, wanted)
            if not any(
                view.resume_from == start and self._space.same_training(view.hyperparameters, full)
                for view in known
                if view.hyperparameters
            ):
                break
        origin = request.base(start)
        return self._written(request, origin, full, start, learnt)

    def _repaired(self, request: ProposalRequest) -> Proposal:
        """The failed phase with half of each change undone, or with all of them undone after the second
        failure.

        A phase without changes is retried once unchanged, because the configuration need not be the cause.
        Then each number moves down, by half a step more after each failure.
        """
        failed, known = request.on, known_nodes(request)
        chain = [failed]
        while chain[-1].kind == "debug" and chain[-1].parent in known:
            chain.append(known[chain[-1].parent or 0])
        start = chain[-1].resume_from
        before = request.default if start is None else known[start.node].hyperparameters
        levers = self._levers(failed.hyperparameters)
        # The chain that is repaired, and earlier repairs of the same failure.
        n_failed = len(chain) + sum(view.status == "failed" for view in request.siblings)
        wanted: dict[str, HyperparameterValue] = {}
        moved = self._space.diff(before, failed.hyperparameters)
        for key, (old, new) in moved.items():
            half = self._between(levers[key], old, new) if key in levers and n_failed == 1 else None
            wanted[key] = old if half is None else half
        if not moved and n_failed > 1:
            for key, lever in levers.items():
                value = self._moved(lever, failed.hyperparameters[key], -0.5 * (n_failed - 1) * lever.step)
                if value is not None:
                    wanted[key] = value
        full = self._completed(failed.hyperparameters, wanted)
        changes = self._changes(failed.hyperparameters, full, {})
        cause = failed.failure.cause if failed.failure is not None else "it failed"
        return Proposal(
            diagnosis=Diagnosis(state="failed", summary=cause),
            changes=changes,
            resume_from=start,
            n_steps=failed.n_steps or request.task.phase_steps,
            total_epochs=None,
            rationale="The change that failed is taken back in part." if changes else "Tried once more.",
            agent=self.agent,
        )

    # --- parts ----------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[Parameter]:
        for row in self._space.parameters:
            if self._space.forbidden(row.key) is None:
                yield row

    def _levers(self, base: Hyperparameters) -> dict[str, Lever]:
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
            lever = Lever(key=row.key, step=step, log=log)
            if lever.coordinate(base.get(row.key)) is not None:
                found[row.key] = lever
        return found

    def _learnt(self, known: Sequence[NodeView], default: Hyperparameters) -> dict[str, Step]:
        """State of each number, learnt from the finished phases."""
        levers = self._levers(default)
        return steps(tuple(levers.values()), _transitions(tuple(levers.values()), known, default))

    def _sampled(
        self, base: Hyperparameters, learnt: Mapping[str, Step], rng: random.Random, width: float
    ) -> dict[str, HyperparameterValue]:
        levers = self._levers(base)
        left = list(levers)
        wanted: dict[str, HyperparameterValue] = {}
        for _ in range(min(len(left), rng.choice((1, 1, 2, 2, 3)))):
            weights = [(1 + learnt[key].successes) / (1 + 0.5 * learnt[key].failures) for key in left]
            key = left.pop(rng.choices(range(len(left)), weights)[0])
            direction = learnt[key].direction or rng.choice((-1, 1))
            if learnt[key].direction and rng.random() < 0.2:
                direction = -direction
            distance = direction * learnt[key].size * rng.uniform(0.6, 1.4) * width
            value = self._moved(levers[key], base[key], distance)
            if value is None:  # at its bound: the other way
                value = self._moved(levers[key], base[key], -distance)
            if value is not None:
                wanted[key] = value
        switches = [row for row in self._rows() if row.kind in ("bool", "choice") and row.key in base]
        if switches and (not wanted or rng.random() < SWITCHES):
            row = rng.choice(switches)
            others = [v for v in (row.choices or (True, False)) if v != base[row.key]]
            if others:
                wanted[row.key] = rng.choice(others)
        return wanted

    def _moved(self, lever: Lever, value: HyperparameterValue, distance: float) -> HyperparameterValue | None:
        """Value at this distance, within its bounds. None if it does not move."""
        row, place = self._space.by_key[lever.key], lever.coordinate(value)
        if place is None or not isinstance(value, int | float):
            return None
        new = lever.value(place + distance)
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
        self, lever: Lever, old: HyperparameterValue, new: HyperparameterValue
    ) -> HyperparameterValue | None:
        there, here = lever.coordinate(old), lever.coordinate(new)
        return None if there is None or here is None else self._moved(lever, new, (there - here) / 2)

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

    def _changes(
        self, base: Hyperparameters, full: Hyperparameters, learnt: Mapping[str, Step]
    ) -> tuple[Change, ...]:
        return tuple(
            Change(
                key=key,
                old=old,
                new=new,
                reason=learnt[key].last if key in learnt and learnt[key].last else "nothing is known of it",
            )
            for key, (old, new) in self._space.diff(base, full).items()
        )

    def _written(
        self,
        request: ProposalRequest,
        base: Hyperparameters,
        full: Hyperparameters,
        start: ResumeFrom | None,
        learnt: Mapping[str, Step],
    ) -> Proposal:
        changes = self._changes(base, full, learnt)
        moves = ", ".join(
            f"{self._space.short(c.key)} {format_value(c.key, c.old)} -> {format_value(c.key, c.new)}"
            for c in changes
        )
        return Proposal(
            diagnosis=Diagnosis(state="unknown", summary="Scores alone are read."),
            changes=changes,
            resume_from=start,
            n_steps=request.task.phase_steps,
            total_epochs=None,
            rationale=f"{self.described}: {moves}." if moves else "The settings are kept.",
            agent=self.agent,
        )


class RandomProposer(AnySpaceProposer):
    """Draws every value again within its bounds, from the best offered checkpoint.

    Numbers are drawn uniformly on the scale of their row, switches and choices uniformly. Values without
    bounds are kept. A failed phase is repaired as in the local search.
    """

    agent = "random"
    described = "Drawn at random"

    def _sampled(
        self,
        base: Hyperparameters,
        learnt: Mapping[str, Step],  # noqa: ARG002 - nothing is learnt from
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


def best_checkpoint(offered: Sequence[OfferedCheckpoint]) -> OfferedCheckpoint | None:
    """Checkpoint with the highest score, otherwise the last one without a score. None if there is none."""
    scored = [one for one in offered if one.val_score is not None]
    if scored:
        return max(scored, key=lambda one: (one.val_score or 0.0, one.global_step))
    return offered[-1] if offered else None


def _transitions(
    levers: Sequence[Lever], known: Sequence[NodeView], default: Hyperparameters
) -> list[Transition]:
    """The finished phases that moved a number, each with its gain against others from the same start."""
    by_number = {view.node: view for view in known}
    gained: dict[int, float] = {}
    for view in known:
        start = view.curves.start_score
        if view.score is not None and start is not None and view.status not in ("running", "pending"):
            gained[view.node] = view.score - start
    spread = pstdev(gained.values()) if len(gained) > 1 else 0.0
    scale = spread or max(map(abs, gained.values()), default=0.0) or 1.0
    found = []
    for view in known:
        if not view.hyperparameters or view.kind == "root":
            continue
        source = None if view.resume_from is None else by_number.get(view.resume_from.node)
        base = default if source is None else source.hyperparameters
        moved = {lever.key: d for lever in levers if (d := lever.moved(base, view.hyperparameters))}
        if not moved:
            continue
        if view.status == "failed":
            z = -3.0
        elif view.node in gained:
            others = [
                gain
                for node, gain in gained.items()
                if node != view.node and by_number[node].resume_from == view.resume_from
            ]
            z = (gained[view.node] - (fmean(others) if others else 0.0)) / scale
        else:
            continue
        found.append(Transition(name=f"node {view.node}", moved=moved, z=z))
    return found


def steps(levers: Sequence[Lever], history: Iterable[Transition]) -> dict[str, Step]:
    """Key -> step after all transitions."""
    found = {lever.key: Step(size=lever.step) for lever in levers}
    first = {lever.key: lever.step for lever in levers}
    for transition in history:
        lengths = {key: abs(d) / first[key] for key, d in transition.moved.items()}
        total = sum(lengths.values())
        for key, distance in transition.moved.items():
            if abs(transition.z) >= STANDS_OUT:
                share = lengths[key] / total
                found[key] = _learnt(found[key], first[key], distance, share, transition)
    return found


def _learnt(step: Step, first: float, distance: float, share: float, transition: Transition) -> Step:
    sign = 1 if distance > 0 else -1
    came = f"{transition.name} moved it {'up' if sign > 0 else 'down'} and "
    if transition.z > 0:
        size = min(step.size * GROW**share, _WIDEST * first)
        return replace(
            step, size=size, direction=sign, successes=step.successes + share, last=came + "gained"
        )
    size = max(step.size * SHRINK**share, _NARROWEST * first)
    turned = share >= REVERSED_FROM
    return replace(
        step,
        size=size,
        direction=-sign if turned else step.direction,
        failures=step.failures + share,
        last=came + "lost" if turned else step.last,
    )
