"""The contract of engines, kept by the scripted engine that whole searches are tested with.

Real VeRL runs the same class in tests/engines/verl.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.base import Engine, Slot
from llmzero_ray.records import PhaseSpec
from llmzero_ray.tasks.prepare import prepare
from llmzero_ray.testing.engines import EngineCase, EngineContract, Phase
from tests.builders import make_config
from tests.fakes import LR, ScriptedEngine
from tests.searches import code_of_the_page

FAILING = 1000


class TestScriptedEngine(EngineContract):
    def engine_around(self, scripted: ScriptedEngine) -> Engine:
        return scripted

    @pytest.fixture(scope="class")
    def case(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineCase]:
        root: Path = tmp_path_factory.mktemp("scripted")
        task = prepare(
            dir=root / "task", family="echo", n_train=64, n_val=32, n_test=64, seed=1, make_model=False
        )
        slot = Slot(search="contract", index=0, placement_groups=("none",), gpus_per_node=1, cpus_per_gpu=1)
        scripted = ScriptedEngine({"fail": [FAILING]}, task, slot)
        engine = self.engine_around(scripted)
        nodes = itertools.count()

        def make_spec(n_steps: int) -> PhaseSpec:
            return spec(next(nodes), n_steps)

        def spec(node: int, n_steps: int) -> PhaseSpec:
            return PhaseSpec(
                search="contract",
                node=node,
                kind="root",
                parent=None,
                resume_from=None,
                adapter=None,
                base_step=0,
                n_steps=n_steps,
                hyperparameters={LR: 5e-4},
                seed=1,
                save_freq=n_steps,
                test_freq=n_steps,
                checkpoint_dir=str(root / "checkpoints" / str(node)),
            )

        yield EngineCase(
            engine=engine,
            make_spec=make_spec,
            failing=lambda: spec(FAILING, 10),
            val_parquet=task.val,
            n_val=task.n_val,
            test_parquet=task.test,
            n_test=task.n_test,
            max_tokens=4,
        )
        assert scripted.closed


class TestEngineOfThePage(TestScriptedEngine):
    """The example of docs/extend.md, around the scripted engine instead of VeRL's."""

    def engine_around(self, scripted: ScriptedEngine) -> Engine:
        page: dict[str, Any] = {}
        exec(code_of_the_page("class EngineWithLoad"), page)
        page["make_verl_engine"] = lambda config, task, slot, log_dir: scripted
        made: Engine = page["make_engine"](make_config(), None, None)
        return made

    def test_its_metric_is_in_every_point(self, first: Phase) -> None:
        assert all(point.metrics["machine/load"] >= 0 for point in first[1])


def test_a_slot_of_two_machines_counts_the_gpus_of_both() -> None:
    fields: Any = {"search": "s", "index": 0, "gpus_per_node": 4, "cpus_per_gpu": 2}
    assert Slot(placement_groups=("a", "b"), **fields).n_gpus == 8
