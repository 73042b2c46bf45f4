"""Language model for the agents, served by vLLM inside the cluster with its own actor and placement group.

The rollout servers cannot serve it: they sleep while a phase trains and hold one adapter.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmzero_ray.engines.verl.environment import on_loopback
from llmzero_ray.engines.verl.internals import SOCKET_DIR_ENV
from llmzero_ray.errors import CapacityError, EngineError
from llmzero_ray.utils.api_key import without_key
from llmzero_ray.utils.parent_death import die_with_parent
from llmzero_ray.utils.ports import free_port
from llmzero_ray.utils.private_files import private_directory, private_file
from llmzero_ray.utils.text import one_line

from .model_server_key import SERVER_KEY_FILE_ENV, RequireKey
from .names import actor_options

WORKER_EXTENSION = "actors.model_server_worker.WithoutPorts"
_LOOK_S = 1.0
_TAIL = 1500
_CPU_ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
}


class ModelServer:
    """vLLM's HTTP server as a child process that ends with this actor. Every request needs `key`."""

    def __init__(self, model: str, name: str, extra: Sequence[str], log: str, on_cpu: bool, key: str) -> None:
        import ray

        host, port = ray.util.get_node_ip_address(), free_port()
        self.base_url = f"http://{host}:{port}"
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
        command += ["--served-model-name", name, "--host", host, "--port", str(port)]
        command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        command += ["--middleware", f"{RequireKey.__module__}.{RequireKey.__name__}"]
        command += ["--worker-extension-cls", WORKER_EXTENSION, *extra]
        self._key, self._key_file = key, private_file("server-key", key + "\n")
        self._sockets = private_directory("vllm")
        self._log = Path(log)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        own = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **(_CPU_ENV if on_cpu else {})}
        own |= {SERVER_KEY_FILE_ENV: str(self._key_file.path), "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "false"}
        own |= {SOCKET_DIR_ENV: str(self._sockets.path), "VLLM_RPC_BASE_PATH": str(self._sockets.path)}
        inherited = without_key(os.environ)
        own |= on_loopback(inherited)  # the server runs on one machine
        root = str(Path(__file__).parent.parent)
        own["PYTHONPATH"] = os.pathsep.join(filter(None, [root, inherited.get("PYTHONPATH", "")]))
        with self._log.open("ab") as out:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**inherited, **own},
                preexec_fn=functools.partial(die_with_parent, os.getpid(), signal.SIGTERM),
                start_new_session=True,
            )

    def wait(self, timeout_s: float) -> str:
        """Wait until the server answers, and return its address.

        Raises:
            EngineError: it ended or did not answer in time; the message has the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check()
            if self._answers():
                return self.base_url
            time.sleep(_LOOK_S)
        self.close()
        raise EngineError(f"the model's server did not answer within {timeout_s:g} s: {self._tail()}")

    def check(self) -> None:
        """Check that the server still runs.

        Raises:
            EngineError: it has ended; the message has the end of its log.
        """
        if self._child.poll() is not None:
            raise EngineError(
                f"the model's server ended (exit code {self._child.returncode}): {self._tail()}"
            )

    def _answers(self) -> bool:
        request = urllib.request.Request(f"{self.base_url}/health", headers={"x-api-key": self._key})
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would see the key
        try:
            with direct.open(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def close(self) -> None:
        """End the server with everything it started."""
        self._key_file.remove()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGTERM)
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        self._sockets.remove()

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_TAIL:].strip() or "its log is empty"


def start_server(
    model: str,
    name: str,
    *,
    gpus: int,
    cpus: int,
    extra: Sequence[str],
    log: str,
    timeout_s: float,
    key: str,
) -> tuple[Any, Any, str]:
    """Start a server for a model and wait until it answers. Returns (actor, placement group, address).

    Raises:
        CapacityError: the cluster does not have the hardware.
        EngineError: the server did not start in time.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = {"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})}
    group = placement_group([bundle], name=f"model-{name}")
    if not group.wait(min(timeout_s, 60.0)):
        remove_placement_group(group)
        there = {kind: ray.cluster_resources().get(kind, 0) for kind in ("CPU", "GPU")}
        raise CapacityError(f"the model {name} asks for {bundle}; the cluster has {there} in all")
    place = PlacementGroupSchedulingStrategy(placement_group=group)
    options = actor_options(f"model-{name}", scheduling_strategy=place)
    options |= {"lifetime": None, "num_cpus": cpus, "num_gpus": gpus}
    actor = ray.remote(ModelServer).options(**options).remote(model, name, list(extra), log, gpus == 0, key)
    try:
        return actor, group, ray.get(actor.wait.remote(timeout_s))
    except ray.exceptions.RayError as error:
        remove_placement_group(group)
        raise engine_error(error) from None


def engine_error(error: Any) -> EngineError:
    """Cause of a failed call of the server's actor, or of the actor's death, as an `EngineError`."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, EngineError):
        return cause
    return EngineError(f"the model's server failed: {one_line(str(cause or error), 500)}")
