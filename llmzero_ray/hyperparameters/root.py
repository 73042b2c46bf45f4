"""The configuration of a search's root, and the limits that hold for every phase of it."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from llmzero_ray.config import SearchConfig
from llmzero_ray.errors import ConfigError, HyperparameterError
from llmzero_ray.hyperparameters.space import Limits, Space
from llmzero_ray.hyperparameters.verl_keys import GPU_MEMORY, MAX_NUM_SEQS, MAX_RESPONSE
from llmzero_ray.hyperparameters.verl_space import space_with


def limits(config: SearchConfig, n_train: int | None) -> Limits:
    """Limits that slot and task set for every phase of the search."""
    engine = config.engine
    return Limits(
        max_model_len=engine.max_prompt_length + engine.max_response_length,
        max_response_length=engine.max_response_length,
        n_train=n_train,
    )


def root_hyperparameters(
    config: SearchConfig, n_train: int | None, space: Space | None = None
) -> dict[str, Any]:
    """The root's complete configuration: defaults, then the blocks of search.yaml, then `root.overrides`.

    Raises:
        ConfigError: an override is unknown, out of bounds, breaks a coupling, or belongs to another block;
            agents.allow names a key that no proposal may set.
    """
    space = space_with(config.agents.allow) if space is None else space
    try:
        overrides = space.normalize(config.root.overrides)
        for name in config.root.overrides:
            reason = space.owned(space.canonical(name))
            if reason is not None:
                raise ConfigError(f"root.overrides: {name} cannot be set here: {reason}.")
        blocks = {key: attrgetter(dotted)(config) for dotted, key in space.from_config.items()}
        engine = config.engine
        chosen = {MAX_NUM_SEQS: engine.sequences_at_once, GPU_MEMORY: engine.server_share}
        blocks |= {key: value for key, value in chosen.items() if blocks.get(key) == "auto"}
        base = space.defaults()
        # Our own default must not be what breaks the limit.
        if MAX_RESPONSE in base and MAX_RESPONSE not in overrides:
            blocks[MAX_RESPONSE] = min(int(str(base[MAX_RESPONSE])), engine.max_response_length)
        return space.complete(
            base, {**blocks, **overrides}, n_gpus=config.slots.n_gpus, limits=limits(config, n_train)
        )
    except HyperparameterError as error:
        raise ConfigError(f"root.overrides: {error}") from error
