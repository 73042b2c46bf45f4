"""Speed of a large search's page in Chromium: first picture, panning, memory, delays, the server's load.

    python -m benchmarks.page [--nodes 300] [--tries 5] [--events 17280] [--watch 240]

Shows a running search of `--nodes` nodes, each of 500 steps, by `llmzero ui` and as report.html. Each figure
is the best of `--tries`. Then the open tab receives `--events` messages of the stream as fast as it can take
them (one every 5 s for a day; each 60th redraws a node). After that the idle server is watched for `--watch`
seconds: its load, its slowest response, and the lag of the event loop of another process, which plays the
coordinator. Last come the delays until the page shows a new node, a further step of a running phase, and the
coordinator's death by SIGKILL. Prints one line for each figure, with its limit, and the machine's load. The
exit code is 1 if a limit is exceeded.

Needs playwright and chromium on the PATH, like the tests of the page. Run nothing else at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Page, sync_playwright

from llmzero_ray.records.commands import RunPhase
from llmzero_ray.report.facts import SearchFacts
from llmzero_ray.storage.presence import SearchLock
from llmzero_ray.ui.page import report_html
from tests.report.builder import Phase
from tests.report.conftest import METRICS
from tests.ui.large import Large

FIRST_S, FRAMES, HEAP, GROWTH, SERVER = 2.0, 30.0, 150e6, 15e6, 0.03
"""Limits: seconds, frames per second, bytes, bytes, share of a core."""
ANSWER_S, LATE_S, NODE_S, STEP_S, DEATH_S = 0.25, 0.01, 2.0, 6.0, 15.0
"""Limits: the server's slowest response, the added lag of another process's loop, and the three delays."""
_NAP_S = 0.02
_HOOKS = """
requestAnimationFrame(function look() { // the frame after the one that has the tree
  const there = document.querySelector("#tree g.node");
  requestAnimationFrame(there ? () => { window.drawn = performance.now(); } : look);
});
window.EventSource = class extends EventSource {
  constructor(...given) {
    super(...given);
    window.stream = this;
    this.addEventListener("view", one => { window.last = one.data; });
  }
};
"""
_PAN = """seconds => new Promise(done => {
  const tree = document.getElementById("tree"), begun = performance.now();
  let frames = 0;
  requestAnimationFrame(function step(now) {
    const at = (now - begun) / 1000, wave = period => (1 - Math.cos(2 * Math.PI * at / period)) / 2;
    if (at >= seconds) return done(frames / at);
    frames++;
    tree.scrollTop = wave(2) * (tree.scrollHeight - tree.clientHeight);
    tree.scrollLeft = wave(3) * (tree.scrollWidth - tree.clientWidth);
    requestAnimationFrame(step);
  });
})"""
_STREAM = """async ([first, n]) => {
  const news = JSON.parse(window.last), node = byNode()[0];
  for (let i = first; i < first + n; i++) {
    const live = { ...news.live, now: news.live.now + 5 * i };
    const nodes = i % 60 ? [] : [{ ...node, score: node.score + (i / 60 % 2 ? .001 : 0) }];
    const data = JSON.stringify({ ...news, live, left_s: 5 * i, nodes, series: {} });
    window.stream.dispatchEvent(new MessageEvent("view", { data }));
  }
}"""


def show(what: str, found: float, limit: float, *, unit: str, at_least: bool = False) -> bool:
    """Print a figure with its limit. Returns whether it is within the limit."""
    good = found >= limit if at_least else found <= limit
    sense = "at least" if at_least else "at most"
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg()[:2])
    print(
        f"{what}: {found:.3g} {unit} ({sense} {limit:g}){'' if good else ' MISSED'}; load {load}", flush=True
    )
    return good


def first_picture(page: Page, address: str) -> float:
    """Seconds from the request to the first frame that shows the tree."""
    page.goto("about:blank")
    page.goto(address)
    return float(page.wait_for_function("window.drawn").json_value()) / 1000


def heap(devtools: Any) -> int:
    """Bytes of the JavaScript heap in use."""
    devtools.send("HeapProfiler.collectGarbage")
    return int(devtools.send("Runtime.getHeapUsage")["usedSize"])


def coordinator(root: Path, questions: Connection) -> None:
    """Hold a search's lock, and answer each question with the loop's lag since the last one (99th
    percentile)."""
    lock = SearchLock(root)  # held as long as it is referred to
    lock.acquire(private_head=True)

    async def turn() -> None:
        late: list[float] = []
        while True:
            begun = time.monotonic()
            await asyncio.sleep(_NAP_S)
            late.append(time.monotonic() - begun - _NAP_S)
            if questions.poll():
                questions.recv()
                questions.send(sorted(late)[99 * len(late) // 100])
                late.clear()

    asyncio.run(turn())


def late(questions: Connection) -> float:
    """Lag of the coordinator's loop since the last question, seconds."""
    questions.send(None)
    return float(questions.recv())


def watched(page: Page, served: str, server: psutil.Process, seconds: float) -> tuple[float, float]:
    """(Share of a core that the idle server uses, seconds of its slowest response)."""
    used, begun, slowest = sum(server.cpu_times()[:2]), time.monotonic(), 0.0
    while time.monotonic() < begun + seconds:
        asked = time.monotonic()
        with suppress(urllib.error.HTTPError):  # 401, from the loop itself
            urllib.request.urlopen(served.partition("/s/")[0])
        slowest = max(slowest, time.monotonic() - asked)
        page.wait_for_timeout(1000)
    return (sum(server.cpu_times()[:2]) - used) / (time.monotonic() - begun), slowest


def node_delay(page: Page, search: Large) -> float:
    """Seconds from the end of a phase until the page shows the node that begins after it."""
    begun = time.monotonic()
    search.play(phases=1)
    page.locator(f'#tree g.node[data-node="{max(search.core.runs)}"]').wait_for(state="attached")
    return time.monotonic() - begun


def step_delay(page: Page, search: Large, step: int) -> float:
    """Seconds until the page shows a new step of the running phase."""
    command = next(one for one in search.waiting.values() if isinstance(one, RunPhase))
    if step == 1:
        search.start(command)
    begun = time.monotonic()
    search.write_points(command.spec, Phase(val={0: 60}, metrics=METRICS), until=step)
    node = page.locator(f'#tree g.node[data-node="{command.spec.node}"]')
    node.locator(f"text={step}/{Large.STEPS}").wait_for(state="attached")
    return time.monotonic() - begun


def measure(page: Page, file: str, served: str, options: argparse.Namespace) -> bool:
    """Measure first picture, panning and memory. Returns whether all are within their limits."""
    devtools = page.context.new_cdp_session(page)
    good = []
    for name, address in (("report.html", file), ("llmzero ui", served)):
        taken = min(first_picture(page, address) for _ in range(options.tries))
        good.append(show(f"{name}, first picture", taken, FIRST_S, unit="s"))
        frames = max(page.evaluate(_PAN, 3) for _ in range(options.tries))
        good.append(show(f"{name}, panning", frames, FRAMES, unit="frames/s", at_least=True))
        good.append(show(f"{name}, heap", heap(devtools) / 1e6, HEAP / 1e6, unit="MB"))
    page.wait_for_function("window.last")
    before = heap(devtools)
    begun = time.monotonic()
    for first in range(0, options.events, 500):
        page.evaluate(_STREAM, [first, min(500, options.events - first)])
    print(f"llmzero ui, {options.events} messages of the stream: {time.monotonic() - begun:.0f} s")
    grown = (heap(devtools) - before) / 1e6
    good.append(show("llmzero ui, growth of the heap by them", grown, GROWTH / 1e6, unit="MB"))
    first_picture(page, served)
    page.wait_for_function("window.last")
    return all(good)


def delays(page: Page, search: Large, beside: BaseProcess, tries: int) -> bool:
    """Measure and print the delays of the page, and kill the process `beside`. Returns whether all are within
    limits."""
    node = min(node_delay(page, search) for _ in range(tries))
    good = [show("llmzero ui, a new node is shown after", node, NODE_S, unit="s")]
    step = max(step_delay(page, search, step) for step in range(1, tries + 1))
    good.append(show("llmzero ui, a step is shown after, at most", step, STEP_S, unit="s"))
    silent = page.locator("#needs >> text=its coordinator is silent")
    silent.wait_for(state="detached")
    begun = time.monotonic()
    beside.kill()
    silent.wait_for()
    told = time.monotonic() - begun
    good.append(show("llmzero ui, a killed coordinator is told after", told, DEATH_S, unit="s"))
    return all(good)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=300)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--events", type=int, default=17280)
    parser.add_argument("--watch", type=float, default=240.0)
    options = parser.parse_args(argv)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        search = Large(Path(place))
        search.ready().play(phases=options.nodes)
        file = Path(place) / "report.html"
        file.write_text(report_html(SearchFacts(search.storage)))
        size = file.stat().st_size / 1e6
        print(f"{options.nodes} nodes of {Large.STEPS} steps; report.html has {size:.2g} MB", flush=True)
        questions, other = multiprocessing.Pipe()
        beside = multiprocessing.get_context("spawn").Process(target=coordinator, args=(search.root, other))
        beside.start()
        late(questions)
        command = [sys.executable, "-m", "llmzero_ray.cli", "ui", str(search.root), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
            assert started.stdout is not None
            try:
                address = next(line.strip() for line in started.stdout if line.startswith("http://"))
                browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1400, "height": 1000}, bypass_csp=True)
                page.set_default_timeout(400_000)
                page.add_init_script(_HOOKS)
                server = psutil.Process(started.pid)
                good = [measure(page, file.as_uri(), address, options)]
                late(questions)
                share, slowest = watched(page, address, server, options.watch)
                with_page = late(questions)
                good.append(show("llmzero ui, the server", 100 * share, 100 * SERVER, unit="% of a core"))
                good.append(show("llmzero ui, its slowest answer", slowest, ANSWER_S, unit="s"))
                page.goto("about:blank")
                late(questions)
                page.wait_for_timeout(1000 * min(options.watch, 30))
                later = 1000 * (with_page - late(questions))
                good.append(show("llmzero ui, lag of another loop", later, 1000 * LATE_S, unit="ms more"))
                first_picture(page, address)
                good.append(delays(page, search, beside, options.tries))
                browser.close()
            finally:
                started.kill()
                beside.kill()
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
