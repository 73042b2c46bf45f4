"""What vLLM of GPU machines makes of the presets, in a process of its own: the arguments that VeRL gives its
server, through vLLM's own parser and engine configuration, on an A100 that only exists in its platform class.

    python -m tests.engines.vllm_on_a_card FOLDER

FOLDER holds the Python files of the vLLM that GPUs get; prints one line of JSON. No compiled file of vLLM is
loaded, so nothing is computed.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

GIB = 2**30
CARD_GIB = 39.4
_COMPILED = ("vllm._", "vllm.cumem_allocator", "vllm.vllm_flash_attn", "vllm.spinloop")


class _NoCompiledFiles(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for vLLM's compiled modules, of which Python alone has nothing."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        known = fullname.startswith(_COMPILED)
        return importlib.machinery.ModuleSpec(fullname, self) if known else None

    def create_module(self, spec: Any) -> Any:
        return ModuleType(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def fake_card() -> None:
    """vLLM's platform is CUDA with A100s of 40 GB, and Triton is there."""
    import vllm.config.vllm as vllm_config
    from vllm import platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class A100(NonNvmlCudaPlatform):  # type: ignore[misc]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(8, 0)

        @classmethod
        def has_device_capability(cls, capability: Any, device_id: int = 0) -> bool:
            wanted = capability if isinstance(capability, tuple) else divmod(capability, 10)
            return wanted <= (8, 0)

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(CARD_GIB * GIB)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA A100-SXM4-40GB"

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

        def is_cumem_allocator_available(self) -> bool:
            return True

    platforms.current_platform.__class__ = A100
    vllm_config.HAS_TRITON = True


def model_at(directory: Path, name: str) -> str:
    """A folder with the tokenizer of the tiny model and the sizes of a real one."""
    from llmzero_ray.estimate.model_shape import KNOWN
    from llmzero_ray.tasks.tiny_model import make_tokenizer
    from tests.estimate.test_model_shape import config_of

    place = directory / name
    if not place.is_dir():
        make_tokenizer().save_pretrained(place)
        sizes = config_of(KNOWN[name.lower()], architectures=["Qwen3ForCausalLM"])
        (place / "config.json").write_text(json.dumps({**sizes, "max_position_embeddings": 40960}))
    return str(place)


def engine_config(config: Any, directory: Path) -> Any:
    """vLLM's configuration of the first server of a preset."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    from llmzero_ray.engines.verl.rollout_server import RecordingServer
    from tests.engines.test_gpu_presets import composed

    caught: list[Any] = []

    class Server(RecordingServer):
        async def run_server(self, args: Any) -> None:
            caught.append(args)

    name = Path(config.model.path).name
    model = config.model.model_copy(update={"path": model_at(directory, name)})
    verl = composed(config.model_copy(update={"model": model}), directory).actor_rollout_ref
    server = Server(
        config=verl.rollout,
        model_config=verl.model,
        rollout_mode=None,
        workers=[None] * int(verl.rollout.tensor_model_parallel_size),
        replica_rank=0,
        node_rank=0,
        gpus_per_node=int(verl.rollout.tensor_model_parallel_size),
        nnodes=1,
        cuda_visible_devices="0",
    )
    asyncio.run(server.launch_server())
    return AsyncEngineArgs.from_cli_args(caught[0]).create_engine_config(UsageContext.OPENAI_API_SERVER)


def facts(vllm: Any) -> dict[str, Any]:
    """What the tests look at."""
    compilation, model = vllm.compilation_config, vllm.model_config
    return {
        "v2_model_runner": bool(vllm.use_v2_model_runner),
        "max_lora_rank": vllm.lora_config.max_lora_rank,
        "max_loras": vllm.lora_config.max_loras,
        "sleep_mode": model.enable_sleep_mode,
        "logprobs_mode": str(getattr(model.logprobs_mode, "value", model.logprobs_mode)),
        "dtype": str(model.dtype),
        "max_model_len": model.max_model_len,
        "max_num_seqs": vllm.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": vllm.scheduler_config.max_num_batched_tokens,
        "tensor_parallel_size": vllm.parallel_config.tensor_parallel_size,
        "worker_extension_cls": vllm.parallel_config.worker_extension_cls,
        "executor": str(vllm.parallel_config.distributed_executor_backend),
        "gpu_memory_utilization": vllm.cache_config.gpu_memory_utilization,
        "prefix_caching": vllm.cache_config.enable_prefix_caching,
        "enforce_eager": model.enforce_eager,
        "graphs": compilation.cudagraph_mode.name,
        "n_captured": len(compilation.cudagraph_capture_sizes),
    }


def main(folder: str) -> None:
    """Print {version, missing, presets: {name: facts}, runners: {`engine.vllm_model_runner`: V2 is used}}."""
    sys.path.insert(0, folder)
    sys.meta_path.append(_NoCompiledFiles())
    import ray

    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "01000000")
    import vllm

    from llmzero_ray.engines.verl import internals, rollout_server  # noqa: F401  before the platform is set
    from llmzero_ray.engines.verl.environment import MODEL_RUNNER_ENV, worker_vars
    from llmzero_ray.errors import EngineVersionError
    from tests.builders import verl_settings
    from tests.engines.test_gpu_presets import PRESETS

    fake_card()
    missing = ""
    try:
        internals.check_names(internals.relied_on("gpu"))
    except EngineVersionError as error:
        missing = str(error)
    with tempfile.TemporaryDirectory() as directory:
        presets = {
            name: facts(engine_config(config, Path(directory))) for name, config in sorted(PRESETS.items())
        }
        runners = {}
        for asked in ("v1", "v2"):
            variables = worker_vars(verl_settings(platform="gpu", vllm_model_runner=asked))
            os.environ[MODEL_RUNNER_ENV] = variables[MODEL_RUNNER_ENV]
            found = engine_config(PRESETS["qwen3_4b.yaml"], Path(directory))
            runners[asked] = bool(found.use_v2_model_runner)
    report = {"version": vllm.__version__, "missing": missing, "presets": presets, "runners": runners}
    sys.stdout.write("\n" + json.dumps(report) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
