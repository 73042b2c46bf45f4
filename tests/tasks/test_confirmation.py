"""Fresh validation items: in no split, the same every time, and all others stay as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.files import file_digest
from llmzero_ray.tasks import load_task
from llmzero_ray.tasks.confirmation import write_confirmation
from llmzero_ray.tasks.prepare import prepare
from llmzero_ray.tasks.prepared import PreparedTask
from llmzero_ray.tasks.splits import SPLITS


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


def test_a_task_of_another_version_of_its_family_is_refused(tmp_path: Path) -> None:
    task = made(tmp_path / "task")
    path = Path(task.directory) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["recipe"]["family_version"] = 0
    path.write_text(json.dumps(manifest))
    with pytest.raises(TaskError, match="made by version 0 of echo, this is version 1"):
        write_confirmation(task, 8, tmp_path / "a.parquet")
