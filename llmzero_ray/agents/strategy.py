"""Proposer that repeats a strategy: `agents.proposer: strategy`, with its file in `agents.recorded_from`.

Each phase gets the configuration, start and length of the strategy's phase, whatever the scores are. A
proposal that breaks a rule of this search is replaced, so strategy/retrain.py checks afterwards whether the
phases were trained as planned.
"""

from __future__ import annotations

from pathlib import Path

from llmzero_ray.config import ModelConfig
from llmzero_ray.config.strategy_file import Strategy, check_rank
from llmzero_ray.errors import AgentError
from llmzero_ray.hyperparameters import VERL_SPACE, normalize
from llmzero_ray.records import Change, Diagnosis, Proposal, ResumeFrom
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.storage.strategy import load_strategy


class StrategyProposer:
    """Proposer of the phases of a strategy, one after the other."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    @classmethod
    def of(cls, path: str | Path, model: ModelConfig | None = None) -> StrategyProposer:
        """Proposer of a strategy file, for a search on `model`. If `model` is None, the fit is not checked.

        Raises:
            ConfigError: the file holds no strategy, or one for another LoRA rank.
        """
        strategy = load_strategy(path)
        if model is not None:
            check_rank(strategy.lora_rank, model.lora_rank)
        return cls(strategy)

    def propose(self, request: ProposalRequest) -> Proposal:
        """Next phase after those on the path.

        Raises:
            AgentError: the strategy has no further phase, or this phase was rejected.
        """
        number = len(request.path) + 1
        if request.from_scratch or number > len(self._strategy.phases):
            raise AgentError(f"the strategy has {len(self._strategy.phases)} phases and no number {number}.")
        phase = self._strategy.phases[number - 1]
        assert phase.resume_from is not None
        start = ResumeFrom(node=request.on.node, step=phase.resume_from.step)
        base, wanted = request.base(start), normalize(phase.hyperparameters)
        changes = tuple(
            Change(key=key, old=base.get(key), new=value, reason=f"phase {number} of the strategy")
            for key, value in wanted.items()
            if base.get(key) != value
        )
        if request.rejected is not None:
            inert = VERL_SPACE.inert(wanted)
            changes = tuple(change for change in changes if change.key not in inert)
        return Proposal(
            diagnosis=Diagnosis(state="unknown", summary=phase.diagnosis),
            changes=changes,
            resume_from=start,
            n_steps=phase.n_steps,
            rationale=f"Phase {number} of the strategy that {self._strategy.search.name} found.",
            agent="strategy",
        )
