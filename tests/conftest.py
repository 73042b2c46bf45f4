"""Environment of every test process, set before anything imports Ray, Hypothesis profiles, one task with a
model, and one Ray head.

Ray, VeRL and vLLM read these once, at import or at process start; a fixture would come too late.
Not here: clusters that a test configures, loses or kills (in the folders that use them).
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from llmzero_ray.prepared import PreparedTask

# A shell starts background jobs with Ctrl-C ignored, and all processes below inherit that; tests send it.
# Benchmarks import this in actors too, where a thread of Ray's may do it.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.update(
    {
        # Token mode would write ~/.ray/auth_token and refuse test clusters joined by address.
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # On a busy machine agents and workers take longer to come than the minute that Ray gives.
        "RAY_agent_register_timeout_ms": "600000",
        "RAY_worker_register_timeout_seconds": "600",
        # Nor does a training function end within the 2 s that Ray Tune gives it.
        "TUNE_FUNCTION_THREAD_TIMEOUT_S": "600",
        # Ray's metrics reader outlives ray.shutdown in a process that calls ray.init more than once, and may
        # crash it some time later. Only the head of test_gauges has one.
        "RAY_enable_open_telemetry": "0",
        # Else every head starts a worker that its first job may never use.
        "RAY_prestart_worker_first_driver": "0",
        # An idle head spends half as much where its agents look less often (5 s and .4 s by default), and
        # where nobody collects the tasks of its workers. Several heads stand beside each other in a run.
        "REPORTER_UPDATE_INTERVAL_MS": "60000",
        "RAY_DASHBOARD_AGENT_CHECK_PARENT_INTERVAL_S": "2",
        "RAY_task_events_report_interval_ms": "0",
        # Every line of a worker's log must reach the test that reads it.
        "RAY_DEDUP_LOGS": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "WANDB_MODE": "offline",
        # No test may download anything but packages.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
    }
)


_RAY_TMPDIR = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Gives this run a temporary directory of Ray's of its own, and loads a Hypothesis profile.

    Commands join the cluster that Ray's temporary directory names. Those of a test must not find a cluster of
    this machine's user, nor one of another test run.

    HYPOTHESIS_PROFILE names the profile: `local` (20 examples) or `ci` (200).
    """
    # Paths of Unix sockets below it are bound to 107 characters, so it is not in pytest's own directory.
    config.stash[_RAY_TMPDIR] = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="llmzero-", dir="/tmp")
    from hypothesis import HealthCheck, settings

    # A busy machine is slow: neither an example nor the making of one is bound to seconds.
    for name, n_examples in (("local", 20), ("ci", 200)):
        settings.register_profile(
            name, max_examples=n_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "local"))


def pytest_collection_finish() -> None:
    """Spares the garbage collector the imported modules and the collected tests, which it would walk over
    again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the temporary directory of Ray's."""
    shutil.rmtree(config.stash[_RAY_TMPDIR], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Adds to the error of a command that did not end in time what it said last."""
    try:
        return (yield)
    except subprocess.TimeoutExpired as error:
        said = (error.output or b"") + (error.stderr or b"")
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        error.add_note("\n".join(["Its last lines:", *text.splitlines()[-10:]]))
        raise


@pytest.fixture(scope="session")
def taught_task(tmp_path_factory: pytest.TempPathFactory) -> PreparedTask:
    """A task with a tiny model for real VeRL on the CPU, only read: its warm start takes seconds."""
    from llmzero_ray.tasks.prepare import prepare

    directory = tmp_path_factory.mktemp("taught")
    return prepare(dir=directory / "task", family="echo", n_train=256, n_val=64, n_test=64, seed=1)


@pytest.fixture(scope="session")
def head_address() -> Iterator[str]:
    """Address of the Ray head that all tests of a run share; it takes seconds to start."""
    from ray.cluster_utils import Cluster

    from tests.agents.llm.messages_server import KEY
    from tests.waiting import wait_for_ray_nodes

    wait_for_ray_nodes()

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ANTHROPIC_API_KEY", KEY)  # actors inherit it from their head
        # A cluster writes its address where commands look for one; commands of a test get RAY_ADDRESS.
        shared = Path(os.environ["RAY_TMPDIR"]) / "shared"
        shared.mkdir()
        environment.setenv("RAY_TMPDIR", str(shared))
        # A dashboard is eight more processes, and nothing here asks one.
        head = {"num_cpus": 16, "num_gpus": 4, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="module")
def head(head_address: str) -> Iterator[str]:
    """The shared head, joined by this process while the tests of one module run; its address."""
    import ray

    from actors.names import NAMESPACE

    ray.init(address=head_address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    yield head_address
    ray.shutdown()
