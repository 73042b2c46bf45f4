"""Costs of a search: seconds and time limits, GPU and machine memory, sizes on disk.

They are estimated from the configuration, the task if it is prepared, and the GPU. Not here: the formulas
(the other modules of this package), numbers for `auto` (server_sizes.py), what a search learns about its
memory (learned.py), measured seconds and tables (cli/).
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate.card import card_gib, is_for_gpus
from llmzero_ray.estimate.fit import Assessment, assess
from llmzero_ray.estimate.machine import largest_stage
from llmzero_ray.estimate.model_shape import ModelShape, adapter_bytes, read_shape
from llmzero_ray.estimate.search_time import Cases, Course, Dollars, MeasuredTimes, Sizes, case_of, disk_bytes
from llmzero_ray.estimate.setup import setup_of
from llmzero_ray.estimate.sizes import StageMemory
from llmzero_ray.estimate.stage_times import LEAST_S, StageTimes, TimeLimits, limits_of, stage_times
from llmzero_ray.hyperparameters.root import root_hyperparameters
from llmzero_ray.hyperparameters.verl_keys import ROLLOUT_N, TRAIN_BATCH
from llmzero_ray.records import Hyperparameters
from llmzero_ray.utils.files import small_text

_UNKNOWN_CARD_GIB = 39.4
_OTHER_TEMPERATURE = 0.9


class TaskSizes(Protocol):
    """Attributes of a prepared task that an estimate needs."""

    @property
    def n_train(self) -> int:
        """Rows of the training split."""

    @property
    def n_val(self) -> int:
        """Rows of the validation split."""

    @property
    def n_test(self) -> int:
        """Rows of the test split."""

    @property
    def model_path(self) -> str | None:
        """Directory of the task's own model. None if it has none."""


class Estimate:
    """Estimated costs of a search.

    `task` is None if the task is not prepared; the sizes in the configuration are then used. `model_path` is
    the directory of the task's own model, if `task` is not given. `gpu_gib` is the memory of one GPU that
    processes can use. It defaults to `slots.gpu_memory_gib`, or else to what this machine's driver reports.
    """

    def __init__(
        self,
        config: SearchConfig,
        task: TaskSizes | None = None,
        *,
        model_path: str | None = None,
        gpu_gib: float | None = None,
    ) -> None:
        self.config, self.task = config, task
        self.model_path = config.model.path or (task.model_path if task is not None else model_path)
        """Directory of the base model. None if neither the configuration nor the task names one."""
        self._rows = config.task if task is None else task
        self._gpu_gib = gpu_gib

    def of(self, config: SearchConfig) -> Estimate:
        """Estimate for another configuration of the same search."""
        return Estimate(config, self.task, model_path=self.model_path, gpu_gib=self._gpu_gib)

    @cached_property
    def on_gpus(self) -> bool:
        """Whether the search trains with VeRL on GPUs, as far as this machine can tell."""
        return is_for_gpus(self.config)

    @cached_property
    def gpu_gib(self) -> float | None:
        """Memory of one GPU in GiB. None if not known."""
        given = self._gpu_gib or self.config.slots.gpu_memory_gib
        return card_gib() if given is None and self.on_gpus else given

    @cached_property
    def root(self) -> dict[str, Any]:
        """The root's complete hyper-parameters.

        Raises:
            ConfigError: the root cannot be trained.
        """
        return root_hyperparameters(self.config, None if self.task is None else self.task.n_train)

    @cached_property
    def sizes(self) -> Sizes:
        """Rows of the data, and responses in one step of the root."""
        rollouts = int(str(self.root[TRAIN_BATCH])) * int(str(self.root[ROLLOUT_N]))
        return Sizes(n_val=self._rows.n_val, n_test=self._rows.n_test, rollouts=rollouts)

    # --- time -----------------------------------------------------------------------------------------------

    def stage_times(
        self, hyperparameters: Hyperparameters, *, rows: int, response_share: float = 1.0
    ) -> StageTimes | None:
        """Seconds of a phase's stages on the search's GPUs. None if the model's shape is not known.

        Answers of rollouts have on average `response_share` of the cap. `rows` are validated, with all
        answers at their cap.
        """
        shape = None if self.model_path is None else _known_shape(self.model_path)
        gpu_gib = self.config.slots.gpu_memory_gib or _UNKNOWN_CARD_GIB
        try:
            setup = setup_of(self.config, hyperparameters, gpu_gib=gpu_gib)
        except ConfigError:
            return None
        if shape is None:
            return None
        return stage_times(
            shape,
            setup,
            hyperparameters,
            rows=rows,
            eval_response=self.config.eval.max_response_length,
            response=round(setup.response * response_share),
        )

    def root_times(self) -> tuple[StageTimes, StageTimes] | None:
        """Seconds of the root's stages with answers of half the cap, and with answers at the cap. None on the
        CPU, or if the model's shape is not known."""
        if not self.on_gpus:
            return None
        rows = self._rows.n_val
        usual, longest = (
            self.stage_times(self.root, rows=rows, response_share=share) for share in (0.5, 1.0)
        )
        return None if usual is None or longest is None else (usual, longest)

    def time_limits(self, hyperparameters: Hyperparameters, *, rows: int | None = None) -> TimeLimits:
        """Time limits of a phase with these complete hyper-parameters.

        They are `engine.hang_min_s` and `engine.stop_deadline_s` if given, otherwise `limits_of` its stages.
        `rows` is the maximum number of rows validated or tested at once, by default the larger of the task's
        validation and test splits.
        """
        engine = self.config.engine
        if engine.hang_min_s is not None and engine.stop_deadline_s is not None:
            return TimeLimits(hang_s=engine.hang_min_s, stop_s=engine.stop_deadline_s)
        if engine.backend != "verl" or engine.platform == "cpu":
            found = TimeLimits(hang_s=LEAST_S, stop_s=LEAST_S)
        else:
            rows = max(self._rows.n_val, self._rows.n_test) if rows is None else rows
            found = limits_of(self.stage_times(hyperparameters, rows=rows))
        return TimeLimits(
            hang_s=found.hang_s if engine.hang_min_s is None else engine.hang_min_s,
            stop_s=found.stop_s if engine.stop_deadline_s is None else engine.stop_deadline_s,
        )

    def cases(self, measured: MeasuredTimes, dollars: Dollars | None = None) -> Cases:
        """Estimates for the whole search in the low, the planned and the high case."""
        low, planned, high = (
            case_of(
                course,
                self.config,
                self.sizes,
                measured,
                dollars=dollars,
                adapter_bytes=self.adapter_bytes,
                on_gpus=self.on_gpus,
            )
            for course in ("low", "planned", "high")
        )
        return low, planned, high

    # --- memory ---------------------------------------------------------------------------------------------

    @cached_property
    def gpu_memory(self) -> tuple[Assessment, Assessment]:
        """Memory of the root on a GPU: as it is, and in its most demanding form, with the longest responses
        that a phase may have and a temperature other than 1 (for which VeRL keeps the logits twice).

        Raises:
            ConfigError: the model cannot be estimated, the root cannot be trained, or the memory of a GPU is
                not known.
        """
        if self.gpu_gib is None:
            raise ConfigError("no memory estimate: set slots.gpu_memory_gib (39.4 for an A100 of 40 GB)")
        if self.model_path is None:
            raise ConfigError("no memory estimate: model.path is null and the task brings no model. Set it.")
        root = self.root
        shape, setup = read_shape(self.model_path), setup_of(self.config, root, gpu_gib=self.gpu_gib)
        response = max(setup.response, self.config.engine.max_response_length)
        temperature = setup.temperature if setup.temperature != 1.0 else _OTHER_TEMPERATURE
        demanding = replace(setup, response=response, temperature=temperature)
        return assess(shape, setup), assess(shape, demanding)

    def machine(self, *, n_slots: int = 1) -> StageMemory:
        """Host memory that `n_slots` slots take on a machine, at the stage at which they take most.

        Raises:
            ConfigError: as `gpu_memory`.
        """
        root, _ = self.gpu_memory
        return largest_stage(self.config, root.shape, root.setup, n_slots=n_slots)

    def memory_facts(self) -> dict[str, Any]:
        """Facts for memory estimates that a search on GPUs records at its start: the GPU's memory and the
        model's shape.

        Empty if phases cannot be estimated: on CPUs, with another engine, without `slots.gpu_memory_gib`, or
        for models of unknown shape.
        """
        gpu_gib = self.config.slots.gpu_memory_gib
        if gpu_gib is None or self.model_path is None or not self.on_gpus:
            return {}
        shape = _known_shape(self.model_path)
        return {} if shape is None else {"gpu_gib": gpu_gib, "shape": asdict(shape)}

    def model_facts(self) -> dict[str, Any]:
        """Number of parameters of the model at `model.path`, for the agents. Empty if its shape is not known,
        or for the task's own model, whose number the task has."""
        shape = None if self.config.model.path is None else _known_shape(self.config.model.path)
        return {} if shape is None else {"n_parameters": shape.parameters}

    # --- sizes ----------------------------------------------------------------------------------------------

    @cached_property
    def adapter_bytes(self) -> int | None:
        """Bytes of one adapter. None without a local `config.json` of a dense model."""
        try:
            model = json.loads(small_text(Path(self.model_path or "") / "config.json"))
        except (OSError, ValueError):
            return None
        of = self.config.model
        return adapter_bytes(model, rank=of.lora_rank, targets=of.target_modules)

    def disk_bytes(self, course: Course) -> int | None:
        """Bytes of the adapters of all phases if none is deleted, and of one full checkpoint per slot. None
        if the size of an adapter is not known."""
        return None if self.adapter_bytes is None else disk_bytes(self.config, self.adapter_bytes, course)


@cache
def _known_shape(model_path: str) -> ModelShape | None:
    try:
        return read_shape(model_path)
    except ConfigError:
        return None
