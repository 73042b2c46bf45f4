"""The engine's phases on one card, with real VeRL and vLLM (`make test-gpu`).

24 GB of GPU memory are enough for Qwen3-0.6B. What the tests measure and compare is in the report of
tests/gpu/report.py. The parts that need no card run on the CPU as well, where they keep this file in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from omegaconf import OmegaConf

from llmzero_ray.config import SearchConfig, load_config
from llmzero_ray.engines.base import Slot
from llmzero_ray.engines.verl.factory import idle_spec, make_verl_engine
from llmzero_ray.engines.verl.internals import ATTENTION_KEY
from llmzero_ray.errors import EngineError, EngineLostError
from llmzero_ray.estimate import Estimate, card_gib, with_server_sizes
from llmzero_ray.hyperparameters import is_hot
from llmzero_ray.hyperparameters.verl_keys import LR
from llmzero_ray.prepared import PreparedTask, load_task
from llmzero_ray.records import MetricPoint, PhaseFailure, PhaseResult, PhaseSpec
from llmzero_ray.tasks.sources.prepare import prepare_source
from llmzero_ray.tasks.task_yaml import parse_task_file
from llmzero_ray.utils.text import GIB
from tests.engines.test_gpu_presets import composed
from tests.gpu.card import ROOT, needs_card, peak_mib, used_mib
from tests.gpu.report import note, seconds_left
from tests.waiting import wait_for_ray_nodes, wait_until

GPU = (pytest.mark.gpu, needs_card)
CPU = (pytest.mark.slow, pytest.mark.long, pytest.mark.verl)
ON_GPU = pytest.param("gpu", marks=GPU)
on_a_gpu = pytest.mark.parametrize("platform", [ON_GPU], indirect=True)
on_both = pytest.mark.parametrize("platform", [ON_GPU, pytest.param("cpu", marks=CPU)], indirect=True)

CONFIGS = ROOT / "jobs" / "configs"
RECIPE = CONFIGS / "one_gpu.yaml"
SMALL: dict[str, dict[str, Any]] = {
    "gpu": {
        "batch": 16,
        "mini_batch": 8,
        "n": 8,
        "resp": 128,
        "max_token_len_per_gpu": 16384,
        "lr": 2e-4,
        "temperature": 0.5,  # a model of 135M parameters answers no row correctly at temperature 1
    },
    "cpu": {"batch": 8, "mini_batch": 4, "n": 4, "resp": 24, "lr": 2e-4},
}
KL, PROB_DIFF, GRAD_NORM = "rollout_corr/kl", "training/rollout_probs_diff_mean", "actor/grad_norm"
RESERVED = "perf/max_memory_reserved_gb"
SHOWN = (
    *(KL, PROB_DIFF, GRAD_NORM, RESERVED, "critic/rewards/mean", "actor/entropy", "response_length/mean"),
    *("timing_s/gen", "timing_s/old_log_prob", "timing_s/ref", "timing_s/update_actor"),
    *("timing_s/update_weights", "timing_s/testing", "timing_s/step"),
)
N_VAL = 128
TRAINING = ("log-probs", "update")
"""Stages of the estimate in which vLLM sleeps."""
PHASE_S = 600.0
"""Seconds after which a phase is ended as hanging."""
LADDER: dict[str, tuple[str, ...]] = {
    "as the preset says": (),
    "without CUDA graphs": ("actor_rollout_ref.rollout.enforce_eager=true",),
    "with Triton's attention in vLLM": (
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.attention_backend=TRITON_ATTN",
    ),
    "with torch's attention in the policy": (f"+{ATTENTION_KEY}=sdpa",),
    "without packed sequences": ("actor_rollout_ref.model.use_remove_padding=false",),
}
"""Changes of `engine.overrides` that are added one after the other until a first phase trains: the last one
says where the fault is."""


def make_sums(root: Path, prompt: str) -> Path:
    """A task that a small model solves in part: sums of three digits, where the last number of an answer
    counts. It needs no network and no other package."""
    rows = [
        {"a": a, "b": b, "c": c, "sum": a + b + c} for a, b, c in itertools.product(range(1, 10), repeat=3)
    ]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "name": "sums",
        "dir": str(root / "data"),
        "files": str(root / "rows.jsonl"),
        "prompt": prompt,
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
def platform(request: pytest.FixtureRequest) -> str:
    """gpu, or cpu: a tiny model of digits and the community build of vLLM."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def settings(
    platform: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """A preset, and changes to it: a small task, phases of a minute, and this card."""
    root = tmp_path_factory.mktemp("settings")
    if platform == "gpu":
        own = [
            str(RECIPE),
            f"task.dir={make_sums(root, 'What is {a} + {b} + {c}?')}",
            f"model.path={request.getfixturevalue('model')}",
            f"slots.gpu_memory_gib={card_gib()}",
            "eval.max_response_length=128",
            "engine.max_prompt_length=128",
            "engine.max_response_length=256",
        ]
    else:
        own = [
            str(CONFIGS / "demo.yaml"),
            f"task.dir={make_sums(root, '{a}+{b}+{c}')}",
            "task.family=null",
            f"model.path={ROOT / 'benchmarks' / 'suite' / 'models' / 'chain_sum'}",
            "engine.rollout_calls=per_request",  # as on GPUs
        ]
    return [
        *own,
        f"storage={root / 'runs'}",
        "phase.n_steps=2",
        "phase.test_freq=2",
        "phase.save_freq=2",
        *(f"root.overrides.{key}={value}" for key, value in SMALL[platform].items()),
    ]


@dataclasses.dataclass
class Card:
    """A warm engine on one GPU, or on the CPU; `spec` makes phases for it."""

    engine: Any
    settings: list[str]
    config: SearchConfig
    task: PreparedTask
    root: Path
    on_gpu: bool
    rung: str = "as the preset says"
    """The step of LADDER with which it was made."""
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

    def run(
        self, spec: PhaseSpec, each: Callable[[MetricPoint], None] = lambda _: None, limit_s: float = PHASE_S
    ) -> Any:
        """(outcome, points). Each step is noted when it has ended; after `limit_s` the engine is killed."""
        points: list[MetricPoint] = []

        def on_metric(point: MetricPoint) -> None:
            points.append(point)
            shown = {key: round(float(point.metrics[key]), 5) for key in SHOWN if key in point.metrics}
            note(step=point.step, val=point.val_score, mib=self.used_mib(), **shown)
            each(point)

        limit = threading.Timer(limit_s, self.kill_driver)
        limit.start()
        began = time.monotonic()
        try:
            outcome = self.engine.run(spec, on_metric)
        finally:
            limit.cancel()
        note(
            phase=type(outcome).__name__,
            wall_s=round(time.monotonic() - began, 1),
            setup_s=round(getattr(outcome, "setup_s", math.nan), 1),
            warm=outcome.warm,
            cold_reason=outcome.cold_reason,
            cause=getattr(outcome, "cause", None),
            mib_after=self.used_mib(),
        )
        return outcome, points

    def kill_driver(self) -> None:
        os.kill(self.engine._driver.pid, signal.SIGKILL)

    def used_mib(self) -> float:
        """Memory in use on the card; 0 on the CPU."""
        return used_mib() if self.on_gpu else 0.0


@pytest.fixture(scope="module")
def ray_group(platform: str) -> Iterator[Any]:
    import ray

    wait_for_ray_nodes()
    gpus = {} if platform == "gpu" else {"num_gpus": 1}
    started = not ray.is_initialized()  # tests/engines/verl hold theirs until the run ends
    if started:
        ray.init(address="local", num_cpus=32, include_dashboard=False, log_to_driver=False, **gpus)
    group = ray.util.placement_group([{"CPU": 4, "GPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=120)
    yield group
    ray.util.remove_placement_group(group)
    if started:
        ray.shutdown()


@contextlib.contextmanager
def card_of(settings: list[str], group: Any, root: Path) -> Iterator[Card]:
    preset, *changes = settings
    config = load_config(preset, changes)
    task, on_gpu = load_task(config.task.dir), config.engine.platform == "gpu"
    if on_gpu:
        config = with_server_sizes(Estimate(config, task), lambda line: note(chosen=line))
        found, _ = Estimate(config, task).gpu_memory
        if found.status == "does not fit":
            pytest.fail(f"{found.reason}; {'; '.join(map(str, found.remedies[:2]))}", pytrace=False)
    slot = Slot(
        search="bring-up", index=0, placement_groups=(group.id.hex(),), gpus_per_node=1, cpus_per_gpu=4
    )
    engine = make_verl_engine(config, task, slot, str(root))
    card = Card(engine=engine, settings=settings, config=config, task=task, root=root, on_gpu=on_gpu)
    try:
        yield card
    finally:
        card.engine.close()


@pytest.fixture(scope="module")
def card(settings: list[str], ray_group: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Card]:
    """An engine that has trained a phase, with as many changes of LADDER as that took."""
    changes: list[str] = []
    causes: dict[str, str] = {}
    for rung, own in LADDER.items():
        changes += [f"engine.overrides.{each}" for each in own]
        with card_of([*settings, *changes], ray_group, tmp_path_factory.mktemp("card")) as made:
            made.rung = rung
            try:
                outcome, _ = made.run(made.spec())
                causes[rung] = getattr(outcome, "cause", "")
            except EngineError as error:
                outcome, causes[rung] = None, str(error)
            if isinstance(outcome, PhaseResult):
                yield made
                return
        note(
            rung=rung, cause=causes[rung], log=(made.root / "engine.log").read_text(errors="replace")[-4000:]
        )
        if not made.on_gpu or seconds_left() < 90:
            break
    pytest.fail(f"no first phase trains: {causes}", pytrace=False)


def trained(found: tuple[Any, list[MetricPoint]]) -> tuple[PhaseResult, list[MetricPoint]]:
    outcome, points = found
    assert isinstance(outcome, PhaseResult), outcome
    return outcome, points


def test_verl_takes_every_change_of_the_ladder(tmp_path: Path) -> None:
    changes = [each for own in LADDER.values() for each in own]
    verl = composed(load_config(RECIPE, [f"engine.overrides.{each}" for each in changes]), tmp_path)
    for key, _, value in (each.lstrip("+").partition("=") for each in changes):
        assert str(OmegaConf.select(verl, key)).lower() == value.lower()


@on_both
@pytest.mark.takes(90)
def test_a_first_phase_trains_as_the_preset_says(card: Card) -> None:
    assert card.rung == next(iter(LADDER)), f"a first phase trains only {card.rung}"


@on_both
@pytest.mark.takes(20)
def test_rollouts_agree_with_the_policy(card: Card) -> None:
    """The canary has compared a fixed text after each push, or the phase would have failed as `mismatch`."""
    _, points = trained(card.run(card.spec()))
    assert any(point.metrics[GRAD_NORM] > 0 for point in points[1:])
    for point in points[1:]:
        assert abs(point.metrics[KL]) < 0.02
        assert PROB_DIFF not in point.metrics or point.metrics[PROB_DIFF] < 0.05


@on_both
@pytest.mark.takes(40)
def test_a_phase_resumed_at_half_the_rate_begins_with_the_score_that_was_left(card: Card) -> None:
    first, _ = trained(card.run(card.spec(n_steps=4)))
    halved: dict[str, Any] = {LR: card.config.root.overrides["lr"] / 2}
    again, points = trained(card.run(card.spec(adapter=first.checkpoints[-1].path, **halved)))
    assert again.warm
    assert first.final_score is not None and points[0].val_score is not None
    # Batches differ, and in bf16 a few answers with them.
    allowed = 5 if card.on_gpu else 0
    assert abs(points[0].val_score - first.final_score) * N_VAL <= allowed


@on_a_gpu
@pytest.mark.takes(20)
def test_no_more_memory_is_used_than_estimated(card: Card) -> None:
    found, _ = Estimate(card.config, card.task).gpu_memory
    stages = {stage.name: stage.total * (1 / GIB) for stage in found.stages}
    with peak_mib() as seen:
        _, points = trained(card.run(card.spec()))
    reserved = max(point.metrics.get(RESERVED, 0.0) for point in points)
    note(
        estimated_gib={name: (round(each.likely, 2), round(each.high, 2)) for name, each in stages.items()},
        measured_gib=round(seen[-1] / 1024, 2),
        reserved_gib=round(reserved, 2),
    )
    assert seen[-1] / 1024 <= max(total.high for total in stages.values())
    assert 0 < reserved <= max(stages[name].high for name in TRAINING)


@on_a_gpu
@pytest.mark.takes(60)
def test_warm_phases_leave_memory_flat(card: Card) -> None:
    seen = []
    for _ in range(4):
        outcome, _ = trained(card.run(card.spec()))
        seen.append(used_mib())
    assert outcome.warm
    assert max(seen[1:]) - min(seen[1:]) < 512


def processes(actor: str) -> list[psutil.Process]:
    """Living processes of a Ray actor class that this process started, by the title that Ray gives them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(f"ray::{actor}"):
                found.append(process)
    return found


def left_on(card: Card, before_mib: float) -> str:
    """What a lost engine has left behind; empty if nothing."""
    workers = processes("WorkerDict") + processes("RecordingServer")
    more = card.used_mib() - before_mib
    return f"{len(workers)} processes, {more:.0f} MiB" if workers or more > 256 else ""


@pytest.mark.parametrize(
    ("platform", "victim"),
    [
        *(
            pytest.param("gpu", each, marks=GPU)
            for each in ("RecordingServer", "WorkerDict", "driver", "hang")
        ),
        pytest.param("cpu", "hang", marks=CPU),
    ],
    indirect=["platform"],
)
@pytest.mark.takes(100)
def test_a_lost_or_hanging_process_leaves_nothing_on_the_card(card: Card, victim: str) -> None:
    card.engine.close()
    wait_until(lambda: card.used_mib() < 2048, card.used_mib, patience_s=120, every_s=1.0)
    before = card.used_mib()

    def harm(point: MetricPoint) -> None:
        if point.step != 1:
            return
        if victim == "driver":
            card.kill_driver()
            return
        found = processes("WorkerDict" if victim == "hang" else victim)
        assert found
        for process in found:
            process.send_signal(signal.SIGSTOP if victim == "hang" else signal.SIGKILL)
        if victim == "hang":  # the coordinator does so once no progress was seen for the limit
            threading.Timer(5.0, card.kill_driver).start()

    with pytest.raises(EngineLostError):
        card.run(card.spec(n_steps=20), each=harm)
    began = time.monotonic()
    wait_until(lambda: not left_on(card, before), lambda: left_on(card, before), patience_s=120, every_s=1.0)
    note(victim=victim, free_after_s=round(time.monotonic() - began, 1), mib=card.used_mib())
    trained(card.run(card.spec()))


@on_a_gpu
@pytest.mark.takes(100)
def test_too_large_a_share_for_vllm_is_a_failure_of_memory(
    card: Card, ray_group: Any, tmp_path: Path
) -> None:
    card.engine.close()
    with card_of([*card.settings, "engine.gpu_memory_utilization=0.02"], ray_group, tmp_path) as small:
        outcome, _ = small.run(small.spec())
        assert isinstance(outcome, PhaseFailure), outcome
        assert outcome.failure_class == "oom"
    trained(card.run(card.spec()))


@on_a_gpu
@pytest.mark.takes(100)
@pytest.mark.parametrize(
    "change",
    [
        "engine.serve_merged=true",
        "engine.vllm_model_runner=v1",
        "engine.vllm_model_runner=v2",
        f"engine.overrides.+{ATTENTION_KEY}=sdpa",
    ],
)
def test_the_policy_is_served_in_each_way_that_can_be_chosen(
    card: Card, ray_group: Any, tmp_path: Path, change: str
) -> None:
    card.engine.close()
    with card_of([*card.settings, change], ray_group, tmp_path) as other:
        _, points = trained(other.run(other.spec()))
        assert all(abs(point.metrics[KL]) < 0.02 for point in points[1:])


@on_a_gpu
@pytest.mark.takes(120)
def test_offloaded_weights_are_away_while_vllm_is_awake(card: Card) -> None:
    offloaded: dict[str, Any] = {"actor_rollout_ref.actor.fsdp_config.param_offload": True}
    assert not any(map(is_hot, offloaded))
    trained(card.run(card.spec()))
    with_weights = used_mib()
    trained(card.run(card.spec(**offloaded)))
    weights = 4 * Estimate(card.config, card.task).gpu_memory[0].shape.parameters / 2**20
    note(mib=with_weights, offloaded_mib=used_mib(), weights_mib=round(weights))
    assert used_mib() < with_weights - 0.5 * weights


@on_a_gpu
@pytest.mark.takes(150)
def test_doctor_finds_nothing_wrong(card: Card) -> None:
    card.engine.close()
    preset, *changes = card.settings
    command = [sys.executable, "-m", "jobs.doctor", preset, *(f"--set={each}" for each in changes)]
    limit_s = min(3600.0, seconds_left())
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    note(doctor=done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
