"""Time to replay the journal of a long search. Run: python -m benchmarks.replay [--nodes 1000]

Scripted agents and phases drive the real coordinator core through a whole search, and every event goes
through a real journal. The journal is then read (bytes, checksums, records) and replayed, and each of its
decisions is recomputed and compared. Prints a table of wall-clock seconds, and the total CPU seconds, which
do not depend on the machine's load. The exit code is 1 if this takes more than 2 s, or a decision differs.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import CoordinatorCore, check_decisions, replay
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.journal import Journal, LocalStore, read_all
from llmzero_ray.records import (
    Change,
    Checkpoint,
    Diagnosis,
    Event,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
    Proposal,
    ResumeFrom,
    StopDecision,
)
from llmzero_ray.records import commands as cmd
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchPaths
from tests.builders import TASK, make_config

ROOT = Path("/storage/demo")
TARGET_S = 2.0
VERDICTS = 7
"""Checks of one phase by the early stopper; each is an agent call and a verdict."""


class ScriptedSearch:
    """A search with made-up agents and phases, but the real core, journal and events."""

    def __init__(self, config: SearchConfig, journal: Journal) -> None:
        self.core = CoordinatorCore(SearchPaths(root=ROOT))
        self.append_s: list[float] = []
        self._journal, self._rng = journal, random.Random(1)
        self._waiting: list[cmd.Propose | cmd.Analyze | cmd.RunPhase] = []
        root = root_hyperparameters(config, 8192)
        task = {**TASK, "n_train": 8192}
        self.post(ev.SearchStarted(config=config.to_json(), task=task, root=root, versions={"verl": "0.9.1"}))
        self.post(ev.CoordinatorStarted(epoch=journal.epoch, host="here", pid=1))
        for slot in range(config.slots.count):
            self.post(ev.SlotReady(slot=slot))

    def post(self, event: Event) -> None:
        """Write an event to the journal, with everything that the core concludes from it."""
        pending: list[Event] = [event]
        while pending:
            begin = time.perf_counter()
            written = self._journal.append(pending.pop(0))
            self.append_s.append(time.perf_counter() - begin)
            fresh = [] if written is None else self.core.handle(written)
            pending = [c.event for c in fresh if isinstance(c, cmd.Record)] + pending
            self._waiting += [c for c in fresh if isinstance(c, cmd.Propose | cmd.Analyze | cmd.RunPhase)]

    def run(self) -> None:
        """Answer commands in any order until the search ends."""
        while self._waiting and self.core.end_reason is None:
            command = self._waiting.pop(self._rng.randrange(len(self._waiting)))
            if isinstance(command, cmd.RunPhase):
                self._train(command.slot, command.spec)
            else:
                self._propose(command.node, command.tries)

    def _call(self, node: int, agent: str) -> None:
        prompt, call = f"{self._rng.getrandbits(256):064x}", f"{agent}-{len(self.append_s):06d}"
        self.post(
            ev.AgentCalled(
                node=node,
                agent=agent,
                call=call,
                outcome="ok",
                model="claude",
                prompt=prompt,
                input_tokens=5000,
                output_tokens=900,
                dollars=0.01,
                latency_s=9.1,
                n_attempts=1,
            )
        )

    def _propose(self, node: int, tries: int) -> None:
        self._call(node, "proposer")
        rng, run, offered = self._rng, self.core.runs[node], self.core.offered(node)
        saved = [kept.step for kept in self.core.runs[offered[-1]].checkpoints] if offered else []
        resume = None
        if run.kind != "scratch" and saved:
            resume = ResumeFrom(node=offered[-1], step=rng.choice(saved))
        refused = rng.random() < 0.1
        wanted = {
            "lr": 5.0 if refused else 10 ** rng.uniform(-5, -3),
            "n": rng.choice((4, 8)),
            "train_batch_size": rng.choice((16, 32)),
        }
        changes = tuple(Change(key=k, old=None, new=v, reason="r" * 120) for k, v in wanted.items())
        diagnosis = Diagnosis(state="plateau", summary="s" * 200, evidence=("e" * 80,) * 4)
        proposal = Proposal(
            diagnosis=diagnosis,
            changes=changes,
            resume_from=resume,
            n_steps=rng.choice((100, 200)),
            rationale="w" * 500,
        )
        self.post(ev.Proposed(node=node, proposal=proposal, tries=tries))

    def _train(self, slot: int, spec: PhaseSpec) -> None:
        node, attempt = spec.node, spec.attempt
        self.post(ev.PhaseStarted(node=node, slot=slot, phase_attempt=attempt))
        for look in range(VERDICTS):
            self._call(node, "early_stopper")
            self.post(
                ev.VerdictPosted(
                    node=node,
                    phase_attempt=attempt,
                    step=look,
                    decision=StopDecision(stop=False, reason="v" * 200, rule="early_stopper"),
                    source=f"stopper:{node}",
                    attempt=attempt,
                    sequence=look,
                )
            )
        self.post(self._end(spec))

    def _end(self, spec: PhaseSpec) -> Event:
        rng, node = self._rng, spec.node
        status = rng.choices(("completed", "early_stopped", "failed"), (5, 3, 1))[0]
        if status == "failed":
            failure = PhaseFailure(
                node=node, failure_class="oom", cause="out of memory", log_tail="a line of the log\n" * 200
            )
            return ev.PhaseFailed(node=node, phase_attempt=spec.attempt, failure=failure)
        saved = tuple(
            Checkpoint(step=step, path=f"{spec.checkpoint_dir}/step_{step:06d}", val_score=rng.random())
            for step in range(20, spec.n_steps + 1, 20)
        )
        best = max(saved, key=lambda kept: kept.val_score or 0.0)
        result = PhaseResult(
            node=node,
            status="completed" if status == "completed" else "early_stopped",
            stop_reason="n_steps",
            steps_done=spec.n_steps,
            best_score=best.val_score,
            best_step=best.step,
            start_score=0.2,
            final_score=saved[-1].val_score,
            checkpoints=saved,
            wall_s=60.0,
            train_wall_s=50.0,
            gpu_hours=0.2,
            warm=True,
        )
        return ev.PhaseFinished(node=node, phase_attempt=spec.attempt, result=result)


def search_config(nodes: int) -> SearchConfig:
    """A search of `nodes` runs on four slots."""
    return make_config(
        budget={"runs": nodes},
        phase={"n_steps": 200, "max_steps": 400, "test_freq": 10, "save_freq": 20},
        slots={"count": 4},
    )


def measure(store: LocalStore) -> dict[str, float]:
    """Seconds to read, replay and check a journal, and the number of decisions that differed."""
    gc.collect()
    begin, cpu = time.perf_counter(), time.process_time()
    events = read_all(store)
    read = time.perf_counter()
    core = replay(events, ROOT)
    replayed = time.perf_counter()
    checks = list(check_decisions(events, ROOT))
    checked = time.perf_counter()
    return {
        "nodes": len(core.search.nodes),
        "events": len(events),
        "objects": len(store.names()),
        "read_s": read - begin,
        "replay_s": replayed - read,
        "check_s": checked - replayed,
        "total_s": checked - begin,
        "cpu_s": time.process_time() - cpu,
        "differ": sum(bool(check.differences) for check in checks),
    }


def report(row: dict[str, float]) -> None:
    """One line of the table."""
    numbers = "".join(f"{row[key]:>10.2f}" for key in ("read_s", "replay_s", "check_s", "total_s", "cpu_s"))
    counts = "".join(f"{row[key]:>9,.0f}" for key in ("nodes", "events", "objects"))
    print(f"{counts}{row['mib']:>8.1f}{numbers}{row['differ']:>8.0f}", flush=True)


def percentiles(times_ms: list[float]) -> str:
    """Median, 99th percentile and longest."""
    ordered = sorted(times_ms)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"p50 {statistics.median(ordered):.2f}, p99 {p99:.2f}, longest {ordered[-1]:.0f} ms"


def main(argv: list[str] | None = None) -> int:
    """Write a journal, replay it, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000, help="runs of the search")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        local = LocalStore(Path(directory) / "journal")
        search = ScriptedSearch(search_config(options.nodes), Journal(local))
        search.run()
        row = measure(local)
        row["mib"] = sum(path.stat().st_size for path in local.directory.rglob("*")) / 2**20
        heads = "".join(f"{head:>10}" for head in ("read s", "replay s", "check s", "total s", "CPU s"))
        print(f"{'nodes':>9}{'events':>9}{'objects':>9}{'MiB':>8}{heads}{'differ':>8}")
        report(row)
        ok = row["total_s"] <= TARGET_S and not row["differ"]
        times = [second * 1e3 for second in search.append_s]
        lines = [
            f"append, first 1,000 events: {percentiles(times[:1000])}",
            f"append, last 1,000 of {len(times):,}: {percentiles(times[-1000:])}",
        ]
    print("\n".join(lines))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
