"""Environment variables of VeRL's processes: the child and, through its Ray job, every worker. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmzero_ray import version
from llmzero_ray.engines.verl.internals import (
    QUEUE_DIR_ENV,
    QUEUE_NAMESPACE_ENV,
    SOCKET_DIR_ENV,
    SOCKET_SCOPE_ENV,
)
from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.utils.api_key import SECRET_VARIABLES, without_key
from llmzero_ray.utils.files import text_digest

EXECUTOR = "+actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend"
"""Key of VeRL. If it is `mp`, vLLM's engine on the CPU runs in processes of its own, as on GPUs."""

NEW_WEIGHTS_ENV = "LLMZERO_NEW_WEIGHTS"
"""Variable that makes vLLM's CPU build accept new base weights (`VerlSettings.serve_merged`)."""
MODEL_RUNNER_ENV = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's variable that selects the model runner: 1 (v2) or 0 (v1). If unset, vLLM chooses."""

_COMMON = {
    "VERL_USE_EXTERNAL_MODULES": "llmzero_ray.engines.verl.plugin",
    "TRANSFER_QUEUE_ENABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    # VeRL passes adapters to vLLM's workers itself. Over HTTP, any machine nearby could load or unload one.
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "false",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HYDRA_FULL_ERROR": "1",
}

_GPU = {
    # As in Ray up to 2.50, processes that reserve no GPU see none, so that a reward that uses CUDA does not
    # take memory on vLLM's GPU. VeRL assigns GPUs to its servers itself.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    # The slot's log then has the sizes of caches and graphs, and the seconds of sleep and wake-up.
    "VLLM_LOGGING_LEVEL": "INFO",
}

_CPU = {
    "VLLM_LOGGING_LEVEL": "WARN",
    "VERL_PLATFORM": "cpu",
    # VeRL registers its FSDP engine only for cuda and npu. This is VeRL's own switch to find it anyway.
    "VERL_ENGINE_DEVICE": "cuda",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Otherwise the first generation spends 8-20 s compiling helpers with a C++ compiler.
    "TORCH_COMPILE_DISABLE": "1",
    # glibc then keeps the memory of a pass's temporaries. Mapping it again would zero every page.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}


def socket_scope(settings: VerlSettings) -> str:
    """Short id of the slot for its socket names, whose length is limited."""
    return text_digest(settings.namespace)[:12]


def worker_vars(settings: VerlSettings) -> dict[str, str]:
    """Variables of every VeRL process of a slot."""
    variables = {
        **_COMMON,
        QUEUE_NAMESPACE_ENV: f"{settings.namespace}-queue",
        QUEUE_DIR_ENV: settings.queue_dir,
        SOCKET_DIR_ENV: settings.socket_dir,
        SOCKET_SCOPE_ENV: socket_scope(settings),
        # vLLM's sockets between its processes. In Linux's abstract namespace they leave no files behind.
        "VLLM_RPC_BASE_PATH": settings.socket_dir or f"@llmzero-{socket_scope(settings)}",
    }
    if settings.socket_dir:
        variables |= on_loopback(os.environ)
    if settings.platform == "gpu":
        variables |= _GPU
        if Path(settings.model_path).is_dir():
            variables["HF_HUB_OFFLINE"] = "1"  # without a network, each request would wait for 10 s
        if settings.vllm_model_runner != "auto":
            variables[MODEL_RUNNER_ENV] = str(int(settings.vllm_model_runner == "v2"))
    else:
        variables |= _CPU
        if settings.serve_merged:
            variables[NEW_WEIGHTS_ENV] = "1"
        variables["OMP_NUM_THREADS"] = os.environ.get("LLMZERO_OMP_NUM_THREADS", "1")
        if settings.tensor_model_parallel_size > 1 or settings.overrides.get(EXECUTOR) == "mp":
            variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    return variables


def plain_vars(settings: VerlSettings) -> dict[str, str]:
    """Variables for running VeRL directly, without this project's driver."""
    shared = {key: value for key, value in _COMMON.items() if key != "VERL_USE_EXTERNAL_MODULES"}
    if settings.platform == "gpu":
        return shared
    return {**_COMMON, **_CPU, "OMP_NUM_THREADS": "1"}


def on_loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep the connections of process groups on one machine off the network, unless
    `environment` names the interfaces."""
    return {name: environment.get(name) or "lo" for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}


def process_env(settings: VerlSettings) -> dict[str, str]:
    """Environment of the driver process: this process's variables, VeRL's variables, and a path on which this
    package is found."""
    env = {**without_key(os.environ), **worker_vars(settings), "PYTHONPATH": python_path()}
    if settings.platform == "gpu":
        env["CUDA_VISIBLE_DEVICES"] = ""  # the driver computes nothing
    # The child joins Ray as a driver, so it must not inherit variables that mark this process as a worker.
    for name in [n for n in env if n.startswith("RAY_JOB_CONFIG") or n in ("RAY_RAYLET_PID", "RAY_JOB_ID")]:
        del env[name]
    return env


def runtime_env(settings: VerlSettings) -> dict[str, Any]:
    """Ray runtime environment of the driver's job. A working_dir given to this process's job is passed on.

    It sets the variables of the API key and of the user's headers to empty, because a Ray head that someone
    else started may have them in its own environment.
    """
    import ray

    current = dict(ray.get_runtime_context().runtime_env or {})
    passed_on = {key: current[key] for key in ("working_dir", "py_modules") if key in current}
    variables = {
        **current.get("env_vars", {}),
        **worker_vars(settings),
        **dict.fromkeys(SECRET_VARIABLES, ""),
    }
    if not passed_on:
        variables["PYTHONPATH"] = python_path()
    return {**passed_on, "env_vars": variables}


def python_path() -> str:
    """This process's PYTHONPATH with this package's folder first."""
    package_root = str(Path(version.__file__).resolve().parent.parent)
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != package_root]
    return os.pathsep.join([package_root, *inherited])
