"""Sizes of vLLM's servers that `auto` stands for: sequences at once, and the share of each GPU.

Chosen once, before a search begins, from the root's recipe and the estimate of memory; the search's recorded
configuration holds the numbers. Not here: the estimate itself (memory/), its table (cli/gpu_memory.py).
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llmzero_ray.config import SearchConfig
from llmzero_ray.coordinator import root_hyperparameters
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters.table import ROLLOUT_N, TRAIN_BATCH
from llmzero_ray.memory import Assessment, assess, read_shape, setup_of
from llmzero_ray.prepared import PreparedTask
from llmzero_ray.utils.api_key import without_secrets

_SMI = ("nvidia-smi", "--query-gpu=memory.total,memory.reserved", "--format=csv,noheader,nounits")
_SMI_S = 20.0
_OTHER_TEMPERATURE = 0.9
_MOST_PERCENT, _LEAST_PERCENT, _STEP_PERCENT = 95, 20, 5
"""Shares of a GPU that are tried for the server."""
_MARGIN_PERCENT = 5
"""Left of the largest share that fits: the estimate has been compared with few real cards."""
_GROWTH = 1.5
"""Rollouts per prompt of later phases, as a multiple of the root's: found strategies grow n from 8 to 12."""
_MOST_SEQUENCES = 256
"""vLLM's own default; beyond it a server's cache ends before its sequences do."""


@dataclass(frozen=True, kw_only=True)
class ServerSizes:
    """What was chosen for `auto`."""

    config: SearchConfig
    """With numbers."""
    reasons: tuple[str, ...] = ()
    """One sentence for each number that was estimated."""


def is_for_gpus(config: SearchConfig) -> bool:
    """Whether the search trains with VeRL on GPUs, as far as this machine can tell."""
    if config.engine.backend != "verl" or config.engine.platform == "cpu":
        return False
    if config.engine.platform == "gpu" or config.slots.gpu_memory_gib is not None:
        return True
    from llmzero_ray.engines.verl.factory import resolve_platform

    return resolve_platform(config.engine.platform) == "gpu"


def card_gib() -> float | None:
    """Memory of this machine's smallest GPU that processes can use, GiB; None: the driver does not report
    it."""
    try:
        env = without_secrets(os.environ)
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=_SMI_S, check=True, env=env)
        listing = done.stdout
        rows = [[float(part) for part in line.split(",")] for line in listing.splitlines() if line.strip()]
        return min((total - reserved) / 1024 for total, reserved in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def assessed(
    config: SearchConfig, task: PreparedTask | None, *, gpu_gib: float
) -> tuple[Assessment, Assessment]:
    """Estimates of the root, and of the root at its most demanding: with the longest responses that a phase
    may have, and a temperature other than 1, for which VeRL keeps the logits twice.

    Raises:
        ConfigError: the model cannot be estimated, or the root cannot be trained.
    """
    path = config.model.path or (task.model_path if task is not None else None)
    if path is None:
        raise ConfigError("no memory estimate: model.path is null and the task brings no model. Set it.")
    root = root_hyperparameters(config, None if task is None else task.n_train)
    shape, setup = read_shape(path), setup_of(config, root, gpu_gib=gpu_gib)
    response = max(setup.response, config.engine.max_response_length)
    temperature = setup.temperature if setup.temperature != 1.0 else _OTHER_TEMPERATURE
    demanding = replace(setup, response=response, temperature=temperature)
    return assess(shape, setup), assess(shape, demanding)


def largest_share(
    found: Sequence[Assessment], *, above: float = 0.0, statuses: Sequence[str] = ("fits",)
) -> float | None:
    """The largest share of a GPU for the server with which all of these have one of `statuses`; None: no
    share of at least `above` and a step more."""
    least = max(_LEAST_PERCENT, math.floor(100 * above) + _STEP_PERCENT)
    for percent in range(_MOST_PERCENT, least - 1, -_STEP_PERCENT):
        if all(status in statuses for status in _statuses(found, percent / 100)):
            return percent / 100
    return None


def _statuses(found: Sequence[Assessment], share: float) -> list[str]:
    return [assess(one.shape, replace(one.setup, utilization=share)).status for one in found]


def choose_server_sizes(
    config: SearchConfig, task: PreparedTask | None, gpu_gib: float | None
) -> ServerSizes:
    """The configuration with numbers for `auto`: those of the CPU, or estimated for GPUs of `gpu_gib` GiB.

    Raises:
        ConfigError: the root cannot be trained.
    """
    engine, reasons = config.engine, []
    if "auto" not in (engine.max_num_seqs, engine.gpu_memory_utilization):
        return ServerSizes(config=config)
    on_gpus = is_for_gpus(config)
    if engine.max_num_seqs == "auto":
        n, why = _sequences(config, task) if on_gpus else (engine.sequences_at_once, "")
        engine = engine.model_copy(update={"max_num_seqs": n})
        reasons += [f"engine.max_num_seqs auto: {n}, {why}"] if why else []
    config = config.model_copy(update={"engine": engine})
    if engine.gpu_memory_utilization == "auto":
        share, why = _share(config, task, gpu_gib) if on_gpus else (engine.server_share, "")
        engine = engine.model_copy(update={"gpu_memory_utilization": share})
        reasons += [f"engine.gpu_memory_utilization auto: {share:g}, {why}"] if why else []
    return ServerSizes(config=config.model_copy(update={"engine": engine}), reasons=tuple(reasons))


def with_recorded_sizes(config: SearchConfig, known: SearchConfig | None) -> SearchConfig:
    """The configuration with the numbers that the search began with where it says `auto`."""
    if known is None:
        return config
    names = ("max_num_seqs", "gpu_memory_utilization")
    kept = {name: getattr(known.engine, name) for name in names if getattr(config.engine, name) == "auto"}
    return config.model_copy(update={"engine": config.engine.model_copy(update=kept)}) if kept else config


def with_server_sizes(
    config: SearchConfig, task: PreparedTask | None, say: Callable[[str], None]
) -> SearchConfig:
    """`choose_server_sizes` for the card that the configuration names, or else this machine's; `say` takes
    the reasons."""
    asks = "auto" in (config.engine.max_num_seqs, config.engine.gpu_memory_utilization)
    if not asks:
        return config
    gpu_gib = config.slots.gpu_memory_gib
    if gpu_gib is None and is_for_gpus(config):
        gpu_gib = card_gib()
    found = choose_server_sizes(config, task, gpu_gib)
    for reason in found.reasons:
        say(reason)
    return found.config


def _sequences(config: SearchConfig, task: PreparedTask | None) -> tuple[int, str]:
    root = root_hyperparameters(config, None if task is None else task.n_train)
    servers = max(1, config.slots.n_gpus // config.engine.tensor_model_parallel_size)
    batch, n = int(str(root[TRAIN_BATCH])), int(str(root[ROLLOUT_N]))
    n_val = config.task.n_val if task is None else task.n_val
    of_step, of_validation = math.ceil(batch * n / servers), math.ceil(n_val / servers)
    held = max(math.ceil(batch * n * _GROWTH / servers), of_validation)
    chosen = min(_MOST_SEQUENCES, _captured(held))
    most = " (the most that is chosen)" if held > _MOST_SEQUENCES else ""
    return chosen, (
        f"as one server gets {of_step} answers of a step, {_GROWTH:g} times as many where n grows, and "
        f"{of_validation} of a validation{most}"
    )


def _captured(n: int) -> int:
    """The next number of sequences for which vLLM captures a graph: 1, 2, 4, then every 8."""
    return next((size for size in (1, 2, 4) if n <= size), 8 * math.ceil(n / 8))


def _share(config: SearchConfig, task: PreparedTask | None, gpu_gib: float | None) -> tuple[float, str]:
    fixed = config.engine.server_share
    if gpu_gib is None:
        return fixed, "as nothing says how much memory the GPUs have: set slots.gpu_memory_gib"
    try:
        found = assessed(config, task, gpu_gib=gpu_gib)
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
