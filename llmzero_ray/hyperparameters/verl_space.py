"""The space that searches use: VeRL's hyper-parameters and keys, what a user allows, what a message names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from llmzero_ray.config import AllowedKey
from llmzero_ray.errors import ConfigError
from llmzero_ray.hyperparameters.couplings import MICRO_BATCHES, warmup_ratio_inert
from llmzero_ray.hyperparameters.space import Parameter, Space
from llmzero_ray.hyperparameters.table import PARAMETERS, PROPOSABLE
from llmzero_ray.hyperparameters.verl_keys import (
    LR_SCHEDULER,
    MINI_BATCH,
    NEVER,
    OWNED_BY,
    ROLLOUT_N,
    TRAIN_BATCH,
    VERL_KEYS,
    VERL_VERSION,
    WARMUP_RATIO,
    is_verl_key,
)
from llmzero_ray.records import Hyperparameters

VERL_SPACE = Space(
    trainer="VeRL",
    version=VERL_VERSION,
    parameters=PARAMETERS,
    is_other_key=is_verl_key,
    other_keys=VERL_KEYS,
    proposable=PROPOSABLE,
    owned_by=OWNED_BY,
    never=NEVER,
)

_TRAINS_ALONE = frozenset(
    row.key for row in (*PARAMETERS, *PROPOSABLE) if row.group != "fixed" and not row.why_fixed
)
"""Keys that do not affect validations of a given policy, which have their own cap and sampling."""


def scored_alike(one: Hyperparameters, other: Hyperparameters) -> bool:
    """Whether validations of a policy under two configurations are comparable.

    A key outside the table may affect validations, so it must be equal.
    """
    missing = object()
    names = {*one, *other} - _TRAINS_ALONE
    return all(one.get(name, missing) == other.get(name, missing) for name in names)


def rate_depends_on_length(hyperparameters: Hyperparameters) -> bool:
    """Whether the learning rate of a step depends on the phase's number of steps: it falls along a schedule,
    or its warm-up is a share of them."""
    if hyperparameters.get(LR_SCHEDULER, "constant") != "constant":
        return True
    return bool(hyperparameters.get(WARMUP_RATIO)) and warmup_ratio_inert(hyperparameters) is None


def mentioned_keys(text: str | None) -> frozenset[str]:
    """Keys named in a message by key, by the end of a key, or by alias. A batch size includes the keys it
    depends on."""
    if not text:
        return frozenset()
    found = {row.key for row in PARAMETERS if _named(text, row.key, (row.alias, *row.also))}
    if found & {MINI_BATCH, *MICRO_BATCHES}:
        found |= {TRAIN_BATCH, ROLLOUT_N}
    return frozenset(found)


def space_with(allow: Mapping[str, AllowedKey]) -> Space:
    """Space with the keys of `agents.allow`, which proposals may also set. They need not be VeRL's.

    Raises:
        ConfigError: a key that no proposal may ever set.
    """
    space = VERL_SPACE
    if not allow:
        return space
    rows: dict[str, Parameter] = {row.key: row for row in space.proposable}
    for name, bounds in allow.items():
        key = space.names.get(name.strip(), name.strip())
        reason = space.denied(key)
        if reason is not None:
            raise ConfigError(f"agents.allow: {key} may not be changed by a proposal: {reason}.")
        row = space.by_key.get(key)
        if row is not None and row.by_permission:
            rows[key] = _permitted(row, bounds)
            continue
        if row is not None:
            raise ConfigError(
                f"agents.allow: {key} has bounds of its own and may be changed anyway; leave it out here."
            )
        rows[key] = Parameter(
            key=key,
            alias=key,
            kind=bounds.kind,
            low=bounds.low,
            high=bounds.high,
            choices=bounds.choices,
            default=None,
            doc=bounds.doc,
            nullable=bounds.nullable,
        )
    known = tuple(rows.pop(row.key, row) for row in space.parameters)
    return dataclasses.replace(space, parameters=known, proposable=tuple(rows.values()))


def _permitted(row: Parameter, bounds: AllowedKey) -> Parameter:
    """Row of the table that proposals may now set, within these choices.

    Raises:
        ConfigError: a choice that the row does not have.
    """
    if bounds.kind != row.kind or not set(bounds.choices) <= set(row.choices):
        raise ConfigError(
            f"agents.allow: {row.key} is a {row.kind} of {', '.join(row.choices)}; got kind {bounds.kind} "
            f"with choices {', '.join(bounds.choices) or 'none'}."
        )
    return dataclasses.replace(row, choices=bounds.choices, by_permission=False)


def _named(text: str, key: str, aliases: tuple[str, ...]) -> bool:
    words = (key, key.rpartition(".")[2], *aliases)
    # "n" and "T" are words of their own in prose: they count only with a value, as in n=12.
    patterns = (rf"{re.escape(word)}\s*=" if len(word) <= 2 else re.escape(word) for word in words)
    return any(re.search(rf"(?<![\w.]){pattern}(?![\w.]\w)", text) for pattern in patterns)
