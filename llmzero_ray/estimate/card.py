"""GPUs of this machine: whether a search trains on them, and how much memory they have."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal, cast

from llmzero_ray.config import SearchConfig
from llmzero_ray.utils.api_key import without_secrets

_SMI_S = 20.0


def resolve_platform(platform: str) -> Literal["cpu", "gpu"]:
    """Resolve `auto`: `gpu` if this machine has NVIDIA's driver, otherwise `cpu`."""
    if platform in ("cpu", "gpu"):
        return cast(Literal["cpu", "gpu"], platform)
    return "gpu" if shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists() else "cpu"


def is_for_gpus(config: SearchConfig) -> bool:
    """Whether the search trains with VeRL on GPUs, as far as this machine can tell."""
    if config.engine.backend != "verl" or config.engine.platform == "cpu":
        return False
    if config.engine.platform == "gpu" or config.slots.gpu_memory_gib is not None:
        return True
    return resolve_platform(config.engine.platform) == "gpu"


def driver_report(*fields: str) -> list[list[str]]:
    """Values of these fields of `nvidia-smi --query-gpu`, one row for each GPU of this machine.

    Raises:
        OSError: there is no driver.
        subprocess.SubprocessError: the driver fails or does not answer.
    """
    command = ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    env = without_secrets(os.environ)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=True, env=env)
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def card_gib() -> float | None:
    """GiB that processes can use on this machine's smallest GPU. None if the driver does not report it."""
    try:
        rows = driver_report("memory.total", "memory.reserved")
        return min((float(total) - float(reserved)) / 1024 for total, reserved in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
