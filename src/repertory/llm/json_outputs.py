"""JSON outputs of the Messages API: an answer that the provider makes fit a schema (``output_config.format``).

It takes a part of JSON schema only. What it cannot be told is told to the model in words, and checked by us; a schema
that it would refuse altogether has no such format, and its results come by a final tool instead.
(platform.claude.com/docs, Structured outputs: JSON schema limitations; 2026-11.)
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from repertory._json_types import inner_schemas
from repertory.llm.messages import Json

FINAL_RESULT: Final = "final_result"  # the tool
FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)  # of a string
KEYWORDS: Final = frozenset((
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "allOf"),
    *("$ref", "$defs", "description", "format", "minItems"),
))  # fmt: skip
MOST_OPTIONAL: Final = 24  # fields that may be left out, in the whole schema
MOST_UNIONS: Final = 16  # fields of several types, ``T | None`` among them

_DROPPED: Final = ("discriminator", "title")  # say nothing that the rest does not
_PLAIN: Final = (str, int, float, bool, type(None))


def output_format(schema: Json) -> Json | None:
    """The ``format`` that makes answers fit a schema, as far as the provider can; None where it would refuse it.

    Args:
        schema: Of an object. It may refer to its own ``$defs``.
    """
    copy: Json = msgspec.to_builtins(schema)
    parts = [copy]
    for part in parts:  # which grows
        if not _narrow(part):
            return None
        parts.extend(inner for _, _, inner in inner_schemas(part))
    optional = sum(len(part.get("properties", {}).keys() - part.get("required", ())) for part in parts)
    unions = sum("anyOf" in part for part in parts)
    if copy.get("type") != "object" or optional > MOST_OPTIONAL or unions > MOST_UNIONS or contains_itself(copy):
        return None
    return {"type": "json_schema", "schema": copy}


def _narrow(part: Json) -> bool:
    """Write one level in the provider's part of JSON schema; whether it can be said there."""
    if "oneOf" in part:
        part["anyOf"] = part.pop("oneOf")
    for keyword in _DROPPED:
        part.pop(keyword, None)
    words: Json = {name: part.pop(name) for name in list(part) if name not in KEYWORDS}
    if words.get("default", 0) is None:
        del words["default"]  # that it may be left out is said by ``required``
    if "prefixItems" in words or not ({"type", "anyOf", "allOf", "enum", "const", "$ref"} & part.keys()):
        return False
    if not isinstance(part.get("type", ""), str) or not all(isinstance(word, _PLAIN) for word in part.get("enum", ())):
        return False
    if part.get("type") == "object":
        if "properties" not in part or part.get("additionalProperties"):
            return False  # of names that are not known before
        part["additionalProperties"] = False
    if part.get("type") == "array" and not isinstance(part.get("items"), dict):
        return False
    if part.get("format", "date") not in FORMATS:
        words["format"] = part.pop("format")
    if part.get("minItems", 0) > 1:
        words["minItems"] = part.pop("minItems")
    if words:
        said = ", ".join(f"{name}: {msgspec.json.encode(value).decode()}" for name, value in words.items())
        part["description"] = f"{part.get('description', '')} ({said})".strip()
    return True


def contains_itself(schema: Json) -> bool:
    """Whether what a schema describes can hold another of itself."""

    def leads_back(part: Json, above: tuple[Any, ...]) -> bool:
        name = part.get("$ref", "").removeprefix("#/$defs/")
        if name:
            return name in above or leads_back(schema["$defs"][name], (*above, name))
        return any(
            leads_back(inner, above) for holder, _, inner in inner_schemas(part) if holder is not part.get("$defs")
        )

    return leads_back(schema, ())
