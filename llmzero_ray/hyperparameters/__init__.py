"""The space of hyper-parameters: VeRL's keys, aliases, bounds, couplings, what a proposal may never touch.

A configuration is a flat mapping from VeRL's dotted keys to plain values, always complete. Pure: reads no
file, loads no VeRL. Not here: how a configuration becomes hydra overrides and is read back (engines/verl).
"""

from llmzero_ray.hyperparameters.access import FROM_CONFIG, forbidden, is_hot, owned
from llmzero_ray.hyperparameters.couplings import (
    MICRO_BATCHES,
    Limits,
    check_transition,
    complete,
    largest_divisor,
    resolve,
    validate,
)
from llmzero_ray.hyperparameters.table import ADAPTER, BY_KEY, CAPACITY, SPACE, Parameter
from llmzero_ray.hyperparameters.values import (
    AUTO,
    NAMES,
    allowed,
    canonical,
    defaults,
    diff,
    format_value,
    normalize,
    short,
)
from llmzero_ray.hyperparameters.verl_keys import VERL_VERSION

__all__ = [
    "ADAPTER",
    "AUTO",
    "BY_KEY",
    "CAPACITY",
    "FROM_CONFIG",
    "MICRO_BATCHES",
    "NAMES",
    "SPACE",
    "VERL_VERSION",
    "Limits",
    "Parameter",
    "allowed",
    "canonical",
    "check_transition",
    "complete",
    "defaults",
    "diff",
    "forbidden",
    "format_value",
    "is_hot",
    "largest_divisor",
    "normalize",
    "owned",
    "resolve",
    "short",
    "validate",
]
