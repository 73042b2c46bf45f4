"""Probe whether the GPUs of a machine compute and reach each other: driver, architecture, matrix product,
flash attention, CUDA IPC, NCCL.

`probe_gpus` runs as a Ray task on a machine. A child process does the work, with one process per GPU below
it, so that no CUDA state stays behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from llmzero_ray.engines.verl.internals import card_problem
from llmzero_ray.errors import EngineError
from llmzero_ray.estimate import driver_report
from llmzero_ray.utils.api_key import without_secrets
from llmzero_ray.utils.ports import free_port

PROBE_S = 240.0
"""Timeout in seconds for the imports, a context on each GPU and NCCL's first collective."""
_SIZE = 256


def probe_gpus(n_gpus: int, device: str = "cuda", flash_attention: bool = True) -> dict[str, Any]:
    """`driver`, `cuda` (both None without one), `used_mib` of each card, `checks` (names), and `problems`: a
    line for each GPU and check that failed. `device` "cpu" runs the same checks without GPUs. flash-attn is
    checked on GPUs if the policy trains with it.

    Raises:
        EngineError: the checks did not finish.
    """
    checks = [name for name in _CHECKS if name != _FLASH or (device == "cuda" and flash_attention)]
    command = [sys.executable, "-m", "llmzero_ray.cli.doctor.gpu_probe", str(n_gpus), device, *checks]
    try:
        env = without_secrets(os.environ)
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False, env=env)
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"the GPUs did not answer within {PROBE_S:g} s; a collective may hang") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise EngineError(f"the check of the GPUs ended with exit code {done.returncode}: {last}")
    driver, used = _driver()
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"driver": driver, "used_mib": used, "checks": checks, **answer}


def _driver() -> tuple[str | None, list[float]]:
    try:
        rows = driver_report("driver_version", "memory.used")
        return rows[0][0], [float(used) for _, used in rows]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None, []


def check_all(n_gpus: int, device: str, checks: Sequence[str]) -> dict[str, Any]:
    """Run the checks, which need torch; see `probe_gpus`."""
    import torch
    import torch.multiprocessing as processes

    found: dict[str, Any] = {"cuda": torch.version.cuda if device == "cuda" else None, "problems": []}
    if device == "cuda":
        if not torch.cuda.is_available():
            return {**found, "problems": ["torch finds no GPU"]}
        if torch.cuda.device_count() < n_gpus:
            return {**found, "problems": [f"torch finds {torch.cuda.device_count()} of {n_gpus} GPUs"]}
        built_for = torch.cuda.get_arch_list()
        for rank in range(n_gpus):
            if problem := card_problem(torch.cuda.get_device_capability(rank), built_for):
                found["problems"].append(f"GPU {rank} ({torch.cuda.get_device_name(rank)}): {problem}")
        if found["problems"]:
            return found
    context = processes.get_context("spawn")
    problems = context.Queue()
    port = free_port()
    ranks = [
        context.Process(target=_check_one, args=(rank, n_gpus, device, checks, port, problems))
        for rank in range(n_gpus)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    lines = [problems.get() for _ in range(problems.qsize())]
    lines += [f"GPU {i}: ended with exit code {p.exitcode}" for i, p in enumerate(ranks) if p.exitcode]
    return {**found, "problems": sorted(lines)}


def _check_one(rank: int, n_gpus: int, device: str, checks: Sequence[str], port: int, problems: Any) -> None:
    """Run these checks of one GPU, with a line for each failure."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(n_gpus))
    for name in checks:
        try:
            _CHECKS[name](rank, n_gpus, device)
        except Exception as error:  # noqa: BLE001  any exception is a finding
            last = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
            problems.put(f"GPU {rank}: {name}: {last}")
            return  # it would fail again, and the other GPUs would wait for it


def _place(rank: int, device: str) -> Any:
    import torch

    return torch.device(device, rank) if device == "cuda" else torch.device(device)


def _product(rank: int, _: int, device: str) -> None:
    """Check that a bf16 product equals the CPU's."""
    import torch

    drawn = torch.Generator().manual_seed(rank)
    one, other = (torch.randn(_SIZE, _SIZE, generator=drawn).bfloat16() for _ in range(2))
    place = _place(rank, device)
    found = (one.to(place) @ other.to(place)).cpu().float()
    torch.testing.assert_close(found, one.float() @ other.float(), rtol=0.05, atol=0.5)


def _flash_attention(rank: int, _: int, device: str) -> None:
    """Check that flash-attn's kernel runs on this GPU and agrees with torch's attention."""
    import torch
    from flash_attn import flash_attn_func  # type: ignore[import-not-found]

    shape = (1, 64, 2, 64)
    given = [torch.randn(shape, device=_place(rank, device), dtype=torch.bfloat16) for _ in range(3)]
    found = flash_attn_func(*given, causal=True)
    parts = [tensor.transpose(1, 2) for tensor in given]
    right = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(found, right, rtol=0.05, atol=0.05)


def _shared_memory(rank: int, _: int, device: str) -> None:
    """Check that another process reads a tensor of this GPU, as vLLM reads the adapters that VeRL sends."""
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    answers = context.Queue()
    tensor = torch.ones(_SIZE, device=_place(rank, device))
    reader = context.Process(target=_add_up, args=(tensor, answers))
    reader.start()
    reader.join()
    if reader.exitcode:
        raise RuntimeError(f"another process cannot read this GPU's memory (exit code {reader.exitcode})")
    if (found := answers.get()) != _SIZE:
        raise RuntimeError(f"another process read {found:g} in place of {_SIZE}")


def _add_up(tensor: Any, answers: Any) -> None:
    answers.put(float(tensor.sum()))


def _collective(rank: int, n_gpus: int, device: str) -> None:
    """Check that the sum over all GPUs of the machine arrives on each of them."""
    import datetime

    import torch
    import torch.distributed as dist

    place = _place(rank, device)
    if device == "cuda":
        torch.cuda.set_device(place)
    limit = datetime.timedelta(seconds=PROBE_S / 2)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=limit)
    try:
        value = torch.full((1024,), float(rank + 1), device=place)
        dist.all_reduce(value)
        wanted = n_gpus * (n_gpus + 1) / 2
        if not bool((value == wanted).all()):
            raise RuntimeError(f"the sum over {n_gpus} GPUs is {value[0].item():g}, not {wanted:g}")
    finally:
        dist.destroy_process_group()


_FLASH = "flash attention"
_CHECKS = {
    "matrix product": _product,
    _FLASH: _flash_attention,
    "CUDA IPC": _shared_memory,
    "NCCL": _collective,
}
"""Checks by name, in order. The one in which the GPUs wait for each other comes last."""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(check_all(int(sys.argv[1]), sys.argv[2], sys.argv[3:])) + "\n")
