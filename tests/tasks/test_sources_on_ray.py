"""A cluster chooses the same rows as one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.errors import TaskError
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.sources.summary import Summary
from llmzero_ray.tasks.task_yaml import parse_task_file
from tests.tasks import synthetic

pytest.importorskip("ray")
N_ROWS = 3000


def prepared(directory: Path, on_ray: bool, *files: Path) -> Summary:
    data: dict[str, Any] = {
        "dataset": "wildsci",
        "files": [str(file) for file in files],
        "dir": str(directory),
    }
    return prepare_source(parse_task_file({**data, "n_train": 900, "n_val": 90, "n_test": 90}), on_ray=on_ray)


def content(summary: Summary) -> list[bytes]:
    return [Path(getattr(summary.task, split)).read_bytes() for split in ("train", "val", "test")]


def test_without_a_session_a_cluster_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # earlier tests of this run may have one
    path = synthetic.write_jsonl(tmp_path / "wildsci.jsonl", synthetic.wildsci(30))
    with pytest.raises(TaskError, match=r"needs a Ray session; call ray.init first, or prepare locally"):
        prepared(tmp_path / "task", True, path)


@pytest.mark.slow
@pytest.mark.usefixtures("head")
def test_the_same_rows_are_chosen_whatever_the_files_and_their_order(tmp_path: Path) -> None:
    rows = synthetic.wildsci(N_ROWS)
    rows[10] = {**rows[10], "answer": "Z", "voting_type": "all_aligned"}
    whole = synthetic.write_jsonl(tmp_path / "whole" / "wildsci.jsonl", rows)
    cut = tmp_path / "cut"
    synthetic.write_parquet(cut / "a.parquet", rows[2000:], row_group_size=300)
    synthetic.write_jsonl(cut / "b.jsonl", rows[500:2000][::-1])
    synthetic.write_json(cut / "c.json", rows[:500])
    local = prepared(tmp_path / "local", False, whole)
    for name, files in (
        ("one file", (whole,)),
        ("three files", (cut / "c.json", cut / "a.parquet", cut / "b.jsonl")),
    ):
        spread = prepared(tmp_path / name, True, *files)
        assert content(spread) == content(local), name
        assert (spread.dropped, spread.counts, spread.rows_read) == (local.dropped, local.counts, N_ROWS)
    assert spread.examples["gold not among the options"][0].startswith("c.json, row 11: answer is 'Z'")
