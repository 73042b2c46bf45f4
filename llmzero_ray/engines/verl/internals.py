"""All internals of VeRL that this project relies on: versions, names, sockets.

`check_versions` does not import VeRL; `check_names` runs in the process that embeds it. Both fail before
anything starts. Read this file first when VeRL changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import inspect
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llmzero_ray.errors import EngineVersionError

VERL_VERSION: Final = "0.9.1"
VLLM_VERSIONS: Final = {"gpu": ("0.24",), "cpu": ("0.27",)}
"""Versions of vLLM by platform: VeRL's own pin on GPUs, the community CPU build elsewhere."""
FLASH_ATTN_VERSIONS: Final = ("2",)
"""Versions of flash attention. On GPUs VeRL builds every model with version 2, and fails late without it."""
ATTENTION_KEY: Final = "actor_rollout_ref.model.override_config.attn_implementation"
LIGER_KEY: Final = "actor_rollout_ref.model.use_liger"
LIGER_VERSIONS: Final = ("0.8",)
OLDEST_DRIVERS: Final = {"12": 525, "13": 580}
"""Major version of CUDA -> oldest NVIDIA driver that runs it."""
OLDEST_CAPABILITY: Final = (8, 0)
"""Lowest compute capability of GPUs that compute in bf16 and run flash attention."""
_ARCHITECTURE: Final = re.compile(r"(sm|compute)_(\d+)(\d)[af]?$")
DRIVER_FILE: Final = "/proc/driver/nvidia/version"
"""File with the version of NVIDIA's kernel module, also in containers."""
PROCESSOR_FILE: Final = "/proc/cpuinfo"
"""File with the instructions of this machine's processors."""
VLLM_CPU_LIBRARY: Final = "libnuma.so.1"
"""System library that vLLM's CPU build links to; no Python package provides it. Without it, vLLM only warns
and fails much later."""

QUEUE_NAMESPACE_ENV: Final = "LLMZERO_TRANSFER_QUEUE_NAMESPACE"
QUEUE_DIR_ENV: Final = "LLMZERO_TRANSFER_QUEUE_DIR"
"""Variable with the private directory of the TransferQueue's sockets (see `queue_address`). If empty, the
queue uses ports with keys (see queue_keys.py)."""
SOCKET_DIR_ENV: Final = "LLMZERO_SOCKET_DIR"
"""Variable with the private directory of a slot on one machine, for its sockets and the rendezvous files of
torch's process groups. Empty if there is none."""
SOCKET_SCOPE_ENV: Final = "LLMZERO_WEIGHT_SOCKET_SCOPE"
"""Variable with an id that is unique for one start of an engine; see `weight_socket`."""

RELIED_ON: Final[dict[str, tuple[str, ...]]] = {
    # Module -> names, or Class.method, that we call or override.
    "verl.trainer.ppo.v1.trainer_base": (
        "PPOTrainer._setup",
        "PPOTrainer._init_tokenizer",
        "PPOTrainer._init_dataloader",
        "PPOTrainer._init_dump_executor",
        "PPOTrainer._init_resource_pool_mgr",
        "PPOTrainer._build_replay_buffer",
        "PPOTrainer._fetch_one_gen_batch",
        "PPOTrainer._compute_old_log_prob",
        "PPOTrainer._compute_ref_log_prob",
        "PPOTrainer._compute_advantage",
        "PPOTrainer._update_actor",
        "PPOTrainer._save_checkpoint",
        "PPOTrainer._validate",
        "PPOTrainer._val_metrics_update",
        "PPOTrainer._maybe_log_val_generations",
        "PPOTrainer.fit",
        "PPOTrainer.prepare_step",
        "PPOTrainer.on_validate_begin",
        "PPOTrainer.on_validate_end",
        "PPOTrainer.on_train_begin",
        "PPOTrainer.on_step_begin",
        "get_seqlen_balanced_partitions",
        "register_trainer",
    ),
    "verl.trainer.ppo.v1.trainer_sync": ("PPOTrainerSync.on_step_end", "PPOTrainerSync.on_sample_end"),
    "verl.trainer.ppo.v1.agent_loop_tq": ("AgentLoopWorkerTQ", "AgentLoopManagerTQ"),
    "verl.trainer.ppo.v1.replay_buffer": (
        "ReplayBuffer._materialize_batch",
        "ReplayBuffer._wait_for_next_poll",
        "ReplayBuffer.sample",
    ),
    "verl.experimental.agent_loop.agent_loop": (
        "AgentLoopManager._init_agent_loop_workers",
        "ray",
        "AgentLoopWorker._run_agent_loop",
        "AgentLoopWorker._compute_score",
    ),
    "verl.workers.engine_workers": (
        "ActorRolloutRefWorker.compute_log_prob",
        "ActorRolloutRefWorker.init_model",
        "ActorRolloutRefWorker.update_weights",
        "TrainingWorker.set_loss_fn",
        "TrainingWorker.train_mini_batch",
    ),
    "verl.workers.engine.fsdp.transformer_impl": (
        "FSDPEngine._build_optimizer",
        "FSDPEngine._build_lr_scheduler",
        "FSDPEngine.get_per_tensor_param",
        "FSDPEngine.disable_adapter",
        "FSDPEngine.eval_mode",
        "FSDPEngine.optimizer_step",
        "FSDPEngine.load_checkpoint",
        "FSDPEngineWithLMHead.prepare_model_inputs",
        "FSDPEngineWithLMHead.prepare_model_outputs",
    ),
    "verl.utils.checkpoint.fsdp_checkpoint_manager": (
        "FSDPCheckpointManager.get_rng_state",
        "FSDPCheckpointManager.load_rng_state",
        "FSDPCheckpointManager.save_checkpoint",
        "FSDPCheckpointManager.should_save_lora_only",
        "local_mkdir_safe",
    ),
    "verl.workers.rollout.vllm_rollout.vllm_async_server": (
        "run_uvicorn",
        "vLLMHttpServer.launch_server",
        "vLLMHttpServer.run_server",
        "vLLMHttpServer.generate",
        "vLLMHttpServer._get_worker_extension_cls",
        "vLLMHttpServer._park_until_admitted",
        "vLLMReplica",
    ),
    "verl.workers.rollout.vllm_rollout.utils": (
        "vLLMColocateWorkerExtension._get_zmq_handle",
        "VLLM_LORA_INT_ID",
        "VLLM_LORA_NAME",
        "VLLM_LORA_PATH",
    ),
    "verl.workers.rollout.router": ("ray",),
    "verl.workers.rollout.llm_server": ("LLMServerManager._init_global_load_balancer",),
    "verl.experimental.reward_loop.reward_loop": (
        "RewardLoopWorker",
        "RewardLoopWorker._init_reward_fn",
        "RewardLoopManager._init_reward_loop_workers",
        "ray",
    ),
    "verl.utils.tokenizer.continuous_token_wiring": ("create_continuous_token_builder",),
    "verl.single_controller.base.decorator": ("make_nd_compute_dataproto_dispatch_fn",),
    "verl.utils.tensordict_utils": (
        "assign_non_tensor",
        "assign_non_tensor_data",
        "list_of_dict_to_tensordict",
        "pop",
    ),
    "verl.trainer.ppo.reward": ("get_custom_reward_fn",),
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer": ("BucketedWeightSender._init_buffer",),
    "verl.workers.rollout.replica": ("RolloutReplicaRegistry.register",),
    "verl.single_controller.ray.base": ("SubRayResourcePool", "ResourcePoolManager.create_resource_pool"),
    "verl.workers.utils.losses": ("ppo_loss",),
    "verl.workers.utils.padding": ("response_from_nested",),
    "verl.utils.config": ("validate_config", "omega_conf_to_dataclass"),
    "verl.utils.device": ("get_device_name",),
    "verl.utils.fsdp_utils": ("normalize_peft_param_name",),
    "verl.utils.torch_functional": ("logprobs_from_logits_v2",),
    "verl.utils.distributed": ("initialize_global_process_group_ray",),
    "transfer_queue": ("kv_batch_put", "kv_batch_get", "kv_list", "kv_clear"),
    "transfer_queue.interface": ("init", "close", "TransferQueueController", "ray"),
    "transfer_queue.utils.common": ("ray",),
    "transfer_queue.utils.zmq_utils": ("format_zmq_address", "get_free_port", "create_zmq_socket"),
    "transfer_queue.controller": ("format_zmq_address", "get_free_port", "create_zmq_socket"),
    "transfer_queue.storage.simple_storage": ("format_zmq_address", "get_free_port", "create_zmq_socket"),
    "transfer_queue.storage.managers.base": ("create_zmq_socket",),
    "transfer_queue.storage.managers.simple_storage_manager": (
        "AsyncSimpleStorageManager._pack_field_values",
    ),
}

RELIED_ON_CPU: Final[dict[str, tuple[str, ...]]] = {
    "vllm.lora.ops.torch_ops.lora_ops": ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"),
    "vllm.lora.punica_wrapper.punica_cpu": ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice"),
    "vllm.model_executor.layers.utils": ("dispatch_cpu_unquantized_gemm",),
}
"""Names that are patched only on the CPU."""

RAY_PRIVATE: Final[dict[str, tuple[str, ...]]] = {
    # List jobs and actors without the dashboard, which a private head lacks (liveness.py, driver_process.py).
    "ray._private.state": ("state",),
    # Keep a head that no one else should join on loopback (actors/head.py).
    "ray._private": ("ray_constants",),
    # Find out whether a cluster requires Ray's token (cli/doctor/checks.py).
    "ray._private.authentication.authentication_utils": ("is_token_auth_enabled",),
    # Find this machine's cluster, whose address `ray start` stored (actors/head.py).
    "ray._private.utils": ("read_ray_address",),
    # Pass the queue's keys only to the processes of a slot (queue_keys.py).
    "ray.experimental.internal_kv": ("_internal_kv_put", "_internal_kv_get", "_internal_kv_del"),
}
"""Private names of Ray that this project imports, because Ray has no public API for these purposes."""


def uses_flash_attention(overrides: Mapping[str, Any]) -> bool:
    """Whether the policy trains with flash-attn, VeRL's default, with these `engine.overrides`."""
    attention = overrides.get(ATTENTION_KEY, overrides.get(f"+{ATTENTION_KEY}", "flash_attention_2"))
    return str(attention) == "flash_attention_2"


def check_versions(platform: str, *, flash_attention: bool = True) -> None:
    """Check the versions of VeRL and vLLM. On GPUs, also check that the driver is new enough for torch's CUDA
    and, if the policy trains with `flash_attention`, that flash-attn is installed.

    Reads package metadata and the driver's version. On the CPU, loads the system library that vLLM's build
    needs.

    Raises:
        EngineVersionError: a check fails; the message says which version is needed and how to get it.
    """
    _check_version("verl", (VERL_VERSION,), "pip install verl==" + VERL_VERSION)
    allowed = VLLM_VERSIONS[platform]
    _check_version(
        "vllm", allowed, "see docs/install.md: the CPU lock file here, VeRL's container image on GPUs"
    )
    if platform == "cpu":
        _check_library(VLLM_CPU_LIBRARY)
    else:
        if flash_attention:
            remedy = f"Or train with torch's attention: engine.overrides: {{+{ATTENTION_KEY}: sdpa}}"
            place = "see docs/install.md, One GPU; VeRL's image has it"
            _check_version("flash-attn", FLASH_ATTN_VERSIONS, f"{place}. {remedy}")
        driver, cuda = driver_version(), cuda_version()
        if driver and cuda and (problem := driver_problem(driver, cuda)):
            raise EngineVersionError(f"NVIDIA's {problem}. Update the driver of the machine")


def check_kernels(platform: str, *, use_liger: bool) -> None:
    """Check, before a worker imports them, that Liger's kernels are installed if they are used.

    Raises:
        EngineVersionError: they are missing; the message says what to install or leave out.
    """
    if not use_liger:
        return
    remedy = f"Or leave {LIGER_KEY} out"
    if platform == "cpu":
        raise EngineVersionError(
            f"{LIGER_KEY}: Liger's kernels are for GPUs, and this engine is for the CPU. {remedy}"
        )
    _check_version("liger-kernel", LIGER_VERSIONS, f"pip install 'liger-kernel==0.8.*'. {remedy}")


def slow_dtype(platform: str, overrides: Mapping[str, Any]) -> str | None:
    """Reason why the precision in `engine.overrides` is slow on this machine's processor. None if it is not,
    if no reason is known, and on GPUs."""
    if platform != "cpu":
        return None
    chosen = [key for key, value in overrides.items() if str(value) in ("bf16", "bfloat16")]
    try:
        text = Path(PROCESSOR_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if not chosen or re.search(r"\b(amx_bf16|avx512_bf16|bf16)\b", text):
        return None
    return (
        "this processor has no instructions for bfloat16 (neither AMX nor AVX512-BF16), which is slower than "
        f"float32 here: remove {' and '.join(chosen)} from engine.overrides"
    )


def driver_problem(driver: str, cuda: str) -> str | None:
    """Reason why a driver cannot run a version of CUDA, or None if no reason is known."""
    oldest = OLDEST_DRIVERS.get(cuda.partition(".")[0])
    if oldest is None or int(driver.partition(".")[0]) >= oldest:
        return None
    return f"driver {driver} is too old for CUDA {cuda}, which needs {oldest} or later"


def card_problem(capability: tuple[int, int], built_for: Sequence[str]) -> str | None:
    """Reason why a GPU of this compute capability cannot train with a torch built for these architectures
    (`torch.cuda.get_arch_list()`), or None if no reason is known."""
    if capability < OLDEST_CAPABILITY:
        oldest = ".".join(map(str, OLDEST_CAPABILITY))
        return (
            f"compute capability {capability[0]}.{capability[1]} is too old: bf16 and flash attention need "
            f"{oldest} or later, as of an A100, A10G, L4 or RTX 3090. Leave this GPU out"
        )
    # Machine code runs on GPUs of the same major and an equal or higher minor version. PTX is compiled for
    # any later version.
    built = [(m[1] == "compute", (int(m[2]), int(m[3]))) for m in map(_ARCHITECTURE.match, built_for) if m]
    if any(its <= capability and (ptx or its[0] == capability[0]) for ptx, its in built):
        return None
    own = f"compute capability {capability[0]}.{capability[1]}"
    return (
        f"the installed torch has code for {', '.join(built_for) or 'no GPU'}, and none for {own}. Install a "
        "build of torch for this GPU"
    )


def driver_version() -> str | None:
    """Version of NVIDIA's driver on this machine, such as 580.65.06. None if it cannot be found."""
    try:
        text = Path(DRIVER_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return None if found is None else found[1]


def cuda_version() -> str | None:
    """CUDA version that the installed torch is built for, read without importing torch. None if unknown."""
    for package in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return ".".join(importlib.metadata.version(package).split(".")[:2])
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if found := re.search(r"\+cu(\d+)(\d)$", importlib.metadata.version("torch")):
            return f"{found[1]}.{found[2]}"
    return None


def _check_library(name: str) -> None:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise EngineVersionError(
            f"vLLM's CPU build cannot load its operations: {error}. Install the system's package that has "
            f"{name}; on Debian or Ubuntu: apt-get install libnuma1"
        ) from None


def _check_version(package: str, allowed: tuple[str, ...], remedy: str) -> None:
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise EngineVersionError(
            f"{package} is not installed; needed: {' or '.join(allowed)}. {remedy}"
        ) from None
    if not any(found == v or found.startswith(v + ".") for v in allowed):
        raise EngineVersionError(
            f"{package} {found} is installed; this engine needs {' or '.join(allowed)}. {remedy}"
        )


def relied_on(platform: str) -> dict[str, tuple[str, ...]]:
    """Names that the engine relies on, by module."""
    return RELIED_ON | RAY_PRIVATE | (RELIED_ON_CPU if platform == "cpu" else {})


def check_names(names_of: dict[str, tuple[str, ...]]) -> None:
    """Check that every name in `names_of` (module -> names) exists in the installed packages. Imports VeRL.

    Raises:
        EngineVersionError: something is missing; the message names it.
    """
    missing = [
        f"{module}.{name}"
        for module, names in names_of.items()
        for name in names
        if not _exists(module, name)
    ]
    if missing:
        raise EngineVersionError(
            f"the installed VeRL {importlib.metadata.version('verl')} lacks what this engine builds on: "
            f"{', '.join(missing)}; needed: verl {VERL_VERSION} unmodified"
        )


def _exists(module: str, name: str) -> bool:
    try:
        target: Any = importlib.import_module(module)
    except ImportError:
        return False
    for part in name.split("."):
        target = inspect.getattr_static(target, part, None)
        if target is None:
            return False
    return True


# --- names on one machine ---------------------------------------------------------------------------------


def weight_socket(handle: str) -> str:
    """Socket that carries weights to vLLM, renamed for one start of one slot's engine. Both ends call this.

    VeRL calls it ipc:///tmp/rl-colocate-zmq-JOB-replica-R-rank-K.sock, and both ends first remove any file of
    that name. Ray numbers jobs per cluster, so the trainers of two clusters on one machine would remove each
    other's socket and wait forever. This socket is in the slot's private directory, because vLLM's workers
    unpickle what they receive. Without such a directory, on a slot of several machines, it is in Linux's
    abstract namespace, which other users of the machine can also reach.

    Raises:
        EngineVersionError: VeRL builds the name in another way.
    """
    parts = re.fullmatch(r"ipc:///tmp/rl-colocate-zmq-.+-(replica-\d+-rank-\d+)\.sock", handle)
    if parts is None:
        raise EngineVersionError(f"the weight socket is called {handle!r}; needed: verl {VERL_VERSION}")
    if directory := os.environ.get(SOCKET_DIR_ENV):
        return f"ipc://{directory}/{parts[1]}"
    return f"ipc://@llmzero-{os.environ.get(SOCKET_SCOPE_ENV, '')}-{parts[1]}"


_queue_sockets = itertools.count(1)


def queue_port(ip: str) -> int:  # noqa: ARG001  the signature is the package's
    """Unique number for a new TransferQueue socket on this machine, used instead of a free port."""
    return os.getpid() << 16 | next(_queue_sockets)


def queue_address(ip: str, port: int) -> str:  # noqa: ARG001
    """ZeroMQ endpoint of a TransferQueue socket: a file in the private directory that the environment names.

    The queue unpickles what it receives, so other users must not reach its sockets. Through a TCP port, any
    machine in the network could run code here.
    """
    return f"ipc://{os.environ[QUEUE_DIR_ENV]}/{port:x}"
