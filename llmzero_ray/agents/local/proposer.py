"""Proposals of a local search over the hyper-parameters, from the evidence of the nodes so far.

A continuation is the best supported of a few candidates: the settings unchanged (from an earlier checkpoint
that is "undo"), steps of one to three levers in the directions that gained before or that the catalogue of
treatments suggests, and, where several slots train at once, the settings of the best node with a jitter of
x0.8 or x1.25 (population based training). From a checkpoint of which nothing is known two short phases in
opposite directions are run first (a race); the better one goes on unchanged. Each is an ordinary node.

The same request gives the same proposal: the random numbers come from the search's seed, the node's number
and the number of tries. Not here: the step sizes (memory.py), diagnosis and start (expert/).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmzero_ray.agents.base import NodeView, ProposalRequest
from llmzero_ray.agents.evidence import attempts, known_nodes, outcome
from llmzero_ray.agents.expert.apply_moves import ChangePlan, ProposalBase, apply_moves, signature
from llmzero_ray.agents.expert.choice import alignment
from llmzero_ray.agents.expert.fresh_start import fresh_length
from llmzero_ray.agents.expert.moves import UNCHANGED, MoveSet, move_sets, suited
from llmzero_ray.agents.expert.proposer import Reading, proposal_base, read, tried_lines, write
from llmzero_ray.agents.expert.rejection import mentioned_keys
from llmzero_ray.agents.expert.resume import StartPoint, choose_length
from llmzero_ray.agents.lessons import lesson_sentences
from llmzero_ray.agents.local.levers import Lever, changes_of, live_levers, moved_value
from llmzero_ray.agents.local.memory import Step, steps, transitions
from llmzero_ray.hyperparameters import CAPACITY
from llmzero_ray.records import Diagnosis, HyperparameterValue, Proposal

JITTER = (0.8, 1.25)
"""Factors on settings taken over from the best node (Jaderberg et al. 2017)."""
CANDIDATES = 8
PRIOR = 0.5
"""Errors of evidence that agreement with the first treatment of the catalogue is worth."""
CHANCE = 0.5
"""Largest random part of a candidate's support, in errors: near-equal ones are taken in turn."""
RACE_RUNS = 3
"""Fewest runs left after this one for which a race pays: its rival and one that goes on."""
_UNKNOWN = Diagnosis(state="unknown", summary="A run from the base model.")
Wanted = Mapping[str, tuple[HyperparameterValue, str]]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan and the evidence for it, in errors."""

    plan: ChangePlan
    support: float


class LocalProposer:
    """Local search with success memory. `n_val`: validation items; `n_gpus`: GPUs of a slot; `slots`: phases
    trained at once; `race`: length of a race's two phases in usual phases, 1 for none."""

    def __init__(
        self, *, n_val: int = 500, n_gpus: int = 1, seed: int = 1, slots: int = 1, race: float = 0.5
    ) -> None:
        self._n_val, self._n_gpus, self._seed, self._slots, self._race = n_val, n_gpus, seed, slots, race

    def propose(self, request: ProposalRequest) -> Proposal:
        """The best supported candidate below `request.on`; always valid."""
        return self._fresh(request) if request.from_scratch else self._continue(request)

    def along(self, request: ProposalRequest, guide: Proposal) -> Proposal:
        """A proposal of another agent with the distances of its levers replaced by the steps of this search.

        Its directions, its other changes, its start and its length stay. As it came, where it moves no
        lever or the result is no valid or no new phase.
        """
        base = proposal_base(request, request.base(guide.resume_from), self._n_gpus)
        levers = live_levers(base.hyperparameters)
        known = steps(levers, transitions(levers, attempts(request, self._n_val), request.lessons))
        wanted: dict[str, tuple[HyperparameterValue, str]] = {}
        moved = False
        for change in guide.changes:
            wanted[change.key] = (change.new, change.reason)
            lever = next((lever for lever in levers if lever.key == change.key), None)
            distance = lever.moved(base.hyperparameters, {change.key: change.new}) if lever else 0.0
            if lever is not None and distance:
                size = known[lever.key].size * (1 if distance > 0 else -1)
                wanted[change.key] = (moved_value(base, lever, size), change.reason)
                moved = True
        made = changes_of(base, wanted) if moved else None
        if made is None or _exists(request, guide, made[1]):
            return guide
        start = _start(request, guide)
        if start.resume_from != guide.resume_from:
            return guide
        plan = ChangePlan(
            move_set=MoveSet(
                name="guided step", why=f"Directions of the diagnosis: {guide.rationale}", moves=()
            ),
            changes=made[0],
            full=made[1],
        )
        return write(request, guide.diagnosis, plan, start, guide.n_steps, agent="hybrid")

    # --- continuations --------------------------------------------------------------------------------------

    def _continue(self, request: ProposalRequest) -> Proposal:
        seen = read(request, n_val=self._n_val, n_gpus=self._n_gpus)
        base, finding = seen.base, seen.findings[0]
        levers = live_levers(base.hyperparameters)
        known = steps(levers, transitions(levers, attempts(request, self._n_val), request.lessons))
        without = mentioned_keys(request.rejected)
        usable = tuple(lever for lever in levers if lever.key not in without)
        won = self._won(request, seen)
        candidates = sorted(
            self._candidates(request, seen, usable, known, won=won), key=lambda one: -one.support
        )
        rival = self._rival(request, seen)
        mirrored = None if rival is None else _mirror(base, usable, rival, known)
        racing = self._races(request, seen) and not won
        if mirrored is not None and racing and not seen.tried.is_copy(mirrored.full):
            chosen = mirrored
        elif candidates:
            chosen = candidates[0].plan
        else:
            chosen = apply_moves(base, seen.unchanged)
        n_steps = choose_length(finding, request.task, unchanged=not chosen.changes)
        if racing and chosen.changes:
            n_steps = self._leg(request)
        earlier = lesson_sentences(request.lessons, [change.key for change in chosen.changes])
        lines = (*tried_lines(seen.tried, base.hyperparameters), *earlier)
        return write(request, finding.to_record(), chosen, seen.start, n_steps, beside=lines, agent="local")

    def _candidates(
        self,
        request: ProposalRequest,
        seen: Reading,
        levers: Sequence[Lever],
        known: Mapping[str, Step],
        *,
        won: bool,
    ) -> Iterator[Candidate]:
        """Plans that are valid and new, each with its support."""
        rng = self._random(request)
        base = seen.base
        treatment = _treatment(seen)
        goes_on = move_sets(seen.findings[0])[0] is UNCHANGED or seen.unchanged is not UNCHANGED
        plans = [apply_moves(base, seen.unchanged)] if seen.findings[0].kind != "dead" else []
        best = self._best_settings(request, base, levers, rng)
        plans += [best] if best is not None else []
        for _ in range(CANDIDATES):
            plan = _sampled(base, levers, known, dict(treatment), rng)
            plans += [plan] if plan is not None else []
        for plan in plans:
            if seen.tried.is_copy(plan.full):
                continue
            support = seen.tried.support(base.hyperparameters, plan.full)
            if plan.changes:
                support += PRIOR * alignment(signature(base.hyperparameters, plan.full), treatment)
            elif won or goes_on:
                support += 4 * PRIOR if won else 2 * PRIOR
            yield Candidate(plan=plan, support=support + CHANCE * rng.random())

    def _best_settings(
        self, request: ProposalRequest, base: ProposalBase, levers: Sequence[Lever], rng: random.Random
    ) -> ChangePlan | None:
        """The settings of the best node on this checkpoint, two of them with a jitter; None with one slot,
        or where they are these."""
        best = request.best
        if self._slots < 2 or best is None or not best.hyperparameters:
            return None
        wanted: dict[str, tuple[HyperparameterValue, str]] = {}
        shaken = set(rng.sample([lever.key for lever in levers], min(2, len(levers))))
        for lever in levers:
            distance = lever.moved(base.hyperparameters, best.hyperparameters)
            if lever.log and lever.key in shaken:
                distance += (lever.coordinate(rng.choice(JITTER))) or 0.0
            wanted[lever.key] = (moved_value(base, lever, distance), f"as node {best.node}, the best so far")
        made = changes_of(base, wanted)
        if made is None:
            return None
        why = f"Node {best.node} scores best: its settings from this checkpoint, two of them shaken."
        return ChangePlan(move_set=MoveSet(name="exploit", why=why, moves=()), changes=made[0], full=made[1])

    def _random(self, request: ProposalRequest) -> random.Random:
        return random.Random(f"{self._seed}:{request.node}:{request.tries}")

    # --- races ----------------------------------------------------------------------------------------------

    def _leg(self, request: ProposalRequest) -> int:
        return max(1, round(self._race * request.task.phase_steps))

    def _races(self, request: ProposalRequest, seen: Reading) -> bool:
        """Whether this phase is one of two short ones: at most one other phase began here, and that was short
        too."""
        left = request.budget.runs
        others = self._from(request, seen.start)
        return (
            self._race < 1
            and seen.start.checkpoint is not None
            and (left is None or left >= RACE_RUNS - len(others))
            and len(others) <= 1
            and all(view.n_steps == self._leg(request) for view in others)
            and move_sets(seen.findings[0])[0] is not UNCHANGED
        )

    def _rival(self, request: ProposalRequest, seen: Reading) -> NodeView | None:
        """The other short phase from this start."""
        others = self._from(request, seen.start)
        return others[0] if len(others) == 1 and others[0].n_steps == self._leg(request) else None

    def _won(self, request: ProposalRequest, seen: Reading) -> bool:
        """Whether the expanded node is a short phase that beat its rival."""
        on = request.on
        if self._race >= 1 or on.resume_from is None or on.n_steps != self._leg(request):
            return False
        mine = outcome(on.curves, self._n_val)
        rivals = [
            outcome(view.curves, self._n_val)
            for view in known_nodes(request).values()
            if view.resume_from == on.resume_from and view.node != on.node and view.n_steps == on.n_steps
        ]
        return (
            mine is not None
            and seen.start.checkpoint is not None
            and seen.start.checkpoint.node == on.node
            and any(other is not None and mine.value >= other.value for other in rivals)
        )

    def _from(self, request: ProposalRequest, start: StartPoint) -> list[NodeView]:
        return [
            view
            for view in known_nodes(request).values()
            if view.resume_from is not None and view.resume_from == start.resume_from
        ]

    # --- fresh starts ---------------------------------------------------------------------------------------

    def _fresh(self, request: ProposalRequest) -> Proposal:
        """A run from the base model with the settings of the best node, each lever shaken."""
        base = proposal_base(request, request.default, self._n_gpus)
        levers, best = live_levers(base.hyperparameters), request.best
        rng = self._random(request)
        without = mentioned_keys(request.rejected)
        taken = [v.hyperparameters for v in known_nodes(request).values() if v.resume_from is None]
        goal = best.hyperparameters if best is not None and best.hyperparameters else request.default
        origin = "the root" if best is None else f"node {best.node}, the best so far"
        made = None
        for wide in range(1, CANDIDATES + 1):
            wanted = {
                lever.key: (moved_value(base, lever, distance), f"as {origin}, shaken")
                for lever in levers
                if lever.key not in without
                for shake in (rng.choice((-1, 0, 1)) * 0.5 * wide**0.5 * lever.step,)
                for distance in (lever.moved(base.hyperparameters, goal) + shake,)
            }
            made = changes_of(base, wanted)
            if made is not None and all(dict(config) != made[1] for config in taken):
                break
        changes, full = made if made is not None else ((), dict(base.hyperparameters))
        plan = ChangePlan(
            move_set=MoveSet(
                name="fresh start", why=f"The settings of {origin}, shaken, from the first step on.", moves=()
            ),
            changes=changes,
            full=full,
        )
        start = StartPoint(
            checkpoint=None, reason="a fresh start, so that the root does not anchor the whole search"
        )
        return write(request, _UNKNOWN, plan, start, fresh_length(request), agent="local")


def _treatment(seen: Reading) -> frozenset[tuple[str, str]]:
    """(key, direction) of the first set of the catalogue that moves something here."""
    greedy = None if seen.dynamics.validation is None else seen.dynamics.validation.last
    for finding in seen.findings:
        for move_set in move_sets(finding):
            plan = apply_moves(seen.base, suited(move_set, greedy, seen.dynamics.sampled))
            if plan.changes:
                return signature(seen.base.hyperparameters, plan.full)
    return frozenset()


def _sampled(
    base: ProposalBase,
    levers: Sequence[Lever],
    known: Mapping[str, Step],
    treatment: Mapping[str, str],
    rng: random.Random,
) -> ChangePlan | None:
    """Steps of one to three levers: mostly where success or the treatment points, at times the other way."""
    left = list(levers)
    wanted: dict[str, tuple[HyperparameterValue, str]] = {}
    for _ in range(min(len(left), rng.choice((1, 1, 2, 2, 3)))):
        weights = [_weight(lever, known[lever.key], treatment) for lever in left]
        lever = left.pop(rng.choices(range(len(left)), weights)[0])
        step = known[lever.key]
        advised = {"+": 1, "-": -1}.get(treatment.get(lever.key, ""), 0)
        direction = step.direction or advised or rng.choice((-1, 1))
        if rng.random() < (0.2 if step.direction else 0.3):
            direction = -direction
        why = step.last or ("the catalogue's treatment" if advised else "nothing is known of it yet")
        if step.direction and direction != step.direction:
            why = f"against the rule for once, since {why}"
        size = direction * step.size * rng.uniform(0.6, 1.4)
        wanted[lever.key] = (moved_value(base, lever, size), why)
    made = changes_of(base, wanted)
    if made is None:
        return None
    why = "Lengths and directions of the steps come from what earlier phases gained."
    return ChangePlan(move_set=MoveSet(name="local step", why=why, moves=()), changes=made[0], full=made[1])


def _weight(lever: Lever, step: Step, treatment: Mapping[str, str]) -> float:
    known = (1 + step.successes) / (1 + 0.5 * step.failures)
    return lever.weight * known * (2.0 if lever.key in treatment else 1.0)


def _mirror(
    base: ProposalBase, levers: Sequence[Lever], rival: NodeView, known: Mapping[str, Step]
) -> ChangePlan | None:
    """The rival's moves turned round, as far as they are of levers that may be used."""
    wanted: dict[str, tuple[HyperparameterValue, str]] = {}
    for lever in levers:
        distance = lever.moved(base.hyperparameters, rival.hyperparameters)
        if distance and lever.key not in CAPACITY:
            size = min(abs(distance), known[lever.key].size * 2)
            new = moved_value(base, lever, -size if distance > 0 else size)
            wanted[lever.key] = (new, f"node {rival.node} tries the other direction from the same checkpoint")
    made = changes_of(base, wanted)
    if made is None:
        return None
    why = f"A race with node {rival.node} over a short phase: the better one goes on."
    return ChangePlan(move_set=MoveSet(name="race", why=why, moves=()), changes=made[0], full=made[1])


def _exists(request: ProposalRequest, guide: Proposal, full: Mapping[str, HyperparameterValue]) -> bool:
    return any(
        view.resume_from == guide.resume_from and dict(view.hyperparameters) == dict(full)
        for view in known_nodes(request).values()
    )


def _start(request: ProposalRequest, guide: Proposal) -> StartPoint:
    wanted = guide.resume_from
    found = None
    if wanted is not None:
        found = next(
            (one for one in request.checkpoints if (one.node, one.step) == (wanted.node, wanted.step)), None
        )
    return StartPoint(checkpoint=found, reason="the start that the diagnosis chose")
