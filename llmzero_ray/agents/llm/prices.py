"""Prices of tokens: list prices of the `genai-prices` package, the cost of a call, and its upper bound.

The table is part of that package; nothing is downloaded. A search keeps its initial price. Upper bounds count
one token per byte of text, because no tokenizer makes more; that is several times the usual count.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from llmzero_ray.agents.llm.messages import ImageBlock, LlmCall, TextBlock, Usage
from llmzero_ray.agents.llm.settings import LlmSettings
from llmzero_ray.errors import ConfigError
from llmzero_ray.utils.text import nearest

_DATED = re.compile(r"-\d{8}$")
_PER = 1_000_000
_SELLERS = {"bedrock": "aws", "vertex": "google", "openai": "openai"}
"""Provider -> its id in the package. Other providers have Anthropic's prices."""
OVERHEAD_TOKENS = 1024
"""Tokens that the API adds: the prompt that explains tools (some hundred tokens), roles and separators."""
_PIXELS_PER_TOKEN = 700
"""Lower bound of an image's pixels per token: about 750, or more because large images are scaled down."""
_LARGEST_IMAGE_TOKENS = 8192
_PNG_HEADER = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, kw_only=True)
class Price:
    """Dollars per million tokens."""

    input: float
    output: float
    cache_write: float
    """Price of writing to the prompt cache, which keeps tokens for five minutes."""
    cache_read: float

    @property
    def kept_an_hour(self) -> Price:
        """Price if the prompt cache keeps tokens for an hour: writing costs twice as much as input."""
        return replace(self, cache_write=max(self.cache_write, 2 * self.input))

    def output_tokens(self, dollars: float) -> int:
        """Output tokens that `dollars` pay for, or 0 if output is free."""
        return math.floor(dollars * _PER / self.output) if self.output else 0

    def to_json(self) -> dict[str, float]:
        """Prices as plain numbers, to freeze with a search."""
        return asdict(self)

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Price:
        """Price from `agents.price`: input, output, cache write, cache read."""
        names = (field.name for field in fields(cls))
        return cls(**dict(zip(names, numbers, strict=True)))


FREE = Price(input=0.0, output=0.0, cache_write=0.0, cache_read=0.0)
"""Price of recorded responses, and of checks that are not booked."""


def price_of(model: str, override: Sequence[float] | None = None, provider: str = "anthropic") -> Price:
    """Price of a model: `override` (`agents.price`) if given, otherwise from `known_prices()`, or from the
    package for another `provider`. A dated id (`<id>-20251001`) has the price of its undated id.

    Raises:
        ConfigError: the model is not known.
    """
    if override is not None:
        return Price.of(override)
    prices = known_prices()
    if provider in _SELLERS:
        found = _sold_by(_SELLERS[provider], model)
    else:
        found = prices.get(model) or prices.get(_DATED.sub("", model))
    if found is not None:
        return found
    near = nearest(model, prices)
    hint = f" Did you mean {near}?" if near else ""
    raise ConfigError(
        f"agents.model: the price of {model!r} is unknown.{hint} Known: {', '.join(prices)}. Give "
        "agents.price: [input, output, cache write, cache read] in dollars per million tokens; "
        "[0, 0, 0, 0] for a server of your own."
    )


def known_prices() -> Mapping[str, Price]:
    """Model id -> current price of Anthropic's models.

    Prices that depend on the length of a prompt are those of short prompts, because agents send a few
    thousand tokens.

    Raises:
        ConfigError: the package is missing.
    """
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError as error:
        raise ConfigError(
            "Prices of language models need the genai-prices package; install llmzero-ray[llm], or give "
            "agents.price."
        ) from error
    today = datetime.now(UTC)
    anthropic = next(provider for provider in get_snapshot().providers if provider.id == "anthropic")
    found = {model.id: _listed(model.get_prices(today)) for model in anthropic.models}
    return {model: price for model, price in found.items() if price is not None}


def _sold_by(seller: str, model: str) -> Price | None:
    """Price of a model at another provider of the package."""
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, sold = get_snapshot().find_provider_model(model, None, seller, None)
    except LookupError:
        return None
    return _listed(sold.get_prices(datetime.now(UTC)), cache_is_input=True)


def cost(usage: Usage, price: Price) -> float:
    """Dollars for these tokens."""
    return (
        usage.input * price.input
        + usage.output * price.output
        + usage.cache_creation * price.cache_write
        + usage.cache_read * price.cache_read
    ) / _PER


def worst_cost(usage: Usage, price: Price) -> float:
    """Dollars for the tokens of `worst_case`, some of which may be billed as input that is not cached."""
    return cost(usage, replace(price, cache_write=max(price.cache_write, price.input)))


def _listed(prices: Any, *, cache_is_input: bool = False) -> Price | None:
    """Price from the package's fields. None if it lacks prices of the prompt cache; with `cache_is_input`,
    these default to the price of input."""
    cache = [prices.cache_write_mtok, prices.cache_read_mtok]
    if cache_is_input:
        cache = [prices.input_mtok if amount is None else amount for amount in cache]
    per_million = (prices.input_mtok, prices.output_mtok, *cache)
    if any(amount is None for amount in per_million):
        return None
    return Price.of([float(getattr(amount, "base", amount)) for amount in per_million])


def worst_case(call: LlmCall, settings: LlmSettings) -> Usage:
    """Maximum tokens of one answered request of `call`. The whole prompt counts as newly cached; see
    `worst_cost`."""
    tools = [[tool.name, tool.description, dict(tool.schema)] for tool in (call.tool, *call.others)]
    text = len(call.system.encode())
    text += sum(len(json.dumps(tool, default=str).encode()) for tool in tools)
    text += sum(len(block.text.encode()) for block in call.content if isinstance(block, TextBlock))
    text += sum(len(json.dumps([answer.content, answer.reason]).encode()) for answer in call.refused)
    text += sum(len(json.dumps([one.content, one.result, one.then]).encode()) for one in call.exchanges)
    images = sum(image_tokens(block.png) for block in call.content if isinstance(block, ImageBlock))
    return Usage(
        cache_creation=OVERHEAD_TOKENS + text + images, output=settings.output_tokens(call.max_tokens)
    )


def probe_worst_case(image: bytes | None) -> Usage:
    """Maximum tokens of the smallest possible message, with an image if given."""
    images = 0 if image is None else image_tokens(image)
    return Usage(cache_creation=OVERHEAD_TOKENS + images, output=1)


def image_tokens(png: bytes) -> int:
    """Upper bound of the tokens of one image, from the size in its header."""
    if len(png) < 24 or not png.startswith(_PNG_HEADER):
        return _LARGEST_IMAGE_TOKENS
    return pixel_tokens(int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big"))


def pixel_tokens(width: int, height: int) -> int:
    """Upper bound of the tokens of an image of this size in pixels."""
    return min(math.ceil(width * height / _PIXELS_PER_TOKEN) + 64, _LARGEST_IMAGE_TOKENS)
