"""Fills in a schema by rules, from the lines of an answer: how the offline model gives a typed result.

There is no intelligence in it: a text gets the lines, a list one item per line, a number the first number in the
lines or 0, an enum the word of it that they contain or its first, a truth value false. Optional fields are left out,
except lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from repertory._json_types import resolve
from repertory.llm.messages import Json

_SOURCE: Final = re.compile(r"\(([^\s():]+):(\d+)[^()]*\)")  # as the offline model cites, and many others
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_PLACES: Final = ("path", "file", "filename")
_SOURCES: Final = ("source", "location", "citation", "url")
_MOST_ITEMS: Final = 12
_DEEPEST: Final = 8  # levels; below them lists stay empty


def fill(schema: Json, answer: str) -> Any:
    """Make a value for a schema from the lines of an answer. It is deterministic, and may not fit the schema."""
    lines = [line.strip().removeprefix("- ").strip() for line in answer.splitlines()]
    return _value(schema, schema, "", [line for line in lines if line] or [answer], 0)


def _value(schema: Json, root: Json, name: str, lines: Sequence[str], depth: int) -> Any:
    schema = resolve(schema, root)
    options: list[Json] = schema.get("anyOf") or schema.get("oneOf") or []
    if options:
        own = [each for each in options if resolve(each, root).get("type") != "null"]
        return _value((own or options)[0], root, name, lines, depth)
    if "const" in schema or schema.get("enum"):
        words: list[Any] = schema.get("enum") or [schema["const"]]
        said = " ".join(lines).lower()
        return next((word for word in words if isinstance(word, str) and word.lower() in said), words[0])
    match schema.get("type"):
        case "object":
            known: dict[str, Json] = schema.get("properties", {})
            required: Sequence[str] = schema.get("required", ())
            names = [each for each in known if each in required or resolve(known[each], root).get("type") == "array"]
            return {each: _value(known[each], root, each, lines, depth + 1) for each in names}
        case "array":
            items, most = schema.get("items"), min(schema.get("maxItems", _MOST_ITEMS), _MOST_ITEMS)
            chosen = lines[:most] if depth < _DEEPEST and isinstance(items, dict) else []
            return [_value(items or {}, root, name, [line], depth + 1) for line in chosen]
        case "integer" | "number" as kind:
            return _number(schema, name, lines, whole=kind == "integer")
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return _text(schema, name, lines)


def _text(schema: Json, name: str, lines: Sequence[str]) -> str:
    source = next((found for line in lines if (found := _SOURCE.search(line))), None)
    if source is not None and name in (*_PLACES, *_SOURCES):
        return source[1] if name in _PLACES else f"{source[1]}:{source[2]}"
    return "\n".join(lines)[: schema.get("maxLength")]


def _number(schema: Json, name: str, lines: Sequence[str], *, whole: bool) -> float:
    source = next((found for line in lines if (found := _SOURCE.search(line))), None)
    if source is not None and name in ("line", "line_number"):
        value = float(source[2])
    else:
        value = next((float(found[0]) for line in lines if (found := _NUMBER.search(line))), 0.0)
    least: float = schema.get("minimum", schema.get("exclusiveMinimum", value - 1) + 1)
    most: float = schema.get("maximum", schema.get("exclusiveMaximum", value + 1) - 1)
    value = min(max(value, least), most)
    return int(value) if whole else value
