"""Proposers that `tree_search` accepts by name, each with the spaces that it supports."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from llmzero_ray.agents.expert import ExpertErrorAnalyzer, ExpertProposer
from llmzero_ray.agents.expert.perturbation import perturbed
from llmzero_ray.agents.expert.proposer import proposal_base
from llmzero_ray.config import AgentsConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters import VERL_SPACE, Space
from llmzero_ray.records import Change, Diagnosis, Proposal
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.tune.any_space import AnySpaceProposer, RandomProposer, best_start
from llmzero_ray.tune.language_model import LanguageModelProposer

NAMES = ("local", "random", "expert", "claude")


def made_proposer(name: str | AgentsConfig, space: Space, seed: int, dollars: float | None) -> Any:
    """The proposer of that name for a space, or the language model of an `AgentsConfig`.

    Raises:
        ConfigError: it cannot propose in this space.
        AgentError: the language model cannot be called.
    """
    verl = space.trainer == VERL_SPACE.trainer
    if not verl and (isinstance(name, AgentsConfig) or name in ("expert", "claude")):
        what = f"{name!r}" if isinstance(name, str) else "a language model"
        raise ConfigError(
            f"proposer is {what}, whose rules or prompts read VeRL's metrics and set VeRL's keys; it needs "
            "space=llmzero_ray.hyperparameters.VERL_SPACE. In another space take 'local' or 'random', or "
            "a function with rules of your own."
        )
    if isinstance(name, AgentsConfig):
        return LanguageModelProposer(name, dollars)
    if name == "claude":
        return LanguageModelProposer(AgentsConfig(backend="claude"), dollars)
    if name == "expert":
        return SimpleNamespace(propose=ExpertProposer().propose, analyze=ExpertErrorAnalyzer().analyze)
    if name == "random":
        return RandomMoves(seed) if verl else RandomProposer(space, seed=seed)
    return AnySpaceProposer(space, seed=seed)


class RandomMoves:
    """Random moves of one to three of VeRL's hyper-parameters, whose bounds are too wide to draw whole
    configurations."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._repairs = AnySpaceProposer(VERL_SPACE, seed=seed)

    def propose(self, request: ProposalRequest) -> Proposal:
        """Moves from the best checkpoint that is offered; below a failed phase the repair of `local`."""
        if request.on.status == "failed" and not request.from_scratch:
            return self._repairs.propose(request)
        rng = random.Random(f"{self._seed}:{request.node}:{request.tries}")
        start = None if request.from_scratch else best_start(request.checkpoints)
        base = request.base(start)
        values = perturbed(proposal_base(request, base, 1), rng)
        return Proposal(
            diagnosis=Diagnosis(state="unknown", summary="Nothing is read."),
            changes=tuple(
                Change(key=key, old=base.get(key), new=value, reason="drawn at random")
                for key, value in values.items()
                if base.get(key) != value
            ),
            resume_from=start,
            n_steps=request.task.phase_steps,
            rationale="Random moves of one to three hyper-parameters.",
            agent="random",
        )
