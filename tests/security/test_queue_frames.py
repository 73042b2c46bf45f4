"""The three sockets of a real TransferQueue and the two frames that run code in an open one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.searches import CHECKOUT
from tests.waiting import wait_until

from .intruder import attack

pytestmark = [pytest.mark.slow]

QUEUE = """
import os, sys
mode = sys.argv[1]
from llmzero_ray.engines.verl import patches, queue_keys
import transfer_queue.interface
import transfer_queue.controller as controller, transfer_queue.storage.simple_storage as storage, zmq
if mode == "keys":
    keys = queue_keys.KeyPair(*zmq.curve_keypair())
    queue_keys.slot_keys = lambda: keys
if mode != "bare":
    patches.patch_transfer_queue_sockets()
controllers = controller.TransferQueueController.__ray_metadata__.modified_class()
unit = storage.SimpleStorageUnit.__ray_metadata__.modified_class({})
endpoints = [
    info.to_addr(port).replace("*", info.ip)
    for info in (controllers.zmq_server_info, unit.zmq_server_info)
    for port in info.ports
]
print("ENDPOINTS", *endpoints, flush=True)
sys.stdin.read()
print("ALIVE", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("mode", ["bare", "keys", "files"])
def test_two_frames_run_code_in_an_open_queue_and_in_no_protected_one(tmp_path: Path, mode: str) -> None:
    directory = tmp_path / "q"
    directory.mkdir(mode=0o700)
    env = {**os.environ, "LLMZERO_TRANSFER_QUEUE_DIR": str(directory) if mode == "files" else ""}
    command = [sys.executable, "-c", QUEUE, mode]
    queue = subprocess.Popen(
        command, cwd=CHECKOUT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert queue.stdin is not None and queue.stdout is not None
    try:
        endpoints: list[str] = []
        while not endpoints:
            line = queue.stdout.readline()
            assert line, "the queue ended before it listened"
            endpoints = line.split()[1:] if line.startswith("ENDPOINTS") else []
        assert len(endpoints) == 3
        if mode == "files":  # out of reach for a neighbour: no port, and a directory of the user's alone
            assert {endpoint.rpartition("/")[0] for endpoint in endpoints} == {f"ipc://{directory}"}
            return
        touched = tmp_path / "touched"
        assert attack(touched, endpoints) == [mode == "bare"] * 3
        if mode == "bare":
            wait_until(touched.exists)
        queue.stdin.close()
        assert "ALIVE" in queue.stdout.read()
        assert touched.exists() is (mode == "bare")
    finally:
        queue.kill()
        queue.wait()
