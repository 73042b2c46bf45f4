"""A whole search by the local search: nothing is refused, and its journal gives each proposal again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmzero_ray import commands as cmd
from llmzero_ray import events as ev
from llmzero_ray.agents.backend import make_agents
from llmzero_ray.coordinator import build_request, check_decisions, replay
from llmzero_ray.hyperparameters.table import LR
from llmzero_ray.journal import read_all
from llmzero_ray.metric_files import load_curves
from tests.agents import curves as c
from tests.builders import make_config
from tests.fakes import learn
from tests.report.builder import Phase, SearchBuilder


class Learning(dict[int, Phase]):
    """Phases that learn as the scripted engine's do, from the score of the checkpoint they resume."""

    def __init__(self, search: SearchBuilder) -> None:
        super().__init__()
        self._search, self._scores = search, dict[tuple[int, int], float]()

    def get(self, node: int, _: Any = None) -> Phase:  # type: ignore[override]
        spec = self._search.core.runs[node].spec
        assert spec is not None
        at = spec.resume_from
        start = 0.25 if at is None else self._scores[at.node, at.step]
        rate = float(str(spec.hyperparameters[LR]))
        for step in range(1, spec.n_steps + 1):
            self._scores[node, step] = learn(start, step, rate)
        scored = {step: self._scores[node, step] for step in (*range(5, spec.n_steps, 5), spec.n_steps)}
        metrics = {
            "critic/score/mean": c.line(start, scored[spec.n_steps], spec.n_steps, 0.03),
            "actor/kl_loss": c.line(0.1, 0.12, spec.n_steps, 0.01),
        }
        return Phase(val={step: round(100 * v) for step, v in {0: start, **scored}.items()}, metrics=metrics)


@pytest.mark.parametrize("proposer", ["local", "hybrid"])
def test_nothing_is_refused_and_every_proposal_is_made_again_from_the_journal(
    proposer: str, tmp_path: Path
) -> None:
    config = make_config(budget={"runs": 8}, agents={"proposer": proposer}, root={"overrides": {"lr": 2e-3}})
    search = SearchBuilder(tmp_path, config=config)
    agent = make_agents(config, 100).proposer
    search.answers = dict.fromkeys(range(8), agent.propose)
    search.phases = Learning(search)
    search.ready().play()
    events = read_all(search.root / "journal")
    assert not [event for event in events if isinstance(event, ev.ProposalRefused | ev.ProposalFailed)]
    assert not [check for check in check_decisions(events, search.root) if check.differences]
    made = [(i, event) for i, event in enumerate(events) if isinstance(event, ev.Proposed)]
    assert len(made) == 7
    for number, event in made:
        then = replay(events[:number], search.root)
        (command,) = [one for one in then.outstanding() if isinstance(one, cmd.Propose)]
        request: Any = build_request(then, command, lambda node: load_curves(search.storage, node))
        assert agent.propose(request) == event.proposal
