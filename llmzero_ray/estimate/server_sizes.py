"""Sizes of vLLM's servers for the setting `auto`: concurrent sequences, and the share of each GPU.

They are chosen once, before a search begins, from the default recipe and the memory estimate, and recorded in
the search's configuration. Not here: the estimate itself (estimate.py), its table (cli/gpu_memory.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError
from llmzero_ray.estimate.estimate import Estimate
from llmzero_ray.estimate.fit import Assessment, assess

_MOST_PERCENT, _LEAST_PERCENT, _STEP_PERCENT = 95, 20, 5
"""Largest, smallest and step of the GPU shares that are tried for the server."""
_MARGIN_PERCENT = 5
"""Margin below the largest share that fits, because the estimate was compared with few real GPUs."""
_GROWTH = 1.5
"""Rollouts per prompt in later phases as a multiple of the root's. Published strategies raise n from 8 to
12."""
_MOST_SEQUENCES = 256
"""Maximum concurrent sequences, which is vLLM's default. With more, a server's cache is full first."""


def largest_share(found: Sequence[Assessment], *, statuses: Sequence[str] = ("fits",)) -> float | None:
    """Largest share of a GPU for the server with which all of these phases have one of `statuses`. None if
    there is none."""
    for percent in range(_MOST_PERCENT, _LEAST_PERCENT - 1, -_STEP_PERCENT):
        if all(status in statuses for status in _statuses(found, percent / 100)):
            return percent / 100
    return None


def _statuses(found: Sequence[Assessment], share: float) -> list[str]:
    return [assess(one.shape, replace(one.setup, utilization=share)).status for one in found]


def with_server_sizes(estimate: Estimate, say: Callable[[str], None]) -> SearchConfig:
    """The configuration with numbers instead of `auto`: fixed ones on the CPU, estimated ones on GPUs. `say`
    is called with a sentence about each estimated number.

    Raises:
        ConfigError: the root cannot be trained.
    """
    config, on_gpus = estimate.config, estimate.on_gpus
    engine, reasons = config.engine, list[str]()
    if "auto" not in (engine.max_num_seqs, engine.gpu_memory_utilization):
        return config
    if engine.max_num_seqs == "auto":
        n, why = _sequences(estimate) if on_gpus else (engine.sequences_at_once, "")
        engine = engine.model_copy(update={"max_num_seqs": n})
        reasons += [f"engine.max_num_seqs auto: {n}, {why}"] if why else []
    config = config.model_copy(update={"engine": engine})
    if engine.gpu_memory_utilization == "auto":
        share, why = _share(estimate.of(config)) if on_gpus else (engine.server_share, "")
        engine = engine.model_copy(update={"gpu_memory_utilization": share})
        reasons += [f"engine.gpu_memory_utilization auto: {share:g}, {why}"] if why else []
    for reason in reasons:
        say(reason)
    return config.model_copy(update={"engine": engine})


def with_recorded_sizes(config: SearchConfig, known: SearchConfig | None) -> SearchConfig:
    """The configuration with the numbers with which the search (`known`) began instead of `auto`."""
    if known is None:
        return config
    names = ("max_num_seqs", "gpu_memory_utilization")
    kept = {name: getattr(known.engine, name) for name in names if getattr(config.engine, name) == "auto"}
    return config.model_copy(update={"engine": config.engine.model_copy(update=kept)}) if kept else config


def _sequences(estimate: Estimate) -> tuple[int, str]:
    config, n = estimate.config, estimate.sizes.rollouts
    servers = max(1, config.slots.n_gpus // config.engine.tensor_model_parallel_size)
    of_step, of_validation = math.ceil(n / servers), math.ceil(estimate.sizes.n_val / servers)
    held = max(math.ceil(n * _GROWTH / servers), of_validation)
    chosen = min(_MOST_SEQUENCES, _captured(held))
    most = " (the most that is chosen)" if held > _MOST_SEQUENCES else ""
    return chosen, (
        f"as one server gets {of_step} answers of a step, {_GROWTH:g} times as many where n grows, and "
        f"{of_validation} of a validation{most}"
    )


def _captured(n: int) -> int:
    """`n` rounded up to a batch size for which vLLM captures a CUDA graph: 1, 2, 4, or a multiple of 8."""
    return next((size for size in (1, 2, 4) if n <= size), 8 * math.ceil(n / 8))


def _share(estimate: Estimate) -> tuple[float, str]:
    fixed, gpu_gib = estimate.config.engine.server_share, estimate.gpu_gib
    if gpu_gib is None:
        return fixed, "as nothing says how much memory the GPUs have: set slots.gpu_memory_gib"
    try:
        found = estimate.gpu_memory
    except ConfigError as error:
        return fixed, f"without an estimate ({error})"
    most = largest_share(found)
    if most is None:
        tight = largest_share(found, statuses=("fits", "tight"))
        if tight is None:
            return fixed, "as no share is estimated to fit"
        return tight, f"the largest with which the estimate for {gpu_gib:g} GiB is no worse than tight"
    less = round(most - _MARGIN_PERCENT / 100, 2)
    chosen = less if all(status == "fits" for status in _statuses(found, less)) else most
    margin = f", less {most - chosen:.2g}" if chosen < most else ""
    return chosen, f"the largest share of {gpu_gib:g} GiB with which every stage is estimated to fit{margin}"
