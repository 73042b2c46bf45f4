"""Patches of VeRL and its libraries at run time, one function each, with its reason."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from llmzero_ray.engines.verl import queue_keys
from llmzero_ray.engines.verl.internals import QUEUE_DIR_ENV, SOCKET_DIR_ENV, queue_address, queue_port


def patch_process_group_backend() -> None:
    """Create the process group on the CPU with the backend "cpu:gloo".

    VeRL passes "cpu:gloo,<device>:<backend>", and torch rejects the repeated key if the device is "cpu".
    """
    import verl.utils.distributed as distributed

    original = distributed.initialize_global_process_group_ray

    def initialize_global_process_group_ray(
        timeout_second: float | None = None, backend: str | None = None
    ) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray


def meet_without_ports() -> None:
    """Let the ranks of torch's process groups, VeRL's and vLLM's, rendezvous without a port.

    torch's default, TCPStore, listens on every address and accepts keys and values from anyone. Instead, a
    group of one rank uses memory, and a larger group uses a file in the private directory that SOCKET_DIR_ENV
    names. Without that directory, on a slot of several machines, TCPStore remains.
    """
    import torch.distributed as distributed

    original = distributed.init_process_group
    if getattr(original, "without_ports", False):
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, **named: Any) -> None:
        if not args and named.get("store") is None:
            directory, n_ranks = os.environ.get(SOCKET_DIR_ENV), named.get("world_size", -1)
            if n_ranks == 1:
                named |= {"init_method": None, "store": distributed.HashStore()}
            elif n_ranks > 1 and directory:
                named["init_method"] = f"file://{directory}/{_group_name(named.get('init_method'))}"
        original(*args, **named)

    init_process_group.without_ports = True  # type: ignore[attr-defined]
    distributed.init_process_group = init_process_group


def _group_name(init_method: str | None) -> str:
    """Rendezvous file name shared by all ranks, derived from the port VeRL would have used."""
    if init_method is None or init_method.startswith("env:"):
        return f"ranks-{os.environ['MASTER_PORT']}"  # VeRL's workers
    parent = multiprocessing.parent_process()  # vLLM's workers are children of one process
    return f"ranks-{init_method.rpartition(':')[2]}-{parent.pid if parent else 0}"


def patch_transfer_queue_namespace(namespace: str) -> None:
    """Give this slot's TransferQueue its own Ray namespace.

    The package uses one controller name for the whole cluster. A second trainer would attach to the first
    one's queue, and the two would train on each other's trajectories.
    """
    import transfer_queue.interface as interface

    controller = interface.TransferQueueController
    if getattr(controller, "namespace", None) == namespace:
        return

    class _Controller:
        @staticmethod
        def options(**options: Any) -> Any:
            return controller.options(**{**options, "namespace": namespace})

        def __getattr__(self, name: str) -> Any:
            return getattr(controller, name)

    class _Ray:
        def __getattr__(self, name: str) -> Any:
            import ray

            return getattr(ray, name)

        @staticmethod
        def get_actor(name: str, **_: Any) -> Any:
            import ray

            return ray.get_actor(name, namespace=namespace)

    interface.ray = _Ray()
    _Controller.namespace = namespace  # type: ignore[attr-defined]
    interface.TransferQueueController = _Controller()


def patch_transfer_queue_sockets() -> None:
    """Make the TransferQueue's sockets reachable only for the slot's own processes.

    The package binds them to TCP ports of the node's address, does not authenticate clients, and unpickles
    what it receives. If QUEUE_DIR_ENV names a private directory, sockets are bound there; otherwise the ports
    require the slot's keys. Controller and storage units are pickled by value in the process that starts
    them, so they carry the patched functions. Clients use them too.
    """
    import transfer_queue.controller as controller
    import transfer_queue.storage.managers.base as manager
    import transfer_queue.storage.simple_storage as storage
    import transfer_queue.utils.zmq_utils as sockets

    if os.environ.get(QUEUE_DIR_ENV):
        for module in (sockets, controller, storage):
            module.format_zmq_address, module.get_free_port = queue_address, queue_port
    elif not hasattr(sockets, queue_keys.UNPROTECTED):
        setattr(sockets, queue_keys.UNPROTECTED, sockets.create_zmq_socket)
        for module in (sockets, controller, storage, manager):
            module.create_zmq_socket = queue_keys.create_socket


def drop_names_once_connected() -> None:
    """Unlink the shared-memory segment for weights as soon as both ends have opened it.

    Without GPUs, weights are sent through a named segment in /dev/shm, which would otherwise be left behind
    if the processes are killed.
    """
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    original = BucketedWeightSender._init_buffer
    if getattr(original, "drops_names", False):
        return

    def _init_buffer(self: Any) -> None:
        original(self)
        if self.shm is not None:
            self.shm.unlink()
            self.shm.unlink = lambda: None  # VeRL's own, at the end of the transfer

    _init_buffer.drops_names = True  # type: ignore[attr-defined]
    BucketedWeightSender._init_buffer = _init_buffer


def make_checkpoint_directories_plainly() -> None:
    """Create directories without VeRL's lock files, which it leaves in /tmp."""
    import verl.utils.checkpoint.fsdp_checkpoint_manager as manager

    def local_mkdir_safe(path: str) -> str:
        os.makedirs(path, exist_ok=True)
        return path

    manager.local_mkdir_safe = local_mkdir_safe


def use_thread_locks_for_progress_bars() -> None:
    """Use thread locks for tqdm. By default it locks between processes, and a killed process leaves its
    semaphore in /dev/shm."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    tqdm.set_lock(threading.RLock())


def multiply_by_single_lora_slot() -> None:
    """Make vLLM's LoRA operations on the CPU multiply all tokens at once if there is a single LoRA slot.

    vLLM copies the adapter's two matrices once per token (`weights[token_lora_indices]`) and multiplies token
    by token, which is most of a small model's forward pass. With a single slot, every index means that slot.
    A token's result does not depend on its neighbours, but sums add in another order than vLLM's. Several
    slots work as before.
    """
    import vllm.lora.ops.torch_ops.lora_ops as operations
    import vllm.lora.punica_wrapper.punica_cpu as wrapper

    for name, ours in (
        ("bgmv_shrink", _shrink),
        ("bgmv_expand", _expand),
        ("bgmv_expand_slice", _expand_slice),
    ):
        original = getattr(operations, name)
        if not getattr(original, "knows_single_slot", False):
            patched = _with_single_slot(original, ours)
            setattr(operations, name, patched)  # prefill operations call it from this module
            setattr(wrapper, name, patched)


def keep_linear_weights() -> None:
    """Make vLLM on the CPU keep the original weights of its linear layers. By default it packs them and drops
    the originals, and then no new weights can be loaded."""
    import torch
    import vllm.model_executor.layers.utils as layers

    def keep(layer: Any, remove_weight: bool) -> None:  # noqa: ARG001  vLLM's signature
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = keep


def _with_single_slot(original: Any, ours: Callable[..., None]) -> Any:
    def operation(inputs: Any, weights: Any, output: Any, indices: Any, *rest: Any, **named: Any) -> None:
        if len(weights) != 1 or len(inputs) != len(indices):
            original(inputs, weights, output, indices, *rest, **named)
            return
        matrix = weights.reshape(weights.shape[-2:]).to(output.dtype)
        ours(_product(inputs.to(output.dtype), matrix), output, *rest, **named)

    operation.knows_single_slot = True  # type: ignore[attr-defined]
    return operation


def _shrink(product: Any, output: Any, scaling: float = 1.0) -> None:
    output[:, : product.shape[1]] = scaling * product


def _expand(product: Any, output: Any, add_inputs: bool = True) -> None:
    _expand_slice(product, output, 0, min(product.shape[1], output.shape[1]), add_inputs)


def _expand_slice(
    product: Any, output: Any, slice_offset: int, slice_size: int, add_inputs: bool = True
) -> None:
    part = output[:, slice_offset : slice_offset + slice_size]
    if add_inputs:
        part += product[:, :slice_size]
    else:
        part.copy_(product[:, :slice_size])


_BLOCK = 32
"""Number of tokens in one multiplication. It is fixed, because with another number of rows a library may add
in another order."""


def _product(inputs: Any, matrix: Any) -> Any:
    """`inputs` (tokens, k) times `matrix` (n, k) transposed. Each row is independent of the others."""
    import torch

    n_tokens, k = inputs.shape
    if missing := -n_tokens % _BLOCK:
        inputs = torch.cat([inputs, inputs.new_zeros(missing, k)])
    blocks = inputs.view(-1, _BLOCK, k)
    found = torch.bmm(blocks, matrix.t().expand(len(blocks), *matrix.t().shape))
    return found.view(-1, len(matrix))[:n_tokens]


def postpone_load_balancer() -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Make VeRL's server manager start its servers without a load balancer, an actor that imports all of VeRL
    to count requests. Batches in one call do not need it. Returns a function that starts the load balancer of
    a manager (LLMServerManager) once its client is needed."""
    from verl.workers.rollout.llm_server import LLMServerManager

    start: Callable[[Any], Coroutine[Any, Any, None]] = getattr(
        LLMServerManager._init_global_load_balancer, "postponed", LLMServerManager._init_global_load_balancer
    )

    async def _init_global_load_balancer(self: Any) -> None:
        self.global_load_balancer = None

    _init_global_load_balancer.postponed = start  # type: ignore[attr-defined]
    LLMServerManager._init_global_load_balancer = _init_global_load_balancer
    return start


@contextlib.contextmanager
def without_http_server() -> Iterator[None]:
    """Context manager in which a vLLM server that VeRL starts does not listen on a port. VeRL's trainer never
    uses the port, and the server would answer anyone who can reach the machine. VeRL still needs an address
    to tell servers apart, so the port in it is the process id."""
    import verl.workers.rollout.vllm_rollout.vllm_async_server as server

    original = server.run_uvicorn

    async def run_uvicorn(*_: Any) -> tuple[int, None]:
        return os.getpid(), None

    server.run_uvicorn = run_uvicorn
    try:
        yield
    finally:
        server.run_uvicorn = original


def start_reward_workers_of(worker_class: type) -> None:
    """Make VeRL's reward loop start actors of this class, a subclass of its own RewardLoopWorker."""
    import verl.experimental.reward_loop.reward_loop as reward_loop

    reward_loop.RewardLoopWorker = worker_class


_WHILE_IMPORTING = (200_000, 50, 100)
_AS_USUAL = gc.get_threshold()


def leave_one_rank_unbalanced() -> None:
    """Skip VeRL's balancing of a batch over ranks if there is only one rank.

    VeRL balances with a search in plain Python. For one rank it takes a tenth of a small model's step and
    returns the batch unchanged.
    """
    import verl.trainer.ppo.v1.trainer_base as trainer_base

    spread = trainer_base.get_seqlen_balanced_partitions
    if getattr(spread, "__wrapped__", None) is not None:
        return

    @functools.wraps(spread)
    def partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> Any:
        if k_partitions == 1 and len(seqlen_list):
            return [list(range(len(seqlen_list)))]
        return spread(seqlen_list, k_partitions=k_partitions, equal_size=equal_size)

    trainer_base.get_seqlen_balanced_partitions = partitions


_LARGEST_AT_ONCE = 2**22
"""Maximum number of logits in one temporary copy."""


def take_logsumexp_at_once() -> None:
    """Without flash-attn's cross-entropy, compute the log-probabilities of many tokens in one call.

    VeRL processes token by token to save memory, which takes a fifth of a small model's step on the CPU and
    makes most nodes of its backward pass. Here tokens are processed in blocks of bounded size. Results and
    gradients are bit-identical for float32. For 16-bit logits the result is float32, as with flash-attn,
    while VeRL rounds to 16 bits; the float32 copy of a block is recomputed in the backward pass.
    """
    import verl.utils.torch_functional as functional

    original = functional.logprobs_from_logits_v2
    if getattr(original, "in_blocks", False):
        return

    @functools.wraps(original)
    def logprobs_from_logits_v2(logits: Any, labels: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        if not logits.numel():
            return original(logits, labels)

        def in_float32(block: Any) -> Any:
            return torch.logsumexp(block.float(), dim=-1)

        take = functools.partial(torch.logsumexp, dim=-1)
        if logits.itemsize == 2:
            take = functools.partial(checkpoint, in_float32, use_reentrant=False, preserve_rng_state=False)
        rows = max(1, _LARGEST_AT_ONCE * len(logits) // logits.numel())
        sums = torch.cat([take(block) for block in logits.split(rows)])
        return torch.gather(logits, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1) - sums

    logprobs_from_logits_v2.in_blocks = True  # type: ignore[attr-defined]
    functional.logprobs_from_logits_v2 = logprobs_from_logits_v2


def collect_garbage_rarely() -> None:
    """Collect garbage rarely during the imports of a start. They create millions of objects and hardly any
    garbage, and collection takes a fifth of their time."""
    gc.set_threshold(*_WHILE_IMPORTING)


def collect_garbage_as_usual() -> None:
    """Restore normal garbage collection after the start. Objects created so far are not scanned again."""
    gc.freeze()
    gc.set_threshold(*_AS_USUAL)
