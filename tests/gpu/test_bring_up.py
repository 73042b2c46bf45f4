"""The engine's phases on one card, with real VeRL and vLLM (`make test-gpu`).

24 GB of GPU memory are enough for Qwen3-0.6B. Whatever these tests compare with a bound they print as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmzero_ray.config import SearchConfig, load_config
from llmzero_ray.engines.base import Slot
from llmzero_ray.engines.verl.factory import idle_spec, make_verl_engine
from llmzero_ray.engines.verl.internals import ATTENTION_KEY
from llmzero_ray.errors import EngineLostError
from llmzero_ray.estimate import Estimate, card_gib
from llmzero_ray.estimate.server_sizes import with_server_sizes
from llmzero_ray.hyperparameters import is_hot
from llmzero_ray.hyperparameters.verl_keys import LR
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.records import MetricPoint, PhaseFailure, PhaseResult, PhaseSpec
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.task_yaml import parse_task_file
from llmzero_ray.utils.text import GIB
from tests.gpu.card import ROOT, needs_card, peak_mib, used_mib
from tests.waiting import wait_until

pytestmark = [pytest.mark.gpu, needs_card]

RECIPE = ROOT / "jobs" / "configs" / "one_gpu.yaml"
SMALL = {
    "batch": 16,
    "mini_batch": 8,
    "n": 8,
    "resp": 128,
    "max_token_len_per_gpu": 16384,
    "lr": 2e-4,
    "temperature": 0.5,  # a model of 135M parameters answers no row correctly at temperature 1
}
KL, PROB_DIFF, GRAD_NORM = "rollout_corr/kl", "training/rollout_probs_diff_mean", "actor/grad_norm"
N_VAL = 128
TRAINING = ("log-probs", "update")
"""Stages of the estimate in which vLLM sleeps."""


def make_sums(root: Path) -> Path:
    """A task that a model of 135M parameters solves in part: sums of three digits, where the last number of
    an answer counts. It needs no network and no other package."""
    rows = [
        {"of": f"{a} + {b} + {c}", "sum": a + b + c} for a, b, c in itertools.product(range(1, 10), repeat=3)
    ]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "name": "sums",
        "dir": str(root / "data"),
        "files": str(root / "rows.jsonl"),
        "prompt": "What is {of}?",
        "answer": "sum",
        "reward": {"regex": {"pattern": r"-?\d+"}},
        "n_train": 400,
        "n_val": N_VAL,
        "n_test": 64,
        "n_confirm": 0,
    }
    prepare_source(parse_task_file(task))
    return root / "data"


@pytest.fixture(scope="module")
def settings(model: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Changes to the preset: a small task, phases of a minute, and this card."""
    root = tmp_path_factory.mktemp("gpu")
    return [
        f"storage={root / 'runs'}",
        f"task.dir={make_sums(root)}",
        f"model.path={model}",
        f"slots.gpu_memory_gib={card_gib()}",
        "phase.n_steps=2",
        "phase.test_freq=2",
        "phase.save_freq=2",
        "eval.max_response_length=128",
        "engine.max_prompt_length=128",
        "engine.max_response_length=256",
        *(f"root.overrides.{key}={value}" for key, value in SMALL.items()),
    ]


@dataclasses.dataclass
class Card:
    """A warm engine on one GPU; `spec` makes phases for it."""

    engine: Any
    config: SearchConfig
    task: PreparedTask
    root: Path
    n_phases: int = 0

    def spec(self, n_steps: int = 2, adapter: str | None = None, **changes: Any) -> PhaseSpec:
        self.n_phases += 1
        idle = idle_spec(self.config, self.task.n_train, str(self.root))
        return dataclasses.replace(
            idle,
            node=self.n_phases,
            adapter=adapter,
            n_steps=n_steps,
            test_freq=n_steps,
            save_freq=n_steps,
            checkpoint_dir=str(self.root / "checkpoints" / f"{self.n_phases:04d}"),
            hyperparameters={**idle.hyperparameters, **changes},
        )

    def run(self, spec: PhaseSpec, each: Callable[[MetricPoint], None] = lambda _: None) -> Any:
        points: list[MetricPoint] = []

        def on_metric(point: MetricPoint) -> None:
            points.append(point)
            each(point)

        return self.engine.run(spec, on_metric), points


@pytest.fixture(scope="module")
def ray_group() -> Iterator[Any]:
    import ray

    ray.init(address="local", num_cpus=32, include_dashboard=False, log_to_driver=False)
    group = ray.util.placement_group([{"CPU": 4, "GPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=120)
    yield group
    ray.shutdown()


@contextlib.contextmanager
def card_of(settings: list[str], group: Any, root: Path) -> Iterator[Card]:
    config = load_config(RECIPE, settings)
    task = load_task(config.task.dir)
    config = with_server_sizes(Estimate(config, task), print)
    slot = Slot(
        search="bring-up", index=0, placement_groups=(group.id.hex(),), gpus_per_node=1, cpus_per_gpu=4
    )
    card = Card(engine=make_verl_engine(config, task, slot, str(root)), config=config, task=task, root=root)
    try:
        yield card
    finally:
        card.engine.close()


@pytest.fixture(scope="module")
def card(settings: list[str], ray_group: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Card]:
    with card_of(settings, ray_group, tmp_path_factory.mktemp("card")) as made:
        yield made


def trained(found: tuple[Any, list[MetricPoint]]) -> tuple[PhaseResult, list[MetricPoint]]:
    outcome, points = found
    assert isinstance(outcome, PhaseResult), outcome
    return outcome, points


def test_doctor_finds_nothing_wrong(settings: list[str]) -> None:
    changes = [part for each in settings for part in ("--set", each)]
    command = [sys.executable, "-m", "jobs.doctor", str(RECIPE), *changes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_rollouts_agree_with_the_policy_in_bf16(card: Card) -> None:
    """The canary has compared a fixed text after each push, or the phase would have failed as `mismatch`."""
    _, points = trained(card.run(card.spec()))
    assert any(point.metrics[GRAD_NORM] > 0 for point in points[1:])
    for point in points[1:]:
        seen = {key: point.metrics.get(key) for key in (KL, PROB_DIFF)}
        print(f"step {point.step}: {seen}")
        assert abs(point.metrics[KL]) < 0.02
        assert PROB_DIFF not in point.metrics or point.metrics[PROB_DIFF] < 0.05


def test_a_phase_resumed_at_half_the_rate_begins_with_the_score_that_was_left(card: Card) -> None:
    first, _ = trained(card.run(card.spec(n_steps=4)))
    halved: dict[str, Any] = {LR: SMALL["lr"] / 2}
    again, points = trained(card.run(card.spec(adapter=first.checkpoints[-1].path, **halved)))
    assert again.warm
    print(f"final {first.final_score}, continued {points[0].val_score}, of {N_VAL} rows")
    assert first.final_score is not None and points[0].val_score is not None
    # Batches differ, and in bf16 a few answers with them.
    assert abs(points[0].val_score - first.final_score) * N_VAL <= 5


def test_no_more_memory_is_used_than_estimated(card: Card) -> None:
    found, _ = Estimate(card.config, card.task).gpu_memory
    stages = {stage.name: stage.total * (1 / GIB) for stage in found.stages}
    with peak_mib() as seen:
        _, points = trained(card.run(card.spec()))
    reserved = max(point.metrics.get("perf/max_memory_reserved_gb", 0.0) for point in points)
    for name, total in stages.items():
        print(f"{name}: {total.likely:.2f} GiB estimated, at most {total.high:.2f}")
    print(f"measured: {seen[-1] / 1024:.2f} GiB of the card, {reserved:.2f} GiB reserved by the trainer")
    assert seen[-1] / 1024 <= max(total.high for total in stages.values())
    assert 0 < reserved <= max(stages[name].high for name in TRAINING)


def test_three_warm_phases_leave_memory_flat(card: Card) -> None:
    seen = []
    for _ in range(4):
        outcome, points = trained(card.run(card.spec()))
        seen.append((used_mib(), points[-1].metrics.get("perf/max_memory_reserved_gb")))
    print(f"MiB in use and GiB reserved after each phase: {seen}")
    assert outcome.warm
    assert max(used for used, _ in seen[1:]) - min(used for used, _ in seen[1:]) < 512


def processes(actor: str) -> list[psutil.Process]:
    """Living processes of a Ray actor class, by the title that Ray gives them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(f"ray::{actor}"):
                found.append(process)
    return found


@pytest.mark.parametrize("victim", ["RecordingServer", "WorkerDict", "driver"])
def test_a_killed_process_leaves_nothing_on_the_card(card: Card, victim: str) -> None:
    card.engine.close()
    wait_until(lambda: used_mib() < 2048, used_mib, patience_s=120, every_s=1.0)
    before = used_mib()

    def kill(point: MetricPoint) -> None:
        if point.step == 1:
            pids = [card.engine._driver.pid] if victim == "driver" else [p.pid for p in processes(victim)]
            assert pids
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(EngineLostError):
        card.run(card.spec(n_steps=20), each=kill)
    wait_until(
        lambda: used_mib() < before + 256, lambda: f"{used_mib()} MiB used", patience_s=120, every_s=1.0
    )
    trained(card.run(card.spec()))


def test_too_large_a_share_for_vllm_is_a_failure_of_memory(
    settings: list[str], card: Card, ray_group: Any, tmp_path: Path
) -> None:
    card.engine.close()
    with card_of([*settings, "engine.gpu_memory_utilization=0.02"], ray_group, tmp_path) as small:
        outcome, _ = small.run(small.spec())
        assert isinstance(outcome, PhaseFailure), outcome
        print(outcome.cause)
        assert outcome.failure_class == "oom"
        trained(card.run(card.spec()))


@pytest.mark.parametrize(
    "change",
    [
        "engine.vllm_model_runner=v1",
        "engine.vllm_model_runner=v2",
        "engine.serve_merged=true",
        f"engine.overrides.+{ATTENTION_KEY}=sdpa",
    ],
)
def test_the_policy_is_served_in_each_way_that_can_be_chosen(
    settings: list[str], card: Card, ray_group: Any, tmp_path: Path, change: str
) -> None:
    card.engine.close()
    with card_of([*settings, change], ray_group, tmp_path) as other:
        _, points = trained(other.run(other.spec()))
        print(f"{change}: {[point.metrics[KL] for point in points[1:]]}")
        assert all(abs(point.metrics[KL]) < 0.02 for point in points[1:])


def test_offloaded_weights_are_away_while_vllm_is_awake(card: Card) -> None:
    offloaded: dict[str, Any] = {"actor_rollout_ref.actor.fsdp_config.param_offload": True}
    assert not any(map(is_hot, offloaded))
    trained(card.run(card.spec()))
    with_weights = used_mib()
    trained(card.run(card.spec(**offloaded)))
    weights = 4 * Estimate(card.config, card.task).gpu_memory[0].shape.parameters / 2**20
    print(f"MiB in use {with_weights}, with {weights:.0f} of weights in float32 offloaded {used_mib()}")
    assert used_mib() < with_weights - 0.5 * weights
