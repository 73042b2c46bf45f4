"""Estimate of a machine's host memory while a slot's model is loaded, and while it trains.

It is based on the source code of VeRL 0.9.1 and vLLM 0.24 to 0.27. What a process takes in addition to its
tensors is a range of observed sizes. Ray's object store and cached files are left out, because the kernel can
reclaim their memory. Not here: GPUs (stages.py), what a machine has (cli/doctor/machine_findings.py).
"""

from __future__ import annotations

from dataclasses import replace

from llmzero_ray.config import SearchConfig
from llmzero_ray.estimate.model_shape import ModelShape
from llmzero_ray.estimate.setup import Setup
from llmzero_ray.estimate.sizes import Item, Range, StageMemory
from llmzero_ray.utils.text import GIB

LOADING, TRAINING = "loading", "training"

# CUDA context, NCCL's pinned buffers and imports of one training process.
_TRAINER = Range(2.0, 3.0, 5.0) * GIB
# A vLLM server with its engine core, and one worker for each further GPU.
_SERVER, _SERVER_WORKER = Range(3.0, 4.5, 7.0) * GIB, Range(2.0, 3.0, 4.0) * GIB
# An agent-loop or reward worker imports VeRL.
_HELPER = Range(0.6, 0.9, 1.3) * GIB
# Runner, driver, queue, and Ray's own processes.
_OTHERS = Range(3.0, 4.0, 7.0) * GIB
_BF16 = 2


def largest_stage(config: SearchConfig, shape: ModelShape, setup: Setup, *, n_slots: int) -> StageMemory:
    """Stage at which `n_slots` slots on one machine take the most memory."""
    helpers = -(-(config.engine.agent_workers + config.engine.reward_workers) // config.slots.nodes)
    found = machine_stages(shape, setup, gpus=config.slots.gpus_per_node, helpers=helpers)
    worst = max(found, key=lambda stage: stage.total.likely)
    items = tuple(replace(item, size=item.size * float(n_slots)) for item in worst.items)
    return replace(worst, items=items)


def machine_stages(shape: ModelShape, setup: Setup, *, gpus: int, helpers: int) -> tuple[StageMemory, ...]:
    """Memory of one slot on one machine, at the two largest stages. The slot has `gpus` GPUs there, and
    `helpers` agent-loop and reward workers."""
    processes = (
        Item(name="trainers", size=_TRAINER * gpus),
        Item(name="agent and reward workers", size=_HELPER * helpers),
        Item(name="other processes", size=_OTHERS),
    )
    whole = setup.weight_bytes * shape.parameters
    # VeRL uses no meta tensors for tied weights: every rank reads the whole model, not only the first one.
    read = Item(name="model being read", size=Range.exactly(whole * (gpus if shape.tied else 1)))
    offloaded = whole * gpus / setup.shards if setup.param_offload or setup.offload_policy else 0.0
    return (
        StageMemory(name=LOADING, items=(*processes, read)),
        StageMemory(
            name=TRAINING,
            items=(
                *processes,
                Item(name="vLLM's servers", size=_servers(setup, gpus)),
                Item(name="vLLM's sleeping weights", size=Range.exactly(_asleep(shape, setup, gpus))),
                Item(name="offloaded weights", size=Range.exactly(offloaded)),
            ),
        ),
    )


def _servers(setup: Setup, gpus: int) -> Range:
    servers = max(1, gpus // setup.tensor_parallel)
    return _SERVER * servers + _SERVER_WORKER * max(0, gpus - servers)


def _asleep(shape: ModelShape, setup: Setup, gpus: int) -> float:
    """Bytes of a slot's sleeping servers. Sleep level 1, which an adapter needs, copies all weights to pinned
    memory. Merged weights are not kept, because all are sent again."""
    return (
        (setup.sleeps and not setup.serves_merged) * _BF16 * shape.parameters * gpus / setup.tensor_parallel
    )
