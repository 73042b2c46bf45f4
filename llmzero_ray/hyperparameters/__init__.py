"""Spaces of hyper-parameters, and the one that searches use: VeRL's.

A configuration is a flat mapping from a trainer's keys to plain values, always complete. The functions here
are the methods of `VERL_SPACE`; code that may meet another trainer takes a `Space`. Pure: reads no file,
loads no VeRL.
"""

from llmzero_ray.hyperparameters.couplings import clip_is_inert, largest_divisor, resolve
from llmzero_ray.hyperparameters.space import Limits, Parameter, Space, allowed, format_value
from llmzero_ray.hyperparameters.verl_keys import VERL_VERSION
from llmzero_ray.hyperparameters.verl_space import (
    VERL_SPACE,
    mentioned_keys,
    rate_depends_on_length,
    scored_alike,
    space_with,
)

SPACE, BY_KEY = VERL_SPACE.parameters, VERL_SPACE.by_key
canonical, short, is_hot = VERL_SPACE.canonical, VERL_SPACE.short, VERL_SPACE.is_hot
owned, forbidden = VERL_SPACE.owned, VERL_SPACE.forbidden
defaults, normalize, diff = VERL_SPACE.defaults, VERL_SPACE.normalize, VERL_SPACE.diff
complete, validate = VERL_SPACE.complete, VERL_SPACE.validate
check_transition = VERL_SPACE.check_transition

__all__ = [
    "BY_KEY",
    "SPACE",
    "VERL_SPACE",
    "VERL_VERSION",
    "Limits",
    "Parameter",
    "Space",
    "allowed",
    "canonical",
    "check_transition",
    "clip_is_inert",
    "complete",
    "defaults",
    "diff",
    "forbidden",
    "format_value",
    "is_hot",
    "largest_divisor",
    "mentioned_keys",
    "normalize",
    "owned",
    "rate_depends_on_length",
    "resolve",
    "scored_alike",
    "short",
    "space_with",
    "validate",
]
