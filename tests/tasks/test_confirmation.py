"""Fresh validation items: in no split, the same every time, and all others stay as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.prepared import load_task
from llmzero_ray.prepared.confirmation import check_spare_rows, write_confirmation
from llmzero_ray.prepared.splits import SPLITS
from llmzero_ray.prepared.task import PreparedTask
from llmzero_ray.tasks.prepare import prepare
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.task_yaml import parse_task_file
from llmzero_ray.utils.files import file_digest
from tests.tasks.synthetic import write_jsonl


def made(directory: Path) -> PreparedTask:
    return prepare(dir=directory, family="echo", n_train=64, n_val=16, n_test=16, seed=3, make_model=False)


def prompts(path: str | Path) -> list[str]:
    return [row[0]["content"] for row in pq.read_table(path, columns=["prompt"]).column("prompt").to_pylist()]


def test_a_family_makes_items_that_no_split_holds_and_leaves_these_alone(tmp_path: Path) -> None:
    task = made(tmp_path / "task")
    before = {split: file_digest(getattr(task, split)) for split in SPLITS}
    assert write_confirmation(task, 48, tmp_path / "a.parquet") == 48
    fresh = prompts(tmp_path / "a.parquet")
    assert len(set(fresh)) == 48
    assert not set(fresh) & {prompt for split in SPLITS for prompt in prompts(getattr(task, split))}
    assert {split: file_digest(getattr(task, split)) for split in SPLITS} == before
    assert sorted(path.name for path in tmp_path.iterdir() if "confirm" in path.name) == []
    # The same items every time; a file that is there stays.
    write_confirmation(task, 48, tmp_path / "b.parquet")
    assert prompts(tmp_path / "b.parquet") == fresh
    assert write_confirmation(task, 99, tmp_path / "b.parquet") == 48


def by_hand(tmp_path: Path, **confirm: str) -> PreparedTask:
    """A task of the user's own: the rows of a family, without its recipe."""
    directory = Path(made(tmp_path / "task").directory)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["family"] = manifest["recipe"] = manifest["recipe_hash"] = None
    if confirm:
        manifest["splits"]["confirm"] = confirm
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return load_task(directory)


def test_a_task_without_spare_rows_says_so(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"has no spare rows.*splits\.confirm.*confirm\.k=0"):
        write_confirmation(by_hand(tmp_path), 8, tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()


def test_a_manifest_may_name_further_rows_which_no_other_split_may_hold(tmp_path: Path) -> None:
    task = made(tmp_path / "task")
    write_confirmation(task, 8, Path(task.directory) / "more.parquet")
    named = by_hand(tmp_path, file="more.parquet")
    assert write_confirmation(named, 8, tmp_path / "a.parquet") == 8
    shutil.copyfile(task.val, Path(task.directory) / "more.parquet")
    with pytest.raises(TaskError, match="both in val and in confirm"):
        write_confirmation(named, 8, tmp_path / "b.parquet")


# --- data sets ----------------------------------------------------------------------------------------------


CITIES = [{"country": f"country {n}", "city": f"City {n % 7}", "district": f"d{n // 2}"} for n in range(60)]


def own(tmp_path: Path, name: str = "own", **changes: Any) -> PreparedTask:
    """A task of 60 rows: 20 to train, 5 to validate, 5 to test, the others to spare."""
    rows = write_jsonl(tmp_path / "rows.jsonl", CITIES)
    data = {
        "name": "capitals", "files": str(rows), "prompt": "Which city is the capital of {country}?",
        "answer": "city", "reward": "exact_match", "group": "district", "dir": str(tmp_path / name),
        "n_train": 20, "n_val": 5, "n_test": 5, **changes,
    }  # fmt: skip
    return prepare_source(parse_task_file(data)).task


def manifest_of(task: PreparedTask) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((Path(task.directory) / "manifest.json").read_text())
    return held


def test_rows_of_a_data_set_are_set_aside_and_its_splits_stay_as_they_are(tmp_path: Path) -> None:
    with_rows, without = own(tmp_path), own(tmp_path, "without", n_confirm=0)
    for split in SPLITS:
        assert file_digest(getattr(with_rows, split)) == file_digest(getattr(without, split))
    n = manifest_of(with_rows)["splits"]["confirm"]["rows"]
    assert n >= 15
    assert manifest_of(with_rows)["source"]["counts"]["capitals"]["confirm"] == n
    assert "confirm" not in manifest_of(without)["splits"]
    assert "confirm" not in manifest_of(without)["source"]["counts"]["capitals"]
    assert write_confirmation(with_rows, 8, tmp_path / "a.parquet") == n
    fresh = prompts(tmp_path / "a.parquet")
    used = [prompt for split in SPLITS for prompt in prompts(getattr(with_rows, split))]
    assert not set(fresh) & set(used)
    # Rows of one district never stand apart.
    district = {f"Which city is the capital of {row['country']}?": row["district"] for row in CITIES}
    assert not {district[one] for one in fresh} & {district[one] for one in used}
    few = own(tmp_path, "few", n_confirm=3)
    assert write_confirmation(few, 8, tmp_path / "b.parquet") == 3


def test_rows_that_were_changed_since_they_were_set_aside_are_refused(tmp_path: Path) -> None:
    task = own(tmp_path)
    shutil.copyfile(own(tmp_path, "few", n_confirm=3).val, Path(task.directory) / "confirm.parquet")
    with pytest.raises(TaskError, match="has changed since the task was made"):
        write_confirmation(task, 8, tmp_path / "a.parquet")


@pytest.mark.parametrize("changes", [{"n_train": 5000}, {"n_confirm": 0}])
def test_a_data_set_without_rows_left_says_what_helps(tmp_path: Path, changes: dict[str, Any]) -> None:
    task = own(tmp_path, **changes)
    for refused in (check_spare_rows, lambda task: write_confirmation(task, 8, tmp_path / "a.parquet")):
        with pytest.raises(TaskError, match=r"n_confirm > 0 .* lower n_train.*, or set confirm\.k=0"):
            refused(task)


def test_a_generator_gives_further_problems_and_where_it_ends_as_many_as_there_are(tmp_path: Path) -> None:
    def gym(name: str, **changes: Any) -> PreparedTask:
        data = {"reasoning_gym": "chain_sum", "dir": str(tmp_path / name), "n_train": 20, "n_val": 5}
        return prepare_source(parse_task_file({**data, "n_test": 5, **changes})).task

    many, none = gym("many", n_confirm=12), gym("none", n_confirm=0)
    for split in SPLITS:
        assert file_digest(getattr(many, split)) == file_digest(getattr(none, split))
    assert write_confirmation(many, 8, tmp_path / "a.parquet") == 12
    # Sums of two digits: at most a few hundred different ones.
    small = gym("small", n_confirm=5000, options={"min_terms": 2, "max_terms": 2, "max_digits": 1})
    assert 0 < write_confirmation(small, 8, tmp_path / "b.parquet") < 500


def test_a_task_of_another_version_of_its_family_is_refused(tmp_path: Path) -> None:
    task = made(tmp_path / "task")
    path = Path(task.directory) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["recipe"]["family_version"] = 0
    path.write_text(json.dumps(manifest))
    with pytest.raises(TaskError, match="made by version 0 of echo, this is version 1"):
        write_confirmation(task, 8, tmp_path / "a.parquet")
