"""Output formats that the Messages API refuses, with its own messages as far as people have quoted them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from repertory._json_types import inner_schemas
from repertory.llm.json_outputs import FORMATS, MOST_OPTIONAL, MOST_UNIONS, contains_itself
from repertory.llm.messages import Json
from repertory.llm.profiles import ModelProfile
from repertory.testing.refusal import refuse
from repertory.testing.shape import check_schema
from repertory.testing.transcript import is_paused

_WHERE = "output_config.format.schema"
_ANYWHERE = frozenset({"type", "enum", "const", "anyOf", "allOf", "$ref", "$defs", "description", "title", "default"})
# The keywords of each type, besides those allowed anywhere.
_OF: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems"}),
    "string": frozenset({"format"}),
    **dict.fromkeys(("integer", "number", "boolean", "null"), frozenset[str]()),
}


def check_output_format(body: Json, profile: ModelProfile) -> None:
    """Check ``output_config.format``."""
    wanted = (body.get("output_config") or {}).get("format")
    if wanted is None:
        return
    if not profile.json_outputs:
        refuse(f"'{profile.name}' does not support output format.")
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        refuse("output_config.format.type: Input should be 'json_schema'")
    schema = wanted.get("schema")
    if not isinstance(schema, dict):
        refuse(f"{_WHERE}: Field required")
    check_schema(schema, _WHERE)
    if body["messages"][-1]["role"] == "assistant" and not is_paused(body["messages"]):
        refuse("output_config.format: cannot be combined with a prefilled assistant message")
    parts = list(_parts(schema))
    defined = [f"#/$defs/{name}" for name, inner in schema.get("$defs", {}).items() if isinstance(inner, dict)]
    for part in parts:
        _check_part(part)
        if "$ref" in part and part["$ref"] not in defined:
            refuse(f"{_WHERE}: $ref {part['$ref']!r} is not supported, as it is not among the schema's own '$defs'")
    if contains_itself(schema):
        refuse(f"{_WHERE}: Recursive schemas are not supported")
    optional = sum(len(part.get("properties", {}).keys() - part.get("required", ())) for part in parts)
    if (
        optional > MOST_OPTIONAL
        or sum("anyOf" in part or isinstance(part.get("type"), list) for part in parts) > MOST_UNIONS
    ):
        refuse(f"{_WHERE}: Schema is too complex")


def _parts(schema: Json) -> Iterator[Json]:
    yield schema
    for _, _, inner in inner_schemas(schema):
        yield from _parts(inner)


def _check_part(part: Json) -> None:
    kind: Any = part.get("type")
    kinds: list[Any] = kind if isinstance(kind, list) else [kind]
    if kind is None:
        if not {"enum", "const", "anyOf", "allOf", "$ref"} & part.keys():
            refuse(f"{_WHERE}: Schema must have a 'type', 'anyOf', 'allOf', 'enum', 'const' or '$ref' field")
    elif not all(isinstance(each, str) and each in _OF for each in kinds):
        refuse(f"{_WHERE}: type {kind!r} is not supported")
    unknown = sorted(part.keys() - _ANYWHERE.union(*(_OF.get(each, frozenset[str]()) for each in kinds)))
    if unknown:
        words = f"property '{unknown[0]}' is" if len(unknown) == 1 else f"properties {', '.join(unknown)} are"
        refuse(f"{_WHERE}: For '{kind}' type, {words} not supported")
    if kind == "object":
        more = part.get("additionalProperties")
        if more is None:
            refuse(f"{_WHERE}: For 'object' type, 'additionalProperties' must be explicitly set to false")
        if more is not False:
            said = "true" if more is True else "object"
            refuse(
                f"{_WHERE}: For 'object' type, 'additionalProperties: {said}' is not supported. Please set "
                "'additionalProperties' to false"
            )
    if part.get("format", "date") not in FORMATS:
        refuse(f"{_WHERE}: For 'string' type, format '{part['format']}' is not supported")
    if part.get("minItems", 0) not in (0, 1):
        refuse(f"{_WHERE}: For 'array' type, 'minItems' values other than 0 or 1 are not supported")
