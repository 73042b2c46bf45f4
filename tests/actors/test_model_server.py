"""A model served by vLLM in the cluster drives a search: its answers are nonsense, the search ends well."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.records import events as ev
from llmzero_ray.storage import SearchStorage
from llmzero_ray.tasks import tiny_model
from tests.searches import CHECKOUT, run_search, scripted_search
from tests.security.known_listeners import unknown_listeners
from tests.security.processes import Seen, processes_with
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.verl, pytest.mark.slow, pytest.mark.long]
MARK = f"mark-{uuid.uuid4().hex}"
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "ANTHROPIC_"))}
ENV["LLMZERO_TEST_MARK"] = MARK


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """(lines for search.yaml, command) of an untrained model with room for the agents' questions."""
    tokenizer = tiny_model.make_tokenizer()
    model = tiny_model.make_model(tokenizer, seed=1)
    model.config.max_position_embeddings = tokenizer.model_max_length = 65536
    tiny_model.save(model, tokenizer, tmp_path / "tiny")
    options = ["--log", str(tmp_path / "server.log"), "--", "--max-model-len", "65536", "--dtype", "float32"]
    command = subprocess.Popen(
        [sys.executable, "-m", "jobs.serve", str(tmp_path / "tiny"), *options],
        cwd=CHECKOUT,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert command.stdout is not None
    given: dict[str, str] = {}
    while given.keys() < {"base_url", "key_file"}:
        line = command.stdout.readline()
        assert line, f"the server did not start: {(tmp_path / 'server.log').read_text()[-2000:]}"
        given |= re.findall(r"(base_url|key_file): (\S+)", line)
    yield given, command
    if command.poll() is None:
        command.send_signal(signal.SIGINT)
        command.wait(timeout=PATIENCE_S)


def test_a_server_that_dies_ends_its_command_with_the_reason(
    served: tuple[dict[str, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    _, command = served
    processes = {one.pid: one for one in processes_with(MARK)}
    for one in tuple(processes.values()):  # a title may lie over the environment
        for child in psutil.Process(one.pid).children(recursive=True):
            processes.setdefault(child.pid, Seen(child.pid, " ".join(child.cmdline()), b""))
    assert any("VLLM::EngineCore" in one.title for one in processes.values())
    assert unknown_listeners(processes.values()) == set()
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "vllm.entrypoints.cli.main serve" in line and str(tmp_path) in line:
            process.kill()
    output, _ = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 5
    assert "the model's server ended (exit code -9)" in output
    assert "Traceback (most recent" not in output.rpartition("llmzero:")[0]


def test_nonsense_of_a_served_model_is_repaired_or_replaced_and_the_journal_says_so(
    served: tuple[dict[str, str], subprocess.Popen[str]], task_dir: Path, tmp_path: Path
) -> None:
    given, command = served
    config = scripted_search(
        tmp_path,
        task_dir,
        name="own",
        model={"path": str(tmp_path / "tiny")},
        budget={"runs": 4},
        phase={"max_steps": 20},
        agents={
            "backend": "claude",
            **given,
            "model": "tiny",
            "price": [0, 0, 0, 0],
            "visual": False,
            "deadline_s": 60.0,
        },
        final={"test": False, "default_recipe": False},
    )
    run_search(config, tmp_path, env=ENV)
    follower = Follower(SearchStorage(str(tmp_path / "runs"), "own"))
    follower.poll()
    core = follower.core
    assert [run.status for run in core.runs.values()] == ["completed"] * 4
    calls = [event for event in follower.events if isinstance(event, ev.AgentCalled)]
    assert {call.model for call in calls} == {"tiny"}
    answered = [call for call in calls if call.outcome == "ok" and call.agent != "check"]
    assert next(call.agent for call in calls) == "check"  # one token: the server lists no model by name
    for call in answered:  # the server enforced the form
        record = core.paths.agents(call.node) / f"{call.call}.call.json"
        given_fields = set(json.loads(record.read_text())["answer"]["input"])
        assert given_fields - {"expected_validation"} == {"diagnosis", "changes", "checkpoint", "length"}
    for node in list(core.runs)[1:]:
        refused = [e for e in follower.events if isinstance(e, ev.ProposalRefused) and e.node == node]
        assert len(refused) <= 2  # sent back as a copy too; then within the rules, or made so
        failed = [call for call in calls if call.node == node and call.outcome != "ok"]
        proposal = core.runs[node].proposal
        assert proposal is not None
        assert proposal.agent == "claude" or failed or refused, proposal.rationale
    command.send_signal(signal.SIGINT)
    command.wait(timeout=PATIENCE_S)
    commands = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    left = [line for line in commands if str(tmp_path / "tiny") in line]
    assert left == []
