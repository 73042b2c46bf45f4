"""Upper bound of the tokens that a call can be billed for, reserved before the call.

No tokenizer makes more tokens than there are bytes of text, so a bound is several times the usual count.
"""

from __future__ import annotations

import json
import math

from llmzero_ray.agents.llm.messages import ImageBlock, LlmCall, TextBlock, Usage
from llmzero_ray.agents.llm.settings import LlmSettings

OVERHEAD_TOKENS = 1024
"""Tokens that the API adds: the prompt that explains tools (some hundred tokens), roles and separators."""
_PIXELS_PER_TOKEN = 700
"""Pixels per token of an image, a lower bound: about 750, and larger images are scaled down first."""
_LARGEST_IMAGE_TOKENS = 8192
_PNG_HEADER = b"\x89PNG\r\n\x1a\n"


def worst_case(call: LlmCall, settings: LlmSettings) -> Usage:
    """Maximum tokens of one answered request of `call`. The whole prompt counts as newly cached, the most
    expensive case."""
    tools = [[tool.name, tool.description, dict(tool.schema)] for tool in (call.tool, *call.others)]
    text = sum(len(block.text.encode()) for block in call.system)
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
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    return min(math.ceil(width * height / _PIXELS_PER_TOKEN) + 64, _LARGEST_IMAGE_TOKENS)
