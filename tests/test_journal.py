"""The journal: durable, in order, fenced by epochs, and honest about damage."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from pathlib import Path

import pytest

from llmzero_ray.errors import JournalError, StorageError
from llmzero_ray.journal import Journal, JournalReader, active_seconds, read_all
from llmzero_ray.records import Event, from_json, to_json
from llmzero_ray.records import events as ev
from llmzero_ray.utils.files import create_file
from tests.builders import make_proposal


def slots(events: tuple[Event, ...]) -> list[int]:
    return [event.slot for event in events if isinstance(event, ev.SlotReady)]


def filled(directory: Path, n: int = 3) -> Journal:
    journal = Journal(directory)
    for slot in range(n):
        journal.append(ev.SlotReady(slot=slot))
    return journal


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_events_come_back_in_order_with_the_time_they_were_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for slot in range(3):
        journal.append(ev.SlotReady(slot=slot), now=100.0 + slot)
    assert slots(read_all(tmp_path)) == [0, 1, 2]
    assert [event.time for event in read_all(tmp_path)] == [100.0, 101.0, 102.0]


def test_each_event_is_one_file_whose_name_says_its_place_and_its_epoch(tmp_path: Path) -> None:
    filled(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "00000001.e001.json",
        "00000002.e001.json",
        "00000003.e001.json",
    ]
    assert [path.name for path in (tmp_path / "epochs").iterdir()] == ["001.json"]


def test_a_second_delivery_is_dropped_also_by_the_next_writer(tmp_path: Path) -> None:
    event = ev.SlotReady(slot=0, source="slot:0", attempt=1, sequence=4)
    journal = Journal(tmp_path)
    assert journal.append(event) is not None
    assert journal.append(event) is None
    assert Journal(tmp_path).append(event) is None
    assert len(read_all(tmp_path)) == 1


def test_events_without_a_source_are_all_different(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for _ in range(2):
        assert journal.append(ev.SlotReady(slot=0)) is not None
    assert slots(read_all(tmp_path)) == [0, 0]


def test_a_writer_whose_files_were_removed_stops(tmp_path: Path) -> None:
    journal = filled(tmp_path, 2)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    with pytest.raises(JournalError, match="event 2 has vanished"):
        journal.append(ev.SlotReady(slot=2))
    assert list(tmp_path.glob("*.json")) == []


def test_a_writer_whose_directory_was_removed_stops(tmp_path: Path) -> None:
    journal = filled(tmp_path / "journal", 2)
    shutil.rmtree(tmp_path / "journal")
    with pytest.raises(JournalError, match="event 2 has vanished"):
        journal.append(ev.SlotReady(slot=2))
    assert list(tmp_path.iterdir()) == []


def test_what_a_superseded_writer_wrote_after_the_takeover_is_ignored(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    new = Journal(tmp_path)
    late = json.loads((tmp_path / "00000002.e001.json").read_text())
    new.append(ev.SlotReady(slot=5))
    # As on a storage without atomic creation: the old writer's events 3 and 4 arrive all the same.
    for number in (3, 4):
        (tmp_path / f"0000000{number}.e001.json").write_text(json.dumps({**late, "number": number}))
    new.append(ev.SlotReady(slot=6))
    assert slots(read_all(tmp_path)) == [0, 1, 5, 6]


@pytest.mark.parametrize("content", ["", '{"format": 1, "numb', '{"format": 1}', "[]"])
def test_a_torn_last_file_is_reported_and_left_out(tmp_path: Path, content: str) -> None:
    filled(tmp_path)
    (tmp_path / "00000003.e001.json").write_text(content)
    reader = JournalReader(tmp_path)
    assert slots(reader.poll()) == [0, 1]
    assert reader.torn == "00000003.e001.json"


def test_a_file_missing_at_the_beginning_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "00000001.e001.json").unlink()
    with pytest.raises(JournalError, match="event 1 is missing"):
        Journal(tmp_path)


def test_a_record_that_is_no_event_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    event = {"type": "ResumeFrom", "node": 0, "step": 1}
    packed = json.dumps(event, sort_keys=True, separators=(",", ":")).encode()
    rewrite(tmp_path / "00000001.e001.json", event=event, checksum=f"{zlib.crc32(packed):08x}")
    with pytest.raises(JournalError, match="holds a ResumeFrom, which is not an event"):
        read_all(tmp_path)


def test_other_files_are_none_of_its_business(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / ".00000004.e001.json.abc.tmp").write_text("{")
    (tmp_path / "README").write_text("")
    assert slots(read_all(tmp_path)) == [0, 1, 2]


def test_a_reader_follows_a_takeover(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    reader = JournalReader(tmp_path)
    reader.poll()
    Journal(tmp_path).append(ev.SlotReady(slot=7))
    assert slots(reader.poll()) == [7]


def test_a_reader_whose_events_were_replaced_says_so(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    reader = JournalReader(tmp_path)
    reader.poll()
    body = json.loads((tmp_path / "00000002.e001.json").read_text())
    (tmp_path / "00000002.e002.json").write_text(json.dumps({**body, "epoch": 2}))
    with pytest.raises(JournalError, match="replaced events"):
        reader.poll()


def test_a_directory_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal")
    with pytest.raises(StorageError, match="cannot be written"):
        journal.append(ev.SlotReady(slot=0))


def test_an_event_is_on_the_disk_before_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    journal = Journal(tmp_path)
    real_sync, real_link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("sync"), real_sync(fd))[1])
    monkeypatch.setattr(os, "link", lambda a, b: (order.append("name"), real_link(a, b))[1])
    journal.append(ev.SlotReady(slot=0))
    assert order == ["sync", "name", "sync"]  # the file, its name, the directory


def test_a_directory_that_becomes_writable_is_written_by_the_journal_that_was_opened_before(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal")
    (tmp_path / "file").unlink()
    journal.append(ev.SlotReady(slot=3))
    assert slots(read_all(tmp_path / "file" / "journal")) == [3]


def test_a_journal_that_went_on_elsewhere_since_it_was_read_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal")
    (tmp_path / "file").unlink()
    filled(tmp_path / "file" / "journal", 2)
    with pytest.raises(JournalError, match="another coordinator"):
        journal.append(ev.SlotReady(slot=3))
    assert slots(read_all(tmp_path / "file" / "journal")) == [0, 1]


def test_without_hard_links_a_file_is_still_created_by_one_process_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    filled(tmp_path, 2)
    assert slots(read_all(tmp_path)) == [0, 1]
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "00000002.e001.json", "another")
    assert slots(read_all(tmp_path)) == [0, 1]
    assert list(tmp_path.glob(".*")) == []


# --- time at work -------------------------------------------------------------------------------------------


def started(epoch: int, time: float, previous_alive: float | None = None) -> ev.CoordinatorStarted:
    return ev.CoordinatorStarted(epoch=epoch, host="h", pid=1, previous_alive=previous_alive, time=time)


def test_time_between_an_interruption_and_its_resume_is_not_counted() -> None:
    events = (
        started(1, 0.0),
        ev.SlotReady(slot=0, time=60.0),
        started(2, 1000.0),
        ev.SlotReady(slot=0, time=1030.0),
    )
    assert active_seconds(events) == 90.0
    assert active_seconds(events, now=1100.0) == 160.0


def test_a_coordinator_that_was_alive_without_events_counts_until_its_last_sign_of_life() -> None:
    events = (started(1, 0.0), ev.SlotReady(slot=0, time=60.0), started(2, 1000.0, previous_alive=500.0))
    assert active_seconds(events) == 500.0


@pytest.mark.parametrize(
    "end",
    [
        ev.SearchFinished(reason="budget", best=None, best_score=None, time=60.0),
        ev.SearchPaused(reason="", time=60.0),
        ev.SearchAborted(reason="", exit_code=1, time=60.0),
    ],
)
def test_a_heartbeat_after_the_end_does_not_count_as_work(end: Event) -> None:
    copied = started(2, 1000.0, previous_alive=900.0)  # `cp -r` gives the heartbeat the time of the copy
    assert active_seconds((started(1, 0.0), end, copied)) == 60.0
    again = (copied, ev.SlotReady(slot=0, time=1010.0), started(3, 2000.0, previous_alive=1020.0))
    assert active_seconds((started(1, 0.0), end, *again)) == 80.0


def test_a_clock_that_is_set_back_takes_nothing_from_the_time_before_it() -> None:
    events = (
        started(1, 10_000.0),
        ev.SlotReady(slot=0, time=10_100.0),
        ev.SlotReady(slot=1, time=6_500.0),  # set back by an hour
        ev.SlotReady(slot=2, time=6_550.0),
    )
    assert active_seconds(events) == 150.0
    assert active_seconds(events, now=6_560.0) == 160.0
    assert active_seconds((*events, started(2, 7_000.0))) == 150.0
    assert active_seconds((*events, started(2, 7_000.0, previous_alive=6_600.0))) == 200.0


def test_no_events_no_time() -> None:
    assert active_seconds(()) == 0.0


def test_fields_that_version_0_1_wrote_are_left_out_and_others_refused() -> None:
    event = ev.Proposed(node=1, proposal=make_proposal(), tries=0)
    assert from_json({**to_json(event), "prefetched": True}) == event
    with pytest.raises(JournalError, match=r"Proposed has unknown fields \['guessed'\]"):
        from_json({**to_json(event), "guessed": True})


def test_a_mapping_may_have_a_key_of_any_name() -> None:
    overrides = {"type": "AgentCalled", "n": 1, "nested": {"type": {"type": "Mapping", "items": ()}}}
    event = ev.SearchStarted(config={"engine": {"overrides": overrides}}, task={}, root={}, versions={})
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
