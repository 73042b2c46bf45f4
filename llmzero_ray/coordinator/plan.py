"""Turn a proposal into a phase spec, or reject it with a reason for the agent.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator.runs import PhaseRun, without_infinities
from llmzero_ray.errors import HyperparameterError, ProposalError
from llmzero_ray.hyperparameters import VERL_SPACE, Space, format_value, scored_alike
from llmzero_ray.hyperparameters.compute import spent, token_cost, validates_every_start
from llmzero_ray.hyperparameters.root import limits
from llmzero_ray.hyperparameters.verl_keys import LR
from llmzero_ray.records import (
    Change,
    ComputeLimit,
    Hyperparameters,
    KnownStart,
    PhaseSpec,
    Proposal,
    ResumeFrom,
)
from llmzero_ray.records.agents import base_of_changes
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.utils.text import number_ranges

MAX_REFUSALS = 3
"""Maximum proposals of one run: the first and two corrections. After that, the parent's configuration is
continued."""
_JITTER = (0.8, 1.25)
"""Factors for the learning rate that make a duplicate continuation distinct. Each is applied up to
`_MOST_JITTERS` times."""
_MOST_JITTERS = 6


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Phase spec, and the corrections that were made to the proposal (empty if none)."""

    spec: PhaseSpec
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans phases. Its fields are all inputs of a plan except the proposal."""

    config: SearchConfig
    n_train: int
    root: Hyperparameters
    runs: Mapping[int, PhaseRun]
    space: Space = VERL_SPACE

    def root_phase(self) -> PhaseSpec:
        """Phase of the search's first run: the root's configuration, without a proposer."""
        return self._spec(self.root, self.config.phase.n_steps)

    def reference_phase(self, n_steps: int, compute: ComputeLimit | None = None) -> PhaseSpec:
        """Phase of the reference: the root's configuration and seed for `n_steps`, so that its first steps
        equal the root's. `compute` may end it earlier."""
        return self._spec(self.root, n_steps, node=REFERENCE, compute=compute)

    def proposed_phase(self, run: PhaseRun, proposal: Proposal, offered: tuple[int, ...]) -> Planned:
        """Phase spec of a proposal.

        A first proposal that names an unsaved step, or makes a change without effect, is rejected. In later
        ones, the nearest earlier saved step is used and the change is dropped, and the note says so. A
        duplicate of another phase is never planned, unless the user asked for it.

        Raises:
            ProposalError: it breaks a rule; the message tells the agent the rule and what is allowed.
        """
        repeated = self.config.agents.proposer == proposal.agent == "strategy"  # a person chose the file
        proposal = self._within_bounds(proposal, by_user=repeated or run.clone is not None)
        self._check_length(proposal.n_steps)
        source, note = self._source(run, proposal.resume_from, offered)
        if len({change.key for change in proposal.changes}) != len(proposal.changes):
            raise ProposalError("changes: a hyper-parameter is named twice; name each one once.")
        base = self.base_of(run, source)
        full = self._completed(base, proposal.changes)
        useless = {} if run.clone is not None else self._without_effect(base, full, proposal.changes)
        if useless and run.tries == 0:
            raise ProposalError(f"{'; '.join(useless.values())}. Leave it out, or change what it depends on.")
        if useless:
            kept = [change for change in proposal.changes if change.key not in useless]
            full = self._completed(base, kept)
            note = "; ".join(filter(None, (note, f"left out: {'; '.join(useless.values())}")))
        if source is not None:
            try:
                self.space.check_transition(self.hyperparameters_of(source.node), full)
            except HyperparameterError as error:
                raise ProposalError(str(error)) from error
        twin = None if run.clone is not None else self._twin(run, full, source)
        if twin is not None:
            raise ProposalError(self._copied(twin))
        return Planned(spec=self._spec(full, proposal.n_steps, source, run), note=note)

    def fallback(self, run: PhaseRun, offered: tuple[int, ...]) -> Planned:
        """Phase if the agents gave no usable proposal: a continuation of the parent's configuration.

        It resumes from the last phase of the resume chain that has a saved step: from its best step if that
        is saved, otherwise from its last saved one. A run from scratch repeats the root's configuration with
        its own seed. If the phase would duplicate another one, its learning rate is changed.
        """
        source = None
        for node in reversed(offered if run.kind != "scratch" else ()):
            if (step := self.runs[node].best_saved_step) is not None:
                source = ResumeFrom(node=node, step=step)
                break
        full = self.base_of(run, None) if source is None else self.hyperparameters_of(source.node)
        note = "The parent's own configuration is continued"
        twin = self._twin(run, full, source)
        if twin is not None:
            full, moved = self._moved(run, full, source)
            note = f"{note}{moved}; unchanged it would repeat node {twin.node}" if moved else note
        return Planned(spec=self._spec(full, self.config.phase.n_steps, source, run), note=f"{note}.")

    @property
    def validates_every_start(self) -> bool:
        """Whether every phase is validated before its first step. If not, only an engine's first one is."""
        return validates_every_start(self.config, on_gpus=self.config.engine.platform != "cpu")

    def known_start(self, spec: PhaseSpec) -> KnownStart | None:
        """Score that an earlier phase measured for the policy that this one starts from, under the same
        validation settings. None if there is none, or if it must be measured again
        (`phase.validate_start`)."""
        if self.validates_every_start:
            return None
        source = spec.resume_from
        if source is not None:
            kept = next((c for c in self.runs[source.node].checkpoints if c.step == source.step), None)
            score = None if kept is None else without_infinities(kept.val_score)
        else:
            source, score = self._measured_base(spec)
        if source is None or score is None:
            return None
        if not scored_alike(self.hyperparameters_of(source.node), spec.hyperparameters):
            return None
        outcome = self.runs[source.node].outcome
        val_tokens = 0.0 if outcome is None else outcome.val_tokens or 0.0
        return KnownStart(
            source=source,
            score=score,
            on_cpu=self.config.phase.validate_start == "first",
            val_tokens=val_tokens,
        )

    def _measured_base(self, spec: PhaseSpec) -> tuple[ResumeFrom | None, float | None]:
        """(step 0 of the first phase that measured the base model under the same settings, its score)."""
        for run in self.runs.values():
            outcome = run.outcome
            if run.node == spec.node or run.spec is None or run.spec.resume_from is not None:
                continue
            if outcome is None or outcome.start_from is not None:
                continue
            score = without_infinities(outcome.start_score)
            if score is not None and scored_alike(run.spec.hyperparameters, spec.hyperparameters):
                return ResumeFrom(node=run.node, step=0), score
        return None, None

    def base_of(self, run: PhaseRun, source: ResumeFrom | None) -> Hyperparameters:
        """Configuration to which a proposal's changes apply (`base_of_changes`)."""
        return base_of_changes(
            run.kind,
            on=self.root if run.on is None else self.hyperparameters_of(run.on),
            source=None if source is None else self.hyperparameters_of(source.node),
            root=self.root,
        )

    def hyperparameters_of(self, node: int) -> Hyperparameters:
        """Configuration of a planned phase."""
        spec = self.runs[node].spec
        assert spec is not None, f"node {node} was used before it was planned"
        return spec.hyperparameters

    # --- parts ----------------------------------------------------------------------------------------------

    def _completed(self, base: Hyperparameters, changes: Sequence[Change]) -> dict[str, Any]:
        asked = {change.key: change.new for change in changes}
        allowed = limits(self.config, self.n_train)
        try:
            return self.space.complete(base, asked, n_gpus=self.config.slots.n_gpus, limits=allowed)
        except HyperparameterError as error:
            raise ProposalError(str(error)) from error

    def _without_effect(
        self, base: Hyperparameters, full: Hyperparameters, changes: Sequence[Change]
    ) -> dict[str, str]:
        """Key of each change without effect -> a sentence that says why."""
        moved, inert = self.space.diff(base, full), self.space.inert(full)
        found = {}
        for change in changes:
            key = self.space.canonical(change.key)
            if key in moved and key in inert:
                found[change.key] = f"{self.space.short(key)} has no effect here: {inert[key]}"
        return found

    def _twin(self, run: PhaseRun, full: Hyperparameters, source: ResumeFrom | None) -> PhaseRun | None:
        """Phase that this one would duplicate: same start and same configuration, at any length. A debug run
        or a planned run may repeat a failed phase, because its configuration need not be the cause."""
        for other in self.runs.values():
            spec = other.spec
            if spec is None or other.node in (run.node, REFERENCE) or other.stage == "cancelled":
                continue
            if (run.kind == "debug" or run.plan) and other.status == "failed":
                continue
            if spec.resume_from == source and self.space.same_training(spec.hyperparameters, full):
                return other
        return None

    def _copied(self, twin: PhaseRun) -> str:
        spec = twin.spec
        assert spec is not None
        at = spec.resume_from
        start = "the base model" if at is None else f"node {at.node} step {at.step}"
        came = {"pending": "which waits to be trained", "running": "which trains now"}.get(
            twin.status, f"which is {twin.status.replace('_', ' ')}"
        )
        score = "" if twin.score is None else f" with {twin.score:.3f}"
        return (
            f"this phase would be a copy of node {twin.node}, {came}{score}: it starts from {start} with the "
            "same configuration. Start from another step, or change a hyper-parameter that node "
            f"{twin.node} did not."
        )

    def _moved(
        self, run: PhaseRun, full: Hyperparameters, source: ResumeFrom | None
    ) -> tuple[Hyperparameters, str]:
        """(configuration, description) with the smallest change of the learning rate that makes the phase
        distinct. A space without a learning rate changes its first float. Unchanged if no change helps."""
        numbers = (row.key for row in self.space.parameters if isinstance(full.get(row.key), float))
        key = LR if LR in full else next(numbers, LR)
        rate = full.get(key)
        for step in range(1, _MOST_JITTERS + 1):
            for factor in _JITTER if isinstance(rate, float) else ():
                value = float(f"{float(str(rate)) * factor**step:.3g}")
                try:
                    moved = self.space.complete(full, {key: value}, n_gpus=self.config.slots.n_gpus)
                except HyperparameterError:
                    continue
                if self._twin(run, moved, source) is None:
                    old, new = (format_value(key, v) for v in (rate, value))
                    return moved, f" with {self.space.short(key)} {old} -> {new}"
        return full, ""

    def _within_bounds(self, proposal: Proposal, *, by_user: bool) -> Proposal:
        """The proposal with typed values that are within the agents' bounds. A user's values, and those of a
        strategy that the user repeats, only have to satisfy the root's bounds."""
        changes: list[Change] = []
        for change in proposal.changes:
            try:
                key = self.space.canonical(change.key)
                reason = self.space.denied(key) if by_user else None
                if reason is not None:
                    raise ProposalError(f"{key} may not be changed: {reason}. Leave it out.")
                value = change.new if by_user else self.space.proposed(key, change.new)
            except HyperparameterError as error:
                raise ProposalError(str(error)) from error
            changes.append(replace(change, new=value))
        return replace(proposal, changes=tuple(changes))

    def _check_length(self, n_steps: int) -> None:
        longest = self.config.phase.max_steps
        if not 1 <= n_steps <= longest:
            raise ProposalError(f"n_steps is {n_steps} (training steps); must be between 1 and {longest}.")

    def _source(
        self, run: PhaseRun, wanted: ResumeFrom | None, offered: tuple[int, ...]
    ) -> tuple[ResumeFrom | None, str]:
        """(nearest saved checkpoint that is not later than the requested one, note on the difference)."""
        if wanted is None:
            return None, ""
        if run.kind == "scratch" or not offered:
            raise ProposalError("this run starts from the base model: resume_from must be null.")
        if wanted.node not in offered:
            nodes = ", ".join(map(str, offered))
            raise ProposalError(
                f"resume_from names node {wanted.node}; checkpoints are offered of nodes {nodes}."
            )
        saved = [kept.step for kept in self.runs[wanted.node].checkpoints]
        step = max((one for one in saved if one <= wanted.step), default=None)
        if step == wanted.step:
            return wanted, ""
        missing = f"step {wanted.step} of node {wanted.node} is not saved"
        if run.tries == 0 and run.clone is None:
            raise ProposalError(f"{missing}; saved are {number_ranges(saved) or 'none'}. Name one of them.")
        if step is None:
            return None, f"{missing} and no earlier one is: started from the base model"
        return ResumeFrom(node=wanted.node, step=step), f"{missing}: resumed from step {step}"

    def _spec(
        self,
        hyperparameters: Hyperparameters,
        n_steps: int,
        source: ResumeFrom | None = None,
        run: PhaseRun | None = None,
        *,
        node: int = 0,
        compute: ComputeLimit | None = None,
    ) -> PhaseSpec:
        """Spec of `run`, or of a root numbered `node` if `run` is None. Directories are not set."""
        phase = self.config.phase
        node = node if run is None else run.node
        return PhaseSpec(
            search=self.config.name,
            node=node,
            kind="root" if run is None else run.kind,
            parent=None if run is None else run.on,
            resume_from=source,
            base_step=0 if source is None else self.runs[source.node].base_step + source.step,
            n_steps=n_steps,
            hyperparameters=dict(hyperparameters),
            seed=phase_seed(self.config.seed, node),
            save_freq=phase.save_freq,
            test_freq=min(phase.test_freq, n_steps),
            max_wall_s=None if phase.max_hours is None else phase.max_hours * 3600,
            compute=compute or self.compute_limit(node),
        )

    def compute_limit(self, node: int) -> ComputeLimit | None:
        """Compute limit of a phase: its share of the budget if the method plans its runs, otherwise what is
        left of the budget. Phases that are still training are not subtracted."""
        budget, run = self.config.budget, self.runs.get(node)
        if budget.compute is None or node == REFERENCE:
            return None
        units = None if run is None else run.plan.get("units")
        cost = token_cost(self.config)
        if units is not None:
            return ComputeLimit(amount=float(units) * budget.compute / budget.runs, cost=cost)
        others = (other.outcome for other in self.runs.values() if other.node != REFERENCE)
        return ComputeLimit(amount=max(0.0, budget.compute - spent(others, cost)), cost=cost)


def phase_seed(seed: int, node: int) -> int:
    """Seed of a node's phase. The reference has the root's seed."""
    text = f"{seed}:{max(node, 0)}".encode()
    return int.from_bytes(blake2b(text, digest_size=4).digest(), "big") >> 1
