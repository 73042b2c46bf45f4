"""Batched rollouts and VeRL's agent loops on one phase: the same numbers, wherever rewards are computed."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmzero_ray.records import PhaseResult, PhaseSpec
from tests.engines.verl.conftest import COLD_KEYS, Lab, assert_same_metrics, processes_of

pytestmark = [pytest.mark.verl, pytest.mark.slow]

HELPERS = ("PhaseAgentLoopWorker", "GlobalRequestLoadBalancer")
"""Actors that batches which need no agent loop do without."""


@pytest.fixture
def with_agent_loops(lab: Lab, tmp_path: Path) -> Iterator[Lab]:
    """The same task with a reward of its own, and a column in its training rows that needs agent loops."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import ray

    from llmzero_ray.engines.verl.engine import VerlEngine

    rows = pq.read_table(lab.task.train)
    train, reward = tmp_path / "train.parquet", tmp_path / "reward.py"
    pq.write_table(rows.append_column("priority", pa.array([0] * len(rows))), train)
    shutil.copy(lab.task.reward_path, reward)
    group = ray.util.placement_group([{"CPU": 3, "GPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=60)
    settings = dataclasses.replace(
        lab.settings,
        search="loops",
        train_parquet=str(train),
        reward_source=str(reward),
        placement_groups=(group.id.hex(),),
    )
    engine = VerlEngine(settings, lab.task.n_train, lab.spec(), lambda key: key not in COLD_KEYS)
    yield Lab(engine=engine, settings=settings, task=lab.task, root=tmp_path)
    engine.close()
    ray.util.remove_placement_group(group)


def phase(lab: Lab) -> PhaseSpec:
    return dataclasses.replace(lab.spec(n_steps=2), node=1)


def test_both_paths_give_the_same_numbers_and_helpers_start_with_the_first_need(
    lab: Lab, with_agent_loops: Lab
) -> None:
    outcome, points = lab.run(phase(lab))
    assert isinstance(outcome, PhaseResult), outcome
    for actor in (*HELPERS, "BatchRewardWorker"):
        assert processes_of(actor) == []
    theirs_outcome, theirs = with_agent_loops.run(phase(with_agent_loops))
    assert isinstance(theirs_outcome, PhaseResult), theirs_outcome
    for actor in (*HELPERS, "BatchRewardWorker"):
        assert len(processes_of(actor)) == 1, actor
    assert_same_metrics(points, theirs)
    assert [[(i.index, i.score, i.response) for i in p.items] for p in points] == [
        [(i.index, i.score, i.response) for i in p.items] for p in theirs
    ]
