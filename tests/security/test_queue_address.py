"""Where VeRL's TransferQueue listens: in a private directory where all of VeRL is on one machine."""

from __future__ import annotations

import dataclasses
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


@pytest.mark.parametrize(
    ("bundles", "expected"),
    [(["mine", "mine"], True), (["mine", "beside"], True), (["mine", "away"], False), (["away"], False)],
)
def test_a_slot_meets_in_a_directory_where_all_its_bundles_are_on_the_machine_of_its_driver(
    monkeypatch: pytest.MonkeyPatch, bundles: list[str], expected: bool
) -> None:
    addresses = {"mine": "10.0.0.1", "beside": "10.0.0.1", "away": "10.0.0.2"}
    nodes = [{"NodeID": node, "NodeManagerAddress": at} for node, at in addresses.items()]
    table = {"group": {"bundles_to_node_id": dict(enumerate(bundles))}, "another": {"bundles_to_node_id": {}}}
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr("ray.util.placement_group_table", lambda: table)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "mine"))
    settings = verl_settings(reward_source="/reward.py", placement_groups=("group",))
    assert driver_process.is_here(settings) is expected


def test_sockets_between_processes_are_files_of_the_slots_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-1.sock"
    for directory in ("/run/slot-1", ""):
        variables = worker_vars(dataclasses.replace(SETTINGS, socket_dir=directory))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        at = "/run/slot-1" if directory else f"@llmzero-{variables[internals.SOCKET_SCOPE_ENV]}"
        assert variables["VLLM_RPC_BASE_PATH"] == at
        assert internals.weight_socket(handle) == f"ipc://{at}{'/' if directory else '-'}replica-0-rank-1"


def test_process_groups_of_one_machine_stay_on_loopback_unless_the_user_names_interfaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    assert "GLOO_SOCKET_IFNAME" not in worker_vars(SETTINGS)
    variables = worker_vars(dataclasses.replace(SETTINGS, socket_dir="/run/slot-1"))
    assert (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) == ("lo", "eth7")


def test_adapters_cannot_be_loaded_over_http_whatever_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "true")
    assert worker_vars(SETTINGS)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "false"
    assert process_env(SETTINGS)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "false"


def test_neither_verls_host_nor_its_job_gets_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_API_KEY_FILE",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_CUSTOM_HEADERS",
    )
    given = {"env_vars": {**dict.fromkeys(names, "sk-ant-secret"), "MINE": "1"}}
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(runtime_env=given))
    for name in names:
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
