"""Strategies to train again: checks of their hyper-parameters, and their phases as specs for an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray.config.strategy_file import Strategy, StrategyPhase, of_verl, read_strategy
from llmzero_ray.errors import ConfigError, HyperparameterError
from llmzero_ray.hyperparameters import check_transition, normalize
from llmzero_ray.records import Hyperparameters, PhaseSpec, ResumeFrom
from llmzero_ray.storage import SearchPaths


def load_strategy(path: str | Path) -> Strategy:
    """Load a strategy that a search on VeRL wrote.

    Raises:
        ConfigError: as `read_strategy`; or its hyper-parameters cannot be trained, or it was found under Ray
            Tune.
    """
    source = Path(path).name
    strategy = of_verl(read_strategy(path), source)
    _check_hyperparameters(strategy, source)
    return strategy


def _check_hyperparameters(strategy: Strategy, source: str) -> None:
    before: Hyperparameters | None = None
    for phase in strategy.phases:
        try:
            typed = normalize(phase.hyperparameters)
            if before is not None:
                check_transition(before, typed)
        except HyperparameterError as error:
            raise ConfigError(f"{source}: phase {phase.phase}: {error}") from error
        before = typed


def phase_specs(strategy: Strategy, root: str | Path, name: str) -> tuple[PhaseSpec, ...]:
    """Specs of the strategy's phases, with files below `root`. Phase 1 is node 0, and so on.

    Each phase trains for its `n_steps` as in the search and saves the adapter of its `cut_step` on the way.
    It may be stopped after that step.
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
    """The mapping with text keys and with tuples as lists, as YAML writes it."""
    return {str(key): _plain(value) for key, value in mapping.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain(value)
    return [_plain(member) for member in value] if isinstance(value, list | tuple) else value
