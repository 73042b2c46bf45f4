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
"""Key that is `mp` on the CPU: vLLM's engine then gets processes of its own, as on GPUs."""

NEW_WEIGHTS_ENV = "LLMZERO_NEW_WEIGHTS"
"""Variable that is set if vLLM's CPU build must accept new base weights (`VerlSettings.serve_merged`)."""
MODEL_RUNNER_ENV = "VLLM_USE_V2_MODEL_RUNNER"
"""Variable of vLLM: 1 or 0. If unset, vLLM chooses by model and settings."""

_COMMON = {
    "VERL_USE_EXTERNAL_MODULES": "llmzero_ray.engines.verl.plugin",
    "TRANSFER_QUEUE_ENABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    # VeRL hands adapters to vLLM's workers itself; over HTTP any neighbour could load or unload one.
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "false",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HYDRA_FULL_ERROR": "1",
}

_GPU = {
    # As Ray did until 2.50: processes without a GPU see none, so that a reward that finds CUDA does not sit
    # on a card next to vLLM. VeRL gives its servers their cards itself.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    # Sizes of cache and graphs, seconds of sleep and wake-up; they go to the slot's log.
    "VLLM_LOGGING_LEVEL": "INFO",
}

_CPU = {
    "VLLM_LOGGING_LEVEL": "WARN",
    "VERL_PLATFORM": "cpu",
    # VeRL registers its FSDP engine for cuda and npu only; this is VeRL's own switch to look it up all the
    # same.
    "VERL_ENGINE_DEVICE": "cuda",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Otherwise the first generation compiles helpers with a C++ compiler for 8-20 s.
    "TORCH_COMPILE_DISABLE": "1",
    # glibc keeps the memory of a pass's temporaries for the next pass: mapped again, it is zeroed by page.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}


def socket_scope(settings: VerlSettings) -> str:
    """Part of the names of the slot's sockets, which must be short."""
    return text_digest(settings.namespace)[:12]


def worker_vars(settings: VerlSettings) -> dict[str, str]:
    """Variables of every VeRL process of a slot."""
    variables = {
        **_COMMON,
        QUEUE_NAMESPACE_ENV: f"{settings.namespace}-queue",
        QUEUE_DIR_ENV: settings.queue_dir,
        SOCKET_DIR_ENV: settings.socket_dir,
        SOCKET_SCOPE_ENV: socket_scope(settings),
        # vLLM's sockets between its processes; in Linux's abstract namespace they leave no files.
        "VLLM_RPC_BASE_PATH": settings.socket_dir or f"@llmzero-{socket_scope(settings)}",
    }
    if settings.socket_dir:
        variables |= on_loopback(os.environ)
    if settings.platform == "gpu":
        variables |= _GPU
        if Path(settings.model_path).is_dir():
            variables["HF_HUB_OFFLINE"] = "1"  # on a machine without a network, each question waits for 10 s
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
    """Variables for VeRL alone, without a driver of this project."""
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
    # The host joins as a driver of its own; what marks this process as a worker must not travel.
    for name in [n for n in env if n.startswith("RAY_JOB_CONFIG") or n in ("RAY_RAYLET_PID", "RAY_JOB_ID")]:
        del env[name]
    return env


def runtime_env(settings: VerlSettings) -> dict[str, Any]:
    """Ray runtime environment of the driver's job. A working_dir given to this process's job is passed on.

    The variables of the API key and of the user's headers are empty in it, because on a head that others
    started Ray's own environment may contain them.
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
