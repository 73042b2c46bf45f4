"""The four data sets, prepared from made-up rows of their published layouts, trained on for two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import PhaseResult
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.task_yaml import parse_task_file
from llmzero_ray.tasks.tiny_model import SHAPE, make_model, make_tokenizer, save
from tests.engines.verl.conftest import Lab, tiny_settings
from tests.tasks import synthetic
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.verl, pytest.mark.slow]

POSITIONS = 2560
SIZES = {"n_train": 16, "n_val": 10, "n_test": 10}


def write_chemcot(raw: Path) -> None:
    for subtask in ("fg_count", "ring_count", "equivalence", "mechsel"):
        rows = synthetic.chemcot_bench(subtask, 24)
        synthetic.write_json(raw / "chemcotbench" / rows[0]["task"] / f"{subtask}.json", rows)


def write_papers(raw: Path) -> None:
    for split, n, seed in (("train", 60, 0), ("test", 20, 1)):
        rows = synthetic.papersearchqa(n, seed, prefix=split)
        synthetic.write_parquet(raw / f"{split}-00000-of-00001.parquet", rows)


def write_ssmr(raw: Path) -> None:
    synthetic.write_parquet(raw / "Test_textual.parquet", synthetic.ssmr(120))


def write_wildsci(raw: Path) -> None:
    synthetic.write_jsonl(raw / "wildsci.jsonl", synthetic.wildsci(200))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, untaught, with room for the prompts of real data sets."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = POSITIONS
    untaught = make_model(tokenizer, seed=1)
    untaught.config.max_position_embeddings = POSITIONS
    assert SHAPE["max_position_embeddings"] < POSITIONS
    save(untaught, tokenizer, directory)
    return directory


@pytest.fixture
def engine(ray_group: Any, tmp_path: Path, model: Path) -> Iterator[Callable[[PreparedTask], Any]]:
    """Makes an engine for a task on hardware of its own."""
    import ray

    from llmzero_ray.engines.verl.engine import VerlEngine

    group = ray.util.placement_group([{"CPU": 3, "GPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=PATIENCE_S)
    made: list[Any] = []

    def make(task: PreparedTask) -> Any:
        assert task.max_prompt_tokens is not None
        settings = tiny_settings(
            task,
            model,
            group,
            tmp_path,
            max_prompt_length=task.max_prompt_tokens,
            eval_max_response_length=8,
            search="adapters",
        )
        lab = Lab(engine=None, settings=settings, task=task, root=tmp_path)
        lab.engine = VerlEngine(settings, task.n_train, lab.spec(), lambda key: False)
        made.append(lab.engine)
        return lab

    yield make
    for each in made:
        each.close()
    ray.util.remove_placement_group(group)


@pytest.mark.parametrize(
    ("dataset", "write"),
    [
        pytest.param("chemcot", write_chemcot, marks=pytest.mark.long),
        pytest.param("papersearchqa", write_papers, marks=pytest.mark.long),
        pytest.param("ssmr", write_ssmr, marks=pytest.mark.long),
        pytest.param("wildsci", write_wildsci, marks=pytest.mark.long),
    ],
)
def test_a_prepared_data_set_trains(
    tmp_path: Path,
    model: Path,
    engine: Callable[[PreparedTask], Lab],
    dataset: str,
    write: Callable[[Path], None],
) -> None:
    write(tmp_path / "raw")
    options = {"subtasks": ["fg_count", "ring_count", "equivalence", "mechsel"]}
    data = {"dataset": dataset, "files": str(tmp_path / "raw"), "dir": str(tmp_path / "task"), **SIZES}
    data |= {"tokenizer": str(model), "options": options if dataset == "chemcot" else {}}
    task = prepare_source(parse_task_file(data)).task
    lab = engine(task)
    outcome, points = lab.run(lab.spec(n_steps=2, data__train_batch_size=8))
    assert isinstance(outcome, PhaseResult), outcome
    assert (outcome.status, [point.step for point in points]) == ("completed", [0, 1, 2])
    assert all(point.metrics["prompt_length/max"] <= task.max_prompt_tokens for point in points[1:])
    rows = pq.ParquetFile(task.val).read(["data_source"]).to_pylist()
    assert [item.data_source for item in points[2].items] == [row["data_source"] for row in rows]
    assert all(item.acc in (0.0, 1.0) and item.response for item in points[2].items)
    assert points[2].val_score == outcome.final_score is not None
