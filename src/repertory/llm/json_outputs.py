"""JSON outputs of the Messages API: an answer that the provider makes fit a schema (``output_config.format``).

The provider supports only a part of JSON schema. The rest is told to the model in words and checked by repertory. For
a schema that the provider would refuse altogether there is no format; its results come from a final tool instead.
(platform.claude.com/docs, Structured outputs: JSON schema limitations; 2026-11.)
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from repertory._json_types import inner_schemas
from repertory.llm.messages import Json

FINAL_RESULT: Final = "final_result"  # the tool's name
FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)  # of strings
KEYWORDS: Final = frozenset((
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "allOf"),
    *("$ref", "$defs", "description", "format", "minItems"),
))  # fmt: skip
MOST_OPTIONAL: Final = 24  # optional fields in the whole schema
MOST_UNIONS: Final = 16  # fields of several types, including ``T | None``

_PLAIN: Final = (str, int, float, bool, type(None))


def output_format(schema: Json) -> Json | None:
    """The ``format`` that makes answers fit a schema, as far as the provider can; None if it would refuse the schema.

    Args:
        schema: The schema of an object. It may refer to its own ``$defs``.
    """
    copy: Json = msgspec.to_builtins(schema)
    parts = [copy]
    for part in parts:  # grows meanwhile
        if not _narrow(part):
            return None
        parts.extend(inner for _, _, inner in inner_schemas(part))
    optional = sum(len(part.get("properties", {}).keys() - part.get("required", ())) for part in parts)
    unions = sum("anyOf" in part for part in parts)
    if copy.get("type") != "object" or optional > MOST_OPTIONAL or unions > MOST_UNIONS or contains_itself(copy):
        return None
    return {"type": "json_schema", "schema": copy}


def _narrow(part: Json) -> bool:
    """Rewrite one level, in place, with the keywords that the provider supports; return whether that is possible."""
    if "oneOf" in part:
        part["anyOf"] = part.pop("oneOf")
    for keyword in ("discriminator", "title"):  # redundant
        part.pop(keyword, None)
    words: Json = {name: part.pop(name) for name in list(part) if name not in KEYWORDS}
    if words.get("default", 0) is None:
        del words["default"]  # ``required`` already says that the field is optional
    if "prefixItems" in words or not ({"type", "anyOf", "allOf", "enum", "const", "$ref"} & part.keys()):
        return False
    if not isinstance(part.get("type", ""), str) or not all(isinstance(word, _PLAIN) for word in part.get("enum", ())):
        return False
    if part.get("type") == "object":
        if "properties" not in part or part.get("additionalProperties"):
            return False  # its names are not known in advance
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
    """Whether a schema is recursive."""

    def leads_back(part: Json, above: tuple[Any, ...]) -> bool:
        name = part.get("$ref", "").removeprefix("#/$defs/")
        if name:
            return name in above or leads_back(schema["$defs"][name], (*above, name))
        return any(
            leads_back(inner, above) for holder, _, inner in inner_schemas(part) if holder is not part.get("$defs")
        )

    return leads_back(schema, ())
