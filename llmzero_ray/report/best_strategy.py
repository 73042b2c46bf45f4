"""Builds the best strategy of a search from its facts."""

from __future__ import annotations

from collections.abc import Mapping

from llmzero_ray.config.strategy_file import (
    FORMAT,
    Confirmed,
    Measured,
    Origin,
    Scores,
    Setting,
    Source,
    Strategy,
    StrategyChange,
    StrategyPhase,
)
from llmzero_ray.coordinator.runs import without_infinities
from llmzero_ray.records.metrics import Score
from llmzero_ray.records.significance import score_interval
from llmzero_ray.report.comparison import SPLITS, Policy, Split, policies
from llmzero_ray.report.facts import PathPhase, SearchFacts
from llmzero_ray.storage.strategy import load_strategy, plain


def best_strategy(facts: SearchFacts, adapter: Mapping[str, str]) -> Strategy | None:
    """Strategy of the best node so far, or None if there is none. `adapter` maps files of best/ to
    SHA-256."""
    if not facts.path:
        return None
    config, core = facts.config, facts.core
    return Strategy(
        format=FORMAT,
        search=Origin(
            name=config.name,
            seed=config.seed,
            state=core.stage if core.end_reason is None else "finished",
            end_reason=core.end_reason,
            runs=facts.finished_phases,
        ),
        base_model=facts.base_model,
        task=plain(facts.task),
        setting=Setting(
            eval_max_response_length=config.eval.max_response_length,
            gpus_per_slot=config.slots.nodes * config.slots.gpus_per_node,
            engine=config.engine.model_dump(mode="json"),
        ),
        total_steps=facts.path[-1].end,
        scores={split: _scores(policies(facts), split) for split in SPLITS},
        confirmed=_confirmed(facts),
        adapter=dict(adapter),
        software=dict(facts.versions),
        phases=tuple(_phase(facts, phase) for phase in facts.path),
    )


def current_strategy(facts: SearchFacts) -> Strategy | None:
    """Strategy of the best node so far: strategy.yaml, or the journal where the file is missing or has other
    phases. None if there is none, or if it was found under Ray Tune and is not written yet.

    Raises:
        ConfigError: strategy.yaml cannot be read, or was found under Ray Tune.
    """
    if not facts.paths.strategy.is_file():
        last = facts.path[-1] if facts.path else None
        in_tune = last is not None and last.run.adapter(facts.paths, last.cut).is_file()
        return None if in_tune else best_strategy(facts, {})
    written = load_strategy(facts.paths.strategy)
    return written if is_current(written, facts) else best_strategy(facts, {})


def is_current(strategy: Strategy, facts: SearchFacts) -> bool:
    """Whether a strategy has the phases and cuts of the best node so far."""
    written = [(phase.node, phase.cut_step) for phase in strategy.phases]
    return written == [(phase.node, phase.cut) for phase in facts.path]


def _confirmed(facts: SearchFacts) -> Confirmed | None:
    final = facts.core.final
    fresh = None if final.confirmation is None else final.confirmation.measured
    interval = None if fresh is None else score_interval(fresh)
    if fresh is None or interval is None or fresh.n is None:
        return None
    return Confirmed(
        mean=fresh.mean,
        standard_error=fresh.standard_error,
        n=fresh.n,
        interval=interval,
        among=sum(job.score is not None for job in final.confirmed),
    )


def _phase(facts: SearchFacts, phase: PathPhase) -> StrategyPhase:
    run, spec = phase.run, phase.run.spec
    assert spec is not None
    source = spec.resume_from
    proposal = run.proposal
    return StrategyPhase(
        phase=phase.number,
        node=run.node,
        kind=run.kind,
        resume_from=None if source is None else Source(phase=phase.number - 1, step=source.step),
        base_step=phase.begin,
        n_steps=spec.n_steps,
        cut_step=phase.cut,
        seed=spec.seed,
        test_freq=spec.test_freq,
        save_freq=spec.save_freq,
        validation_at_start=facts.start_score(run),
        validation_at_cut=score_at(facts, phase),
        diagnosis=proposal.diagnosis.summary if proposal else "",
        rationale=proposal.rationale if proposal else "",
        changes=tuple(
            StrategyChange(key=c.key, reason=c.reason, **plain({"old": c.old, "new": c.new}))
            for c in facts.changes(run)
        ),
        hyperparameters=plain(spec.hyperparameters),
    )


def score_at(facts: SearchFacts, phase: PathPhase) -> float | None:
    """Validation score at a phase's last step in the strategy. None if that step was not validated."""
    outcome = phase.run.outcome
    if outcome is not None and outcome.best_step == phase.cut:
        return outcome.best_score
    curves = facts.curves(phase.node)
    return without_infinities(dict(zip(curves.val_steps, curves.val_scores, strict=True)).get(phase.cut))


def _scores(known: tuple[Policy, ...], split: Split) -> Scores:
    by_name = {
        policy.what: _measured(policy.score(split), policy.macro if split == "test" else None)
        for policy in known
    }
    return Scores(base=by_name.get("base"), default_recipe=by_name.get("reference"), best=by_name.get("best"))


def _measured(score: Score | None, macro: Score | None) -> Measured | None:
    if score is None:
        return None
    return Measured(
        mean=score.mean,
        standard_error=score.standard_error,
        n=score.n,
        macro=macro.mean if macro else None,
        macro_error=macro.standard_error if macro else None,
    )
