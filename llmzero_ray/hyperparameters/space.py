"""Spaces of hyper-parameters: names, types, bounds, couplings, and who may set what, as one object.

Every external value passes `Space.normalize` once; afterwards configurations hold the trainer's own keys and
typed values. Searches use `VERL_SPACE` (verl_space.py). For another trainer, build a `Space` with other rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from llmzero_ray.errors import HyperparameterError
from llmzero_ray.records import Hyperparameters, HyperparameterValue
from llmzero_ray.utils.text import clean, is_number, nearest, one_line

AUTO = "auto"
MAX_TEXT = 200
"""Maximum characters of a text that a proposal sets."""
MISSING = "???"
"""OmegaConf's marker of a missing value."""
NOT_TRAINED = ("duration", "fixed")
"""Groups of keys that no phase's configuration has and no proposal changes."""

Kind: TypeAlias = Literal["float", "int", "bool", "choice", "betas", "text"]
Scale: TypeAlias = Literal["linear", "log"]
Group: TypeAlias = Literal[
    "optimisation", "clipping", "kl", "rollout", "capacity", "batch", "memory", "duration", "adapter", "fixed"
]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that slot and task set; None if there is no limit."""

    max_model_len: int | None = None
    """Context length of the rollout server (prompt + response), in tokens."""
    max_response_length: int | None = None
    """Longest response of any phase of the search, tokens."""
    n_train: int | None = None
    """Training items: a larger batch would make an epoch of zero steps."""


Follow: TypeAlias = Callable[[dict[str, HyperparameterValue], Hyperparameters, Hyperparameters, int], None]
"""(full, base, asked, n_gpus): moves values in `full` that hang on those asked for; these stay."""
Conflict: TypeAlias = tuple[tuple[str, ...], str]
"""(keys whose values do not fit together, why)."""
Check: TypeAlias = Callable[[Hyperparameters, int, Limits], Conflict | None]
"""(full, n_gpus, limits): what does not fit together, or None if everything does."""
Inert: TypeAlias = Callable[[Hyperparameters], str | None]
"""(full): why a value has no effect in this configuration and what gives it one, or None if it has one."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Range narrower than the bounds, so that no chain of factors runs away: fixed or around the root's."""

    low: float = 0.0
    high: float = 0.0
    """Largest value, or the least that the largest one may be where `up` is given."""
    down: float | None = None
    """The smallest value is the root's divided by this."""
    up: float | None = None
    """The largest value is the root's times this."""

    def around(self, usual: float) -> tuple[float, float]:
        """(smallest, largest) value where the root's is `usual`."""
        low = self.low if self.down is None else usual / self.down
        return low, self.high if self.up is None else max(self.high, usual * self.up)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One hyper-parameter: all that belongs to it alone, and the couplings that it takes part in."""

    key: str
    """Key of the trainer, dotted if nested."""
    alias: str
    """Short name, accepted as input and shown in tables."""
    kind: Kind
    default: HyperparameterValue
    doc: str
    group: Group = "fixed"
    low: float | None = None
    """Minimum value (of numbers, and of each of the betas)."""
    high: float | None = None
    """Maximum value."""
    scale: Scale = "linear"
    """Whether equal differences or equal factors of the value matter. 0 is a special case on a log scale."""
    choices: tuple[str, ...] = ()
    hot: bool = False
    """Whether a live engine can change the value between two phases, and reads it back from where it acts."""
    reach: Reach | None = None
    """Range in which the expert's moves keep it, or None if only the bounds hold."""
    also: tuple[str, ...] = ()
    """Further short names."""
    nullable: bool = False
    """Whether null is allowed. With a default of None the key is left out, and the engine or VeRL decides."""
    auto: bool = False
    """Whether "auto" is allowed: `resolve` replaces it by a number that fits the batch."""
    by_permission: bool = False
    """Whether proposals may set it only where the user's `agents.allow` names it."""
    setting: str = ""
    """The field of search.yaml that gives the root's value."""
    why_fixed: str = ""
    """Reason why proposals may not change it, although the user may set it."""
    kept_at_resume: bool = False
    """Whether a phase must share it with the one whose checkpoint it resumes."""
    follow: tuple[Follow, ...] = ()
    """Couplings that move values. Several rows may name one; it acts in the place of the first."""
    check: tuple[Check, ...] = ()
    """Couplings that refuse, likewise."""
    inert: Inert | None = None
    """Condition under which it has no effect."""


def _no_other(_: str) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Space:
    """The hyper-parameters of one trainer. A configuration is a flat mapping from keys to plain values."""

    trainer: str
    """Name of the trainer, for messages."""
    version: str = ""
    parameters: tuple[Parameter, ...]
    """Rows in display order."""
    is_other_key: Callable[[str], bool] = _no_other
    """Whether the trainer has this key although no row describes it. Any plain value is then allowed."""
    other_keys: frozenset[str] = frozenset()
    """Such keys as far as they can be listed, for "did you mean"."""
    proposable: tuple[Parameter, ...] = ()
    """Keys without a row of `parameters` that proposals may set all the same, each with its bounds."""
    owned_by: tuple[tuple[str, str], ...] = ()
    """(pattern of keys, why the user may not set them and what to set instead)."""
    never: str = ""
    """Pattern of keys that run code or name a path, a reward or a log: no proposal may touch them."""

    @cached_property
    def by_key(self) -> Mapping[str, Parameter]:
        """The rows by key."""
        return {row.key: row for row in self.parameters}

    @cached_property
    def _proposable(self) -> Mapping[str, Parameter]:
        """All keys that have bounds."""
        return {row.key: row for row in (*self.proposable, *self.parameters)}

    @cached_property
    def from_config(self) -> Mapping[str, str]:
        """Field of search.yaml -> the key whose root value it gives."""
        return {row.setting: row.key for row in self.parameters if row.setting}

    @cached_property
    def kept_at_resume(self) -> tuple[str, ...]:
        """Keys that a phase must share with the one whose checkpoint it resumes."""
        return tuple(row.key for row in self.parameters if row.kept_at_resume)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Short name -> key: aliases, synonyms, and unambiguous ends of keys."""
        named = {name: p.key for p in self.parameters for name in (p.alias, *p.also)}
        return {**_unique_ends(self.proposable), **_unique_ends(self.parameters), **named}

    # --- names ----------------------------------------------------------------------------------------------

    def canonical(self, name: str) -> str:
        """Key for an alias, an unambiguous end of a key (`optim.lr`), or a key.

        Raises:
            HyperparameterError: unknown; the message names the nearest match.
        """
        name = name.strip()
        if name in self.by_key:
            return name
        if name in self.names:
            return self.names[name]
        if name in self._proposable or self.is_other_key(name):
            return name
        known_to = f"{self.trainer} {self.version}".strip()
        name = one_line(name, MAX_TEXT)
        near = nearest(name, [*self.names, *self.by_key, *self.other_keys])
        some = ", ".join(row.alias for row in self.parameters[:6])
        hint = (
            f"did you mean {near!r}?" if near else f"write an alias such as {some}, or {self.trainer}'s key."
        )
        raise HyperparameterError(f"hyper-parameter {name!r} is not known to {known_to}: {hint}")

    def short(self, key: str) -> str:
        """Alias of a key that has a row. Other keys are returned unchanged."""
        return self.by_key[key].alias if key in self.by_key else key

    def is_hot(self, key: str) -> bool:
        """Whether a live engine can accept a new value between phases. Unknown keys are cold."""
        return key in self._proposable and self._proposable[key].hot

    # --- who may set what -----------------------------------------------------------------------------------

    def owned(self, key: str) -> str | None:
        """Reason why `root.overrides` may not set a key (and what to set instead), or None if it may."""
        for setting, given in self.from_config.items():
            if given == key:
                return f"set {setting} in search.yaml"
        return next((reason for pattern, reason in self.owned_by if re.fullmatch(pattern, key)), None)

    def denied(self, key: str) -> str | None:
        """Reason why a key cannot change during a search. None if it can.

        Rejected are keys that run code or touch paths, rewards and logging, and keys that the engine or the
        measurement owns. Keys whose root value a field of search.yaml gives may be changed (those of
        `kept_at_resume` only without a resume: `check_transition`).
        """
        if self.never and re.search(self.never, key):
            return "it runs code, or names a path, a reward or a log"
        if key in self.by_key and self.by_key[key].why_fixed:
            return self.by_key[key].why_fixed
        return None if key in self.from_config.values() else self.owned(key)

    def forbidden(self, key: str) -> str | None:
        """Reason why a proposer may never change a key, or None if it may within the bounds. Keys without
        bounds are rejected."""
        reason = self.denied(key)
        if reason is not None:
            return reason
        if key not in self._proposable:
            return "it has no bounds for proposals; agents.allow in search.yaml gives a key some"
        if self._proposable[key].by_permission:
            return "it is the user's choice; agents.allow in search.yaml lets proposals make it"
        return None

    def bounds(self, key: str) -> Parameter | None:
        """The row with the bounds of a proposal's value, or None if the key has none."""
        return self._proposable.get(key)

    def proposed(self, key: str, value: Any) -> HyperparameterValue:
        """A proposal's value of a key, typed and within the bounds that hold for proposals.

        Raises:
            HyperparameterError: a proposal may not set the key, or the value is not allowed.
        """
        reason = self.forbidden(key)
        if reason is not None:
            raise HyperparameterError(
                f"{one_line(key, MAX_TEXT)} may not be changed: {reason}. Leave it out."
            )
        row = self._proposable[key]
        found = typed(row, value)
        if isinstance(found, str) and (len(found) > MAX_TEXT or clean(found) != found or "\n" in found):
            raise HyperparameterError(
                f"{row.alias}={_shown(found)}: must be at most {MAX_TEXT} plain characters."
            )
        return found

    # --- values ---------------------------------------------------------------------------------------------

    def defaults(self) -> dict[str, HyperparameterValue]:
        """Keys of every phase's configuration, with their defaults.

        Left out: durations and measurement, and keys that the engine or the trainer decides by default.
        """
        return {
            p.key: p.default for p in self.parameters if p.group not in NOT_TRAINED and p.default is not None
        }

    def normalize(self, mapping: Mapping[str, Any]) -> dict[str, HyperparameterValue]:
        """User input with canonical keys, typed values and checked bounds.

        Strings are read as the type of their key ("1e-3", "true", "0.9, 0.95"): YAML reads 1e-3 as a string.

        Raises:
            HyperparameterError: unknown key, two names of one key, a value of the wrong type or out of
                bounds.
        """
        found: dict[str, HyperparameterValue] = {}
        written: dict[str, str] = {}
        for name, value in mapping.items():
            key = self.canonical(str(name))
            if key in found:
                raise HyperparameterError(
                    f"{name!r} and {written[key]!r} name the same hyper-parameter {key}; keep one."
                )
            row = self.by_key.get(key)
            found[key] = _plain(key, value) if row is None else typed(row, value)
            written[key] = str(name)
        return found

    def complete(
        self,
        base: Hyperparameters,
        changes: Mapping[str, Any],
        *,
        n_gpus: int = 1,
        limits: Limits | None = None,
    ) -> dict[str, HyperparameterValue]:
        """A full configuration with changes applied and validated.

        Names may be aliases. Values that depend on a changed one follow if that is harmless (`follow`). A
        value named in `changes` is never adjusted.

        Raises:
            HyperparameterError: unknown key, wrong value, or a broken coupling.
        """
        normalized = self.normalize(changes)
        full = {**base, **normalized}
        for follow in dict.fromkeys(one for row in self.parameters for one in row.follow):
            follow(full, base, normalized, n_gpus)
        self.validate(full, n_gpus=n_gpus, limits=limits)
        return full

    def validate(self, full: Hyperparameters, *, n_gpus: int = 1, limits: Limits | None = None) -> None:
        """Reject a configuration that is incomplete, out of bounds or inconsistent.

        Raises:
            HyperparameterError: the configuration is invalid; the message has the values.
        """
        missing = [key for key in self.defaults() if key not in full]
        if missing:
            raise HyperparameterError(
                f"the configuration is not complete, it lacks {', '.join(self.short(k) for k in missing)}; "
                "apply changes to a full configuration (`complete(defaults(), ...)`)."
            )
        full = self.normalize(full)
        for check in dict.fromkeys(one for row in self.parameters for one in row.check):
            conflict = check(full, n_gpus, limits or Limits())
            if conflict is not None:
                keys, why = conflict
                given = ", ".join(f"{self.short(key)}={format_value(key, full[key])}" for key in keys)
                raise HyperparameterError(f"{given}: {why}.")

    def check_transition(self, parent: Hyperparameters, child: Hyperparameters) -> None:
        """Reject a child that resumes from a parent's checkpoint with another adapter shape.

        Raises:
            HyperparameterError: a key of `kept_at_resume` differs; a phase from the base model may change it.
        """
        for key, (old, new) in self.diff(parent, child).items():
            if key in self.kept_at_resume:
                change = (
                    f"{self.short(key)} changes from {format_value(key, old)} to {format_value(key, new)}"
                )
                raise HyperparameterError(
                    f"{change} at a resume: the adapter of a checkpoint keeps its shape. Keep the old value, "
                    "or start from the base model."
                )

    def inert(self, full: Hyperparameters) -> dict[str, str]:
        """Key -> why it has no effect in this configuration, and what gives it one."""
        reasons = {row.key: row.inert(full) for row in self.parameters if row.inert}
        return {key: why for key, why in reasons.items() if why}

    def same_training(self, one: Hyperparameters, other: Hyperparameters) -> bool:
        """Whether two full configurations train the same way: they differ at most in keys that have no
        effect in either."""
        without = self.inert(one).keys() & self.inert(other).keys()
        return not self.diff(one, other).keys() - without

    def diff(
        self, old: Hyperparameters, new: Hyperparameters
    ) -> dict[str, tuple[HyperparameterValue, HyperparameterValue]]:
        """Key -> (old, new) of the differing keys, in row order. A missing key counts as None."""
        order = {row.key: i for i, row in enumerate(self.parameters)}
        keys = sorted({*old, *new}, key=lambda key: (order.get(key, len(order)), key))
        pairs = {key: (old.get(key), new.get(key)) for key in keys}
        return {key: pair for key, pair in pairs.items() if not _same(*pair)}


def _unique_ends(rows: tuple[Parameter, ...]) -> dict[str, str]:
    """End of a dotted key -> the key, if it is the end of only one key."""
    ends: dict[str, set[str]] = {}
    for row in rows:
        parts = row.key.split(".")
        for i in range(1, len(parts)):
            ends.setdefault(".".join(parts[i:]), set()).add(row.key)
    return {end: next(iter(keys)) for end, keys in ends.items() if len(keys) == 1}


# --- single values ------------------------------------------------------------------------------------------


def typed(row: Parameter, value: Any) -> HyperparameterValue:
    """The value in the type of its row.

    Raises:
        HyperparameterError: it has the wrong type or is out of bounds.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() in ("null", "none")):
        if row.nullable:
            return None
        raise _wrong(row, value)
    if row.auto and value == AUTO:
        return AUTO
    return _in_bounds(row, _CASTS[row.kind](row, value))


def _plain(key: str, value: Any) -> HyperparameterValue:
    """A value of a key outside the table: any finite scalar, but nothing that hydra would evaluate."""
    if isinstance(value, str) and "${" in value:
        raise HyperparameterError(
            f"{key}={_shown(value)}: interpolations are not allowed; write the value itself."
        )
    if value == MISSING:
        raise HyperparameterError(f"{key}={value}: stands for no value at all; write the value itself.")
    if isinstance(value, list | tuple) and all(is_number(v) for v in value):
        return tuple(float(v) for v in value)
    if value is not None and not isinstance(value, bool | int | float | str):
        raise HyperparameterError(f"{key}={_shown(value)}: must be a number, a text, true, false or null.")
    if isinstance(value, float) and not math.isfinite(value):
        raise HyperparameterError(f"{key}={value!r}: must be finite.")
    return value


def _float(row: Parameter, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _wrong(row, value)
    return number


def _int(row: Parameter, value: Any) -> int:
    number = _float(row, value)
    if not number.is_integer():
        raise _wrong(row, value)
    return int(number)


def _bool(row: Parameter, value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise _wrong(row, value)
    return text == "true"


def _text(row: Parameter, value: Any) -> str:
    if not isinstance(value, str) or value.strip() in ("", MISSING) or "${" in value:
        raise _wrong(row, value)
    return value.strip()


def _choice(row: Parameter, value: Any) -> str:
    if value not in row.choices:
        raise _wrong(row, value)
    return str(value)


def _betas(row: Parameter, value: Any) -> tuple[float, ...]:
    parts = value.strip("()[] ").split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) != 2:
        raise _wrong(row, value)
    return tuple(_float(row, part) for part in parts)


_CASTS = {"float": _float, "int": _int, "bool": _bool, "text": _text, "choice": _choice, "betas": _betas}


def _in_bounds(row: Parameter, value: Any) -> HyperparameterValue:
    for number in value if isinstance(value, tuple) else (value,):
        if (row.low is not None and number < row.low) or (row.high is not None and number > row.high):
            raise _wrong(row, value)
    return value  # type: ignore[no-any-return]


def _wrong(row: Parameter, value: Any) -> HyperparameterError:
    name = row.alias if row.alias != row.key else ""
    what = f"{name}={_shown(value)} ({row.key})" if name else f"{row.key}={_shown(value)}"
    usual = "" if row.default is None and not name else f" (default {format_value(row.key, row.default)})"
    return HyperparameterError(f"{what}: must be {allowed(row)}{usual}.")


def _shown(value: Any) -> str:
    """A wrong value for a message, shortened if necessary."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 512:
        return f"a whole number of {value.bit_length()} bits"
    return one_line(repr(value), MAX_TEXT)


def allowed(row: Parameter) -> str:
    """Description of the values that a row accepts."""
    what = {
        "float": f"a number in [{row.low:g}, {row.high:g}]" if row.low is not None else "",
        "int": f"a whole number in [{row.low:.0f}, {row.high:.0f}]" if row.low is not None else "",
        "betas": f"two numbers in [{row.low}, {row.high}]",
        "bool": "true or false",
        "choice": " or ".join(row.choices),
        "text": "a text without ${...}",
    }[row.kind]
    return what + (' or "auto"' if row.auto else "") + (" or null" if row.nullable else "")


def _same(a: HyperparameterValue, b: HyperparameterValue) -> bool:
    # A list read from JSON equals the tuple it was written from; True is not 1 here.
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return tuple(a) == tuple(b)
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def format_value(key: str, value: HyperparameterValue) -> str:
    """Value as text: `5e-5`, `0.001`, `true`, `(0.9, 0.999)`, `null`. Texts are cut at 200 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "(" + ", ".join(format_value(key, v) for v in value) + ")"
    if isinstance(value, float):
        return _number_text(value)
    if isinstance(value, str):
        return one_line(value, MAX_TEXT)
    return _shown(value)


def _number_text(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    # Quotients such as 1e-4 / 3 have three digits; what a person would write stays as it is.
    digits = 6 if float(f"{value:.6g}") == value else 3
    # 0.0001 <= |v|: plain digits; below: a short exponent (5e-5, not 5e-05).
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
