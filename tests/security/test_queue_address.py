"""Where VeRL's TransferQueue listens: in a private directory where all of VeRL is on one machine."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from llmzero_ray.engines.verl import driver_process, internals
from llmzero_ray.engines.verl.environment import process_env, runtime_env, worker_vars
from tests.builders import verl_settings

from .processes import speaks_zeromq

SETTINGS = verl_settings(reward_source="/reward.py")


def test_sockets_are_files_of_the_private_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(internals.QUEUE_DIR_ENV, str(tmp_path))
    addresses = {internals.queue_address("10.0.0.1", internals.queue_port("10.0.0.1")) for _ in range(3)}
    assert len(addresses) == 3
    assert {Path(address.removeprefix("ipc://")).parent for address in addresses} == {tmp_path}


@pytest.mark.parametrize(
    ("machines", "expected"),
    [(["10.0.0.1"], True), (["10.0.0.1", "10.0.0.1"], True), (["10.0.0.1", "10.0.0.2"], False)],
)
def test_only_a_cluster_of_one_machine_has_its_queue_in_files(
    monkeypatch: pytest.MonkeyPatch, machines: list[str], expected: bool
) -> None:
    nodes = [{"NodeManagerAddress": address, "Alive": True} for address in machines]
    gone = {"NodeManagerAddress": "10.0.0.9", "Alive": False}
    monkeypatch.setattr("ray.nodes", lambda: [*nodes, gone])
    assert driver_process.on_one_machine() is expected


def test_adapters_cannot_be_loaded_over_http_whatever_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "true")
    assert worker_vars(SETTINGS)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "false"
    assert process_env(SETTINGS)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "false"


def test_neither_verls_host_nor_its_job_gets_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"env_vars": {"ANTHROPIC_API_KEY": "sk-ant-secret", "MINE": "1"}}
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(runtime_env=given))
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_API_KEY_FILE"):
        monkeypatch.setenv(name, "sk-ant-secret")
    assert "sk-ant-secret" not in str(process_env(SETTINGS))
    variables = runtime_env(SETTINGS)["env_vars"]
    assert "sk-ant-secret" not in str(variables)
    assert variables["MINE"] == "1"


def test_a_zeromq_socket_on_a_port_would_be_noticed() -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert speaks_zeromq("127.0.0.1", port)
        assert not speaks_zeromq("127.0.0.1", other.getsockname()[1])
    context.destroy(linger=0)
