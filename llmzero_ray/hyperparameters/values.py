"""Reading and writing names and values: aliases, types, bounds, differences, texts.

Every value that comes from outside passes `normalize` once; afterwards configurations hold canonical keys and
typed values. Not here: relations between values (couplings.py).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from llmzero_ray.errors import HyperparameterError
from llmzero_ray.hyperparameters.table import BY_KEY, SPACE, Parameter
from llmzero_ray.hyperparameters.verl_keys import VERL_KEYS, VERL_VERSION, is_verl_key
from llmzero_ray.records import Hyperparameters, HyperparameterValue

AUTO = "auto"
_NOT_TRAINED = ("duration", "fixed")

# --- names
# ----------------------------------------------------------------------------------------------------------


def _names() -> dict[str, str]:
    """Every short name -> key: aliases, synonyms, and ends of keys that belong to one key only."""
    named = {name: p.key for p in SPACE for name in (p.alias, *p.also)}
    ends: dict[str, set[str]] = {}
    for p in SPACE:
        parts = p.key.split(".")
        for i in range(1, len(parts)):
            ends.setdefault(".".join(parts[i:]), set()).add(p.key)
    unique = {end: next(iter(keys)) for end, keys in ends.items() if len(keys) == 1}
    return {**unique, **named}


NAMES: Mapping[str, str] = _names()


def canonical(name: str) -> str:
    """VeRL's key for an alias, an unambiguous end of a key (`optim.lr`), or a key.

    Raises:
        HyperparameterError: unknown; the message names the nearest match.
    """
    name = name.strip()
    if name in BY_KEY:
        return name
    if name in NAMES:
        return NAMES[name]
    if is_verl_key(name):
        return name
    near = difflib.get_close_matches(name, [*NAMES, *BY_KEY, *VERL_KEYS], n=1, cutoff=0.6)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else f"write an alias such as {', '.join(_aliases(6))}, or VeRL's key."
    )
    raise HyperparameterError(f"hyper-parameter {name!r} is not known to VeRL {VERL_VERSION}: {hint}")


def _aliases(n: int) -> list[str]:
    return [p.alias for p in SPACE[:n]]


def short(key: str) -> str:
    """The alias of a key of the table; other keys as they are."""
    return BY_KEY[key].alias if key in BY_KEY else key


def is_hot(key: str) -> bool:
    """Whether a live engine can take a new value between phases; unknown keys are cold."""
    return key in BY_KEY and BY_KEY[key].hot


# --- values
# ---------------------------------------------------------------------------------------------------------


def defaults() -> dict[str, HyperparameterValue]:
    """The keys that every phase's configuration holds, with their defaults.

    Left out: durations and measurement, and what the engine or VeRL decides unless somebody asks.
    """
    return {p.key: p.default for p in SPACE if p.group not in _NOT_TRAINED and p.default is not None}


def normalize(mapping: Mapping[str, Any]) -> dict[str, HyperparameterValue]:
    """What people wrote, with canonical keys, typed values and checked bounds.

    Strings are read as the type of their key ("1e-3", "true", "0.9, 0.95"): YAML reads 1e-3 as a string.

    Raises:
        HyperparameterError: unknown key, two names of one key, a value of the wrong type or out of bounds.
    """
    found: dict[str, HyperparameterValue] = {}
    written: dict[str, str] = {}
    for name, value in mapping.items():
        key = canonical(str(name))
        if key in found:
            raise HyperparameterError(
                f"{name!r} and {written[key]!r} name the same hyper-parameter {key}; keep one."
            )
        found[key], written[key] = _typed(key, value), str(name)
    return found


def _typed(key: str, value: Any) -> HyperparameterValue:
    row = BY_KEY.get(key)
    if row is None:
        return _plain(key, value)
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
        raise HyperparameterError(f"{key}={value!r}: interpolations are not allowed; write the value itself.")
    if isinstance(value, list | tuple) and all(_is_number(v) for v in value):
        return tuple(float(v) for v in value)
    if value is not None and not isinstance(value, bool | int | float | str):
        raise HyperparameterError(f"{key}={value!r}: must be a number, a text, true, false or null.")
    if isinstance(value, float) and not math.isfinite(value):
        raise HyperparameterError(f"{key}={value!r}: must be finite.")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(row: Parameter, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
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
    if not isinstance(value, str) or not value.strip() or "${" in value:
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
    usual = format_value(row.key, row.default)
    return HyperparameterError(
        f"{row.alias}={value!r} ({row.key}): must be {allowed(row)} (default {usual})."
    )


def allowed(row: Parameter) -> str:
    """What a row accepts, in words."""
    what = {
        "float": f"a number in [{row.low:g}, {row.high:g}]" if row.low is not None else "",
        "int": f"a whole number in [{row.low:.0f}, {row.high:.0f}]" if row.low is not None else "",
        "betas": f"two numbers in [{row.low}, {row.high}]",
        "bool": "true or false",
        "choice": " or ".join(row.choices),
        "text": "a text without ${...}",
    }[row.kind]
    return what + (' or "auto"' if row.auto else "") + (" or null" if row.nullable else "")


# --- differences and texts
# ------------------------------------------------------------------------------------------


def diff(
    old: Hyperparameters, new: Hyperparameters
) -> dict[str, tuple[HyperparameterValue, HyperparameterValue]]:
    """Key -> (old, new) of what differs, in the order of the table; a missing key counts as None."""
    order = {row.key: i for i, row in enumerate(SPACE)}
    keys = sorted({*old, *new}, key=lambda key: (order.get(key, len(order)), key))
    pairs = {key: (old.get(key), new.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if not _same(*pair)}


def _same(a: HyperparameterValue, b: HyperparameterValue) -> bool:
    # A list read from JSON equals the tuple it was written from; True is not 1 here.
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return tuple(a) == tuple(b)
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def format_value(key: str, value: HyperparameterValue) -> str:
    """A value as people write it: `5e-5`, `0.001`, `true`, `(0.9, 0.999)`, `null`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "(" + ", ".join(format_value(key, v) for v in value) + ")"
    if isinstance(value, float):
        return _number_text(value)
    return str(value)


def _number_text(value: float) -> str:
    # 0.0001 <= |v|: plain digits; below: a short exponent (5e-5, not 5e-05).
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:.6g}"
    mantissa, _, exponent = f"{value:.4e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
