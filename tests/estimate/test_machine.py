"""Memory of machines: the terms that can be worked out by hand, and what the dry run and the doctor say."""

from __future__ import annotations

import pytest

from llmzero_ray.cli.doctor.memory import on_machines
from llmzero_ray.cli.gpu_memory import memory_lines
from llmzero_ray.estimate import Estimate
from llmzero_ray.estimate.machine import machine_stages
from llmzero_ray.estimate.setup import Setup
from llmzero_ray.estimate.sizes import StageMemory
from llmzero_ray.launch.nodes import Node, NoResult
from llmzero_ray.utils.text import GIB
from tests.builders import make_config
from tests.estimate.builders import SIZES, setup, shape

CONFIG = make_config(
    engine={"backend": "verl", "platform": "gpu", "agent_workers": 8, "reward_workers": 8},
    slots={"count": 2, "gpus_per_node": 8, "gpu_memory_gib": 39.4},
    model={"path": "/nowhere/Qwen3-4B"},
)


def at(name: str, size: str, phase: Setup, gpus: int = 8) -> StageMemory:
    found = machine_stages(shape(size), phase, gpus=gpus, helpers=16)
    return next(stage for stage in found if stage.name == name)


def likely(stage: StageMemory, item: str) -> float:
    size = stage.size_of(item)
    assert size is not None
    return size.likely


def test_every_rank_reads_a_model_with_tied_weights_and_the_first_one_any_other() -> None:
    assert likely(at("loading", "4B", setup()), "model being read") == 8 * 4 * shape("4B").parameters
    assert likely(at("loading", "8B", setup()), "model being read") == 4 * shape("8B").parameters
    half = likely(at("loading", "4B", setup(weight_bytes=2)), "model being read")
    assert half == 8 * 2 * shape("4B").parameters


@pytest.mark.parametrize(("parallel", "copies"), [(1, 8), (2, 4), (8, 1)])
def test_each_server_keeps_its_weights_in_the_machines_memory_while_it_sleeps(
    parallel: int, copies: int
) -> None:
    asleep = likely(at("training", "8B", setup(tensor_parallel=parallel)), "vLLM's sleeping weights")
    assert asleep == copies * 2 * shape("8B").parameters
    assert likely(at("training", "8B", setup(sleeps=False)), "vLLM's sleeping weights") == 0
    assert likely(at("training", "8B", setup(serves_merged=True)), "vLLM's sleeping weights") == 0


def test_offloaded_weights_lie_on_the_machine_once() -> None:
    phase = setup(param_offload=True, fsdp_size=8, n_gpus=16)
    assert likely(at("training", "8B", phase), "offloaded weights") == 4 * shape("8B").parameters
    assert likely(at("training", "8B", setup()), "offloaded weights") == 0


@pytest.mark.parametrize("size", SIZES)
def test_more_gpus_need_more_of_a_machine(size: str) -> None:
    for name in ("loading", "training"):
        totals = [at(name, size, setup(n_gpus=n), gpus=n).total.likely for n in (1, 2, 4, 8)]
        assert totals == sorted(totals) and totals[0] < totals[-1]


def test_the_dry_run_says_what_a_machine_needs() -> None:
    *_, line = memory_lines(Estimate(CONFIG))
    assert (
        line.startswith("memory of a machine: about ")
        and "most while loading; largest: model being read" in line
    )


def machine(label: str, gpus: float) -> Node:
    return Node(id=label * 8, label=label, is_head=False, gpus=gpus)


@pytest.mark.parametrize(("gib", "status"), [(1100, "ok"), (170, "warn"), (64, "FAIL")])
def test_the_doctor_compares_each_machine_with_what_its_slots_need(gib: int, status: str) -> None:
    nodes = [machine("head", 0), machine("small", 8), machine("large", 8), machine("silent", 8)]
    probed = {
        "head": {"memory": 8 * GIB},
        "small": {"memory": gib * GIB},
        "large": {"memory": 2000 * GIB},
        "silent": NoResult(reason="no answer"),
    }
    found = on_machines(Estimate(CONFIG), nodes, probed)
    assert found.status == status
    if status != "ok":
        assert (
            found.found.startswith("estimated, small: about 162 GiB (up to 188) of ")
            and "large:" not in found.found
        )


def test_a_machine_that_holds_two_slots_needs_twice_as_much() -> None:
    slots = CONFIG.slots.model_copy(update={"count": 4, "gpus_per_node": 4})
    estimate = Estimate(CONFIG.model_copy(update={"slots": slots}))
    found = on_machines(estimate, [machine("a", 8)], {"a": {"memory": 2000 * GIB}})
    assert "for 2 slot(s)" in found.found
    assert on_machines(None, [], {}).status == "skipped"
