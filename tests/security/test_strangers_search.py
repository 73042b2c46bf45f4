"""Looking at the directory of somebody else's search: no server of that person's is asked, nothing is written
through that person's links, and what cannot be read is said in a sentence."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmzero_ray.cli.main import main
from llmzero_ray.errors import ConfigError
from llmzero_ray.journal import open_store, trust
from llmzero_ray.storage import SearchStorage
from tests.report.conftest import Written, finished

__all__ = ["finished"]

LOOKS = [
    ("list", "--storage", "{storage}"),
    ("show", "{search}", "1"),
    ("status", "{search}"),
    ("diff", "{search}:1", "{search}:2"),
    ("report", "{search}"),
    ("explain", "{search}"),
    ("export", "{search}", "--verl", "{out}"),
    ("merge", "{search}", "--out", "{out}"),
    ("push", "{search}", "ann/demo"),
    ("tables", "{search}", "--out", "{out}"),
    ("stop", "{search}"),
    ("hint", "{search}", "more"),
]


class Server:
    """Answers nothing, and counts who comes."""

    def __init__(self, listening: socket.socket) -> None:
        self.asked: list[bytes] = []
        self.address = "{}:{}".format(*listening.getsockname())
        self._listening = listening
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(4096))
                connection.sendall(
                    b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASTRANGER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-the-user")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Server(listening)


def change(search: Path, **keys: Any) -> None:
    """Other values in a search's search.yaml."""
    config = yaml.safe_load((search / "search.yaml").read_text())
    (search / "search.yaml").write_text(yaml.safe_dump({**config, **keys}))


@pytest.fixture
def search(finished: Written, tmp_path: Path) -> Path:
    """A copy of a search that has finished."""
    copy = tmp_path / "runs" / finished.root.name
    shutil.copytree(finished.root, copy)
    change(copy, storage=str(copy.parent))
    return copy


def run(words: tuple[str, ...], search: Path, tmp_path: Path) -> int:
    places = {"search": search, "storage": search.parent, "out": tmp_path / "out"}
    return main([word.format(**places) for word in words])


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words[0])
def test_no_command_that_looks_asks_a_server_that_the_search_names(
    search: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    change(search, journal=f"s3://bucket/p?endpoint_override=http://{server.address}")
    shutil.move(search / "journal", tmp_path / "journal")
    assert run(words, search, tmp_path) == (0 if words[0] == "list" else 2)
    told = capsys.readouterr()
    said = " ".join((told.out + told.err).split())
    assert server.asked == []
    assert f"names the server http://{server.address}" in said or words[0] == "list"
    assert "Traceback" not in said


def test_the_remedy_that_is_named_has_the_server_asked(
    search: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(search, journal=f"s3://bucket/p?endpoint_override={server.address}&scheme=http")
    shutil.rmtree(search / "journal")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://{server.address}")
    assert run(("show", "{search}", "1"), search, tmp_path) == 2
    assert server.asked == []  # what would be signed for TLS does not go out in the clear
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.address}")
    assert run(("show", "{search}", "1"), search, tmp_path) == 3
    assert b"AKIASTRANGER" in server.asked[0]


@pytest.mark.parametrize("words", LOOKS[:6], ids=lambda words: words[0])
def test_a_copy_of_the_journal_beside_search_yaml_is_read_in_its_place(
    search: Path, server: Server, tmp_path: Path, words: tuple[str, ...]
) -> None:
    change(search, journal=f"s3://bucket/p?endpoint_override=http://{server.address}")
    assert run(words, search, tmp_path) == 0
    assert server.asked == []


def test_a_process_that_runs_a_search_reads_its_own_journal(search: Path, server: Server) -> None:
    change(search, journal=f"s3://bucket/p?endpoint_override=http://{server.address}")
    storage = SearchStorage.at(search)
    assert storage.journal_to_read() == search / "journal"
    trust(str(storage.journal_address()))
    assert storage.journal_to_read() == storage.journal_address()


@pytest.mark.parametrize("region", ["evil.example/", "x@evil.example", "a b", "eu%0a"])
def test_no_region_names_a_server(region: str) -> None:
    with pytest.raises(ConfigError, match="must be letters, digits and -"):
        open_store(f"s3://bucket/p?region={region}")


# --- journals -----------------------------------------------------------------------------------------------


def rewrite(search: Path, change_event: Callable[[dict[str, Any]], object], kind: str) -> None:
    """The first event of a kind, changed, with a checksum that is right."""
    for path in sorted((search / "journal").glob("*.json")):
        body = json.loads(path.read_text())
        if body["event"]["type"] == kind:
            change_event(body["event"])
            text = json.dumps(body["event"], sort_keys=True, separators=(",", ":"))
            path.write_text(json.dumps({**body, "checksum": f"{zlib.crc32(text.encode()):08x}"}))
            return
    raise AssertionError(kind)


WRONG: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "node is a text": ("PhasePlanned", lambda event: event.update(node="seven")),
    "node is a list": ("PhaseStarted", lambda event: event.update(node=[1])),
    "time is a text": ("PhaseStarted", lambda event: event.update(time="yesterday")),
    "time is nothing": ("SearchStarted", lambda event: event.update(time=None)),
    "slot is a mapping": ("PhaseStarted", lambda event: event.update(slot={"a": 1})),
    "a text in a record within": ("PhasePlanned", lambda event: event["spec"].update(n_steps="many")),
    "a record of another kind": ("PhasePlanned", lambda event: event.update(spec=event["spec"]["seed"])),
    "steps of scores are texts": ("PhaseFinished", lambda event: event["result"].update(steps_done="x")),
    "a node that is not there": ("PhaseFinished", lambda event: event.update(node=99)),
    "the type is a list": ("PhaseStarted", lambda event: event.update(type=["PhaseStarted"])),
    "the type is a mapping": ("PhaseStarted", lambda event: event.update(type={"a": 1})),
    "a mapping without items": ("SearchStarted", lambda event: event.update(task={"type": "Mapping"})),
    "very deep": ("SearchStarted", lambda event: event.update(task={"deep": nested(950)})),
}


def nested(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize("what", WRONG)
def test_a_journal_that_cannot_be_is_refused_in_a_sentence_and_hides_no_other(
    search: Path, finished: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    shutil.copytree(finished.root, search.parent / "sound")
    kind, changed = WRONG[what]
    rewrite(search, changed, kind)
    assert run(("list", "--storage", "{storage}"), search, tmp_path) == 0
    listed = capsys.readouterr().out
    assert "unreadable" in listed and "sound" in listed and "6 of 6" in listed
    for words in (("show", "{search}", "1"), ("status", "{search}"), ("report", "{search}")):
        assert run(words, search, tmp_path) in (1, 2, 3)
        said = capsys.readouterr().err
        assert said.startswith("llmzero: ") and "Traceback" not in said


# --- links and names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["report.html", "report.md", "strategy.yaml", "best"])
def test_a_report_is_written_through_no_link(search: Path, tmp_path: Path, name: str) -> None:
    """What stands at the end of a link stays as it is, and so does nothing of the link."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in ("tree.png", "validation.png", "README.md", "adapter_config.json"):
        (elsewhere / file).write_text("mine")
    target = elsewhere if name == "best" else elsewhere / "tree.png"
    place = search / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(target)
    assert run(("report", "{search}"), search, tmp_path) == 0
    assert {path.read_text() for path in elsewhere.iterdir()} == {"mine"} and len(
        list(elsewhere.iterdir())
    ) == 4
    assert place.exists() and not place.is_symlink()
    assert not [path.name for path in search.iterdir() if path.name.endswith(".tmp")]


@pytest.mark.parametrize("level", ["file", "adapter", "node"])
def test_best_holds_no_file_from_outside_of_the_search(
    search: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    node = search / "checkpoints" / "0002"
    weights = next(node.glob("step_*20/adapter_model.safetensors"))
    linked = {"file": weights, "adapter": weights.parent, "node": node}[level]
    outside = tmp_path / "outside"
    shutil.move(linked, outside)
    linked.symlink_to(outside)
    shutil.rmtree(search / "best")
    run(("report", "{search}"), search, tmp_path)
    assert not (search / "best").exists()
    assert "leads to" in (search / "report.md").read_text()
    assert "Traceback" not in capsys.readouterr().err


def test_a_tasks_name_is_no_markdown_at_the_head_of_the_card(search: Path, tmp_path: Path) -> None:
    name = "toy <script>alert(1)</script> ![x](http://h/x.png) [c](javascript:x) `c` gsm8k/main-2"
    rewrite(search, lambda event: event["task"].update(name=name), "SearchStarted")
    assert run(("report", "{search}"), search, tmp_path) == 0
    _, head, _ = (search / "best" / "README.md").read_text().split("---\n", 2)
    assert not set("<>[]()!`") & set("".join(line for line in head.splitlines() if "toy" in line))
    assert "gsm8k/main-2" in head
