"""Make the recorded searches: `python -m tests.blackbox.record DIRECTORY`, then copy what is right to runs/.

The records in this folder were made by version 0.1 (commit 2d412c1), whose searches this one must open: make
them again only when such searches are no longer read, never to please a change. Three things were done by
hand. runs/compacted is two_slots with its journal appended once more, event by event, by a `Journal` with
`segment_events=16` that keeps 8 single files. runs/demo is `make demo` of an earlier commit, ended by a
person; two fields that 0.1 does not write were taken out of its journal. Adapters that led nowhere were taken
away. Not here: the tests.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.agents.llm.messages_server import KEY, Answer, MessagesServer, Reply, Request
from tests.blackbox import journals, public_api
from tests.searches import scripted_search

STRIPPED = ("lock", "heartbeat", "logs", "plots", "log.txt", "requests", ".write_test")
"""Files and folders of a search that the record goes without: of the moment, or large."""
ENV = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_open_telemetry": "0",
    "ANTHROPIC_API_KEY": KEY,
}

HEAD = """
import ray, sys
context = ray.init(address="local", num_cpus=16, num_gpus=4, include_dashboard=False, namespace="llmzero")
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


class Recorder:
    """Searches in one working directory, and their records beside it."""

    def __init__(self, work: Path) -> None:
        self.work = work
        (work / "model").mkdir(parents=True, exist_ok=True)
        self.env = ENV | {"HOME": str(work), "RAY_AUTH_MODE": "disabled"}
        self.head: subprocess.Popen[str] | None = None

    def start_head(self) -> None:
        """One cluster for all searches; a busy machine may need more than one try."""
        for _ in range(10):
            process = subprocess.Popen(
                [sys.executable, "-c", HEAD],
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if address:
                self.head, self.env = process, self.env | {"RAY_ADDRESS": address}
                return
            process.wait()
        raise SystemExit("no head")

    def kill_head(self) -> None:
        """Everything that works on a search dies at once."""
        assert self.head is not None
        os.killpg(self.head.pid, signal.SIGKILL)
        self.head.wait()

    def config(self, name: str, script: dict[str, Any], **blocks: Any) -> Path:
        content = scripted_search(
            self.work,
            self.work / "task",
            script,
            name=name,
            task={"family": "echo", "n_train": 64, "n_val": 32, "n_test": 64, "seed": 1},
            model={"path": str(self.work / "model")},
            **blocks,
        )
        path = self.work / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def command(self, *words: object, wait: bool = True) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", *map(str, words)],
            cwd=public_api.CHECKOUT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if wait else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        if wait:
            result, _ = process.communicate(timeout=900)
            print(f"$ {' '.join(map(str, words))}\n{result}[{process.returncode}]", flush=True)
        return process

    def llmzero(self, *words: object) -> None:
        self.command(public_api.COMMAND_MODULE, *words)

    def until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 600
        while not happened():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def until_step(self, name: str, node: int, step: int) -> None:
        """Until that step of a phase is on the disk."""
        parts = self.work / "runs" / name / "nodes" / f"{node:04d}" / "parts"
        done = parts.parent / "metrics.parquet"

        def reached() -> bool:
            return done.is_file() or any(
                f'"step": {step},' in path.read_text() for path in parts.glob("???.jsonl")
            )

        self.until(reached)

    # --- the searches ---------------------------------------------------------------------------------------

    def finished(self) -> None:
        config = self.config(
            "finished", {"adapter_kib": 1}, budget={"runs": 6}, stopper={"interval_steps": 3}
        )
        self.command("jobs.search", config)

    def failed(self) -> None:
        script = {"fail": [1], "sink": [3], "nan": [5], "lost": [4], "step_s": 0.1}
        config = self.config(
            "failed", script, budget={"runs": 8}, stopper={"interval_steps": 2, "min_steps": 3}
        )
        self.command("jobs.search", config)

    def two_slots(self) -> None:
        config = self.config(
            "two_slots",
            {"step_s": 0.05},
            budget={"runs": 8},
            slots={"count": 2},
            final={"default_recipe": False},
        )
        self.command("jobs.search", config)

    def paused(self) -> None:
        config = self.config("paused", {"step_s": 1.5}, budget={"runs": 4}, phase={"n_steps": 20})
        process = self.command("jobs.search", config, wait=False)
        self.until_step("paused", 1, 7)
        self.llmzero("pause", self.work / "runs" / "paused", "--reason", "the night")
        process.wait()

    def killed(self) -> None:
        config = self.config("killed", {"step_s": 0.5}, budget={"runs": 4}, phase={"n_steps": 20})
        process = self.command("jobs.search", config, wait=False)
        self.until_step("killed", 1, 7)
        self.kill_head()
        process.kill()
        process.wait()

    def steered(self) -> None:
        config = self.config(
            "steered", {"step_s": 1.5}, budget={"runs": 4}, phase={"n_steps": 20}, final={"test": False}
        )
        process = self.command("jobs.search", config, wait=False)
        root = self.work / "runs" / "steered"
        self.until_step("steered", 1, 2)
        self.llmzero("hint", root, "a higher lr was fine elsewhere")
        self.llmzero("budget", root, "--set", "runs=6")
        self.llmzero("clone", root, 0, "--set", "lr=4e-4", "--at-step", 10, "--steps", 8)
        self.llmzero("veto", root, 1, "--reason", "a waste")
        self.llmzero("set", root, "engine.stop_deadline_s=300", "checkpoints.max_gib=2")
        self.until_step("steered", 3, 2)
        self.llmzero("stop", root, "--reason", "seen enough")
        process.wait()

    def model(self) -> None:
        with MessagesServer() as server:
            server.play(sensible)
            config = self.config(
                "model",
                {"step_s": 0.05, "fail": [1]},
                budget={"runs": 4, "dollars": 5.0},
                agents={"backend": "claude", "base_url": server.base_url, "deadline_s": 30.0},
            )
            self.command("jobs.search", config)

    # --- from working directory to record -------------------------------------------------------------------

    def keep(self, name: str) -> None:
        """The record of a search: without what is of the moment, independent of the place."""
        target = self.work / "record" / name
        shutil.rmtree(target, ignore_errors=True)
        source = self.work / "task" if name == "task" else self.work / "runs" / name
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*STRIPPED))
        host = socket.gethostname()
        for path in target.rglob("*"):
            if path.is_file() and path.suffix in journals.TEXTS:
                changes = {str(self.work): journals.RECORDED, str(public_api.CHECKOUT): "/checkout"}
                journals.rewrite(path, {**changes, f'"{host}"': '"recorder"'})
        left = [p for p in target.rglob("*") if p.is_file() and str(self.work).encode() in p.read_bytes()]
        print(name, sum(p.stat().st_size for p in target.rglob("*") if p.is_file()), "bytes", left)


def sensible(request: Request) -> Reply:
    """Proposals and fixes that work; every verdict is to go on."""
    if request.tool == "propose_phase":
        return Answer(input=_proposal(request), output_tokens=600)
    if request.tool == "propose_fix":
        return Answer(input={**_fix(), "length": _LENGTH}, output_tokens=300)
    return Answer(input={"chance": 60, "reason": "it rises"}, output_tokens=30)


_LENGTH = {"n_steps": 10, "arithmetic": ""}


def _proposal(request: Request) -> dict[str, Any]:
    offered = request.text.partition("## Checkpoints offered")[2].partition("##")[0]
    nodes = re.findall(r"^- node (\d+): saved steps? ([\d, toby]+)", offered, re.MULTILINE)
    start = None
    if nodes:
        last = nodes[-1][1].rpartition(", ")[2].partition(" by ")[0].rpartition(" to ")[2]
        start = {"node": int(nodes[-1][0]), "step": int(last)}
    return {
        "diagnosis": {
            "state": "slow",
            "summary": "It learns, but slowly.",
            "evidence": ["critic/score/mean 0.25 -> 0.35"],
            "inflection_points": [],
            "anomalies": [],
        },
        "changes": [{"name": "lr", "value": 0.002, "reason": "larger steps"}],
        "checkpoint": {"resume_from": start, "reason": "the newest"},
        "length": _LENGTH,
    }


def _fix() -> dict[str, Any]:
    return {
        "failure_class": "oom",
        "summary": "Memory ran out.",
        "evidence": [],
        "changes": [{"name": "gradient_checkpointing", "value": True, "reason": "trades time for memory"}],
        "checkpoint": {"resume_from": None, "reason": "where it began"},
    }


def main() -> int:
    work = Path(sys.argv[1])
    work.mkdir(parents=True)
    recorder = Recorder(work)
    recorder.start_head()
    names = ("finished", "two_slots", "failed", "paused", "steered", "model", "killed")
    for name in names:
        began = time.monotonic()
        getattr(recorder, name)()
        print(f"--- {name}: {time.monotonic() - began:.0f} s", flush=True)
    for name in ("task", *names):
        recorder.keep(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
