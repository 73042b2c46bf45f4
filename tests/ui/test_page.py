"""The page in a browser: headless Chromium through Playwright, skipped where either is missing."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from actors.control_requests import event_of
from llmzero_ray.cli.main import main
from llmzero_ray.records import events as ev
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage.presence import SearchLock, done_with, waiting_requests
from llmzero_ray.ui.page import report_html
from llmzero_ray.ui.server import Searches, make_app
from llmzero_ray.ui.view import points_for, thinned, view
from tests.report.builder import Phase, SearchBuilder
from tests.report.conftest import METRICS, scripted
from tests.ui.conftest import TOKEN

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
]
WAIT_MS = 20_000


class Tab:
    """One page of the browser with everything that it complained about and asked for."""

    def __init__(self, page: Any) -> None:
        self.page, self.errors, self.requests = page, [], []
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda one: self.requests.append(one.url))

    def panel(self) -> str:
        """Text of the panel's heading."""
        return str(self.page.locator("#panel h2").first.text_content())

    def node(self, number: int) -> Any:
        """A node of the tree."""
        return self.page.locator(f'#tree g.node[data-node="{number}"]')


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    yield Tab(context.new_page())
    context.close()


@pytest.fixture(scope="module")
def file(search: SearchBuilder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """report.html of the finished search."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_html(SearchFacts(search.storage)))
    return path


# --- report.html --------------------------------------------------------------------------------------------


def test_the_file_is_one_request_without_an_error_also_with_the_network_off(tab: Tab, file: Path) -> None:
    tab.page.context.set_offline(True)
    tab.page.goto(file.as_uri())
    assert tab.page.locator("#tree g.node").count() == 7
    assert tab.requests == [file.as_uri()]
    assert tab.errors == []
    assert file.stat().st_size <= 400_000


def test_the_tree_is_that_of_the_weights_with_the_scores_of_the_commands(
    tab: Tab, file: Path, search: SearchBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(search.root), "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    tab.page.goto(file.as_uri())
    edges = tab.page.eval_on_selector_all(
        "#tree [data-edge]", "all => Object.fromEntries(all.map(one => [one.dataset.to, one.dataset.edge]))"
    )
    assert edges == {
        str(one["node"]): "base"
        if one["resume_node"] is None
        else f"{one['resume_node']}@{one['resume_step']}"
        for one in nodes
    }
    for one in nodes:
        if one["score"] is not None and one["start_score"] is not None:
            gain = f"{one['score'] - one['start_score']:+.4f}".replace("-", "−")
            label = tab.node(one["node"]).get_attribute("aria-label")
            assert f"score {one['score']:.4f}, gain {gain}" in label
        assert ("best" in tab.node(one["node"]).get_attribute("class").split()) == one["in_strategy"]


def test_click_key_and_address_open_the_same_panel_and_a_reload_keeps_it(tab: Tab, file: Path) -> None:
    tab.page.goto(file.as_uri())
    tab.node(1).click()
    assert tab.panel().startswith("Node 1 ")
    text = tab.page.locator("#panel").text_content()
    for wanted in ("onerror=", "lr", "Changed", "0.7000@30", "Verdicts" if "Verdicts" in text else "Cost"):
        assert wanted in text
    tab.node(5).focus()
    tab.page.keyboard.press("Enter")
    assert tab.panel().startswith("Node 5 ")
    assert "STOP" in tab.page.locator("#panel .verdicts").text_content()
    assert tab.page.url.endswith("#n5")
    tab.page.reload()
    assert tab.panel().startswith("Node 5 ")
    tab.page.goto(file.as_uri() + "#n2")
    assert tab.panel().startswith("Node 2 ")


def test_arrows_walk_the_tree(tab: Tab, file: Path) -> None:
    tab.page.goto(file.as_uri() + "#n1")
    tab.node(1).focus()
    for key, expected in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowDown", 4), ("ArrowLeft", 2)):
        tab.page.keyboard.press(key)
        assert tab.page.evaluate("document.activeElement.dataset.node") == str(expected)


def test_shift_click_compares_two_nodes_as_the_command_does(
    tab: Tab, file: Path, search: SearchBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", f"{search.root}:0", f"{search.root}:2", "--json"]) == 0
    changed = json.loads(capsys.readouterr().out)["changed"]
    tab.page.goto(file.as_uri() + "#n0")
    tab.node(2).click(modifiers=["Shift"])
    keys = tab.page.eval_on_selector_all("#panel [data-hp]", "all => all.map(one => one.dataset.hp)")
    assert set(keys) == set(changed)
    tab.page.reload()
    assert tab.panel().startswith("Node 0 → node 2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_in_one_direction(tab: Tab, file: Path, scheme: str) -> None:
    tab.page.emulate_media(color_scheme=scheme)
    tab.page.set_viewport_size({"width": 390, "height": 800})
    tab.page.goto(file.as_uri())
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    widths = tab.page.eval_on_selector_all("svg.fluid", "all => all.map(one => one.clientWidth)")
    assert min(widths) > 250


def test_texts_of_agents_stay_text(tab: Tab, file: Path) -> None:
    tab.page.goto(file.as_uri() + "#n1")
    assert tab.page.locator("img").count() == 0
    assert tab.page.title() == "demo · llmzero"
    assert tab.errors == []


def many(data: dict[str, Any], n: int, n_steps: int) -> dict[str, Any]:
    """The same view with `n` nodes in chains, each with series of `n_steps` steps."""
    model = data["nodes"][1]
    nodes = [
        {
            **model,
            "node": i,
            "resume_node": None if i % 10 == 0 else i - 1,
            "resume_step": 10,
            "seen_in": None,
        }
        for i in range(n)
    ]
    points = thinned([(step, round(step % 7 / 7, 4)) for step in range(n_steps)], points_for(n))
    series = {name: [[step for step, _ in points], [one for _, one in points]] for name in data["labels"]}
    return {**data, "nodes": nodes, "series": {str(i): series for i in range(n)}, "strategy": []}


def test_thirty_nodes_fit_into_400_kb_and_300_are_drawn(
    tab: Tab, file: Path, search: SearchBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = SearchFacts(search.storage)
    data = view(facts)
    for n, largest in ((30, 400_000), (300, 10_000_000)):
        monkeypatch.setattr("llmzero_ray.ui.page.view", lambda _, n=n: many(data, n, 500))
        file.with_name("many.html").write_text(report_html(facts))
        assert file.with_name("many.html").stat().st_size <= largest
        tab.page.goto(file.with_name("many.html").as_uri())
        assert tab.page.locator("#tree g.node").count() == n + 1
        assert tab.errors == []


# --- llmzero ui ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(search: SearchBuilder, *, steering: bool = False) -> Iterator[str]:
    """The address of a server in this process, with its token."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        searches = Searches(Path(search.root).parent, None, steering=steering)
        app = make_app(searches, token=TOKEN, hosts=frozenset({"127.0.0.1"}))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{port}/s/demo/?token={TOKEN}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[tuple[SearchBuilder, SearchLock]]:
    """A search with one node, at whose end more can follow, and the lock of its coordinator."""
    made = scripted(tmp_path)
    made.now = time.time() - 200
    made.ready().play(phases=1)
    made.root.joinpath("requests").mkdir(exist_ok=True)
    lock = SearchLock(made.root)
    lock.acquire(private_head=True)
    yield made, lock
    lock.release()


def test_a_new_node_appears_without_a_reload_and_nothing_loses_focus(
    tab: Tab, growing: tuple[SearchBuilder, SearchLock]
) -> None:
    search, _ = growing
    with served(search) as address:
        tab.page.goto(address)
        assert TOKEN not in tab.page.url
        tab.node(0).focus()
        tab.page.evaluate("window.mark = 1; window.scrollTo(0, 400)")
        before = tab.page.evaluate("window.scrollY")
        search.play(phases=1)
        tab.node(1).wait_for(state="attached")
        assert tab.page.evaluate("[window.mark, window.scrollY, document.activeElement.dataset.node]") == [
            1,
            before,
            "0",
        ]
        command = next(one for one in search.waiting.values() if hasattr(one, "spec"))
        search.start(command)
        search.write_points(command.spec, Phase(val={0: 70}, metrics=METRICS), until=6)
        tab.page.locator('#tree g.node[data-node="2"] >> text=6/').wait_for(state="attached")
        assert tab.errors == []
        tab.page.goto("about:blank")


def test_a_dead_coordinator_is_said_and_a_new_one_clears_it(
    tab: Tab, growing: tuple[SearchBuilder, SearchLock]
) -> None:
    search, lock = growing
    with served(search) as address:
        tab.page.goto(address)
        assert "silent" not in tab.page.locator("#needs").text_content()
        lock.release()
        tab.page.locator("#needs >> text=silent").wait_for()
        lock.acquire(private_head=True)
        tab.page.locator("#needs >> text=silent").wait_for(state="detached")
        assert tab.page.locator("#tree g.node").count() == len(search.core.search.nodes) + 1
        tab.page.goto("about:blank")


def answer_requests(search: SearchBuilder, ended: threading.Event) -> None:
    """What a coordinator does with requests."""
    while not ended.wait(0.1):
        for one in waiting_requests(search.root):
            search.now = time.time()
            search.post(event_of(search.core, one))
            done_with(search.root, one.id)


def test_requests_by_mouse_become_the_events_of_the_commands_and_answers_are_shown(
    tab: Tab, growing: tuple[SearchBuilder, SearchLock]
) -> None:
    search, _ = growing
    ended = threading.Event()
    coordinator = threading.Thread(target=answer_requests, args=(search, ended), daemon=True)
    coordinator.start()
    with served(search, steering=True) as address:
        tab.page.goto(address)
        for node, kind, fields, expected in (
            (0, "hint", {"text": "go colder"}, "hint for the proposer: go colder"),
            (0, "clone", {"settings": "lr=nonsense"}, "lr"),
            (0, "veto", {"reason": "too long"}, "node 0 is the root; stop the search instead of vetoing it."),
            (1, "veto", {"reason": "too long"}, "node=1 vetoed with all below it: too long"),
        ):
            tab.node(node).click()
            tab.page.locator(f'button[data-key="{kind}"]').click()
            for name, value in fields.items():
                tab.page.locator(f'dialog [name="{name}"]').fill(value)
            tab.page.locator('dialog button:text-is("send")').click()
            tab.page.locator(f'#answer:has-text("{expected}")').wait_for()
            tab.page.locator('dialog button:text-is("close")').click()
        tab.page.locator("#feed >> text=you: hint for the proposer").wait_for(state="attached")
        tab.page.goto("about:blank")
    ended.set()
    coordinator.join()
    assert {"HintGiven", "NodeVetoed"} <= {type(one).__name__ for one in SearchFacts(search.storage).events}


def test_a_proposal_that_waits_needs_a_person_and_is_answered_by_mouse(
    tab: Tab, growing: tuple[SearchBuilder, SearchLock]
) -> None:
    search, _ = growing
    search.post(ev.SettingsChanged(changes={"agents.approve": True}, before={"agents.approve": False}))
    search.play(phases=1)
    search.now = time.time()
    ended = threading.Event()
    coordinator = threading.Thread(target=answer_requests, args=(search, ended), daemon=True)
    coordinator.start()
    with served(search, steering=True) as address:
        tab.page.goto(address)
        tab.page.locator("#needs >> text=Node 2 waits for approval").wait_for()
        assert "lr 0.0005 → 0.0002" in tab.page.locator("#needs").text_content()
        for kind, fields, expected in (
            ("approve", {"settings": "lr=7"}, "lr"),
            ("approve", {"settings": "lr=1e-4", "reason": "colder"}, "accepted with lr = 0.0001: colder"),
        ):
            tab.page.locator(f'button[data-key="{kind}2"]').click()
            for name, value in fields.items():
                tab.page.locator(f'dialog [name="{name}"]').fill(value)
            tab.page.locator('dialog button:text-is("send")').click()
            tab.page.locator(f'#answer:has-text("{expected}")').wait_for()
            tab.page.locator('dialog button:text-is("close")').click()
        tab.page.locator('button[data-key="approve2"]').wait_for(state="detached")
        tab.page.goto("about:blank")
    ended.set()
    coordinator.join()


def test_a_read_only_page_has_no_button_that_asks(tab: Tab, search: SearchBuilder) -> None:
    with served(search) as address:
        tab.page.goto(address)
        assert tab.page.locator("#head button, #panel button").count() == 0
        assert tab.errors == []
        tab.page.goto(address.partition("/s/")[0] + "/")
        tab.page.locator("#index a.card").click()
        tab.page.locator("#tree g.node").first.wait_for()
        tab.page.goto("about:blank")
