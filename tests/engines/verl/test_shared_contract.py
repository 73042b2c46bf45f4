"""Real VeRL keeps the contract of engines. The last file that uses the warm engine, which it closes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from llmzero_ray.records import PhaseFailure, PhaseResult
from llmzero_ray.storage.manifests import write_manifest
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

    def test_an_adapter_of_another_rank_is_refused_by_name(
        self, case: EngineCase, lab: Lab, first: Phase, tmp_path: Path
    ) -> None:
        """Next to the last: VeRL's own exception costs the engine."""
        import torch
        from safetensors.torch import load_file, save_file

        source = Path(first[0].checkpoints[-1].path)
        tensors = load_file(source / "adapter_model.safetensors")
        save_file(
            {k: torch.cat([v, v], dim=0 if "lora_A" in k else 1) for k, v in tensors.items()},
            tmp_path / "adapter_model.safetensors",
        )
        write_manifest(tmp_path, {})
        outcome, _ = case.outcome_of(lab.spec(n_steps=1, adapter=str(tmp_path)))
        assert isinstance(outcome, PhaseFailure)
        assert "LoRA rank" in outcome.cause

    def test_closing_may_be_repeated(self, case: EngineCase) -> None:
        """Stands here to come after the test above."""
        super().test_closing_may_be_repeated(case)
