"""Real VeRL keeps the contract of engines. The last file that uses the warm engine, which it closes."""

from __future__ import annotations

import dataclasses

import pytest

from llmzero_ray.records import PhaseResult
from llmzero_ray.testing.engines import EngineCase, EngineContract, Phase
from tests.engines.verl.conftest import ACTOR, Lab, assert_same_metrics

pytestmark = [pytest.mark.verl, pytest.mark.slow]


def test_a_warm_engine_repeats_the_first_phase_to_the_bit(lab: Lab, first: Phase) -> None:
    """Numbers and answers: nothing that was trained in between leaves a trace."""
    lab.run(lab.spec(1))  # warm whatever happened before
    outcome, points = lab.run(dataclasses.replace(lab.spec(4), test_freq=2, save_freq=4))
    assert isinstance(outcome, PhaseResult) and outcome.warm and outcome.cold_reason is None
    assert_same_metrics(first[1], points)
    assert [[i.response for i in p.items] for p in points] == [
        [i.response for i in p.items] for p in first[1]
    ]


class TestVerlEngine(EngineContract):
    @pytest.fixture(scope="class")
    def case(self, lab: Lab) -> EngineCase:
        unknown = {f"{ACTOR}.optim.learning_rate".replace(".", "__"): 1e-3}
        return EngineCase(
            engine=lab.engine,
            make_spec=lab.spec,
            failing=lambda: lab.spec(1, **unknown),
            val_parquet=lab.task.val,
            n_val=lab.task.n_val,
            test_parquet=lab.task.test,
            n_test=lab.task.n_test,
            max_tokens=lab.settings.eval_max_response_length,
        )

    @pytest.fixture(scope="class")
    def first(self, first: Phase) -> Phase:
        """The one that all files have."""
        return first
