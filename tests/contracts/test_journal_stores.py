"""What every journal store promises, and what a journal keeps on each of them.

The stores: a local directory, an object store (obstore's own on a local directory), and S3 as a server on
this machine plays it (slow; skipped without moto).
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from obstore.store import LocalStore as LocalObjects

from llmzero_ray.errors import ConfigError, JournalError, StorageError
from llmzero_ray.journal import (
    Journal,
    JournalReader,
    JournalStore,
    LocalStore,
    event_file,
    open_store,
    opening,
    read_all,
)
from llmzero_ray.journal.epochs import Writer, read_claims, take_epoch, withdraw
from llmzero_ray.journal.names import SegmentName
from llmzero_ray.journal.object_store import ObjectStore
from llmzero_ray.journal.segments import write_segment
from llmzero_ray.records import Event
from llmzero_ray.records import events as ev
from tests.builders import Driver
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
KINDS = ("local", "objects", pytest.param("s3", marks=pytest.mark.slow))
_IN_CODE = {
    "LocalObjects": LocalObjects,
    "LocalStore": LocalStore,
    "ObjectStore": ObjectStore,
    "Path": Path,
    "open_store": open_store,
}
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """host:port of an S3 server that holds a bucket `bucket`."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    import requests

    requests.put(f"http://{host}:{port}/bucket", timeout=PATIENCE_S).raise_for_status()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def _few_loose_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments begin close behind the newest event, so that short journals have some."""
    monkeypatch.setattr("llmzero_ray.journal.writer._LOOSE", 4)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "testing")


@pytest.fixture(params=KINDS)
def code(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A Python expression that gives the store of this test, in whichever process it is evaluated."""
    place = repr(str(tmp_path / "journal"))
    if request.param == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        folder = f"{tmp_path.parent.name}-{tmp_path.name}"
        address = f"s3://bucket/{folder}?endpoint_override={endpoint}&scheme=http&region=us-east-1"
        return f"open_store({address!r})"
    return {
        "local": f"LocalStore(Path({place}))",
        "objects": f"ObjectStore(LocalObjects(prefix={place}, mkdir=True), address={place})",
    }[request.param]


@pytest.fixture
def make_store(code: str) -> Callable[[], JournalStore]:
    return lambda: eval(code, dict(_IN_CODE))


@pytest.fixture
def store(make_store: Callable[[], JournalStore]) -> JournalStore:
    return make_store()


class Around:
    """A store that does something of the test's before and after what another one does."""

    def __init__(self, inner: JournalStore) -> None:
        self.inner = inner
        self.n_parallel = inner.n_parallel

    def __str__(self) -> str:
        return str(self.inner)

    def names(self, folder: str = "") -> list[str]:
        return self.inner.names(folder)

    def read(self, name: str) -> bytes:
        return self.inner.read(name)

    def exists(self, name: str) -> bool:
        return self.inner.exists(name)

    def create(self, name: str, content: bytes) -> None:
        self.inner.create(name, content)

    def remove(self, name: str) -> None:
        self.inner.remove(name)


def slots(events: tuple[Event, ...]) -> list[int]:
    return [event.slot for event in events if isinstance(event, ev.SlotReady)]


def filled(store: JournalStore, n: int = 3, **settings: int) -> Journal:
    journal = Journal(store, **settings)
    for slot in range(n):
        journal.append(ev.SlotReady(slot=slot))
    return journal


def append_many(journal: Journal, *, first: int, last: int) -> None:
    for slot in range(first, last + 1):
        journal.append(ev.SlotReady(slot=slot))


def overwrite(store: JournalStore, name: str, content: bytes) -> None:
    store.remove(name)
    store.create(name, content)


def body(store: JournalStore, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(store.read(name))
    return found


def with_event(old: dict[str, object], event: object, **changes: object) -> bytes:
    packed = json.dumps(event, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**old, "event": event, "checksum": f"{zlib.crc32(packed):08x}", **changes}).encode()


def singles(store: JournalStore) -> list[str]:
    return sorted(name for name in store.names() if name.endswith(".json"))


# --- the store alone ----------------------------------------------------------------------------------------


def test_a_store_that_was_never_written_is_empty(store: JournalStore) -> None:
    assert store.names() == []
    assert store.names("epochs") == []
    assert not store.exists("a.json")
    with pytest.raises(FileNotFoundError):
        store.read("a.json")


def test_an_object_is_there_for_everyone_once_it_is_created(
    make_store: Callable[[], JournalStore],
) -> None:
    make_store().create("a.json", b"1")
    make_store().create("epochs/b.json", b"2")
    other = make_store()
    assert [name for name in other.names() if name != "epochs"] == ["a.json"]
    assert other.names("epochs") == ["b.json"]
    assert (other.read("a.json"), other.read("epochs/b.json")) == (b"1", b"2")
    assert other.exists("epochs/b.json")


def test_an_object_is_created_once(store: JournalStore) -> None:
    store.create("a.json", b"1")
    with pytest.raises(FileExistsError):
        store.create("a.json", b"2")
    assert store.read("a.json") == b"1"


def test_removing_may_be_repeated(store: JournalStore) -> None:
    store.create("a.json", b"1")
    for _ in range(2):
        store.remove("a.json")
    assert store.names() == []


def test_many_threads_that_create_one_local_file_make_one_of_theirs(tmp_path: Path) -> None:
    made: list[int] = []

    def create(i: int) -> None:
        try:
            LocalStore(tmp_path).create("a.json", b"%d" % i * 10_000)
            made.append(i)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first,) = made
    assert (tmp_path / "a.json").read_bytes() == b"%d" % first * 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


# --- a journal on it ----------------------------------------------------------------------------------------


def test_every_event_of_a_whole_search_comes_back_as_it_was(store: JournalStore) -> None:
    search = Driver()
    search.search_to_end([0.5, 0.6])
    journal = Journal(store)
    written = tuple(journal.append(event) for event in search.journal)
    assert read_all(store) == written


def test_the_next_writer_goes_on_in_a_higher_epoch(store: JournalStore) -> None:
    filled(store, 2)
    second = Journal(store)
    assert (second.epoch, slots(second.history)) == (2, [0, 1])
    second.append(ev.SlotReady(slot=7))
    assert singles(store) == ["00000001.e001.json", "00000002.e001.json", "00000003.e002.json"]
    assert slots(read_all(store)) == [0, 1, 7]


def test_a_writer_is_ended_by_the_next_one_that_opens(store: JournalStore) -> None:
    old = filled(store, 1)
    Journal(store)
    with pytest.raises(JournalError, match=r"another coordinator \(epoch 2\) has taken over"):
        old.append(ev.SlotReady(slot=6))
    assert slots(read_all(store)) == [0]


def test_a_writer_that_is_superseded_in_mid_write_fails_before_it_acts(store: JournalStore) -> None:
    class Late(Around):
        """A newcomer reads everything just before the old writer's event arrives."""

        newcomer: Journal | None = None

        def create(self, name: str, content: bytes) -> None:
            if name == "00000002.e001.json":
                self.newcomer = Journal(self.inner)
            super().create(name, content)

    late = Late(store)
    old = filled(late, 1)
    with pytest.raises(JournalError, match="has taken over"):
        old.append(ev.SlotReady(slot=1))
    assert late.newcomer is not None
    assert slots(late.newcomer.history) == [0]
    late.newcomer.append(ev.SlotReady(slot=9))
    assert slots(read_all(store)) == [0, 9]


def test_an_event_that_was_acted_on_is_in_the_history_of_the_newcomer(store: JournalStore) -> None:
    class Late(Around):
        """The old writer appends between the newcomer's first look and its claim."""

        armed = False

        def create(self, name: str, content: bytes) -> None:
            if self.armed and name.startswith("epochs/"):
                self.armed = False
                old.append(ev.SlotReady(slot=1))
            super().create(name, content)

    old = filled(store, 1)
    late = Late(store)
    late.armed = True
    assert slots(Journal(late).history) == [0, 1]


def test_an_epoch_has_one_writer(store: JournalStore) -> None:
    take_epoch(store, 4, Writer(id="a" * 12, host="h", pid=1))
    with pytest.raises(JournalError, match="at the same moment"):
        take_epoch(store, 4, Writer(id="b" * 12, host="h", pid=2))
    assert len(read_claims(store)) == 1


def test_of_many_that_claim_an_epoch_at_once_one_gets_it(make_store: Callable[[], JournalStore]) -> None:
    start = threading.Barrier(8)

    def claim(i: int) -> str:
        store = make_store()
        start.wait(PATIENCE_S)
        try:
            take_epoch(store, 1, Writer(id=f"{i:012x}", host="h", pid=i))
        except JournalError as error:
            return "taken" if "at the same moment" in str(error) else str(error)
        return "ours"

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(claim, range(8))) == ["ours", *["taken"] * 7]


def test_a_claim_that_was_taken_back_leaves_the_epoch_free(store: JournalStore) -> None:
    withdraw(store, take_epoch(store, 1, Writer.here()))
    assert Journal(store).epoch == 1


def test_another_writers_body_under_our_own_name_is_refused(store: JournalStore) -> None:
    journal = filled(store, 1)
    name = "00000002.e001.json"
    store.create(name, json.dumps({**body(store, "00000001.e001.json"), "number": 2, "writer": "x"}).encode())
    with pytest.raises(JournalError, match=f"{name}: another coordinator writes in epoch 1 too"):
        journal.append(ev.SlotReady(slot=1))


def test_a_write_whose_answer_was_lost_may_be_repeated(store: JournalStore) -> None:
    class Deaf(Around):
        deaf = False

        def create(self, name: str, content: bytes) -> None:
            super().create(name, content)
            if self.deaf:
                self.deaf = False
                raise StorageError("no answer")

    flaky = Deaf(store)
    journal = filled(flaky, 1)
    flaky.deaf = True
    with pytest.raises(StorageError):
        journal.append(ev.SlotReady(slot=1), now=5.0)
    again = journal.append(ev.SlotReady(slot=1), now=6.0)
    assert again is not None
    assert again.time == 5.0
    assert slots(read_all(store)) == [0, 1]
    flaky.deaf = True
    with pytest.raises(StorageError):
        journal.append(ev.SlotReady(slot=2))
    with pytest.raises(JournalError, match="holds another event, from a try that had failed"):
        journal.append(ev.SlotReady(slot=8))


# --- damage -------------------------------------------------------------------------------------------------


def test_a_torn_last_event_is_reported_and_the_next_writer_goes_on_in_its_place(store: JournalStore) -> None:
    filled(store)
    overwrite(store, "00000003.e001.json", b'{"format": 1, "numb')
    reader = JournalReader(store)
    assert slots(reader.poll()) == [0, 1]
    assert reader.torn == "00000003.e001.json"
    journal = Journal(store)
    assert journal.torn == "00000003.e001.json"
    journal.append(ev.SlotReady(slot=8))
    assert slots(read_all(store)) == [0, 1, 8]


@pytest.mark.parametrize(
    ("damage", "file", "expected"),
    [
        ("missing", None, "event 2 is missing"),
        ("torn", "00000002.e001.json", "cannot be read"),
        ("changed", "00000002.e001.json", "fails its checksum"),
        ("other place", "00000002.e001.json", "not hold the event its name says but event 3 of epoch 1"),
        ("repeated", "00000002.e001.json", "event 2 repeats event 1"),
        ("foreign", "00000002.e001.json", "event 2 belongs to another journal"),
        (
            "newer",
            "00000002.e001.json",
            "has format 2 and this version reads 1. Another version of llmzero-ray",
        ),
        ("unknown event", "00000002.e001.json", "record type 'Moved' is unknown to this version"),
        ("unknown field", "00000002.e001.json", r"record SlotReady has unknown fields \['colour'\]"),
    ],
)
def test_damage_is_named_and_everything_before_it_is_kept(
    store: JournalStore, damage: str, file: str | None, expected: str
) -> None:
    filled(store)
    name = "00000002.e001.json"
    old, first = body(store, name), body(store, "00000001.e001.json")
    event = old["event"]
    assert isinstance(event, dict)
    changed = {
        "torn": b'{"format"',
        "changed": json.dumps({**old, "event": {**event, "slot": 5}}).encode(),
        "other place": store.read("00000003.e001.json"),
        "repeated": with_event(old, first["event"]),
        "foreign": with_event(old, event, journal="another"),
        "newer": with_event(old, event, format=2),
        "unknown event": with_event(old, {**event, "type": "Moved"}),
        "unknown field": with_event(old, {**event, "colour": "red"}),
    }
    store.remove(name)
    if damage in changed:
        store.create(name, changed[damage])
    with pytest.raises(JournalError, match=expected) as error:
        read_all(store)
    assert "Events 1 to 1 are whole" in str(error.value)
    entries, found = JournalReader(store).poll_whole()
    assert [entry.number for entry in entries] == [1]
    assert found is not None
    assert (found.number, found.file) == (2, file)
    with pytest.raises(JournalError, match=expected):
        Journal(store)
    assert [claim.epoch for claim in read_claims(store)] == [1]  # the attempt superseded no writer


@pytest.mark.parametrize("damage", ["newer", "other place", "foreign"])
def test_a_whole_last_event_that_does_not_belong_is_an_error_too(store: JournalStore, damage: str) -> None:
    filled(store)
    old = body(store, "00000003.e001.json")
    changed = {
        "newer": with_event(old, old["event"], format=2),
        "other place": store.read("00000002.e001.json"),
        "foreign": with_event(old, old["event"], journal="another"),
    }[damage]
    overwrite(store, "00000003.e001.json", changed)
    with pytest.raises(JournalError, match="Events 1 to 2 are whole"):
        read_all(store)


def test_names_that_are_no_events_are_ignored(store: JournalStore) -> None:
    filled(store, 2)
    for name in ("00000002.e001.json.bak", "README", "00000003.json", "000000002.e001.json"):
        store.create(name, b"x")
    assert slots(read_all(store)) == [0, 1]


def test_another_format_is_refused_with_what_to_do_also_in_segments(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store, 20, segment_events=8)
    assert "00000009-00000016.segment" in store.names()
    for other in (0, 2):
        monkeypatch.setattr(event_file, "FORMAT", other)
        with pytest.raises(JournalError, match=f"this version reads {other}.*If that is a newer"):
            read_all(store)


@pytest.mark.parametrize("n_events", [1, 3])
def test_an_event_from_before_journals_had_ids_is_another_versions_and_not_a_damaged_one(
    store: JournalStore, n_events: int
) -> None:
    filled(store, n_events)
    for name in singles(store):
        old = body(store, name)
        kept = {key: old[key] for key in ("format", "number", "epoch", "checksum", "event")}
        overwrite(store, name, json.dumps(kept).encode())
    for opened in (read_all, Journal):
        with pytest.raises(JournalError, match=r"Another version.*start a search of another name") as error:
            opened(store)
        assert "History is lost" not in str(error.value)


# --- segments -----------------------------------------------------------------------------------------------


def test_old_events_move_into_segments_and_all_are_read(store: JournalStore) -> None:
    filled(store, 23, segment_events=8)
    assert sorted(name for name in store.names() if "segment" in name) == [
        "00000001-00000008.segment",
        "00000009-00000016.segment",
    ]
    assert singles(store) == [f"{number:08d}.e001.json" for number in range(17, 24)]
    again = Journal(store, segment_events=8)
    assert (again.epoch, slots(again.history)) == (2, list(range(23)))
    for slot in range(23, 30):
        again.append(ev.SlotReady(slot=slot))
    assert "00000017-00000024.segment" in store.names()
    assert slots(read_all(store)) == list(range(30))


def test_a_reader_goes_on_where_it_was_when_its_events_have_moved(store: JournalStore) -> None:
    journal = filled(store, 5, segment_events=8)
    reader = JournalReader(store)
    assert slots(reader.poll()) == list(range(5))
    for slot in range(5, 22):
        journal.append(ev.SlotReady(slot=slot))
    assert "00000001-00000008.segment" in store.names()
    assert slots(reader.poll()) == list(range(5, 22))
    assert reader.poll() == ()


def test_what_a_crash_left_beside_a_segment_is_read_once_and_tidied_up(store: JournalStore) -> None:
    filled(store, 12)
    kept = {name: store.read(name) for name in singles(store)[3:8]}
    write_segment(store, SegmentName(1, 8))
    for name, content in kept.items():
        store.create(name, content)
    assert slots(read_all(store)) == list(range(12))
    Journal(store)
    assert len(singles(store)) == 4
    assert slots(read_all(store)) == list(range(12))


def test_a_torn_segment_costs_nothing_while_its_files_are_there(store: JournalStore) -> None:
    filled(store, 12)
    kept = {name: store.read(name) for name in singles(store)[:8]}
    write_segment(store, SegmentName(1, 8))
    whole = store.read("00000001-00000008.segment")
    overwrite(store, "00000001-00000008.segment", whole[: len(whole) // 2])
    for name, content in kept.items():
        store.create(name, content)
    assert slots(read_all(store)) == list(range(12))
    write_segment(store, SegmentName(1, 8))
    assert store.read("00000001-00000008.segment") == whole
    assert len(singles(store)) == 4


def test_damage_inside_a_segment_is_named_by_event_and_all_before_it_is_kept(store: JournalStore) -> None:
    filled(store, 12)
    write_segment(store, SegmentName(1, 8))
    whole = store.read("00000001-00000008.segment")
    overwrite(store, "00000001-00000008.segment", whole.replace(b'"slot": 5', b'"slot": 9'))
    output = r"00000001-00000008\.segment: line 7 \(event 6\) fails its checksum, and event 6 is in no other"
    with pytest.raises(JournalError, match=output):
        read_all(store)
    entries, damage = JournalReader(store).poll_whole()
    assert [entry.number for entry in entries] == list(range(1, 6))
    assert damage is not None
    assert damage.number == 6


def test_a_segment_of_a_newer_version_is_refused_with_both_numbers(store: JournalStore) -> None:
    filled(store, 12)
    write_segment(store, SegmentName(1, 8))
    whole = store.read("00000001-00000008.segment")
    overwrite(store, "00000001-00000008.segment", whole.replace(b'"segment": 1', b'"segment": 2', 1))
    with pytest.raises(JournalError, match="has segment format 2 and this version reads 1"):
        read_all(store)


def test_a_missing_segment_is_named_by_its_first_event(store: JournalStore) -> None:
    filled(store, 12)
    write_segment(store, SegmentName(1, 4))
    write_segment(store, SegmentName(5, 8))
    store.remove("00000005-00000008.segment")
    with pytest.raises(JournalError, match=r"event 5 is missing .*Events 1 to 4 are whole"):
        read_all(store)


def test_a_damaged_file_stays_out_of_segments_and_nothing_is_deleted(store: JournalStore) -> None:
    journal = filled(store, 11, segment_events=8)
    overwrite(store, "00000007.e001.json", b"{")
    journal.append(ev.SlotReady(slot=11))
    assert len(singles(store)) == 12
    assert not any("segment" in name for name in store.names())


def test_events_that_move_between_listing_and_reading_are_found_where_they_are(store: JournalStore) -> None:
    class Moving(Around):
        moved = False

        def names(self, folder: str = "") -> list[str]:
            found = super().names(folder)
            if not self.moved:
                self.moved = True
                write_segment(self.inner, SegmentName(1, 8))
            return found

    filled(store, 12)
    assert slots(read_all(Moving(store))) == list(range(12))


def test_a_listing_that_missed_an_event_is_taken_again(store: JournalStore) -> None:
    class Blind(Around):
        n_looks = 0

        def names(self, folder: str = "") -> list[str]:
            self.n_looks += 1
            found = super().names(folder)
            return [name for name in found if self.n_looks > 1 or name != "00000002.e001.json"]

    filled(store, 4)
    assert slots(read_all(Blind(store))) == [0, 1, 2, 3]


def test_what_a_superseded_writer_left_behind_a_segment_is_ignored(store: JournalStore) -> None:
    filled(store, 2)
    late = body(store, "00000002.e001.json")
    Journal(store).append(ev.SlotReady(slot=7))
    write_segment(store, SegmentName(1, 3))
    store.create("00000004.e001.json", json.dumps({**late, "number": 4}).encode())
    assert slots(read_all(store)) == [0, 1, 7]


def test_a_reader_sees_every_event_once_while_the_writer_moves_them(
    make_store: Callable[[], JournalStore],
) -> None:
    class Slow(Around):
        """Listings are a moment old when they are used, as on a network file system."""

        def names(self, folder: str = "") -> list[str]:
            found = super().names(folder)
            time.sleep(0.002)
            return found

    seen: list[int] = []
    done = threading.Event()
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            reader = JournalReader(Slow(make_store()))
            while not done.is_set():
                seen.extend(slots(reader.poll()))
            seen.extend(slots(reader.poll()))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        filled(Slow(make_store()), 40, segment_events=4)
    finally:
        done.set()
        thread.join()
    assert failures == []
    assert seen == list(range(40))


# --- several processes --------------------------------------------------------------------------------------

_CHILD = """
import os, signal, sys, time
from pathlib import Path
from obstore.store import LocalStore as LocalObjects
from llmzero_ray.records import events as ev
from llmzero_ray.errors import JournalError
from llmzero_ray.journal import Journal
from llmzero_ray.journal import LocalStore, open_store
from llmzero_ray.journal.object_store import ObjectStore

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

from llmzero_ray.journal import writer
writer._LOOSE = 4

store = {code}
"""


def child(code: str, script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(code=code) + textwrap.dedent(script)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def killed(code: str, script: str) -> None:
    process = child(code, script)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_of_two_processes_that_race_for_one_journal_exactly_one_goes_on(
    code: str, store: JournalStore, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    script = f"""
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            journal, slot = Journal(store), 0
            while not (slot and Path({str(stop)!r}).exists()):
                journal.append(ev.SlotReady(slot=slot))
                slot += 1
        except JournalError:
            sys.exit(3)
        print(slot, flush=True)
    """
    for _ in range(3):
        stop.unlink(missing_ok=True)
        race([child(code, script), child(code, script)], stop, store)


def race(racers: list[subprocess.Popen[str]], stop: Path, store: JournalStore) -> None:
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("\n")
            racer.stdin.flush()
        while all(racer.poll() is None for racer in racers):
            time.sleep(0.01)
        stop.touch()
        counts = [racer.communicate(timeout=PATIENCE_S)[0] for racer in racers]
        assert sorted(racer.returncode for racer in racers) == [0, 3]
        n = int("".join(counts))
        assert slots(read_all(store))[-n:] == list(range(n))
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()


@pytest.mark.slow
def test_a_process_killed_before_an_event_has_its_name_leaves_no_event(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    killed(
        f"LocalStore(Path({str(place)!r}))",
        """
        journal = Journal(store)
        journal.append(ev.SlotReady(slot=0))
        os.link = die
        journal.append(ev.SlotReady(slot=1))
        """,
    )
    assert len([p for p in place.iterdir() if p.name.endswith(".tmp")]) == 1
    assert slots(read_all(place)) == [0]
    Journal(place).append(ev.SlotReady(slot=7))
    assert slots(read_all(place)) == [0, 7]


@pytest.mark.slow
def test_a_process_killed_after_an_event_is_durable_has_written_it(code: str, store: JournalStore) -> None:
    killed(
        code,
        """
        journal = Journal(store)
        create = type(store).create
        def create_and_die(self, name, content):
            create(self, name, content)
            die()
        type(store).create = create_and_die
        journal.append(ev.SlotReady(slot=0))
        """,
    )
    assert slots(read_all(store)) == [0]


@pytest.mark.slow
def test_a_process_killed_right_after_its_claim_blocks_no_writer(code: str, store: JournalStore) -> None:
    killed(
        code,
        """
        create = type(store).create
        def create_and_die(self, name, content):
            create(self, name, content)
            die()
        type(store).create = create_and_die
        Journal(store)
        """,
    )
    journal = filled(store, 2)
    assert journal.epoch == 2
    assert slots(read_all(store)) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("n_deleted", [0, 7])
def test_a_process_killed_while_it_moves_events_into_a_segment_loses_none(
    code: str, store: JournalStore, n_deleted: int
) -> None:
    filled(store, 12, segment_events=20)
    killed(
        code,
        f"""
        journal = Journal(store, segment_events=20)
        for slot in range(12, 23):
            journal.append(ev.SlotReady(slot=slot))
        remove, left = type(store).remove, [{n_deleted}]
        def remove_some(self, name):
            if not left[0]:
                die()
            left[0] -= 1
            remove(self, name)
        type(store).remove = remove_some
        journal.append(ev.SlotReady(slot=23))
        """,
    )
    assert "00000001-00000020.segment" in store.names()
    assert 4 < len(singles(store)) <= 24
    assert slots(read_all(store)) == list(range(24))
    journal = Journal(store, segment_events=20)
    assert singles(store)[0].startswith("00000021.")
    journal.append(ev.SlotReady(slot=24))
    assert slots(read_all(store)) == list(range(25))


# --- storage that cannot be written -------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("kind", ["local", "objects"])
def test_a_full_storage_is_one_message_and_nothing_is_lost(small_disk: Path, kind: str) -> None:
    store: JournalStore = LocalStore(small_disk / "journal")
    if kind == "objects":
        store = ObjectStore(
            LocalObjects(prefix=small_disk / "journal", mkdir=True), address="objects:journal"
        )
    journal = filled(store, 2)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (2**20 - 64 * 1024))
    with pytest.raises(StorageError, match="the storage is full"):
        append_many(journal, first=2, last=200)
    n = len(slots(read_all(store)))
    assert slots(read_all(store)) == list(range(n))
    filler.unlink()
    again = Journal(store)
    again.append(ev.SlotReady(slot=n))
    assert slots(read_all(store)) == list(range(n + 1))


def test_a_storage_that_became_read_only_is_one_message_and_can_still_be_read(small_disk: Path) -> None:
    journal = filled(LocalStore(small_disk / "journal"), 2)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageError, match="cannot be written"):
        journal.append(ev.SlotReady(slot=2))
    opened = Journal(LocalStore(small_disk / "journal"))
    assert slots(opened.history) == [0, 1]
    with pytest.raises(StorageError, match="cannot be written"):
        opened.append(ev.SlotReady(slot=2))


# --- addresses ----------------------------------------------------------------------------------------------


def test_a_path_or_a_file_address_is_a_local_store(tmp_path: Path) -> None:
    for where in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        store = open_store(where)
        assert isinstance(store, LocalStore)
        assert store.directory == tmp_path


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("foo://x/y", "cannot be used as a storage"),
        ("s3://", "names no bucket"),
        ("s3://b/p?colour=red", "has unknown options colour"),
        ("s3://key@b/p", "gives a key, and keys come from the environment"),
        ("s3://key:secret@b/p", "s3://b/p: gives a key"),
        ("file://host/y", "cannot be used as a storage"),
        ("hdfs://host/y", "cannot be used as a storage"),
        ("az://container/p", "cannot be used as a storage"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_in_one_line(address: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as error:
        open_store(address)
    assert "\n" not in str(error.value)


def s3_address(endpoint: str, bucket: str = "bucket") -> str:
    return f"s3://{bucket}/p?endpoint_override={endpoint}&scheme=http&region=us-east-1"


def test_a_missing_bucket_is_said_to_be_missing(s3_endpoint: str) -> None:
    with pytest.raises(StorageError, match="there is no bucket 'elsewhere'") as error:
        open_store(s3_address(s3_endpoint, "elsewhere"))
    assert "testing" not in str(error.value)


def test_denied_access_is_said_to_be_denied(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    for name in KEYS:
        monkeypatch.setenv(name, "wrong")

    reset = f"http://{s3_endpoint}/moto-api/reset-auth"
    requests.post(reset, data=b"0", timeout=PATIENCE_S).raise_for_status()
    try:
        with pytest.raises(StorageError, match=r"access is denied .*AWS_ACCESS_KEY_ID") as error:
            open_store(s3_address(s3_endpoint))
        assert "\n" not in str(error.value)
        assert "wrong" not in str(error.value)
    finally:
        requests.post(reset, data=b"inf", timeout=PATIENCE_S)


def test_a_server_that_is_not_there_or_says_nothing_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "REQUEST_S", 1.0)
    monkeypatch.setattr(opening, "ATTEMPTS", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(StorageError, match="does not answer"):
            open_store(s3_address(f"127.0.0.1:{port}"))
        silent.listen(5)
        with pytest.raises(StorageError, match="does not answer") as error:
            open_store(s3_address(f"127.0.0.1:{port}"))
        assert "\n" not in str(error.value)


def test_opening_gives_up_where_a_library_would_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "OPEN_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(5)
        with pytest.raises(StorageError, match="does not answer within"):
            open_store(s3_address(f"127.0.0.1:{silent.getsockname()[1]}"))


def test_keys_of_a_profile_are_read_where_the_environment_has_none(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import requests

    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    credentials = tmp_path / "credentials"
    credentials.write_text("[mine]\naws_access_key_id = KEYOFMINE\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert opening._profile_keys() == {"access_key_id": "KEYOFMINE", "secret_access_key": "secret"}
    requests.post(f"http://{s3_endpoint}/moto-api/reset-auth", data=b"inf", timeout=PATIENCE_S)
    assert open_store(s3_address(s3_endpoint)).names() == []
