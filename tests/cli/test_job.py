"""A search submitted to a cluster as a Ray job: the checkout is shipped, nothing needs to be installed
there."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from llmzero_ray.coordinator.follow import Follower
from llmzero_ray.storage import SearchStorage
from llmzero_ray.utils.ports import free_port
from tests.searches import CHECKOUT, scripted_search
from tests.waiting import PATIENCE_S, until_gone, wait_for_ray_nodes, wait_until

RAY = Path(sys.executable).with_name("ray")


@pytest.fixture
def dashboard() -> Iterator[str]:
    """Address of a head's dashboard, which takes jobs."""
    wait_for_ray_nodes()
    # A directory of its own that names its address: Ray tells a job its cluster by looking there, or else
    # takes any Ray that runs on this machine.
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    # Ray writes the cluster's address in the usual directory too, which only a node makes that uses it.
    Path(os.environ["RAY_TMPDIR"], "ray").mkdir(parents=True, exist_ok=True)
    agent_port = free_port()  # jobs go through it; every cluster takes the same where none is given
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 16,
            "num_gpus": 1,
            "include_dashboard": True,
            "dashboard_port": 0,
            "dashboard_agent_listen_port": agent_port,
            "temp_dir": temporary,
        },
    )
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        Path(temporary, "ray_current_cluster").write_text(cluster.address)
        # A job that comes before the agent is refused after ten seconds.
        wait_until(
            lambda: listens(cluster.head_node.node_ip_address, agent_port), lambda: "no agent for jobs"
        )
        yield f"http://{cluster.head_node.webui_url}"
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


def listens(host: str, port: int) -> bool:
    """Whether a connection to the port is accepted."""
    with socket.socket() as asking:
        return asking.connect_ex((host, port)) == 0


def submit(dashboard: str, plugins: Path, *entry: str) -> subprocess.CompletedProcess[str]:
    """`ray job submit --working-dir . -- ...`; modules in `plugins` are importable there, tests/ is not
    shipped."""
    env = {**os.environ, "RAY_ADDRESS": "", "PYTHONPATH": ""}
    environment = json.dumps({"env_vars": {"PYTHONPATH": str(plugins)}})
    command = [str(RAY), "job", "submit", "--address", dashboard, "--runtime-env-json", environment]
    command += ["--working-dir", str(CHECKOUT), "--", *entry]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.slow
def test_a_search_can_be_submitted_as_a_job(dashboard: str, task_dir: Path, tmp_path: Path) -> None:
    content = scripted_search(
        tmp_path, task_dir, name="job", engine={"backend": "scripted:make_engine", "platform": "auto"}
    )
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    shutil.copy(CHECKOUT / "tests" / "fakes.py", plugins / "scripted.py")
    config = tmp_path / "search.yaml"
    config.write_text(yaml.safe_dump(content))
    command = f"{sys.executable} -m jobs.search {config}"
    # Afterwards one whose results would lie in the job's own directory, and go with it.
    done = submit(dashboard, plugins, "sh", "-c", f"{command} && ! {command} --set storage=runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "search job has ended (budget) after 2 runs" in done.stdout
    assert "inside the job's temporary copy of the files" in done.stdout + done.stderr
    assert Follower.of(SearchStorage(tmp_path / "runs", "job")).finished is not None
    # The actor with which Ray supervises the job ends after the job's success was told.
    until_gone(lambda: ray.util.list_named_actors(all_namespaces=True))
