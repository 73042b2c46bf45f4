"""Memory estimate of one search, corrected by its phases.

A phase that trained had headroom at every stage, whatever the estimate says. One that ran out of memory
needed more than there was at some stage. Each of them corrects the limits of these stages; the latest
observation wins. All of this follows from the journal's events. Not here: the estimate itself (stages.py),
the check of one phase (fit.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate.fit import Assessment, Relief, assess, relief
from llmzero_ray.estimate.model_shape import ModelShape
from llmzero_ray.estimate.setup import Setup, setup_of
from llmzero_ray.estimate.stages import LOG_PROBS, ROLLOUT, SAVING, SERVER_START, UPDATE, WEIGHT_SYNC, stages
from llmzero_ray.hyperparameters import diff, format_value, short
from llmzero_ray.records import Hyperparameters, PhaseFailure
from llmzero_ray.utils.text import GIB

_STEP = 0.04
"""Share of the GPU's memory by which a stage that ran out of it is assumed to have exceeded its limit."""
_SPARE = 0.12
"""Share of the GPU's memory that a fix leaves free for each earlier fix that was not enough."""
_FELT = 0.05 * GIB
_SHOWN = 4
_PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"free memory on device|decrease gpu memory util", (ROLLOUT,)),
    (r"kv cache|cache blocks|max(imum)? (model|seq)\w* len", (SERVER_START,)),
    (r"update_weights|collect_lora|summon|per_tensor_param", (WEIGHT_SYNC,)),
    # An update also computes log-probs and entropies, so its own names come first.
    (r"update_actor|update_policy|train_batch|train_mini_batch|backward", (UPDATE,)),
    (r"log_prob|infer_batch|entropy", (LOG_PROBS,)),
    (r"cumem|wake_up|vllm", (ROLLOUT, SAVING)),
)
"""(pattern in the log of an out-of-memory error, stages that it points to). If none matches, all stages of
the trainer count."""
_TRAINERS = (LOG_PROBS, UPDATE, WEIGHT_SYNC)
_ON_HOST = re.compile(r"Cannot allocate memory|^MemoryError|not enough memory", re.IGNORECASE)


class SearchMemory:
    """Memory estimates for the phases of one search. `facts` is `Estimate.memory_facts`, not empty."""

    def __init__(self, config: SearchConfig, facts: Mapping[str, Any]) -> None:
        self._config, self._gpu_gib = config, float(facts["gpu_gib"])
        self._shape = ModelShape(**facts["shape"])
        self.learned: dict[str, float] = {}
        """Stage -> bytes that it takes beyond its estimate."""

    def assess(self, hyperparameters: Hyperparameters) -> Assessment | None:
        """Estimate for a phase with these hyper-parameters, corrected by what the search has learned.

        None if a value is invalid; VeRL will report what is wrong with it.
        """
        setup = self._setup(hyperparameters)
        return None if setup is None else assess(self._shape, setup, self.learned)

    def problem(
        self,
        hyperparameters: Hyperparameters,
        *,
        before: Hyperparameters | None = None,
        repairs: Hyperparameters | None = None,
    ) -> str:
        """Reason why a phase must not begin, with remedies, for the agent that proposed it. Empty if it may
        begin.

        `before` is the configuration that the agent changed. `repairs` is the configuration of the failed
        phase that this one fixes: if it needs less than that, it is accepted, because the estimate may be too
        high.
        """
        found = self.assess(hyperparameters)
        if found is None or found.status != "does not fit":
            return ""
        if repairs is not None and not found.refused and found.excess < self._excess(repairs):
            return ""
        larger = [
            short(key)
            for key, (_, old) in diff(hyperparameters, before or hyperparameters).items()
            if found.excess - self._excess({**hyperparameters, key: old}) > _FELT
        ]
        why = f" Made larger by the change of {', '.join(larger)}." if larger else ""
        helpful = [f"{remedy.change} ({remedy.status})" for remedy in found.remedies[:_SHOWN]]
        together = self.relief(hyperparameters)
        if together.status != "does not fit" and len(together.changes) > 1:
            listed = (f"{short(key)}={format_value(key, value)}" for key, value in together.values.items())
            helpful.append(f"together: {', '.join(listed)} ({together.status})")
        remedy = f" What would help: {'; '.join(helpful)}." if helpful else ""
        return f"GPU memory, estimated: {found.reason}.{why}{remedy}"

    def _excess(self, hyperparameters: Hyperparameters) -> float:
        found = self.assess(hyperparameters)
        return 0.0 if found is None else found.excess

    def relief(self, hyperparameters: Hyperparameters, *, n_repairs: int = 0) -> Relief:
        """Changes with which the phase fits, with more headroom for each of `n_repairs` fixes that were not
        enough."""
        setup = self._setup(hyperparameters)
        if setup is None:
            return Relief(changes=(), values={}, status="does not fit")
        spare = n_repairs * _SPARE * self._gpu_gib * GIB
        return relief(self._shape, setup, self.learned, spare=spare)

    # --- learning -------------------------------------------------------------------------------------------

    def trained(self, hyperparameters: Hyperparameters) -> None:
        """Record that a phase with these hyper-parameters has trained, so every stage had headroom."""
        for name, headroom in self._headroom(hyperparameters):
            if headroom < self.learned.get(name, 0.0):
                self.learned[name] = headroom

    def ran_out(self, hyperparameters: Hyperparameters, failure: PhaseFailure) -> None:
        """Record that a phase with these hyper-parameters ran out of GPU memory. Failures for lack of host
        memory are ignored."""
        places = () if _ON_HOST.search(failure.cause) else _places(failure)
        for name, headroom in self._headroom(hyperparameters):
            if name in places:
                beyond = headroom + _STEP * self._gpu_gib * GIB
                self.learned[name] = max(self.learned.get(name, 0.0), beyond)

    def _headroom(self, hyperparameters: Hyperparameters) -> list[tuple[str, float]]:
        """(stage, bytes between its likely size and its limit) for each stage, without what was learned."""
        setup = self._setup(hyperparameters)
        found = () if setup is None else stages(self._shape, setup)
        return [(stage.name, stage.limit - stage.total.likely) for stage in found]

    def _setup(self, hyperparameters: Hyperparameters) -> Setup | None:
        try:
            return setup_of(self._config, hyperparameters, gpu_gib=self._gpu_gib)
        except ConfigError:
            return None


def _places(failure: PhaseFailure) -> tuple[str, ...]:
    """Stages at which a phase may have run out of memory, from its log."""
    text = f"{failure.cause}\n{failure.log_tail}"
    return next((names for pattern, names in _PLACES if re.search(pattern, text, re.IGNORECASE)), _TRAINERS)
