"""What a search learns of its memory, and how the expert's repairs follow from it.

A simulated machine takes more memory than is estimated, at one stage of a step: a phase runs out of memory
exactly where its true need exceeds the card.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmzero_ray.agents.expert import ExpertErrorAnalyzer
from llmzero_ray.config import SearchConfig, load_config
from llmzero_ray.estimate import Estimate, SearchMemory
from llmzero_ray.estimate.fit import relief
from llmzero_ray.estimate.model_shape import read_shape
from llmzero_ray.estimate.setup import setup_of
from llmzero_ray.estimate.sizes import StageMemory
from llmzero_ray.estimate.stages import LOG_PROBS, ROLLOUT, SERVER_START, UPDATE, stages
from llmzero_ray.hyperparameters import Limits, complete
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.hyperparameters.verl_keys import MAX_RESPONSE, MAX_TOKENS, ROLLOUT_N, TEMPERATURE
from llmzero_ray.records import Hyperparameters, PhaseFailure
from llmzero_ray.records.agents import ErrorRequest, MemoryView, NodeView, TaskView
from llmzero_ray.utils.text import GIB

from .builders import A100_40, ROOT, SIZES, preset

LOGS = {
    UPDATE: "torch.OutOfMemoryError: CUDA out of memory, in update_actor",
    LOG_PROBS: "torch.OutOfMemoryError: CUDA out of memory, in compute_log_prob",
    ROLLOUT: "CUDA Error: out of memory at cumem_allocator.cpp, wake_up",
    SERVER_START: "ValueError: No available memory for the cache blocks.",
}
TASK = TaskView(
    name="t", n_train=5000, phase_steps=39, max_phase_steps=200, max_model_len=10_240, max_prompt_length=2048
)


def config_of(size: str) -> SearchConfig:
    return load_config(ROOT / preset(size))


def memory_of(config: SearchConfig) -> SearchMemory:
    return SearchMemory(config, Estimate(config).memory_facts())


def estimated(config: SearchConfig, full: Hyperparameters) -> tuple[StageMemory, ...]:
    return stages(read_shape(str(config.model.path)), setup_of(config, full, gpu_gib=A100_40))


def true_excess(config: SearchConfig, full: Hyperparameters, where: str, factor: float) -> float:
    """Bytes by which a phase on the simulated machine, which takes `factor` times what is estimated at one
    stage, exceeds a limit."""
    found = estimated(config, full)
    return max(m.total.likely * (factor if m.name == where else 1.0) - m.limit for m in found)


def ran_out(where: str, node: int) -> PhaseFailure:
    return PhaseFailure(node=node, failure_class="oom", cause=LOGS[where], log_tail="")


def repaired(memory: SearchMemory, chain: list[NodeView], root: Hyperparameters) -> dict[str, object]:
    """The configuration that the expert proposes after a chain of failures."""
    last = chain[-1]
    found = memory.assess(last.hyperparameters)
    assert found is not None
    help_ = memory.relief(last.hyperparameters, n_repairs=len(chain) - 1)
    view = MemoryView(verdict=found.reason, remedies=(), fix=help_.values, fix_verdict=help_.status)
    request = ErrorRequest(
        task=TASK, failed=last, chain=tuple(chain), default=root, checkpoints=(), memory=view
    )
    proposal = ExpertErrorAnalyzer(n_gpus=8).analyze(request)
    changes = {change.key: change.new for change in proposal.changes}
    limits = Limits(max_model_len=10_240, max_response_length=8192, n_train=5000)
    return dict(complete(last.hyperparameters, changes, n_gpus=8, limits=limits))


def failed(node: int, full: Hyperparameters, where: str) -> NodeView:
    failure = ran_out(where, node)
    return NodeView(
        node=node,
        kind="debug",
        status="failed",
        hyperparameters=full,
        n_steps=39,
        base_step=0,
        failure=failure,
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", list(LOGS))
@pytest.mark.parametrize("beyond", [0.1, 2.0, 6.0])
def test_a_preset_that_runs_out_of_memory_fits_after_two_repairs_with_its_task_untouched(
    size: str, where: str, beyond: float
) -> None:
    """`beyond`: GiB by which the root exceeds the card at that stage, against all estimates."""
    config = config_of(size)
    memory, root = memory_of(config), root_hyperparameters(config, 5000)
    there = next(stage for stage in estimated(config, root) if stage.name == where)
    factor = (there.limit + beyond * GIB) / there.total.likely
    full, chain = dict(root), list[NodeView]()
    while true_excess(config, full, where, factor) > 0:
        assert len(chain) < 3, "two repairs were not enough"
        memory.ran_out(full, ran_out(where, len(chain)))
        chain.append(failed(len(chain), full, where))
        full = repaired(memory, chain, root)
    assert 1 <= len(chain) <= 2
    assert (full[MAX_RESPONSE], full[ROLLOUT_N]) == (root[MAX_RESPONSE], root[ROLLOUT_N])


def test_what_ran_out_of_memory_once_is_not_begun_again_and_its_author_is_told_why() -> None:
    config = config_of("4b")
    memory, root = memory_of(config), root_hyperparameters(config, 5000)
    assert memory.problem(root) == ""
    memory.ran_out(root, ran_out(UPDATE, 0))
    warmer = {**root, TEMPERATURE: 0.9}
    problem = memory.problem(warmer, before=root)
    assert "does not fit: tightest is update" in problem
    assert "Made larger by the change of temperature." in problem
    assert "max_token_len_per_gpu 24576 -> 12288 (tight)" in problem
    assert "together: max_token_len_per_gpu=8192 (fits)" in problem
    assert memory.problem({**root, MAX_TOKENS: 8192}) == ""


def test_a_phase_that_trained_had_room_whatever_the_estimate_says() -> None:
    config = load_config(ROOT / preset("8b"), ["root.overrides.max_token_len_per_gpu=49152"])
    memory, root = memory_of(config), root_hyperparameters(config, 5000)
    assert memory.problem(root)
    memory.trained(root)
    assert memory.problem(root) == ""
    assert memory.problem({**root, MAX_TOKENS: 65_536})


def test_a_repair_that_needs_less_is_let_through_even_where_nothing_fits() -> None:
    config = load_config(ROOT / preset("8b"), ["slots.gpu_memory_gib=14"])
    memory, root = memory_of(config), root_hyperparameters(config, 5000)
    less = {**root, MAX_TOKENS: 12_288}
    assert memory.problem(less)
    assert memory.problem(less, repairs=root) == ""
    # A packed micro batch that cannot hold a sequence is refused by VeRL itself.
    assert "set max_token_len_per_gpu to at least 8192" in memory.problem(
        {**root, MAX_TOKENS: 4096}, repairs=root
    )


def test_the_hosts_memory_teaches_nothing_about_the_cards() -> None:
    config = config_of("4b")
    memory, root = memory_of(config), root_hyperparameters(config, 5000)
    cause = "OSError: [Errno 12] Cannot allocate memory"
    memory.ran_out(root, PhaseFailure(node=0, failure_class="oom", cause=cause, log_tail=""))
    assert memory.learned == {}


def test_a_shorter_response_is_the_last_thing_that_is_tried() -> None:
    config = config_of("8b")
    setup = setup_of(config, root_hyperparameters(config, 5000), gpu_gib=A100_40)
    shape = read_shape(str(config.model.path))
    fits = relief(shape, setup, {UPDATE: 14 * GIB})
    assert fits.status == "fits"
    assert MAX_RESPONSE not in fits.values
    too_much = {UPDATE: 30 * GIB}
    others = relief(shape, setup, too_much)
    assert others.status == "does not fit"
    assert MAX_RESPONSE not in others.values
    # Nothing else is left: every setting has its last value already.
    bare = replace(
        setup,
        max_tokens=8192,
        log_prob_max_tokens=8192,
        param_offload=True,
        optimizer_offload=True,
    )
    last = relief(shape, bare, too_much)
    assert last.changes[0] == "max_response_length 6144 -> 3072 with max_token_len_per_gpu 5120"
    assert set(last.values) == {MAX_RESPONSE, MAX_TOKENS}


@pytest.mark.parametrize(
    "setting",
    [
        "engine.platform=cpu",
        "slots.gpu_memory_gib=null",
        "model.path=/nowhere/mixtral",
        "engine.backend=a.b:c",
    ],
)
def test_where_nothing_is_known_nothing_is_judged(setting: str) -> None:
    assert Estimate(load_config(ROOT / preset("4b"), [setting])).memory_facts() == {}
