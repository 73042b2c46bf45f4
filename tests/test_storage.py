"""The directory of a search: where things are, what survives, who is at work in it."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from llmzero_ray.config.changes import with_changes
from llmzero_ray.dynamics.stored_outcomes import with_outcomes
from llmzero_ray.engines.capacity import (
    Machine,
    private_head_resources,
    required_and_available,
    shortfall,
    side_cpus,
)
from llmzero_ray.errors import ConfigError, SearchBusyError, StorageError
from llmzero_ray.records import ItemOutcome, MetricPoint
from llmzero_ray.records.agents import OfferedCheckpoint
from llmzero_ray.records.events import REFERENCE
from llmzero_ray.records.metrics import Curves
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import (
    MetricWriter,
    compact,
    last_points,
    last_written,
    load_curves,
    load_items,
    lost_phase,
    part_stats,
    with_gain,
    write_items,
)
from llmzero_ray.storage.presence import (
    Owner,
    SearchLock,
    beat,
    being_started,
    done_with,
    drop_ends,
    last_heartbeat,
    owner,
    request,
    start_of,
    waiting_requests,
)
from llmzero_ray.utils.files import replace_file, storage_error
from tests.agents.llm.large_requests import proposal_request
from tests.builders import Driver, make_config, make_failure, make_result


@pytest.fixture
def storage(tmp_path: Path) -> SearchStorage:
    return SearchStorage(tmp_path / "runs", "demo")


# --- places -------------------------------------------------------------------------------------------------


def test_files_are_where_the_readme_says(storage: SearchStorage) -> None:
    paths, root = storage.paths, storage.paths.root
    assert root.name == "demo"
    assert paths.spec(3) == root / "nodes/0003/spec.yaml"
    assert paths.adapter(3, 120) == root / "checkpoints/0003/step_000120"
    assert paths.agents(12) == root / "nodes/0012/agents"
    assert paths.adapter(REFERENCE, 5) == root / "reference/checkpoints/step_000005"
    assert paths.log(REFERENCE) == root / "reference/log.txt"


def test_a_storage_may_be_named_by_its_directory(storage: SearchStorage) -> None:
    assert SearchStorage.at(storage.paths.root).paths == storage.paths


# --- the start ----------------------------------------------------------------------------------------------


def test_a_fresh_directory_is_made_and_left_clean(storage: SearchStorage) -> None:
    storage.check()
    assert list(storage.paths.root.iterdir()) == []


def test_too_little_free_space_is_refused(storage: SearchStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage("/")._replace(free=10 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(StorageError, match=r"only 10 MiB are free; a search needs at least 50 MiB"):
        storage.check()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, "the storage is full"),
        (errno.EDQUOT, "the storage is full"),
        (errno.EACCES, "Make it writable"),
        (errno.EROFS, "Make it writable"),
        (errno.EIO, "Set `storage`"),
    ],
)
def test_errors_of_the_operating_system_are_reported_with_the_remedy(code: int, expected: str) -> None:
    message = str(storage_error(Path("/data/x"), OSError(code, os.strerror(code))))
    assert message.startswith("/data/x: cannot be written")
    assert expected in message


def test_the_configuration_is_kept_and_may_be_given_again(storage: SearchStorage) -> None:
    config = make_config()
    storage.adopt_config(config)
    storage.adopt_config(config)
    assert storage.config() == config


def test_another_configuration_is_refused_with_the_differing_keys(storage: SearchStorage) -> None:
    storage.adopt_config(make_config())
    with pytest.raises(ConfigError) as error:
        storage.adopt_config(make_config(budget={"runs": 9}, seed=3, phase={"n_steps": 30}))
    assert "  phase.n_steps: 20 -> 30\n" in str(error.value)
    assert "  seed: 1 -> 3\n" in str(error.value)
    assert "budget.runs: 4" not in str(error.value)
    assert storage.config() == make_config()


def test_what_moved_with_a_search_is_found_where_it_is_now(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    agents = {"proposer": "strategy", "recorded_from": str(old / "demo.strategy.yaml")}
    config = make_config(storage=str(old), task={"dir": str(old / "demo" / "task")}, agents=agents)
    SearchStorage(old, "demo").adopt_config(config)
    (old / "demo" / "task").mkdir()
    (old / "demo.strategy.yaml").touch()
    new.mkdir()
    (old / "demo").rename(new / "demo")  # without the strategy next to it
    alone = SearchStorage(new, "demo").config()
    assert alone is not None
    assert (alone.task.dir, alone.agents.recorded_from) == (
        str(new / "demo" / "task"),
        str(old / "demo.strategy.yaml"),
    )
    (old / "demo.strategy.yaml").rename(new / "demo.strategy.yaml")
    both = SearchStorage(new, "demo").config()
    assert both is not None
    assert both.agents.recorded_from == str(new / "demo.strategy.yaml")
    assert SearchStorage(new, "demo").relocated(config) == both  # as a coordinator reads the journal's
    shutil.copytree(new / "demo", old / "demo")
    assert SearchStorage(new, "demo").relocated(config).task.dir == str(old / "demo" / "task")


def test_limits_and_hardware_may_differ_when_a_search_goes_on(storage: SearchStorage) -> None:
    storage.adopt_config(make_config())
    other = make_config(budget={"runs": 9}, slots={"count": 2}, checkpoints={"max_gib": 1.0})
    changes = {"budget.runs": 9, "slots.count": 2, "checkpoints.max_gib": 1.0}
    assert storage.check_same(other) == changes
    assert with_changes(make_config(), changes) == other


def test_a_search_that_has_not_trained_can_be_forgotten(storage: SearchStorage) -> None:
    storage.adopt_config(make_config())
    storage.paths.journal.mkdir()
    (storage.paths.journal / "00000001.e001.json").write_text("{}")
    storage.start_over()
    assert storage.config() is None
    assert not storage.paths.journal.exists()
    storage.adopt_config(make_config(seed=3))


# --- whole files --------------------------------------------------------------------------------------------


def test_a_file_is_replaced_in_one_step_and_no_part_is_left(tmp_path: Path) -> None:
    replace_file(tmp_path / "a" / "file.txt", "old")
    replace_file(tmp_path / "a" / "file.txt", b"new")
    assert (tmp_path / "a" / "file.txt").read_text() == "new"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file.txt"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "file.txt").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        replace_file(tmp_path / "file.txt", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_results_survive_their_runner(storage: SearchStorage) -> None:
    storage.write_result(3, 0, make_result(3))
    storage.write_result(4, 1, make_failure(4))
    assert storage.result(3, 0) == make_result(3)
    assert storage.result(4, 1) == make_failure(4)
    assert storage.result(4, 0) is None


def test_an_earlier_result_counts_for_the_same_phase_until_a_later_attempt_trains(
    storage: SearchStorage,
) -> None:
    storage.write_result(3, 1, make_result(3))
    assert storage.result(3, 3, since=1) == storage.result(3, 1)
    assert storage.result(3, 3) is storage.result(3, 3, since=2) is None  # attempt 1 was another phase
    points = storage.paths.parts(3) / "002.jsonl"
    points.parent.mkdir(parents=True)
    points.write_text("{}\n")
    assert storage.result(3, 3, since=1) is None


def test_a_torn_result_is_none(storage: SearchStorage) -> None:
    storage.write_result(3, 0, make_result(3))
    path = storage.paths.result(3, 0)
    path.write_text(path.read_text()[:40])
    assert storage.result(3, 0) is None


def test_only_complete_adapters_count(storage: SearchStorage) -> None:
    for step in (5, 10):
        storage.paths.adapter(2, step).mkdir(parents=True)
    (storage.paths.adapter(2, 5) / "manifest.json").write_text("{}")
    assert [(c.step, c.val_score) for c in storage.checkpoints(2, {5: 0.5})] == [(5, 0.5)]


def test_specs_are_readable_by_people(storage: SearchStorage) -> None:
    search = Driver()
    search.ready()
    spec = search.core.runs[0].spec
    assert spec is not None
    storage.write_spec(spec)
    text = storage.paths.spec(0).read_text()
    assert "n_steps: 20" in text
    assert "actor_rollout_ref.actor.optim.lr: 0.001" in text
    assert "type:" not in text.replace("kl_ctrl.type:", "").replace("loss_type:", "").replace("_type:", "")


def test_the_end_of_a_log_is_given(storage: SearchStorage) -> None:
    assert storage.log_tail(0) == ""
    storage.paths.log(0).parent.mkdir(parents=True)
    storage.paths.log(0).write_text("x" * 5000 + "the end")
    assert storage.log_tail(0) == "x" * 3993 + "the end"


# --- series -------------------------------------------------------------------------------------------------


def point(step: int, *, val: float | None = None, attempt: int = 0, **metrics: float) -> MetricPoint:
    items = (
        ()
        if val is None
        else tuple(
            ItemOutcome(index=i, data_source="toy", score=float(i < val * 4), acc=float(i < val * 4))
            for i in range(4)
        )
    )
    return MetricPoint(
        node=0,
        attempt=attempt,
        step=step,
        global_step=100 + step,
        wall_s=float(step),
        metrics=metrics,
        val_score=val,
        items=items,
    )


def write(storage: SearchStorage, *points: MetricPoint, attempt: int = 0) -> None:
    with MetricWriter(storage, 0, attempt) as writer:
        for each in points:
            assert writer.write(each).items == ()


CURVES = Curves(
    steps=(1, 2, 3),
    base_step=100,
    metrics={"loss": (1.0, 0.5, 0.25), "entropy": (None, 0.3, None)},
    val_steps=(2,),
    val_scores=(0.5,),
    start_score=0.25,
)


def phase() -> list[MetricPoint]:
    return [
        point(0, val=0.25),
        point(1, loss=1.0),
        point(2, val=0.5, loss=0.5, entropy=0.3),
        point(3, loss=0.25),
    ]


def test_curves_have_one_value_per_step_and_none_where_nothing_was_logged(storage: SearchStorage) -> None:
    write(storage, *phase())
    assert load_curves(storage, 0) == CURVES


def test_a_validation_is_paired_with_the_one_at_step_0_row_by_row(storage: SearchStorage) -> None:
    right = {0: (1.0, 0.0, 0.0, 1.0), 1: (1.0, 1.0, 1.0, 0.0), 2: (1.0,)}
    points = [
        dataclasses.replace(
            point(step, val=fmean(accs)),
            items=tuple(ItemOutcome(index=i, data_source="toy", score=a, acc=a) for i, a in enumerate(accs)),
        )
        for step, accs in right.items()
    ]
    write(storage, *points)
    gains = load_curves(storage, 0, gains=True).val_gains
    compact(storage, 0, 0)
    assert load_curves(storage, 0, gains=True).val_gains == gains
    # Differences 0, 1, 1, -1: mean 0.25, squares 3 - 4 * 0.0625 = 2.75. At step 2 other rows answered.
    assert gains == (pytest.approx((0.25, math.sqrt(2.75 / 12))), None)
    assert load_curves(storage, 0).val_gains == ()
    # A phase's result has the gain of its best step, and none where that step asked other rows.
    result = with_gain(storage, make_result(0, best_step=1))
    assert (result.gain, result.gain_error) == gains[0]
    other = make_result(0, best_step=2)
    assert with_gain(storage, other) == other
    assert with_gain(storage, make_result(0, score=None)).gain is None


def test_offered_checkpoints_are_paired_with_the_best_of_them_across_nodes(storage: SearchStorage) -> None:
    def saved(node: int, step: int, right: tuple[float, ...]) -> OfferedCheckpoint:
        items = tuple(ItemOutcome(index=i, data_source="toy", score=a, acc=a) for i, a in enumerate(right))
        found = dataclasses.replace(point(step, val=fmean(right)), node=node, items=items)
        with MetricWriter(storage, node, 0) as writer:
            writer.write(found)
        return OfferedCheckpoint(node=node, step=step, global_step=step, val_score=found.val_score)

    best = saved(1, 2, (1.0, 1.0, 1.0, 0.0))
    other = saved(2, 4, (1.0, 0.0, 0.0, 1.0))
    bare = OfferedCheckpoint(node=3, step=4, global_step=4, val_score=0.5)
    request = dataclasses.replace(proposal_request(), checkpoints=(other, best, bare))
    (paired, itself, unknown) = with_outcomes(storage, request).checkpoints
    # Differences 0, -1, -1, 1: mean -0.25, squares 3 - 4 * 0.0625 = 2.75.
    assert paired.to_best == pytest.approx((-0.25, math.sqrt(2.75 / 12)))
    assert itself.to_best is None and unknown.to_best is None


def test_compaction_changes_nothing_but_the_files(storage: SearchStorage) -> None:
    write(storage, *phase())
    items = load_items(storage, 0)
    compact(storage, 0, 0)
    assert load_curves(storage, 0) == CURVES
    assert load_items(storage, 0) == items
    assert sorted(path.name for path in storage.paths.node(0).iterdir()) == [
        "metrics.parquet",
        "val_items.parquet",
    ]


@pytest.mark.parametrize(
    ("asked", "read", "none"),
    [
        ("stat", lambda storage: last_written(storage, 0), None),
        ("stat", lambda storage: part_stats(storage, 0), []),
        ("read_text", lambda storage: last_points(storage, 0, 0), (None, None)),
    ],
)
def test_files_that_are_compacted_before_they_are_read_are_no_error(
    asked: str,
    read: Callable[[SearchStorage], Any],
    none: Any,
    storage: SearchStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(storage, *phase())
    given = getattr(Path, asked)

    def late(path: Path, **options: Any) -> Any:
        if path.parent.name == "parts":
            monkeypatch.undo()
            compact(storage, 0, 0)
        return given(path, **options)

    monkeypatch.setattr(Path, asked, late)
    assert read(storage) == none
    assert load_curves(storage, 0) == CURVES


def test_nothing_to_compact_is_no_error(storage: SearchStorage) -> None:
    compact(storage, 0, 0)
    assert load_curves(storage, 0) == Curves()


def test_a_point_is_on_the_disk_before_anyone_else_sees_it(storage: SearchStorage) -> None:
    with MetricWriter(storage, 0, 0) as writer:
        writer.write(point(1, loss=1.0))
        assert load_curves(storage, 0).steps == (1,)


def test_numbers_that_are_not_finite_stay_visible(storage: SearchStorage) -> None:
    write(storage, point(1, loss=math.nan, grad=math.inf))
    compact(storage, 0, 0)
    metrics = load_curves(storage, 0).metrics
    assert math.isnan(metrics["loss"][0] or 0.0)
    assert metrics["grad"] == (math.inf,)


def test_a_torn_last_line_is_left_out(storage: SearchStorage) -> None:
    write(storage, *phase())
    part = storage.paths.node(0) / "parts" / "000.jsonl"
    part.write_text(part.read_text()[:-20])
    assert load_curves(storage, 0).steps == (1, 2)


def test_a_repeat_from_the_beginning_replaces_the_lost_attempt(storage: SearchStorage) -> None:
    write(storage, *phase())
    write(storage, point(0, val=0.25, attempt=1), point(1, attempt=1, loss=9.0), attempt=1)
    curves = load_curves(storage, 0)
    assert (curves.steps, curves.metrics) == ((1,), {"loss": (9.0,)})
    assert sorted(load_items(storage, 0)) == [0]


def test_a_repeat_from_a_later_step_replaces_only_what_follows(storage: SearchStorage) -> None:
    write(storage, *phase())
    write(storage, point(3, attempt=1, loss=7.0), point(4, attempt=1, loss=6.0), attempt=1)
    compact(storage, 0, 1)
    curves = load_curves(storage, 0)
    assert curves.steps == (1, 2, 3, 4)
    assert curves.metrics["loss"] == (1.0, 0.5, 7.0, 6.0)


def test_an_earlier_attempt_that_ends_late_leaves_the_points_of_the_present_one(
    storage: SearchStorage,
) -> None:
    write(storage, *phase())
    with MetricWriter(storage, 0, 1) as writer:
        writer.write(point(3, attempt=1, loss=7.0))
        compact(storage, 0, 0)
        writer.write(point(4, attempt=1, loss=6.0))
    assert load_curves(storage, 0).metrics["loss"] == (1.0, 0.5, 7.0, 6.0)


def test_points_of_a_later_attempt_count_beside_those_that_were_compacted(storage: SearchStorage) -> None:
    write(storage, *phase())
    compact(storage, 0, 0)
    write(storage, point(2, val=0.75, attempt=1, loss=7.0), attempt=1)
    assert load_curves(storage, 0).metrics["loss"] == (1.0, 7.0)
    assert sorted(load_items(storage, 0)) == [0, 2]
    curves = load_curves(storage, 0)
    compact(storage, 0, 1)
    assert load_curves(storage, 0) == curves


def test_an_attempt_that_logged_nothing_replaces_nothing(storage: SearchStorage) -> None:
    write(storage, *phase())
    write(storage, attempt=1)
    assert load_curves(storage, 0) == CURVES


def test_an_attempt_started_twice_starts_over(storage: SearchStorage) -> None:
    write(storage, *phase())
    write(storage, point(1, loss=2.0))
    assert load_curves(storage, 0).steps == (1,)


def test_the_newest_point_of_a_running_phase_can_be_looked_at(storage: SearchStorage) -> None:
    assert last_points(storage, 0, 0) == (None, None)
    write(storage, *phase())
    newest, best = last_points(storage, 0, 0)
    assert newest is not None
    assert (newest.step, best) == (3, 0.5)


def save(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text("{}")
    return directory


def test_an_attempt_takes_the_full_checkpoint_that_it_goes_on_from_into_its_own_directory(
    storage: SearchStorage,
) -> None:
    write(storage, *phase())
    save(storage.paths.rolling(0, 0) / "step_000010.full")
    assert (storage.restart_step(0, 0), storage.restart_step(0, 1)) == (10, 10)
    storage.adopt_full_checkpoint(0, 2)  # attempt 1 was lost before it could
    save(storage.paths.rolling(0, 0) / "step_000020.full")  # its runner was not dead after all
    storage.drop_full_checkpoints(0, 0)
    assert (storage.restart_step(0, 2), storage.restart_step(0, 3)) == (10, 10)
    storage.drop_full_checkpoints(0, 2)
    assert not storage.paths.rolling(0, 0).parent.exists()


def test_an_attempt_that_started_over_is_not_repeated_from_an_earlier_one(storage: SearchStorage) -> None:
    write(storage, *phase())
    write(storage, point(1, attempt=1, loss=2.0), attempt=1)
    save(storage.paths.rolling(0, 0) / "step_000020.full")  # of a runner that was given up
    assert storage.restart_step(0, 2) == 0


def test_adapters_are_those_of_the_attempt_whose_step_counts(storage: SearchStorage) -> None:
    paths = storage.paths
    for step, attempt in ((2, 0), (3, 0), (3, 1), (20, 0)):
        save(paths.adapter(0, step, attempt))
    write(storage, *phase())
    write(storage, point(3, attempt=1, loss=7.0), attempt=1)
    left = lost_phase(storage, 0, "killed", n_gpus=8, attempt=1)
    assert [(kept.step, kept.attempt) for kept in left.checkpoints] == [(2, 0), (3, 1)]
    assert [Path(kept.path).name for kept in left.checkpoints] == ["step_000002", "step_000003.001"]
    storage.delete_adapter(0, 3)
    assert sorted(path.name for path in paths.checkpoints(0).iterdir()) == ["step_000002", "step_000020"]


def test_a_lost_phase_leaves_its_best_score_and_its_adapters(storage: SearchStorage) -> None:
    write(storage, *phase())
    storage.paths.adapter(0, 2).mkdir(parents=True)
    (storage.paths.adapter(0, 2) / "manifest.json").write_text("{}")
    left = lost_phase(storage, 0, "killed", n_gpus=8, attempt=0)
    assert (left.failure_class, left.cause) == ("resource", "its runner was lost: killed")
    assert (left.steps_done, left.best_score, left.best_step, left.start_score) == (3, 0.5, 2, 0.25)
    assert [(c.step, c.val_score) for c in left.checkpoints] == [(2, 0.5)]
    assert left.gpu_hours == 3.0 / 3600 * 8  # 3 seconds on 8 GPUs


def test_a_phase_lost_before_its_first_step_leaves_nothing(storage: SearchStorage) -> None:
    left = lost_phase(storage, 0, "killed", n_gpus=1, attempt=0)
    assert (left.steps_done, left.best_score, left.checkpoints) == (0, None, ())


def test_a_writer_on_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        MetricWriter(SearchStorage(tmp_path / "runs", "demo"), 0, 0)


def outcomes(*accuracies: float) -> list[ItemOutcome]:
    return [ItemOutcome(index=i, data_source="toy", score=a, acc=a) for i, a in enumerate(accuracies)]


def test_items_of_a_scoring_are_kept(storage: SearchStorage) -> None:
    import pyarrow.parquet as pq

    write_items(storage.paths.final("best"), outcomes(1, 0))
    assert pq.read_table(storage.paths.final("best")).column("acc").to_pylist() == [1.0, 0.0]


# --- who is at work -----------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from statistics import fmean
from llmzero_ray.storage.presence import SearchLock
lock = SearchLock(Path(sys.argv[1]))
lock.acquire(private_head=True)
print("held", flush=True)
sys.stdin.readline()
"""


def hold(root: Path) -> subprocess.Popen[str]:
    """Another process that is at work on the search."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_fresh_search_has_no_coordinator(tmp_path: Path) -> None:
    assert owner(tmp_path) is None


def test_one_process_at_a_time_is_at_work_and_its_death_frees_the_search(tmp_path: Path) -> None:
    process = hold(tmp_path)
    found = owner(tmp_path)
    assert found is not None
    assert (found.pid, found.private_head) == (process.pid, True)
    with pytest.raises(StorageError, match=f"process {process.pid} on .* is working on this search"):
        SearchLock(tmp_path).acquire(private_head=False)
    process.kill()
    process.wait()
    assert owner(tmp_path) is None
    SearchLock(tmp_path).acquire(private_head=False)


def test_a_lock_that_was_given_back_can_be_taken(tmp_path: Path) -> None:
    first = SearchLock(tmp_path)
    first.acquire(private_head=False)
    first.release()
    first.release()
    assert owner(tmp_path) is None
    SearchLock(tmp_path).acquire(private_head=False)


def test_a_command_that_prepares_the_directory_is_no_coordinator_and_yields_to_one(tmp_path: Path) -> None:
    command, other = SearchLock(tmp_path), SearchLock(tmp_path)
    command.acquire(private_head=True, role="command")
    assert owner(tmp_path) is None
    with pytest.raises(SearchBusyError, match="another process is working"):
        other.acquire(private_head=False, wait_s=0.1)
    command.release()
    other.acquire(private_head=False)
    began = time.monotonic()
    with pytest.raises(SearchBusyError, match=f"process {os.getpid()} on .* is working"):
        command.acquire(private_head=True, role="command", wait_s=60.0)
    assert time.monotonic() - began < 30.0
    other.release()


def test_a_coordinator_waits_for_the_lock_of_one_that_is_leaving(tmp_path: Path) -> None:
    process = hold(tmp_path)
    lock = SearchLock(tmp_path)
    waiting = threading.Thread(target=lambda: lock.acquire(private_head=False, wait_s=60.0))
    waiting.start()
    process.kill()
    process.wait()
    waiting.join(60.0)
    found = owner(tmp_path)
    assert found is not None
    assert found.pid == os.getpid()
    lock.release()


def test_a_reader_of_the_lock_finds_it_whole_while_its_holder_changes(tmp_path: Path) -> None:
    lock, done = SearchLock(tmp_path), threading.Event()
    lock.acquire(private_head=False)
    seen: list[str] = []

    def read() -> None:
        while not done.is_set():
            seen.append((tmp_path / "lock").read_text().strip())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        lock.release()
        lock.acquire(private_head=bool(number % 2))
    done.set()
    reader.join()
    assert {json.loads(text)["host"] for text in seen} == {socket.gethostname()}


def test_on_another_machine_the_heartbeat_decides(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(json.dumps({"host": "elsewhere", "pid": 7, "private_head": False}))
    assert owner(tmp_path) is None
    beat(tmp_path)
    assert owner(tmp_path) == Owner(host="elsewhere", pid=7, private_head=False)
    (tmp_path / "heartbeat").write_text("1000.000")
    assert last_heartbeat(tmp_path) == 1000.0
    assert owner(tmp_path) is None


def test_a_copy_of_a_search_is_as_old_as_its_last_heartbeat(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    (original / "lock").write_text(json.dumps({"host": "elsewhere", "pid": 7, "private_head": False}))
    beat(original)
    (original / "heartbeat").write_text("1000.000".ljust(512))
    shutil.copytree(original, copy, copy_function=shutil.copyfile)  # with the time of the copy, as cp -r
    assert last_heartbeat(copy) == 1000.0
    assert owner(copy) is None


def test_others_see_that_a_search_is_being_started_and_with_what(tmp_path: Path) -> None:
    lines: list[str] = []
    root = tmp_path / "runs" / "demo"
    assert start_of(root) is None
    with being_started(root, lines.append) as say:
        say("preparing the task: warm start (5%)")
        seen = start_of(root)
        assert seen is not None
        assert (seen.pid, seen.alive, seen.doing) == (
            os.getpid(),
            True,
            "preparing the task: warm start (5%)",
        )
        with being_started(root, lines.append) as other:  # of the same search, by another command
            other("waiting")
        assert start_of(root) == seen
    assert lines == ["preparing the task: warm start (5%)", "waiting"]
    assert start_of(root) is None
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_was_killed_is_not_taken_for_one_at_work(tmp_path: Path) -> None:
    killed = (
        "import os, signal, sys, pathlib; from llmzero_ray.storage.presence import being_started\n"
        "with being_started(pathlib.Path(sys.argv[1]), print) as say:\n"
        "    say('preparing the task'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False, capture_output=True)
    seen = start_of(tmp_path)
    assert seen is not None
    assert (seen.alive, seen.doing) == (False, "preparing the task")
    assert "its start was interrupted; last word" in str(seen)
    with being_started(tmp_path, print) as say:
        say("again")
        seen = start_of(tmp_path)
        assert seen is not None
        assert (seen.alive, seen.doing) == (True, "again")


def test_a_start_where_nothing_can_be_written_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lines: list[str] = []
    with being_started(tmp_path / "file" / "demo", lines.append) as say:
        say("preparing")
    assert lines == ["preparing"]


def test_requests_are_taken_once(tmp_path: Path) -> None:
    request(tmp_path, "stop", "enough")
    request(tmp_path, "pause", "later")
    asked = waiting_requests(tmp_path)
    assert [(r.kind, r.reason) for r in asked] == [("stop", "enough"), ("pause", "later")]
    assert waiting_requests(tmp_path) == asked
    done_with(tmp_path, asked[0].id)
    assert waiting_requests(tmp_path) == asked[1:]


def test_a_new_coordinator_forgets_ends_that_were_asked_of_the_one_before_and_keeps_the_rest(
    tmp_path: Path,
) -> None:
    request(tmp_path, "stop", "enough")
    request(tmp_path, "hint", text="try a higher lr")
    request(tmp_path, "pause")
    drop_ends(tmp_path)
    assert [(r.kind, r.fields["text"]) for r in waiting_requests(tmp_path)] == [("hint", "try a higher lr")]


def test_an_end_whose_file_cannot_be_removed_stays_and_the_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, unlink = request(tmp_path, "stop", "enough"), Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.stem == first:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    request(tmp_path, "pause")
    drop_ends(tmp_path)
    assert [asked.id for asked in waiting_requests(tmp_path)] == [first]


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", '{"kind": "dance", "reason": ""}', '{"kind": "stop"}', "[" * 100_000]
)
def test_a_file_that_is_no_request_is_found_with_the_reason_and_stays_until_it_is_answered(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "x.json").write_text(text)
    (found,) = waiting_requests(tmp_path)
    assert (found.id, found.kind) == ("x", "unreadable")
    assert found.reason != ""
    done_with(tmp_path, found.id)
    assert waiting_requests(tmp_path) == ()


# --- hardware in numbers ------------------------------------------------------------------------------------


def machines(*shapes: tuple[float, float]) -> list[Machine]:
    return [Machine(address=f"10.0.0.{i}", gpus=gpus, cpus=cpus) for i, (gpus, cpus) in enumerate(shapes)]


def test_slots_that_fit_have_no_shortfall() -> None:
    config = make_config(slots={"count": 2, "gpus_per_node": 8, "cpus_per_gpu": 3})
    assert side_cpus(config) == 6
    assert shortfall(machines((8, 30), (8, 30)), config) is None


@pytest.mark.parametrize(("platform", "cpus"), [("cpu", 1 + 1 + 1), ("gpu", 1 + 4 + 1), ("auto", 1 + 4 + 1)])
def test_cpus_beside_the_bundles_are_those_that_verls_queue_holds_and_one_to_start_with(
    platform: str, cpus: int
) -> None:
    workers = {"agent_workers": 8, "reward_workers": 8}  # Ray holds no CPU for them
    assert side_cpus(make_config(engine={"platform": platform, **workers})) == cpus


def test_a_machine_with_a_few_cpus_beside_the_bundles_takes_a_slot() -> None:
    config = make_config(engine={"platform": "gpu"}, slots={"gpus_per_node": 1, "cpus_per_gpu": 4})
    assert shortfall(machines((1, 10)), config) is None
    assert shortfall(machines((1, 9)), config) is not None


def test_a_slot_is_not_spread_over_machines_it_did_not_ask_for() -> None:
    config = make_config(slots={"gpus_per_node": 8})
    assert shortfall(machines((4, 64), (4, 64)), config) is not None


def test_a_slot_of_two_machines_needs_two_distinct_ones() -> None:
    config = make_config(slots={"nodes": 2, "gpus_per_node": 4, "cpus_per_gpu": 2})
    assert shortfall(machines((8, 64)), config) is not None
    assert shortfall(machines((4, 64), (4, 64)), config) is None


def test_slots_of_two_machines_share_a_large_one() -> None:
    # Each of the two slots lies on one of the small machines and on the large one.
    config = make_config(
        engine={"backend": "a:b"}, slots={"count": 2, "nodes": 2, "gpus_per_node": 1, "cpus_per_gpu": 2}
    )
    assert shortfall(machines((1, 100), (1, 100), (2, 10)), config) is None
    assert shortfall(machines((1, 100), (3, 100)), config) is not None
    assert shortfall(machines((1, 100), (1, 1), (2, 10)), config) is not None


def test_cpus_beside_the_bundles_of_a_slot_over_machines_count() -> None:
    config = make_config(
        engine={"platform": "gpu"}, slots={"nodes": 2, "gpus_per_node": 1, "cpus_per_gpu": 2}
    )
    assert shortfall(machines((1, 2), (1, 8)), config) is None
    assert shortfall(machines((1, 2), (1, 7), (0, 64)), config) is not None


def test_cpus_beside_the_bundles_count() -> None:
    config = make_config(slots={"gpus_per_node": 1, "cpus_per_gpu": 3})
    assert shortfall(machines((1, 8)), config) is not None
    assert shortfall(machines((1, 9)), config) is None


def test_cpus_of_other_machines_do_not_help_a_slot() -> None:
    config = make_config(slots={"count": 2, "gpus_per_node": 1, "cpus_per_gpu": 3})
    assert shortfall(machines((0, 64), (1, 8), (1, 64)), config) is not None
    assert shortfall(machines((0, 0), (1, 9), (1, 9)), config) is None
    assert shortfall(machines((2, 17)), config) is not None
    assert shortfall(machines((2, 18)), config) is None


def test_what_was_asked_and_what_there_is_are_both_said() -> None:
    output = required_and_available(machines((1, 4)), make_config(slots={"gpus_per_node": 8}))
    each = "asked: 1 slot(s) of 1 machine(s) with 8 GPUs and 24 CPUs each"
    assert f"{each}, and 6 more CPUs on each slot's machines" in output
    assert "There: 10.0.0.0: 1 GPUs, 4 CPUs." in output


def test_a_private_head_is_as_large_as_its_slots_ask_for() -> None:
    config = make_config(slots={"count": 3, "gpus_per_node": 2, "cpus_per_gpu": 4})
    assert private_head_resources(config, has_gpus=False) == {"num_cpus": 3 * 14 + 2, "num_gpus": 6}
    assert private_head_resources(config, has_gpus=True) == {"num_cpus": 3 * 14 + 2}
    assert private_head_resources(make_config(), has_gpus=False)["num_cpus"] == 16


@pytest.mark.parametrize(
    ("file", "body"),
    [
        ("starting", {"host": "x", "pid": 1, "doing": "x", "time": "y"}),
        ("starting", []),
        ("lock", []),
        ("lock", {"host": "x", "pid": "many", "private_head": True}),
    ],
)
def test_a_file_of_signs_that_nobody_here_wrote_is_no_sign(tmp_path: Path, file: str, body: object) -> None:
    (tmp_path / file).write_text(json.dumps(body))
    assert (start_of(tmp_path), owner(tmp_path)) == (None, None)


def test_signs_of_life_of_others_hold_no_control_characters(tmp_path: Path) -> None:
    body = {"host": "x\x1b[2J", "pid": 1, "doing": "a\x1b]0;b\x07", "time": 1.0}
    (tmp_path / "starting").write_text(json.dumps(body))
    seen = start_of(tmp_path)
    assert seen is not None and "\x1b" not in f"{seen} {seen.host} {seen.doing}"
