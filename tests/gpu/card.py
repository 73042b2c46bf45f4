"""Work on one GPU without this project's engine, for processes of their own, and looks at the card.

Functions that take a `device` do the same on the CPU, where tests without a GPU keep them in order.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llmzero_ray.engines.verl.canary import TEXT, LogProbs
from llmzero_ray.engines.verl.internals import card_problem, driver_problem, driver_version
from llmzero_ray.estimate import resolve_platform

needs_card = pytest.mark.skipif(resolve_platform("auto") != "gpu", reason="no NVIDIA GPU on this machine")
ROOT = Path(__file__).parents[2]
_SMI = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
SHARE = 0.2
"""The share of the card that `serve` gives vLLM."""


LEAST_FREE_GIB = 8.0
"""Free memory that the small phases of `test_bring_up` take with a model of 135M parameters."""


def problem_of(
    *,
    driver: str | None,
    cuda: str | None,
    cards: Sequence[tuple[str, tuple[int, int]]],
    built_for: Sequence[str],
    free_gib: float,
) -> str | None:
    """Why no test can pass here, in one sentence with the cure; None if no reason is visible at once.

    `cards` are (name, compute capability) as torch finds them.
    """
    if driver and cuda and (problem := driver_problem(driver, cuda)):
        return f"{problem}: update the driver of the machine"
    if not cards:
        return f"torch (CUDA {cuda}) finds no GPU: install torch with CUDA, and see that nvidia-smi lists one"
    name, capability = cards[0]
    if problem := card_problem(capability, built_for):
        return f"{name}: {problem}"
    if free_gib < LEAST_FREE_GIB:
        return (
            f"{name} has {free_gib:.1f} GiB free, and these tests take {LEAST_FREE_GIB:g}: end what runs "
            "there; nvidia-smi names the processes"
        )
    return None


def first_problem() -> str | None:
    """`problem_of` this machine; for a process of its own, because it makes a CUDA context."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in range(count)]
    return problem_of(
        driver=driver_version(),
        cuda=torch.version.cuda,
        cards=names,
        built_for=torch.cuda.get_arch_list(),
        free_gib=torch.cuda.mem_get_info()[0] / 2**30 if names else 0.0,
    )


def in_child(function: Callable[..., Any], *given: Any) -> Any:
    """The result of `function` in a new process, so that no CUDA context of this one takes memory."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(function, *given).result()


def used_mib() -> float:
    """Memory in use on the first card, by all processes."""
    listing = subprocess.run(_SMI, capture_output=True, text=True, timeout=30, check=True).stdout
    return float(listing.splitlines()[0])


@contextlib.contextmanager
def peak_mib() -> Iterator[list[float]]:
    """Context whose list ends with the most memory that was in use on the card meanwhile."""
    seen, ended = [used_mib()], threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            seen.append(max(seen[-1], used_mib()))

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield seen
    finally:
        ended.set()
        watch.join()


@dataclass(frozen=True, kw_only=True)
class Training:
    """A few steps of LoRA under FSDP2: float32 weights, bf16 passes."""

    losses: tuple[float, ...]
    """Loss of the same tokens before each step."""
    adapter_changed: bool
    base_changed: bool
    peak_gib: float


def train_lora(model: str, device: str, n_steps: int = 3) -> Training:
    """Steps on one text, with one rank."""
    import torch
    import torch.distributed as dist
    from peft import LoraConfig, get_peft_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    ids = torch.tensor([AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"]] * 8, device=device)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    lora = LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = get_peft_model(base, lora).to(device)
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device, (1,))
    for layer in base.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=mixed)
    fully_shard(policy, mesh=mesh, mp_policy=mixed)
    sums = _sums(policy)
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for _ in range(n_steps):
        loss = policy(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    changed = {name for name, value in _sums(policy).items() if value != sums[name]}
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    dist.destroy_process_group()
    return Training(
        losses=tuple(losses),
        adapter_changed=any("lora_" in name for name in changed),
        base_changed=any("lora_" not in name for name in changed),
        peak_gib=peak,
    )


def _sums(policy: Any) -> dict[str, float]:
    return {name: float(p.detach().to_local().double().abs().sum()) for name, p in policy.named_parameters()}


def write_adapter(model: str, folder: str, device: str) -> LogProbs:
    """Log-probabilities of the canary's text by transformers, with and without an adapter that is drawn at
    random and saved in `folder`. bf16 on a GPU, as the policy computes them."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = torch.tensor([tokenizer(TEXT, add_special_tokens=False)["input_ids"]], device=device)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device)
    lora = LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = get_peft_model(base, lora)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    policy.save_pretrained(folder)

    def log_probs() -> tuple[float, ...]:
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            found = policy(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
        return tuple(found.gather(1, ids[0, 1:, None])[:, 0].tolist())

    with policy.disable_adapter():
        without = log_probs()
    return LogProbs(policy=log_probs(), base=without)


@dataclass(frozen=True, kw_only=True)
class Served:
    """Answers of a vLLM server, and free GiB of the card around its sleep."""

    awake: LogProbs
    after_sleep: LogProbs | None
    """None on the CPU, where vLLM does not sleep."""
    freed_gib: float = 0.0
    taken_again_gib: float = 0.0


def serve(model: str, adapter: str, device: str) -> Served:
    """vLLM alone, with an adapter: awake, asleep at level 1, and awake again."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    memory = {"gpu_memory_utilization": SHARE, "enable_sleep_mode": True, "dtype": "bfloat16"}
    if device == "cpu":
        memory = {"kv_cache_memory_bytes": 2**24, "enforce_eager": True, "dtype": "float32"}
    server = LLM(model, enable_lora=True, max_lora_rank=16, max_model_len=256, max_num_seqs=8, **memory)
    ids = server.get_tokenizer()(TEXT, add_special_tokens=False)["input_ids"]

    def log_probs(request: LoRARequest | None) -> tuple[float, ...]:
        asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        (answer,) = server.generate({"prompt_token_ids": ids}, asked, lora_request=request, use_tqdm=False)
        rows = answer.prompt_logprobs or []
        return tuple(row[token].logprob for token, row in zip(ids[1:], rows[1:], strict=True))

    def both() -> LogProbs:
        return LogProbs(policy=log_probs(LoRARequest("tried", 1, adapter)), base=log_probs(None))

    awake = both()
    if device == "cpu":
        return Served(awake=awake, after_sleep=None)
    free = [torch.cuda.mem_get_info()[0]]
    server.sleep(level=1)
    free.append(torch.cuda.mem_get_info()[0])
    server.wake_up()
    free.append(torch.cuda.mem_get_info()[0])
    return Served(
        awake=awake,
        after_sleep=both(),
        freed_gib=(free[1] - free[0]) / 2**30,
        taken_again_gib=(free[1] - free[2]) / 2**30,
    )
