"""Checks the types of a request's values. This comes first, so that the other rules can rely on the types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypedDict

import msgspec

from repertory.testing.refusal import refuse

_WORDS: Final[dict[type[Any], str]] = {
    dict: "dictionary",
    list: "list",
    str: "string",
    bool: "boolean",
    int: "integer",
}
# Types that differ within a union of blocks are checked in ``transcript``: the API names such a block by its own type.
_KINDS: Final[dict[str, type[Any]]] = {
    "max_tokens": int,
    "stream": bool,
    "stop_sequences": list,
    "stop_sequences.*": str,
    "metadata": dict,
    "tools": list,
    "tools.*": dict,
    "tools.*.type": str,
    "tools.*.name": str,
    "tools.*.cache_control": dict,
    "thinking": dict,
    "thinking.block_binding": dict,
    "cache_control": dict,
    "output_config": dict,
    "output_config.task_budget": dict,
    "context_management": dict,
    "context_management.edits": list,
    "context_management.edits.*": dict,
    "context_management.edits.*.type": str,
    "messages": list,
    "messages.*": dict,
}


def check_shape(body: dict[str, Any]) -> None:
    """Check the types of a request's values. A null counts as absent, except in place of a list or inside one."""
    for place, kind in _KINDS.items():
        for path, value in _at(body, place.split(".")):
            if value is not None or kind is list or place.endswith("*"):
                check_kind(value, kind, path)


def check_kind(value: Any, kind: type[Any], path: str) -> None:
    """Check the type of a JSON value; True is no number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        refuse(f"{path}: Input should be a valid {_WORDS[kind]}")


def _at(value: Any, steps: list[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """The values at a place, with their paths; ``*`` stands for every item of a list."""
    if not steps:
        yield path.removeprefix("."), value
    elif steps[0] == "*":
        for index, inner in enumerate(value):
            yield from _at(inner, steps[1:], f"{path}.{index}")
    elif value is not None and steps[0] in value:
        yield from _at(value[steps[0]], steps[1:], f"{path}.{steps[0]}")


# The keywords of JSON schema that repertory reads; as strings, because some are not names in Python.
_Schema = TypedDict(
    "_Schema",
    {
        "type": "str | list[str]",
        "properties": "dict[str, _Schema | bool]",
        "$defs": "dict[str, _Schema | bool]",
        "required": "list[str]",
        "additionalProperties": "_Schema | bool",
        "items": "_Schema | bool",
        "anyOf": "list[_Schema | bool]",
        "oneOf": "list[_Schema | bool]",
        "allOf": "list[_Schema | bool]",
        "prefixItems": "list[_Schema | bool]",
        "$ref": str,
        "format": str,
    },
    total=False,
)


def check_schema(schema: Any, path: str) -> None:
    """Check that a value is a JSON schema, as far as its keywords are read here."""
    try:
        msgspec.convert(schema, _Schema)
    except msgspec.ValidationError:
        refuse(
            f"{path}: JSON schema is invalid. It must match JSON Schema draft 2020-12 "
            "(https://json-schema.org/draft/2020-12)."
        )
