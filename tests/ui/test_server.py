"""Who may speak to `llmzero ui`, and what it answers."""

from __future__ import annotations

import errno
import json
import re
import shutil
import socket
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from llmzero_ray.cli.main import main
from llmzero_ray.ui.command import place_of
from tests.report.builder import SearchBuilder
from tests.ui.conftest import HOSTILE, TOKEN, client

ROUTES = (
    "/",
    "/events",
    "/page.js",
    "/page.css",
    "/s/demo/",
    "/s/demo/view.json",
    "/s/demo/events",
    "/nowhere",
)
SENT = {"X-Llmzero": "1", "Origin": "http://127.0.0.1:8280"}


@pytest.mark.parametrize("route", ROUTES)
def test_without_the_cookie_every_route_is_refused(search: SearchBuilder, route: str) -> None:
    assert client(search).get(route).status_code == 401
    assert client(search).get(route, params={"token": "wrong"}).status_code == 401


@pytest.mark.parametrize("route", ROUTES)
def test_another_host_is_refused_even_with_the_cookie(page: TestClient, route: str) -> None:
    for host in ("evil.example:8280", "127.0.0.1.evil.example", "", "[", "127.0.0.1:bad"):
        assert page.get(route, headers={"Host": host}).status_code == 421


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address(search: SearchBuilder) -> None:
    answer = client(search).get("/s/demo/", params={"token": TOKEN, "a": "1"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/s/demo/?a=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie


def test_every_answer_forbids_scripts_of_others_frames_and_referrers(page: TestClient) -> None:
    for route in ("/", "/page.js", "/s/demo/", "/none"):
        headers = page.get(route).headers
        assert headers["content-security-policy"].startswith("default-src 'self'; ")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("headers", [{}, {"X-Llmzero": "1"}, {**SENT, "Origin": "http://evil.example"}])
def test_a_request_of_another_page_is_refused(search: SearchBuilder, headers: dict[str, str]) -> None:
    browser = client(search, steering=True)
    browser.get("/", params={"token": TOKEN})
    assert browser.post("/s/demo/requests", json={"kind": "pause"}, headers=headers).status_code == 403
    assert not list((search.root / "requests").glob("*"))


def test_a_read_only_page_takes_no_request(page: TestClient, search: SearchBuilder) -> None:
    answer = page.post("/s/demo/requests", json={"kind": "hint", "text": "colder"}, headers=SENT)
    assert answer.status_code == 403
    assert "--allow-steering" in answer.text
    assert not list((search.root / "requests").glob("*"))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "pause"}, "is not running: there is nothing to pause"),
        ({"kind": "shell"}, "a request cannot be 'shell'"),
        ({"kind": "clone", "node": 0, "settings": "lr=5e-4", "step": "x"}, "step is 'x'"),
        ({"kind": "clone", "node": 0, "settings": "betas=[0.9, 2]\nlr=5e-4"}, "must be two numbers"),
        ([1], "a request is a JSON object"),
    ],
)
def test_a_refused_request_is_answered_with_its_sentence(
    search: SearchBuilder, asked: object, said: str
) -> None:
    browser = client(search, steering=True)
    browser.get("/", params={"token": TOKEN})
    answer = browser.post("/s/demo/requests", json=asked, headers=SENT)
    assert answer.status_code == 409
    assert said in answer.text


@pytest.mark.parametrize("body", [b"", b"\xff{", b"[" * 60_000, b'"' + b"x" * 70_000 + b'"'])
def test_a_body_that_is_no_request_is_one_sentence(search: SearchBuilder, body: bytes) -> None:
    browser = client(search, steering=True)
    browser.get("/", params={"token": TOKEN})
    answer = browser.post("/s/demo/requests", content=body, headers=SENT)
    assert (answer.status_code, answer.text) == (409, "a request is a JSON object of at most 64 KiB")


def test_a_refused_request_is_answered_as_the_command_answers(
    search: SearchBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    browser = client(search, steering=True)
    browser.get("/", params={"token": TOKEN})
    answer = browser.post("/s/demo/requests", json={"kind": "veto", "node": 99}, headers=SENT)
    assert main(["veto", str(search.root), "99"]) == 2
    assert capsys.readouterr().err == f"llmzero: {answer.text}\n"


def test_texts_of_agents_are_data_in_the_page_and_the_token_is_nowhere(page: TestClient) -> None:
    text = page.get("/s/demo/").text
    scripts = re.findall(r"<script[^>]*>", text)
    assert scripts == ['<script type="application/json" id="view">', '<script src="/page.js">']
    assert "<img" not in text
    assert not re.search(r"\son\w+=", text.partition('id="view">')[0])
    assert TOKEN not in text
    data = json.loads(page.get("/s/demo/view.json").text)
    seen = next(node for node in data["nodes"] if node["node"] == 1)["diagnosis"]
    assert seen.startswith(HOSTILE[:20])
    assert not {"\x1b", "\u202e"} & set(seen)


def test_the_view_says_what_the_commands_say(
    page: TestClient, search: SearchBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    data = page.get("/s/demo/view.json").json()
    for node in data["nodes"]:
        assert main(["show", str(search.root), str(node["node"]), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (node["score"], node["resume_node"], node["resume_step"]) == (
            shown["score"],
            shown["resume_node"],
            shown["resume_step"],
        )
        assert shown["hyperparameters"] is None or node["own"].items() <= shown["hyperparameters"].items()
    assert [phase["node"] for phase in data["strategy"]] == [0, 1, 2]


def test_the_index_has_the_best_score_so_far_after_each_phase(
    page: TestClient, search: SearchBuilder
) -> None:
    data = json.loads(re.findall(r'id="view">(.*?)</script>', page.get("/").text)[0])
    (card,) = [one for one in data["searches"] if one["name"] == search.config.name]
    assert card["scores"] == [0.6, 0.7, 0.78, 0.78, 0.78]
    assert (card["best_score"], card["task"]) == (0.78, "task")


def test_names_of_other_directories_are_no_searches(page: TestClient) -> None:
    for name in ("..", "%2e%2e", "other", "..%2f..%2fetc"):
        assert page.get(f"/s/{name}/view.json").status_code == 404


def test_a_damaged_journal_is_one_sentence_and_hides_no_other_search(
    search: SearchBuilder, tmp_path: Path
) -> None:
    for name in ("demo", "broken"):
        shutil.copytree(search.root, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints"))
    next(iter(sorted((tmp_path / "broken" / "journal").glob("*.json")))).write_text("{")
    moved = SearchBuilder.__new__(SearchBuilder)
    moved.root = tmp_path / "demo"
    browser = client(moved)
    browser.get("/", params={"token": TOKEN})
    broken = browser.get("/s/broken/view.json").json()
    assert broken["stage"] == "unreadable"
    assert "\n" not in broken["sentence"]
    assert browser.get("/s/demo/view.json").json()["nodes"]
    assert browser.get("/").status_code == 200


# --- the command --------------------------------------------------------------------------------------------


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence of a refused command."""
    assert main(["ui", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_a_port_in_use_is_one_sentence(search: SearchBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert "--port" in said(capsys, str(search.root), "--port", str(port))


def test_a_port_that_another_takes_meanwhile_is_one_sentence(
    search: SearchBuilder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []

    def taken(one: socket.socket) -> None:
        made.append(one)
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(socket.socket, "listen", taken)
    assert "--port" in said(capsys, str(search.root), "--port", "0")
    assert [one.fileno() for one in made] == [-1]


def test_a_storage_without_searches_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no search here" in said(capsys, str(tmp_path))
    assert "there is no search here" in said(capsys, str(tmp_path / "nowhere"))


def test_the_page_of_a_point_is_that_of_the_only_search(
    search: SearchBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = tmp_path / "storage"  # alone in its folder: a folder of searches is a storage itself
    storage.symlink_to(Path(search.root).parent)
    monkeypatch.chdir(tmp_path)
    assert place_of(".", storage.name) == place_of(search.config.name, storage.name)
    assert place_of(".", storage.name) == (storage, search.config.name, None)
    assert place_of(storage.name, "runs") == (storage, None, None)


def test_a_node_of_a_search_is_named_as_everywhere(
    search: SearchBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = Path(search.root).parent
    for text, node in (("demo:3", 3), ("demo:best", 2), ("3", 3)):
        assert place_of(text, str(storage)) == (storage, "demo", node)
    assert "demo has no node 9; it has 0, 1, 2, 3, 4, 5" in said(capsys, f"{search.root}:9")


def test_an_address_that_others_reach_needs_a_token_file_of_mode_0600(
    search: SearchBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--token-file" in said(capsys, str(search.root), "--host", "0.0.0.0")
    file = tmp_path / "token"
    file.write_text("x" * 32)
    file.chmod(0o644)
    words = (str(search.root), "--host", "0.0.0.0", "--port", "0", "--token-file", str(file))
    assert "can be read by others" in said(capsys, *words)
    file.chmod(0o600)
    file.write_text("short")
    assert "at least 16 characters" in said(capsys, *words)
