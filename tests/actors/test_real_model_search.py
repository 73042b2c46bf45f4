"""A whole search on real VeRL whose agents are a language model behind a real HTTP server."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from statistics import fmean

import pytest

from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import PhaseResult
from llmzero_ray.records import events as ev
from llmzero_ray.records.significance import paired
from llmzero_ray.storage import SearchStorage
from llmzero_ray.storage.metric_files import load_items
from tests.agents.llm.messages_server import KEY, Answer, MessagesServer, Reply, Request
from tests.searches import run_search, verl_search
from tests.security.processes import Seen, processes_with

from .test_model_search import propose

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]
MARK = f"mark-{uuid.uuid4().hex}"
"""In the environment of the search, and of every process below it."""
RATES = (2e-3, 1e-6, 4e-3)
"""What is proposed, one after the other; nothing is learnt at the second."""
BETAS = "actor_rollout_ref.actor.optim.betas"


class Script:
    """Proposes `RATES`; gives the phase at the lowest rate no chance, and all others one."""

    def __init__(self) -> None:
        self.n_proposed = 0
        self.seen: dict[int, Seen] = {}
        """VeRL's processes, by process id, as they were when a phase was proposed."""

    def __call__(self, request: Request) -> Reply:
        if request.tool == "propose_phase":
            rate = RATES[self.n_proposed % len(RATES)]
            self.n_proposed += 1
            self.seen |= {one.pid: one for one in processes_with(MARK)}
            changes = [
                {"name": "lr", "value": rate, "reason": "another rate"},
                {"name": BETAS, "value": [0.9, 0.99], "reason": "any key of VeRL's may be changed"},
            ]
            length = {"n_steps": 20, "arithmetic": ""}
            return Answer(input={**propose(request), "changes": changes, "length": length})
        chance = 1 if "Running: node 2," in request.text else 60
        return Answer(input={"chance": chance, "reason": "as the curve says"}, output_tokens=25)


def test_a_language_model_drives_four_phases_on_real_verl(taught_task: PreparedTask, tmp_path: Path) -> None:
    script = Script()
    with MessagesServer(script) as server:
        agents = {"backend": "claude", "base_url": server.base_url, "deadline_s": 60.0}
        config = verl_search(
            tmp_path,
            taught_task,
            lr=1e-3,
            name="model",
            budget={"runs": 4, "dollars": 3.0},
            agents=agents,
            phase={"validate_start": "first"},
        )
        done = run_search(
            config, tmp_path, env={**os.environ, "ANTHROPIC_API_KEY": KEY, "LLMZERO_TEST_MARK": MARK}
        )
    follower = Follower(SearchStorage(str(tmp_path / "runs"), "model"))
    follower.poll()
    core = follower.core
    assert [run.status for run in core.runs.values()].count("failed") == 0
    assert len(core.runs) == 4
    assert {run.proposal.agent for node, run in core.runs.items() if node > 0 and run.proposal} == {"claude"}
    specs = [run.spec for node, run in core.runs.items() if node > 0]
    assert [tuple(spec.hyperparameters[BETAS]) for spec in specs if spec is not None] == [(0.9, 0.99)] * 3  # type: ignore[arg-type]
    assert core.runs[2].status == "early_stopped"
    assert "as the curve says" in core.runs[2].outcome.stop_reason  # type: ignore[union-attr]
    calls = [event for event in follower.events if isinstance(event, ev.AgentCalled)]
    assert {call.outcome for call in calls} == {"ok"}
    assert [call.agent for call in calls].count("proposer") == 3
    assert 0 < core.dollars < 3.0
    assert all(request.n_images == 1 for request in server.messages if request.tool == "propose_phase")
    titles = " ".join(one.title for one in script.seen.values())
    for part in ("verl.driver", "ray::WorkerDict", "ray::RecordingServer"):
        assert part in titles
    holders = [one.title for one in script.seen.values() if KEY.encode() in one.environment]
    assert all("jobs.search" in title for title in holders), holders
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert "Traceback" not in done.stdout + done.stderr
    later_phases_took_their_start_over(follower, done.stdout)


def later_phases_took_their_start_over(follower: Follower, output: str) -> None:
    """Score and answers are those of the checkpoint, and the gain is paired with them; a checkpoint that was
    saved where a phase was stopped, without a validation, is measured."""
    runs = follower.core.runs
    assert runs[0].outcome is not None and runs[0].outcome.start_from is None
    n_taken = 0
    for node in (1, 2, 3):
        outcome, spec = runs[node].outcome, runs[node].spec
        assert isinstance(outcome, PhaseResult) and spec is not None and spec.resume_from is not None
        assert outcome.warm
        at, items = spec.resume_from, load_items(follower.storage, node)
        measured = load_items(follower.storage, at.node).get(at.step, ())
        assert outcome.start_from == (at if measured else None)
        assert len(items[0]) == 64 and outcome.start_score == fmean(item.acc for item in items[0])
        difference = paired(items[outcome.best_step or 0], items[0])
        assert difference is not None and outcome.gain == difference.gain
        if measured:
            n_taken += 1
            assert items[0] == measured
            assert f", as node={at.node} had it)" in output
    assert n_taken >= 2
