"""One warm VeRL for all tests of this folder: real trainer, real vLLM, a tiny model on the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmzero_ray.engines.verl.settings import VerlSettings
from llmzero_ray.hyperparameters.verl_keys import LORA_ALPHA, LORA_RANK
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.records import MetricPoint, PhaseResult, PhaseSpec
from tests.waiting import PATIENCE_S

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"

BASE: dict[str, Any] = {
    f"{ACTOR}.optim.lr": 3e-3,
    f"{ACTOR}.optim.weight_decay": 0.01,
    f"{ACTOR}.optim.betas": (0.9, 0.999),
    f"{ACTOR}.optim.clip_grad": 1.0,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 1e-3,
    f"{ACTOR}.entropy_coeff": 0.0,
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.28,
    f"{ACTOR}.ppo_mini_batch_size": 8,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 32,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.n": 4,
    "data.train_batch_size": 8,
    "data.max_response_length": 4,
}
OF_VLLM = ("training/rollout_probs", "rollout_corr/")
TIMING = ("timing", "perf/", "global_seqlen/")
DROPOUT = "+actor_rollout_ref.model.override_config.attention_dropout"
COLD_KEYS = {f"{ROLLOUT}.max_num_seqs", LORA_RANK, LORA_ALPHA}
SECRET = "sk-ant-that-verl-must-not-see"
"""API key in the environment of this Ray, as on a head that somebody started with it."""


@dataclasses.dataclass
class Lab:
    """A warm engine and what is needed to ask it for phases."""

    engine: Any
    settings: VerlSettings
    task: Any
    root: Path
    _count: int = 0

    def spec(self, n_steps: int = 3, adapter: str | None = None, seed: int = 1, **changes: Any) -> PhaseSpec:
        """A phase below `root`; `changes` are hyper-parameters with __ for dots."""
        self._count += 1
        node = self._count
        asked = {**BASE, **{k.replace("__", "."): v for k, v in changes.items()}}
        return PhaseSpec(
            search="lab",
            node=node,
            kind="root",
            parent=None,
            resume_from=None,
            adapter=adapter,
            base_step=0,
            n_steps=n_steps,
            hyperparameters=asked,
            seed=seed,
            save_freq=n_steps,
            test_freq=n_steps,
            checkpoint_dir=str(self.root / "checkpoints" / f"{node:04d}"),
        )

    def run(
        self, spec: PhaseSpec, each: Callable[[MetricPoint], None] = lambda _: None, **kwargs: Any
    ) -> tuple[Any, list[MetricPoint]]:
        """(outcome, points) of one phase."""
        points: list[MetricPoint] = []

        def on_metric(point: MetricPoint) -> None:
            points.append(point)
            each(point)

        return self.engine.run(spec, on_metric, **kwargs), points


def tiny_settings(task: PreparedTask, model: Path, group: Any, root: Path, **changes: Any) -> VerlSettings:
    """Of an engine that trains a tiny model on the CPU, in one bundle."""
    given: dict[str, Any] = {
        "platform": "cpu",
        "model_path": str(model),
        "lora_rank": 8,
        "lora_alpha": 16,
        "train_parquet": task.train,
        "val_parquet": task.val,
        "reward_source": f"pkg://{task.reward_module}" if task.reward_module else task.reward_path,
        "reward_name": task.reward_name,
        "max_prompt_length": 32,
        "max_response_length": 16,
        "eval_max_response_length": 4,
        "search": "lab",
        "slot": 0,
        "placement_groups": (group.id.hex(),),
        "log_path": str(root / "engine.log"),
    }
    return VerlSettings(**(given | changes))


@pytest.fixture(scope="session")
def ray_group() -> Iterator[Any]:
    """A private local Ray with one reserved bundle, and room for two more."""
    import ray

    os.environ["ANTHROPIC_API_KEY"] = SECRET
    ray.init(
        address="local",
        num_cpus=32,
        num_gpus=3,
        include_dashboard=False,
        object_store_memory=300_000_000,
        log_to_driver=False,
    )
    group = ray.util.placement_group([{"CPU": 3, "GPU": 1}], strategy="STRICT_PACK")
    ray.get(group.ready(), timeout=PATIENCE_S)
    yield group
    ray.shutdown()
    del os.environ["ANTHROPIC_API_KEY"]


@pytest.fixture(scope="session")
def lab(ray_group: Any, taught_task: PreparedTask, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The warm engine, shared; its model folder is a copy that a test may hide."""
    from llmzero_ray.engines.verl.engine import VerlEngine

    root = tmp_path_factory.mktemp("verl")
    model = root / "model"
    shutil.copytree(str(taught_task.model_path), model)
    overrides = {DROPOUT: 0.1}  # random states matter
    settings = tiny_settings(taught_task, model, ray_group, root, canary_every_push=True, overrides=overrides)
    found = Lab(engine=None, settings=settings, task=taught_task, root=root)
    found.engine = VerlEngine(settings, taught_task.n_train, found.spec(), lambda key: key not in COLD_KEYS)
    yield found
    found.engine.close()


@pytest.fixture(scope="session")
def first(lab: Lab) -> tuple[PhaseResult, list[MetricPoint]]:
    """The first phase: from the base model, 4 steps, validated at 2 and 4."""
    spec = dataclasses.replace(lab.spec(n_steps=4), test_freq=2, save_freq=4)
    outcome, points = lab.run(spec)
    assert isinstance(outcome, PhaseResult), outcome
    return outcome, points


def assert_same_metrics(one: list[MetricPoint], other: list[MetricPoint]) -> None:
    """Bit-equal in everything but time and memory.

    On some processors vLLM's log-probabilities differ in their last bits: within 1e-5, relative or absolute,
    where they are compared with the actor's.
    """
    assert [p.step for p in one] == [p.step for p in other]
    for a, b in zip(one, other, strict=True):
        assert a.metrics.keys() == b.metrics.keys()
        different = {
            k: (v, b.metrics[k])
            for k, v in a.metrics.items()
            if not k.startswith(TIMING)
            and "perf/" not in k
            and v != b.metrics[k]
            and not (math.isnan(v) and math.isnan(b.metrics[k]))
            and not (k.startswith(OF_VLLM) and math.isclose(v, b.metrics[k], rel_tol=1e-5, abs_tol=1e-5))
        }
        assert not different, f"step {a.step}: {different}"


def processes_of(actor: str) -> list[int]:
    """Processes of a Ray actor class below this one. A child of such a process has its name until it runs a
    program of its own."""
    parents = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(f"ray::{actor}"):
                parents[process.pid] = process.ppid()
    return [process for process, parent in parents.items() if parent not in parents]


def below_this_process() -> set[int]:
    """Processes that this one started, and all that those started."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def socket_files(pid: int) -> list[str]:
    """Files of the Unix sockets that a process has bound, but for Ray's own and those of the slot's private
    directory, which goes away with its owner."""
    bound = [c.laddr for c in psutil.Process(pid).net_connections(kind="unix") if c.laddr]
    return [path for path in bound if path.startswith("/") and not re.search(r"/(session_|slot-)", path)]


def abandoned_segments() -> set[str]:
    """Shared memory by the name that VeRL gives it which no process uses: other clusters' may be at work."""
    found = {str(path) for path in Path("/dev/shm").glob("verl_weights_*")}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            found = {path for path in found if path not in maps}
    return {path for path in found if Path(path).exists()}


def live_logits(lab: Lab, token_ids: tuple[int, ...]) -> list[list[float]]:
    """Logits of the policy that the FSDP worker holds, one row per position of a sequence."""
    import ray

    def logits(worker: Any) -> list[list[float]]:
        import torch

        from llmzero_ray.engines.verl.adapters import reshard

        (role,) = worker.worker_dict.values()
        module = role.actor.engine.module
        module.eval()
        with torch.no_grad():
            ids = torch.tensor([token_ids], device=next(module.parameters()).device)
            out = module(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
        reshard(module)
        rows: list[list[float]] = out.float().cpu().tolist()
        return rows

    slot = lab.settings.slot_namespace
    actors = [
        entry
        for entry in ray.util.list_named_actors(all_namespaces=True)
        if entry["namespace"].startswith(slot) and "WorkerDict" in entry["name"]
    ]
    (worker,) = [ray.get_actor(entry["name"], namespace=entry["namespace"]) for entry in actors]
    found: list[list[float]] = ray.get(worker.__ray_call__.remote(logits))
    return found
