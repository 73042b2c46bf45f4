"""`verl_trainable`: phases on this project's slots, with their warm engines, as a trainable of Ray Tune.

A trial leases a slot for its phase, and waits if all slots are leased. The Tuner's process reserves the slots
when the first trial is created, and owns them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import uuid
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import ray
from ray import tune
from ray.tune import PlacementGroupFactory
from ray.tune.result import DONE, SHOULD_CHECKPOINT

from llmzero_ray.config import SearchConfig, change_settings, load_config, resolve_config
from llmzero_ray.config.strategy_file import Strategy, TuneStrategy, check_rank, other_model
from llmzero_ray.coordinator import phase_seed
from llmzero_ray.errors import EngineError
from llmzero_ray.estimate import Estimate, with_server_sizes
from llmzero_ray.hyperparameters import VERL_SPACE, Space
from llmzero_ray.hyperparameters.root import limits, root_hyperparameters
from llmzero_ray.hyperparameters.verl_space import space_with
from llmzero_ray.launch import actors
from llmzero_ray.launch.hub_model import with_model_here
from llmzero_ray.launch.preflight import check_memory, check_platform, check_verl_keys
from llmzero_ray.prepared import load_task
from llmzero_ray.records import (
    Hyperparameters,
    MetricPoint,
    PhaseFailure,
    PhaseResult,
    PhaseSpec,
    ResumeFrom,
)
from llmzero_ray.storage import SearchPaths
from llmzero_ray.storage.manifests import read_manifest
from llmzero_ray.tune.phase_start import CONFIG_KEY, LINEAGE_KEY, PhaseStart
from llmzero_ray.tune.slot_phase import SlotPhase
from llmzero_ray.tune.state import failed_text

log = logging.getLogger(__name__)
SCORE = "val_score"
"""Name of the validation score in results."""
_ADAPTER, _FACTS = "adapter", "phase.json"
"""Files in a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class SlotUse:
    """Values shared by all trials of a trainable."""

    config: SearchConfig
    """Configuration. Its `name` is also the name of the slots."""
    place: str
    """Directory that receives one directory per trial."""
    n_train: int
    root: Hyperparameters
    space: Space


class VerlTrainable(tune.Trainable):
    """A phase on a slot. `verl_trainable` creates its subclass.

    Each result is a training step: VeRL's metrics, `global_step`, and `val_score` if the step validated. The
    last result also has the phase's outcome (`stop_reason`, `warm`, `cold_reason`, `setup_s`, `gpu_hours`).
    Steps with an adapter are checkpoints.
    """

    slot_use: ClassVar[SlotUse]
    root: ClassVar[Hyperparameters]
    """The complete configuration of search.yaml, for `tree_search(root=...)`."""
    space: ClassVar[Space]
    """VeRL's space, with the keys of `agents.allow`."""

    # --- in the Tuner's process -----------------------------------------------------------------------------

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Almost no resources: when the first trial is created, this method reserves the slots' hardware
        outside Tune.

        Raises:
            CapacityError: the cluster does not have it.
        """
        _hold_slots(cls.slot_use.config)
        return PlacementGroupFactory([{"CPU": 0.001}])

    @classmethod
    def release_slots(cls) -> None:
        """End the engines and release the hardware. The scheduler of `tree_search` calls this at the end of
        the experiment. With another scheduler call it yourself; otherwise the hardware is released when the
        process ends."""
        _release_slots(cls.slot_use.config.name)

    @classmethod
    def check_strategy(cls, strategy: Strategy | TuneStrategy) -> None:
        """Check that a strategy can be trained again on these slots. A different base model is logged.

        Raises:
            ConfigError: it was found with another LoRA rank.
        """
        if isinstance(strategy, Strategy):
            check_rank(strategy.lora_rank, cls.slot_use.config.model.lora_rank)
            if (note := other_model(strategy.base_model, cls.slot_use.config.model.path)) is not None:
                log.warning("%s", note)

    # --- in the trial's actor -------------------------------------------------------------------------------

    def setup(self, config: dict[str, Any]) -> None:
        """Set the trial's configuration. The phase begins with the first `step`."""
        self._begin_trial(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Reuse this actor for another trial."""
        self.cleanup()
        self._begin_trial(new_config)
        return True

    def _begin_trial(self, config: dict[str, Any]) -> None:
        self._given = config
        self._phase: SlotPhase | None = None
        self._from: tuple[Path, int] | None = None
        self._saved: tuple[Path, int] | None = None
        self._last: MetricPoint | None = None
        self._start_score: float | None = None

    def step(self) -> dict[str, Any]:
        """Train the next step of the phase.

        Raises:
            EngineError: the phase failed; the message has its class, cause and log.
        """
        if self._phase is None:
            self._phase = self._begin_phase()
        phase = self._phase
        point = phase.next_point()
        if point is not None and point.step == 0:
            self._start_score = point.val_score
            point = phase.next_point()
        if point is None:  # it ended before its length
            return {DONE: True, **self._ended(phase)}
        self._last = point
        result = {**point.metrics, "global_step": point.global_step}
        if point.val_score is not None:
            result[SCORE] = point.val_score
        if point.step == 1 and self._start_score is not None:
            result["start_score"] = self._start_score
        if point.step == phase.spec.n_steps:
            # A scheduler that set the phase's length ends the trial itself, or continues with the next phase.
            start = PhaseStart.of(self._given)
            result |= {DONE: start is None or start.n_steps is None, **self._ended(phase)}
        adapter = self._adapter()
        if adapter is not None:
            self._saved = (adapter, point.global_step)
        result[SHOULD_CHECKPOINT] = adapter is not None
        return result

    def _ended(self, phase: SlotPhase) -> dict[str, Any]:
        """Outcome of the phase, for its last result.

        Raises:
            EngineError: it failed.
        """
        outcome = phase.outcome()
        if isinstance(outcome, PhaseFailure):
            raise EngineError(f"{outcome.log_tail}\n{failed_text(outcome)}".lstrip())
        assert isinstance(outcome, PhaseResult)
        names = ("stop_reason", "warm", "cold_reason", "setup_s", "gpu_hours")
        return {name: getattr(outcome, name) for name in names}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the trial's newest adapter. It belongs to the newest step if Tune saves because of the result
        (`should_checkpoint`). Otherwise, as when Tune stops a trial, it may be older, or there may be
        none."""
        adapter, global_step = (None, 0) if self._saved is None else self._saved
        if adapter is not None:
            shutil.copytree(adapter, Path(checkpoint_dir, _ADAPTER))
        Path(checkpoint_dir, _FACTS).write_text(json.dumps({"global_step": global_step}))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Start from a checkpoint's adapter, after copying it to where the engine's machines can read it."""
        facts = json.loads(Path(checkpoint, _FACTS).read_text())
        if Path(checkpoint, _ADAPTER).is_dir():
            copy = self._paths.root / "start"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(Path(checkpoint, _ADAPTER), copy)
            self._from = self._saved = (copy, int(facts["global_step"]))

    def cleanup(self) -> None:
        """End a running phase, and delete adapters that were not kept as checkpoints."""
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.end("verdict: ended by Ray Tune")
            shutil.rmtree(phase.spec.checkpoint_dir, ignore_errors=True)

    # --- parts ----------------------------------------------------------------------------------------------

    @property
    def _paths(self) -> SearchPaths:
        return SearchPaths(root=Path(self.slot_use.place, str(self.trial_id)))

    def _adapter(self) -> Path | None:
        """Directory of the newest step's adapter, or None if it has none."""
        if self._phase is None or self._last is None:
            return None
        path = Path(self._phase.spec.adapter_dir(self._last.step))
        return None if read_manifest(path) is None else path

    def _begin_phase(self) -> SlotPhase:
        use = self.slot_use
        config = use.config.model_copy(update={"name": str(self.trial_id), "storage": use.place})
        return SlotPhase(use.config.name, config, self._spec(config))

    def _spec(self, config: SearchConfig) -> PhaseSpec:
        """Spec of what is left of the trial's phase: all of it, unless Tune restored the trial."""
        given = {key: value for key, value in self._given.items() if key not in (CONFIG_KEY, LINEAGE_KEY)}
        space, n_gpus = self.slot_use.space, config.slots.n_gpus
        full = space.complete(
            self.slot_use.root,
            space.normalize(given),
            n_gpus=n_gpus,
            limits=limits(config, self.slot_use.n_train),
        )
        start = PhaseStart.of(self._given)
        length = (None if start is None else start.n_steps) or config.phase.n_steps
        end_step = length + (0 if start is None else start.base_step)
        adapter, base_step = (None, 0) if self._from is None else self._from
        node = 0 if start is None else start.node
        source = None if start is None else start.resume_from
        if adapter is not None and (source is None or self.iteration):
            source = ResumeFrom(node=node, step=max(self.iteration, 1))
        n_steps = max(1, end_step - base_step)
        attempt = sum(1 for _ in self._paths.node(node).glob("result-*.json"))
        parts = self._paths.parts(node)
        attempt = max([attempt, *(int(part.stem[:3]) + 1 for part in parts.glob("*.jsonl"))])
        return PhaseSpec(
            search=config.name,
            node=node,
            kind=("root" if adapter is None else "evolve") if start is None else start.kind,
            parent=None if source is None else source.node,
            resume_from=source,
            adapter=None if adapter is None else str(adapter),
            base_step=base_step,
            n_steps=n_steps,
            hyperparameters=full,
            seed=phase_seed(config.seed, node),
            save_freq=config.phase.save_freq,
            test_freq=min(config.phase.test_freq, n_steps),
            checkpoint_dir=str(self._paths.checkpoints(node)),
            attempt=attempt,
            max_wall_s=None if config.phase.max_hours is None else config.phase.max_hours * 3600,
        )


def verl_trainable(config: str | Path | Mapping[str, Any], **settings: Any) -> type[VerlTrainable]:
    """A trainable whose trials are phases on the slots of a search.yaml, with warm engines between them.

    Only `storage`, `task`, `model`, `engine`, `slots`, `phase`, `eval`, `seed` and `root` of the file are
    used. Tune decides what to search, and for how long. `settings` override the file by dotted keys. The
    process joins the cluster, or starts its own Ray head, as `llmzero search` does.

        train = verl_trainable("search.yaml")
        search_alg, scheduler = tree_search(
            metric="val_score", space=train.space, root=train.root, phase_steps=20
        )
        tune.Tuner(train, tune_config=tune.TuneConfig(
            search_alg=search_alg, scheduler=scheduler, num_samples=-1, max_concurrent_trials=2,
        )).fit()

    Raises:
        ConfigError: the configuration cannot be trained.
        TaskError: the task is not prepared.
        CapacityError: a cluster is named and does not answer, or Ray does not start.
    """
    checked = _config(config, settings)
    task = load_task(checked.task.dir)
    checked = with_server_sizes(Estimate(checked, task), log.info)
    check_verl_keys(checked, task)
    check_memory(checked, task)
    check_platform(checked)
    space = space_with(checked.agents.allow)
    root = root_hyperparameters(checked, task.n_train, space)
    place = str(Path(checked.storage, checked.name))
    slots = f"{checked.name[:40]}-tune-{uuid.uuid4().hex[:8]}"
    _PRIVATE[slots] = actors.head.connect(checked)
    use = SlotUse(
        config=checked.model_copy(update={"name": slots, "storage": place}),
        place=place,
        n_train=task.n_train,
        root=root,
        space=space,
    )
    return type("VerlTrainable", (VerlTrainable,), {"slot_use": use, "root": root, "space": space})


def _config(given: str | Path | Mapping[str, Any], settings: Mapping[str, Any]) -> SearchConfig:
    known = dict(given) if isinstance(given, Mapping) else load_config(given).to_json()
    change_settings(known, settings, VERL_SPACE.names)
    found = resolve_config(known)
    return with_model_here(found, None, log.info)


# --- the slots of this process ------------------------------------------------------------------------------

_PRIVATE: dict[str, bool] = {}
"""Name of slots -> whether the cluster ends with this process."""
_HELD: dict[str, actors.runner_pool.RunnerPool] = {}
"""Name of slots -> the pool through which this process holds them."""


def _hold_slots(config: SearchConfig) -> None:
    """Reserve the slots, unless this process already holds them.

    Raises:
        CapacityError: the cluster does not have them; nothing stays reserved.
    """
    name = config.name
    if name not in _HELD:
        pool = actors.runner_pool.RunnerPool(
            name, config.storage, lambda: config, fixed_capacity=_PRIVATE.get(name, False), holder=True
        )
        _result_of(pool.reserve())
        _HELD[name] = pool


def _release_slots(name: str) -> None:
    if pool := _HELD.pop(name, None):
        with contextlib.suppress(ray.exceptions.RayError):
            _result_of(pool.close_all(at_once=False))


def _result_of(call: Coroutine[Any, Any, Any]) -> Any:
    """Result of a call, run on its own thread because a notebook's thread already has an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, call).result()
