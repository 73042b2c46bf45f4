"""Prices that an agent and a person read: what compute.py charges."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmzero_ray.agents.llm.context import proposer_context
from llmzero_ray.agents.llm.prompts import Prompts
from llmzero_ray.coordinator import build_request
from llmzero_ray.coordinator.price import phase_price
from llmzero_ray.hyperparameters.compute import amount, plus, steps_that_fit, token_cost, tokens_of
from llmzero_ray.records import Checkpoint, MetricPoint, TokenCounts
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.records.agents import ProposalRequest
from llmzero_ray.records.metrics import LENGTH, PROMPT_LENGTH, VAL_TOKENS
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import MetricWriter, load_curves, with_tokens
from tests.builders import Driver, make_config, make_proposal, make_result

KNOWLEDGE = Prompts.load().knowledge
WHOLE = 1e6


@given(
    batch=st.sampled_from([16, 48]),
    n=st.integers(2, 9),
    epochs=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    validates_last=st.booleans(),
    at_start=st.booleans(),
    starts=st.sampled_from(["first", "always"]),
    more=st.fixed_dictionaries(
        {"n": st.integers(2, 9), "ppo_epochs": st.integers(1, 3)},
        optional={"max_num_seqs": st.just(32)},
    ),
)
def test_a_price_in_a_request_or_for_a_person_is_what_such_a_phase_is_charged(
    batch: int,
    n: int,
    epochs: int,
    lengths: list[int],
    validates_last: bool,
    at_start: bool,
    starts: str,
    more: dict[str, int],
) -> None:
    """The root is validated every 3 steps and is stopped after `lengths`, with or without a validation. The
    engine reads `max_num_seqs` at its start, after which it validates."""
    prompt, validation, done = 11.0, 700.0, len(lengths)
    search = Driver(
        make_config(
            budget={"runs": 9, "compute": WHOLE, "token_cost": {"rollout": 0.5, "trained": 0.25}},
            phase={"n_steps": 20, "max_steps": 60, "test_freq": 3, "validate_start": starts},
            root={"overrides": {"lr": 1e-3, "train_batch_size": batch, "n": n, "ppo_epochs": epochs}},
        )
    )
    search.ready()
    search.start(0)
    spec = search.core.runs[0].spec
    assert spec is not None
    validated = {*range(3, done + 1, 3), *([done] if validates_last else [])}
    with tempfile.TemporaryDirectory() as folder:
        storage = SearchStorage(Path(folder), "search")
        with MetricWriter(storage, 0, 0) as writer:
            for step in range(0 if at_start else 1, done + 1):
                measured = step == 0 or step in validated
                metrics = {LENGTH: float(lengths[step - 1]), PROMPT_LENGTH: prompt} if step else {}
                writer.write(
                    MetricPoint(
                        node=0,
                        attempt=0,
                        step=step,
                        global_step=step,
                        wall_s=float(step),
                        metrics={**metrics, **({VAL_TOKENS: validation} if measured else {})},
                        val_score=0.5 if measured else None,
                    )
                )
        result = with_tokens(
            storage,
            spec,
            dataclasses.replace(
                make_result(0, best_step=min(validated, default=None)),
                steps_done=done,
                start_score=0.2 if at_start else None,
                checkpoints=(Checkpoint(step=done, path="x", val_score=0.5 if done in validated else None),),
            ),
        )
        search.post(ev.PhaseFinished(node=0, phase_attempt=0, result=result))
        asked = build_request(
            search.core,
            cmd.Propose(id="p", node=1, on=0, from_scratch=False, rejected=None, tries=0),
            lambda node: load_curves(storage, node),
        )
    cost = token_cost(search.core.config)
    mean = {LENGTH: sum(lengths) / done, PROMPT_LENGTH: prompt}
    step_price = amount(tokens_of(spec.hyperparameters, mean), cost)

    assert isinstance(asked, ProposalRequest)
    budget = "\n".join(proposer_context(asked, KNOWLEDGE)["budget"])
    told = re.search(r"as it is ([\d.e-]+)% a step \((\d+) fit\)", budget)
    assert told is not None
    assert float(told[1]) == pytest.approx(100 * step_price / WHOLE, rel=0.006)
    sampled = result.val_tokens or 0.0
    start = sampled * cost.rollout if starts == "always" else 0.0
    left = WHOLE - search.core.compute - start
    assert int(told[2]) in {  # at the very edge a step more or less is right
        steps_that_fit(left, edge * step_price, sampled * cost.rollout, every=3)
        for edge in (1 - 1e-9, 1 + 1e-9)
    }

    search.propose(1, make_proposal(n_steps=40, lr=5e-4, **more))
    run = search.core.runs[1]
    assert run.spec is not None
    price = phase_price(search.core, run, run.spec)
    full = run.spec.hyperparameters
    validates = starts == "always" or not at_start or "max_num_seqs" in more
    charged = TokenCounts(rollout=sampled) if validates else TokenCounts()
    for step in range(1, 41):
        ends = {VAL_TOKENS: sampled} if step % 3 == 0 or step == 40 else {}
        charged = plus(charged, tokens_of(full, {**mean, **ends}))
    assert price is not None and price.limit == "compute"
    assert price.share == pytest.approx(amount(charged, cost) / (WHOLE - search.core.compute))
