"""VeRL platform for machines without an accelerator, registered in VeRL's own platform registry.

A GPU is a logical resource for Ray: `ray start --num-gpus=N` works on a machine that has none. Placement
groups, accelerator ids and VeRL's capacity checks therefore use the same code as on GPUs. Active only with
VERL_PLATFORM=cpu.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _CpuDeviceId(str):
    """Device id that is "cpu" for `tensor.to` and 0 for int(), and formats as 0, so that f"{name}:{id}" gives
    "cpu:0"."""

    def __new__(cls) -> _CpuDeviceId:
        return super().__new__(cls, "cpu")

    def __format__(self, spec: str) -> str:
        return "0"

    def __int__(self) -> int:
        return 0

    __index__ = __int__


CPU_ID = _CpuDeviceId()


def _resident_bytes(*_: object) -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _peak_bytes(*_: object) -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _free_and_total(*_: object) -> tuple[int, int]:
    import psutil

    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _nothing(*_: object, **__: object) -> None:
    return None


class _CpuDeviceModule(types.ModuleType):
    """`torch.cpu` plus the functions of `torch.cuda` that VeRL calls unconditionally."""

    empty_cache = staticmethod(_nothing)
    ipc_collect = staticmethod(_nothing)
    reset_peak_memory_stats = staticmethod(_nothing)
    memory_allocated = staticmethod(_resident_bytes)
    memory_reserved = staticmethod(_resident_bytes)
    max_memory_allocated = staticmethod(_peak_bytes)
    max_memory_reserved = staticmethod(_peak_bytes)
    mem_get_info = staticmethod(_free_and_total)
    manual_seed = staticmethod(torch.manual_seed)
    manual_seed_all = staticmethod(torch.manual_seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def __eq__(self, other: object) -> bool:
        # VeRL special-cases `get_torch_device() == torch.cpu` in several places.
        return other is self or other is torch.cpu

    __hash__ = types.ModuleType.__hash__

    @staticmethod
    def get_rng_state(*_: object) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, *_: object) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def get_device_name(*_: object) -> str:
        return "CPU"

    @staticmethod
    def current_device() -> _CpuDeviceId:
        return CPU_ID


_DEVICE_MODULE = _CpuDeviceModule("llmzero_ray_cpu_device")


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """The CPU as a VeRL platform."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never chosen by detection

    def current_device(self) -> Any:
        return CPU_ID

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: Any) -> None:
        return None

    def synchronize(self, device_index: Any = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False  # weights are sent through shared memory instead

    def cudart(self) -> Any:
        return None
