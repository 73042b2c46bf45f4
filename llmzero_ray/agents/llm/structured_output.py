"""Structured output: base class of response schemas, their JSON Schema, and the tools that return responses.

The JSON Schema is limited to what the API can enforce during generation: closed objects, enumerations, no
numeric bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from llmzero_ray.agents.llm.messages import Tool
from llmzero_ray.errors import ProposalError
from llmzero_ray.utils.text import clean, one_line

_MAX_TEXT = 2000
_MAX_ENTRIES = 12
"""Maximum sizes of texts and lists. Longer ones are truncated, not rejected."""
_MAX_FAULTS = 6
_MAX_PLACE = 100
_DROPPED = {"$defs", "title", "default", "minLength", "maxLength", "minimum", "maximum", "pattern"}
_UNION = {"bool", "int", "float", "str", "list[float]"}
"""Names of union members in pydantic's error locations. They mean nothing to the model."""
_NO_MEMBER = "must be a number, true or false, one text, null, or a list of numbers"
"""What a change's value, the only union, may be."""


def _cut(value: Any) -> Any:
    return clean(value[:_MAX_TEXT]) if isinstance(value, str) else value


def _few(value: Any) -> Any:
    return value[:_MAX_ENTRIES] if isinstance(value, list) else value


FEW = BeforeValidator(_few)
"""Truncates a list to its first twelve entries."""
Text = Annotated[str, BeforeValidator(_cut), StringConstraints(strip_whitespace=True)]
Texts = Annotated[list[Text], FEW]


class ResponseSchema(BaseModel):
    """A response, or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def json_schema(schema: type[ResponseSchema]) -> dict[str, Any]:
    """JSON Schema without references, titles and bounds. Entries of lists and unions have no description,
    because their field has one."""
    generated = schema.model_json_schema()
    found = _inlined(generated, generated.get("$defs", {}))
    assert isinstance(found, dict)
    return found


@dataclass(frozen=True, kw_only=True)
class ResponseTool:
    """Tool with which a model returns a response."""

    name: str
    description: str
    """Description for the model."""
    schema: type[ResponseSchema]

    def definition(self, *, strict: bool) -> Tool:
        """Definition of the tool for the API. With `strict`, the server enforces the schema."""
        return Tool(
            name=self.name, description=self.description, schema=json_schema(self.schema), strict=strict
        )

    def parse(self, tool_input: Any) -> Any:
        """Response in the tool's input, an object of `schema`.

        Raises:
            ProposalError: it does not match the schema; the message says where, and what is allowed, for the
                model.
        """
        try:
            return self.schema.model_validate(tool_input)
        except ValidationError as error:
            raise ProposalError(
                f"the answer does not fit the tool's schema: {_problems_of(error)}."
            ) from error


def _problems_of(error: ValidationError) -> str:
    by_field: dict[str, str] = {}
    for detail in error.errors(include_url=False, include_input=False):
        parts = [str(part) for part in detail["loc"]]
        member = next((n for n, part in enumerate(parts) if part in _UNION), None)
        place = ".".join(parts[:member])
        place = one_line(place, _MAX_PLACE) or "the answer"  # may be a field name that the model made up
        what = "must be an object" if detail["type"] == "model_type" else detail["msg"].lower()
        what = what if member is None else _NO_MEMBER
        by_field.setdefault(place, what)
    problems = [f"{place}: {what}" for place, what in by_field.items()]
    more = f"; and {len(problems) - _MAX_FAULTS} more" if len(problems) > _MAX_FAULTS else ""
    return "; ".join(problems[:_MAX_FAULTS]) + more


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inlined(entry, definitions) for entry in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        target = definitions[part["$ref"].rpartition("/")[2]]
        own = {key: value for key, value in part.items() if key != "$ref"}
        return _inlined({**target, **own}, definitions)
    kept: dict[str, Any] = {}
    for key, value in part.items():
        if key == "properties":
            kept[key] = {name: _inlined(entry, definitions) for name, entry in value.items()}
        elif key == "items":
            kept[key] = _without_description(_inlined(value, definitions))
        elif key == "anyOf":
            kept[key] = [_without_description(_inlined(entry, definitions)) for entry in value]
        elif key not in _DROPPED:
            kept[key] = _inlined(value, definitions)
    if "properties" in kept:  # a field with a default may be missing in old answers, but not in a new one
        kept["required"] = list(kept["properties"])
    return kept


def _without_description(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "description"}
