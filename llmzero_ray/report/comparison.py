"""Comparison of the base model, the default recipe and the best strategy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from llmzero_ray.coordinator.final_evaluation import WHOLE, best_step_within
from llmzero_ray.coordinator.runs import PhaseRun
from llmzero_ray.coordinator.strategy_compute import compared_cost, compute_of
from llmzero_ray.hyperparameters.compute import spent
from llmzero_ray.records import ItemOutcome, TokenCost
from llmzero_ray.records.events import REFERENCE, FinalScored, FinalWhat
from llmzero_ray.records.metrics import Score
from llmzero_ray.records.significance import Difference, independent, paired
from llmzero_ray.report.facts import SearchFacts

Split: TypeAlias = Literal["validation", "test"]
SPLITS: tuple[Split, ...] = ("validation", "test")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One policy and its scores."""

    what: FinalWhat
    name: str
    steps: int | None
    """Training steps of the policy, or None if not known yet."""
    trained: int | None = None
    """Steps of the whole run whose best checkpoint the policy is. None if only its own steps count."""
    rollouts: int | None = None
    """Answers sampled in these steps, to compare steps of different batch sizes."""
    compute: float | None = None
    """Compute of these steps, in the unit of the search's costs. None if phases did not count their
    tokens."""
    validation: Score | None = None
    validation_items: tuple[ItemOutcome, ...] = ()
    test: Score | None = None
    test_items: tuple[ItemOutcome, ...] = ()
    macro: Score | None = None
    """Test score averaged over the parts of one of the paper's tasks. None for other tasks."""
    problem: str = ""
    """Reason why there is no test score. Empty if there is one, or none was planned."""

    def score(self, split: Split) -> Score | None:
        """Score of the policy on a split."""
        return self.validation if split == "validation" else self.test

    def items(self, split: Split) -> tuple[ItemOutcome, ...]:
        """Per-item outcomes of the policy on a split. Empty if they were not stored."""
        return self.validation_items if split == "validation" else self.test_items


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of two policies on one split."""

    new: Policy
    old: Policy
    split: Split
    independent: Difference
    """Difference of the scores, as if their items were independent samples."""
    paired: Difference | None
    """Difference item by item, or None if the outcomes were not stored."""
    macro: Difference | None = None
    """Difference of the means over the task's parts on the test split. None if the task has no parts."""

    @property
    def sharpest(self) -> Difference:
        """The paired difference if there is one, because the difficulty of shared items cancels out.
        Otherwise the independent one."""
        return self.paired or self.independent


def policies(facts: SearchFacts) -> tuple[Policy, ...]:
    """Those that exist of: base model, default recipe (at the strategy's steps or compute, and at the whole
    search's compute), best strategy."""
    known = (_base(facts), _reference(facts), _whole(facts), _best(facts))
    return tuple(p for p in known if p is not None)


def cost_of(facts: SearchFacts) -> TokenCost:
    """Cost of a token in the policies' compute."""
    if not facts.path:
        return TokenCost()
    return compared_cost(facts.config, facts.core.runs, facts.path[-1].node)


def searched(facts: SearchFacts) -> float:
    """Compute of all phases of the search, in the unit of the policies' compute."""
    outcomes = (run.outcome for run in facts.core.runs.values() if run.node != REFERENCE)
    return spent(outcomes, cost_of(facts))


def comparisons(facts: SearchFacts) -> tuple[Comparison, ...]:
    """Best strategy against base model and default recipe, then default recipe against base model. Test split
    first."""
    known = {policy.what: policy for policy in policies(facts)}
    pairs: tuple[tuple[FinalWhat, FinalWhat], ...] = (
        ("best", "base"),
        ("best", "reference"),
        ("best", WHOLE),
        ("reference", "base"),
    )
    found = [
        _compare(known[new], known[old], split)
        for split in reversed(SPLITS)
        for new, old in pairs
        if new in known and old in known
    ]
    return tuple(comparison for comparison in found if comparison is not None)


def _compare(new: Policy, old: Policy, split: Split) -> Comparison | None:
    ours, theirs = new.score(split), old.score(split)
    apart = None if ours is None or theirs is None else independent(ours, theirs)
    if apart is None:
        return None
    item_by_item = paired(new.items(split), old.items(split))
    averages = None
    if split == "test" and new.macro is not None and old.macro is not None:
        averages = independent(new.macro, old.macro)
    return Comparison(new=new, old=old, split=split, independent=apart, paired=item_by_item, macro=averages)


def _base(facts: SearchFacts) -> Policy | None:
    """The base model. Its validation is the one before a first phase, because a fresh adapter changes
    nothing."""
    fresh = [run for run in facts.core.runs.values() if run.spec is not None and run.spec.resume_from is None]
    for run in fresh:
        start = facts.start_score(run)
        if start is not None:
            score, items = facts.validation(run.node, 0, start), facts.items(run.node, 0)
            return _policy(
                facts, "base", "base model", steps=0, rollouts=0, validation=score, validation_items=items
            )
    base = _policy(facts, "base", "base model", steps=0, rollouts=0)
    return base if base.test is not None or base.problem else None


def _reference(facts: SearchFacts) -> Policy | None:
    run = facts.reference
    if run is None:
        return None
    at_compute = run.spec is not None and run.spec.compute is not None
    name = "default recipe at the strategy's compute" if at_compute else "default recipe in one phase"
    return _reference_at(facts, run, "reference", name)


def _whole(facts: SearchFacts) -> Policy | None:
    """The default recipe with the compute of the whole search."""
    run, wanted = facts.reference, facts.config.final
    untested = facts.core.end_reason is not None and wanted.default_recipe == "whole" and not wanted.test
    if run is None or (facts.final(WHOLE) is None and not untested):
        return None
    policy = _reference_at(facts, run, WHOLE, "default recipe at the whole search's compute")
    return replace(policy, trained=None if run.outcome is None else run.outcome.steps_done)


def _reference_at(facts: SearchFacts, run: PhaseRun, what: FinalWhat, name: str) -> Policy:
    step, outcome = _reference_step(facts, run, what), run.outcome
    kept = () if outcome is None else outcome.checkpoints
    score = None if step is None else next((one.val_score for one in kept if one.step == step), run.score)
    return _policy(
        facts,
        what,
        name,
        steps=step,
        rollouts=facts.rollouts(run, step),
        compute=compute_of(facts.core.runs, REFERENCE, step, cost_of(facts)),
        validation=facts.validation(REFERENCE, step, score),
        validation_items=facts.items(REFERENCE, step),
    )


def _reference_step(facts: SearchFacts, run: PhaseRun, what: FinalWhat) -> int | None:
    """Step of the default recipe that is compared: the tested one, otherwise the one with the best validation
    score, within the strategy's compute where that limits the policy. None if there is none."""
    job, outcome = facts.final(what), run.outcome
    if job is not None and job.step is not None:
        return job.step
    limit = None if run.spec is None else run.spec.compute
    if outcome is None or limit is None or what == WHOLE or not facts.path:
        return None if outcome is None else outcome.best_step
    last = facts.path[-1]
    computed = compute_of(facts.core.runs, last.node, last.cut, limit.cost)
    return best_step_within(outcome, computed, limit.cost)


def _best(facts: SearchFacts) -> Policy | None:
    if not facts.path:
        return None
    last = facts.path[-1]
    n = len(facts.path)
    sampled = [facts.rollouts(phase.run, phase.cut) for phase in facts.path]
    return _policy(
        facts,
        "best",
        f"best strategy (node {last.node}, {n} phase{'s' if n > 1 else ''})",
        steps=last.end,
        rollouts=None if None in sampled else sum(filter(None, sampled)),
        compute=compute_of(facts.core.runs, last.node, last.cut, cost_of(facts)),
        validation=facts.validation(last.node, last.cut, last.run.score),
        validation_items=facts.items(last.node, last.cut),
    )


def _policy(
    facts: SearchFacts,
    what: FinalWhat,
    name: str,
    *,
    steps: int | None,
    rollouts: int | None = None,
    compute: float | None = None,
    validation: Score | None = None,
    validation_items: tuple[ItemOutcome, ...] = (),
) -> Policy:
    job = facts.final(what)
    scored = job.score if job else None
    return Policy(
        what=what,
        name=name,
        steps=steps,
        rollouts=rollouts,
        compute=compute,
        validation=validation,
        validation_items=validation_items if validation is not None else (),
        test=None if job is None else job.measured,
        test_items=facts.test_items(what) if scored else (),
        macro=None if scored is None else _macro(scored),
        problem=(job.problem or "") if job else "",
    )


def _macro(scored: FinalScored) -> Score | None:
    if scored.macro is None:
        return None
    return Score(mean=scored.macro, standard_error=scored.macro_error, n=scored.n)
