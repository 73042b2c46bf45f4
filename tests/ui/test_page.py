"""The page in a browser: headless Chromium through Playwright, skipped where either is missing."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
import uvicorn
from PIL import Image, ImageChops

from actors.control_requests import event_of
from llmzero_ray.cli.event_text import event_line
from llmzero_ray.cli.main import main
from llmzero_ray.records import Diagnosis
from llmzero_ray.records import events as ev
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage.presence import SearchLock, done_with, owner, waiting_requests
from llmzero_ray.ui.page import report_html
from llmzero_ray.ui.server import Searches, make_app
from llmzero_ray.ui.view import points_for, thinned, view
from tests.cli.conftest import task_dir
from tests.cli.test_cli import Command, command
from tests.report.builder import Phase, SearchBuilder, proposal
from tests.report.conftest import METRICS, scripted
from tests.ui.conftest import HOSTILE, TOKEN
from tests.ui.large import Large
from tests.waiting import PATIENCE_S, until_gone, wait_until

__all__ = ["command", "task_dir"]  # fixtures of the command line's

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
]
GOLDEN = Path(__file__).parent / "golden"
"""Screenshots at half their size, in 64 colours."""
FONTS = "* { font-family: recorded !important; }" + "".join(
    f"@font-face {{ font-family: recorded; font-weight: {weight}; src: url(data:font/ttf;base64,{font}); }}"
    for weight, name in ((400, "DejaVuSans.ttf"), (700, "DejaVuSans-Bold.ttf"))
    for font in [base64.b64encode(Path(matplotlib.get_data_path(), "fonts/ttf", name).read_bytes()).decode()]
)
"""One font for every machine, from a package of the lock."""


class Tab:
    """One page of the browser with everything that it complained about and asked for."""

    def __init__(self, page: Any) -> None:
        self.page, self.errors, self.requests = page, [], []
        page.set_default_timeout(PATIENCE_S * 1000)
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
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--font-render-hinting=none"]
        )
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
    tab.node(2).focus()
    for key, expected in (("ArrowRight", 3), ("ArrowDown", 4), ("ArrowLeft", 2), ("ArrowLeft", 1)):
        tab.page.keyboard.press(key)
        assert tab.page.evaluate("document.activeElement.dataset.node") == str(expected)
        box = tab.node(expected).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1400), ("dark", 1400), ("light", 390), ("dark", 390)]
)
def test_the_page_looks_as_recorded(
    browser: Any, file: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    recorded = GOLDEN / f"{scheme}_{width}.png"
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        bypass_csp=True,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(file.as_uri())
    page.add_style_tag(content=FONTS)
    page.evaluate("document.fonts.ready.then(() => dispatchEvent(new Event('resize')))")
    seen = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB").reduce(2)
    context.close()
    new = tmp_path / recorded.name
    seen.quantize(64).save(new, optimize=True)
    remedy = f"look at {new}; if it is right, copy it to {recorded}"
    assert recorded.exists(), remedy
    before = Image.open(recorded).convert("RGB")
    assert seen.size == before.size, remedy
    apart = np.asarray(ImageChops.difference(seen, before)).max(axis=2) > 32
    assert apart.mean() <= 0.005, f"{apart.mean():.2%} of the pixels differ; {remedy}"


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


def app_of(search: Any, *, steering: bool = False) -> Any:
    """The application that shows the storage of a search."""
    searches = Searches(Path(search.root).parent, None, steering=steering)
    return make_app(searches, token=TOKEN, hosts=frozenset({"127.0.0.1"}))


@contextlib.contextmanager
def listening(app: Any, port: int = 0) -> Iterator[int]:
    """The port of a server of the application in this process."""
    with socket.create_server(("127.0.0.1", port)) as opened:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        yield opened.getsockname()[1]
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def served(search: Any, *, steering: bool = False) -> Iterator[str]:
    """The address of a server in this process, with its token."""
    with listening(app_of(search, steering=steering)) as port:
        yield f"http://127.0.0.1:{port}/s/{Path(search.root).name}/?token={TOKEN}"


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
        search.now = time.time()
        search.start(command)
        search.write_points(command.spec, Phase(val={0: 70}, metrics=METRICS), until=6)
        tab.page.locator('#tree g.node[data-node="2"] >> text=6/').wait_for(state="attached")
        tab.page.locator('#slots g[data-node="2"] title', has_text=re.compile(r", [1-9]")).wait_for(
            state="attached"
        )
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


@contextlib.contextmanager
def answered(search: SearchBuilder) -> Iterator[None]:
    """What a coordinator does with requests."""
    ended = threading.Event()

    def answer() -> None:
        while not ended.wait(0.1):
            for one in waiting_requests(search.root):
                search.now = time.time()
                search.post(event_of(search.core, one))
                done_with(search.root, one.id)

    coordinator = threading.Thread(target=answer, daemon=True)
    coordinator.start()
    yield
    ended.set()
    coordinator.join()


def send(tab: Tab, kind: str, **fields: str) -> None:
    """Ask by mouse."""
    tab.page.locator(f'button[data-key="{kind}"]').click()
    for name, value in fields.items():
        tab.page.locator(f'dialog [name="{name}"]').fill(value)
    tab.page.locator('dialog button:text-is("send")').click()


def newest(search: SearchBuilder, kind: type) -> Any:
    """The newest event of a kind in the journal."""
    return [event for event in SearchFacts(search.storage).events if isinstance(event, kind)][-1]


def close(tab: Tab) -> None:
    """Put the answer away."""
    tab.page.locator('dialog button:text-is("close")').click()


def test_requests_by_mouse_become_the_events_of_the_commands_and_answers_are_shown(
    tab: Tab, growing: tuple[SearchBuilder, SearchLock]
) -> None:
    search, _ = growing
    with answered(search), served(search, steering=True) as address:
        tab.page.goto(address)
        for node, kind, fields, expected in (
            (0, "hint", {"text": "go colder"}, "hint for the proposer: go colder"),
            (0, "clone", {"settings": "lr=nonsense"}, "lr"),
            (0, "veto", {"reason": "too long"}, "node 0 is the root; stop the search instead of vetoing it."),
            (1, "veto", {"reason": "too long"}, "node=1 vetoed with all below it: too long"),
        ):
            tab.node(node).click()
            send(tab, kind, **fields)
            tab.page.locator(f'#answer:has-text("{expected}")').wait_for()
            close(tab)
        tab.page.locator("#feed >> text=you: hint for the proposer").wait_for(state="attached")
        tab.page.goto("about:blank")
    assert {"HintGiven", "NodeVetoed"} <= {type(one).__name__ for one in SearchFacts(search.storage).events}


def test_pause_and_stop_by_mouse_are_answered_word_for_word(
    tab: Tab, growing: tuple[SearchBuilder, SearchLock]
) -> None:
    search, lock = growing
    with answered(search), served(search, steering=True) as address:
        tab.page.goto(address)
        send(tab, "pause", reason=HOSTILE)
        tab.page.locator('#answer:text-matches("^paused")').wait_for()
        event = newest(search, ev.SearchPaused)
        assert tab.page.locator("#answer").text_content() == event_line(search.core, event)
        close(tab)
        lock.release()
        tab.page.locator("#needs >> text=It is paused").wait_for()
        for kind in ("pause", "stop"):  # nobody is there to answer
            send(tab, kind)
            sentence = f"{search.root} is not running: there is nothing to {kind}."
            tab.page.locator(f'#answer:text-is("{sentence}")').wait_for()
            close(tab)
        lock.acquire(private_head=True)
        search.post(ev.CoordinatorStarted(epoch=2, host="here", pid=1))
        tab.page.locator("#needs >> text=It is paused").wait_for(state="detached")
        send(tab, "stop", reason="good enough")
        tab.page.locator('#answer:has-text("good enough")').wait_for()
        event = newest(search, ev.UserStop)
        assert tab.page.locator("#answer").text_content() == event_line(search.core, event)
        assert (event.source or "").startswith("user:")
        assert tab.page.locator("img").count() == 0
        assert [one for one in tab.errors if "409" not in one] == []
        tab.page.goto("about:blank")


def test_a_killed_coordinator_is_said_and_after_a_resume_the_page_goes_on(
    tab: Tab, command: Command, task_dir: Path
) -> None:
    command.write(task_dir, script={"hold": [1]})
    process = command.start()
    command.until_step(1, 3)
    storage = command.storage
    with served(storage.paths) as address:
        tab.page.goto(address)
        tab.page.evaluate("window.mark = 1")
        tab.node(1).wait_for(state="attached")
        someone = owner(storage.paths.root)
        assert someone is not None
        os.kill(someone.pid, signal.SIGKILL)
        process.kill()  # whose head would start another coordinator
        process.wait()
        tab.page.locator("#needs >> text=its coordinator is silent").wait_for()
        until_gone(command.leftovers)
        command.released.touch()
        code, output = command.run()
        assert code == 0, output
        tab.page.locator("#head .chip.finished").wait_for()
        assert tab.page.locator("#needs").text_content() == ""
        nodes = tab.page.eval_on_selector_all("#tree g.node", "all => all.map(one => +one.dataset.node)")
        assert sorted(nodes) == [-1, 0, 1]
        assert tab.page.evaluate("window.mark") == 1
        assert tab.errors == []
        tab.page.goto("about:blank")


def test_a_search_begun_anew_under_its_name_replaces_the_old_one_on_an_open_page(
    tab: Tab, search: SearchBuilder, tmp_path: Path
) -> None:
    root = tmp_path / "storage" / "demo"
    shutil.copytree(search.root, root)
    fresh = SearchBuilder(tmp_path / "other").ready().play(phases=1)
    with served(SimpleNamespace(root=root)) as address:
        tab.page.goto(address)
        tab.page.evaluate("window.mark = 1")
        assert tab.page.locator("#tree g.node").count() == 7
        shutil.rmtree(root)
        tab.page.locator("text=there is no search here").wait_for()
        shutil.copytree(fresh.root, root)
        tab.page.locator("#head .chip.interrupted").wait_for()
        nodes = tab.page.eval_on_selector_all("#tree g.node", "all => all.map(one => +one.dataset.node)")
        assert sorted(nodes) == [-1, 0, 1]
        assert tab.page.locator("#progress circle").count() == 1  # its only score, which no line shows
        assert tab.page.evaluate("window.mark") == 1
        assert tab.errors == []
        tab.page.goto("about:blank")


def test_a_browser_that_slept_misses_nothing(tab: Tab, growing: tuple[SearchBuilder, SearchLock]) -> None:
    search, _ = growing
    app = app_of(search)
    with listening(app) as port:
        tab.page.goto(f"http://127.0.0.1:{port}/s/demo/?token={TOKEN}")
        tab.page.evaluate("window.mark = 1")
        tab.page.locator("#alive >> text=sign of life").wait_for()
    tab.page.locator("#alive >> text=does not answer").wait_for()
    search.play(phases=2)  # nodes 1 and 2, which nobody saw grow
    with listening(app, port):
        for node in (0, 1, 2):
            tab.node(node).wait_for(state="attached")
        tab.page.locator("#alive >> text=sign of life").wait_for()
        assert tab.page.evaluate("window.mark") == 1
        tab.page.goto("about:blank")


def test_hostile_texts_stay_text_while_the_page_grows(
    tab: Tab, growing: tuple[SearchBuilder, SearchLock]
) -> None:
    search, _ = growing
    made = proposal(resume=(1, 10), lr=2e-4, temperature=0.9)
    seen = Diagnosis(state="plateau", summary=HOSTILE, evidence=(HOSTILE,))
    changes = tuple(replace(one, reason=HOSTILE) for one in made.changes)
    search.answers[2] = replace(made, diagnosis=seen, changes=changes, rationale=HOSTILE)
    with served(search) as address:
        tab.page.goto(address)
        title = tab.page.title()
        search.play(phases=2)
        search.post(ev.HintGiven(text=HOSTILE, source="user:1"))
        tab.node(2).click()
        tab.page.locator("#panel .diagnosis", has_text="onerror=").wait_for()
        tab.page.locator("#feed >> text=you: hint").wait_for(state="attached")
        for text in tab.page.locator(".agent", has_text="onerror=").all_text_contents():
            assert not {"\x1b", "\u202e", "\u2067"} & set(text)
        assert tab.page.locator("img").count() == 0
        assert tab.page.locator("script").count() == 2
        assert (tab.page.title(), tab.errors) == (title, [])
        tab.page.goto("about:blank")


def test_a_search_of_300_nodes_and_500_steps_is_followed_in_bounded_memory(tab: Tab, tmp_path: Path) -> None:
    search = Large(tmp_path)
    search.ready().play(phases=Large.N)
    lock = SearchLock(search.root)
    lock.acquire(private_head=True)
    devtools = tab.page.context.new_cdp_session(tab.page)
    received: list[int] = []
    devtools.on("Network.eventSourceMessageReceived", lambda said: received.append(len(said["data"])))
    devtools.send("Network.enable")

    def heap() -> int:
        devtools.send("HeapProfiler.collectGarbage")
        return int(devtools.send("Runtime.getHeapUsage")["usedSize"])

    with served(search) as address:
        tab.page.goto(address)
        assert tab.page.locator("#tree g.node").count() == len(search.core.search.nodes) + 1 > Large.N
        wait_until(lambda: tab.page.wait_for_timeout(200) or received)
        whole, used = received[0], heap()
        assert used < 150e6
        for _ in range(8):
            search.play(phases=1)
            tab.node(len(search.core.search.nodes) - 1).wait_for(state="attached")
        assert heap() < used + 15e6
        assert len(received) > 8
        assert max(received[1:]) < whole / 4
        assert tab.errors == []
        tab.page.goto("about:blank")
    lock.release()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_reader_without_sight_or_mouse_is_hindered_by_nothing_serious(
    tab: Tab, file: Path, growing: tuple[SearchBuilder, SearchLock], scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()

    def serious() -> list[str]:
        found = axe.run(tab.page).response["violations"]
        return [f"{one['id']}: {one['nodes']}" for one in found if one["impact"] in ("serious", "critical")]

    tab.page.emulate_media(color_scheme=scheme)
    tab.page.goto(file.as_uri())
    tab.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert serious() == []
    tab.page.set_viewport_size({"width": 390, "height": 800})
    tab.node(2).click(modifiers=["Shift"])
    assert serious() == []
    search, lock = growing
    lock.release()
    with served(search, steering=True) as address:
        tab.page.goto(address)
        tab.page.locator("#needs >> text=silent").wait_for()
        assert serious() == []
        tab.page.locator('button[data-key="clone"]').click()
        assert serious() == []
        tab.page.goto(address.partition("/s/")[0] + "/")
        tab.page.locator("#index a.card").wait_for()
        assert serious() == []
        tab.page.goto("about:blank")


def test_a_proposal_that_waits_needs_a_person_and_is_answered_by_mouse(
    tab: Tab, growing: tuple[SearchBuilder, SearchLock]
) -> None:
    search, _ = growing
    search.post(ev.SettingsChanged(changes={"agents.approve": True}, before={"agents.approve": False}))
    search.play(phases=1)
    search.now = time.time()
    with answered(search), served(search, steering=True) as address:
        tab.page.goto(address)
        tab.page.locator("#needs >> text=Node 2 waits for approval").wait_for()
        assert "lr 0.0005 → 0.0002" in tab.page.locator("#needs").text_content()
        send(tab, "approve2", settings="lr=7")
        tab.page.locator('#answer:has-text("lr")').wait_for()
        close(tab)
        send(tab, "approve2", settings="lr=1e-4", reason="colder")
        tab.page.locator('#answer:has-text("accepted with lr = 0.0001: colder")').wait_for()
        close(tab)
        tab.page.locator('button[data-key="approve2"]').wait_for(state="detached")
        tab.page.goto("about:blank")


def test_a_read_only_page_has_no_button_that_asks(tab: Tab, search: SearchBuilder) -> None:
    with served(search) as address:
        tab.page.goto(address)
        assert tab.page.locator("#head button, #panel button").count() == 0
        assert tab.errors == []
        tab.page.goto(address.partition("/s/")[0] + "/")
        tab.page.locator("#index a.card").click()
        tab.page.locator("#tree g.node").first.wait_for()
        tab.page.goto("about:blank")
