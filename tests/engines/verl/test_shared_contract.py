"""Real VeRL keeps the contract of engines. The last file that uses the warm engine, which it closes."""

from __future__ import annotations

import pytest

from llmzero_ray.testing.engines import EngineCase, EngineContract
from tests.engines.verl.conftest import ACTOR, Lab

pytestmark = [pytest.mark.verl, pytest.mark.slow]


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
