"""What tokens cost: a table by model, read from prompts/prices.yaml, and the sum for a call."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import yaml

from llmzero_ray.agents.knowledge import prompt_file
from llmzero_ray.agents.llm.call import Usage
from llmzero_ray.errors import ConfigError

PRICE_FILE = "prices.yaml"
_DATED = re.compile(r"-\d{8}$")
_PER = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Price:
    """Dollars per million tokens."""

    input: float
    output: float
    cache_write: float
    """Tokens written to the prompt cache (kept five minutes)."""
    cache_read: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < float("inf"):
                raise ConfigError(
                    f"the price of {name} tokens is {value!r}; must be a number >= 0 (dollars per million)."
                )

    def to_json(self) -> dict[str, float]:
        """Plain numbers, to be frozen with a search."""
        return asdict(self)

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Price:
        """From `agents.price`: input, output, cache write, cache read.

        Raises:
            ConfigError: not four numbers >= 0.
        """
        names = [field.name for field in fields(cls)]
        if len(numbers) != len(names):
            raise ConfigError(
                f"agents.price has {len(numbers)} numbers; must be four, dollars per million tokens: "
                f"[{', '.join(names)}]."
            )
        return cls(**dict(zip(names, numbers, strict=True)))


@dataclass(frozen=True)
class Prices:
    """Model id -> price."""

    models: Mapping[str, Price]

    @classmethod
    def load(cls, directory: str | None = None) -> Prices:
        """The table in `directory`, a user's directory of prompts, where it has one; else the packaged one.

        Raises:
            ConfigError: missing or malformed.
        """
        source = prompt_file(PRICE_FILE, directory)
        try:
            data = yaml.safe_load(source.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ConfigError(f"{source} is not YAML: {error}") from error
        models = data.get("models") if isinstance(data, dict) else None
        if not isinstance(models, dict) or not models:
            raise ConfigError(f"{source} must map `models` to prices by model id.")
        return cls({str(model): _price(source, model, numbers) for model, numbers in models.items()})

    def price_of(self, model: str, override: Sequence[float] | None = None) -> Price:
        """The price of a model: `override` where given (`agents.price`), else the table's. A dated id
        (`<id>-20251001`) costs what its undated one does.

        Raises:
            ConfigError: the table does not know the model, or the override is malformed.
        """
        if override is not None:
            return Price.of(override)
        found = self.models.get(model) or self.models.get(_DATED.sub("", model))
        if found is not None:
            return found
        near = difflib.get_close_matches(model, self.models, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"agents.model: the price of {model!r} is unknown.{hint} Known: {', '.join(self.models)}. Give "
            "agents.price: [input, output, cache write, cache read] in dollars per million tokens; "
            "[0, 0, 0, 0] for a server of your own."
        )


def cost(usage: Usage, price: Price) -> float:
    """Dollars for these tokens."""
    return (
        usage.input * price.input
        + usage.output * price.output
        + usage.cache_creation * price.cache_write
        + usage.cache_read * price.cache_read
    ) / _PER


def _price(source: Any, model: Any, numbers: Any) -> Price:
    names = {field.name for field in fields(Price)}
    if not isinstance(numbers, dict) or set(numbers) != names:
        raise ConfigError(f"{source}: {model} must have exactly {', '.join(sorted(names))}.")
    try:
        return Price(**numbers)
    except ConfigError as error:
        raise ConfigError(f"{source}: {model}: {error}") from error
