"""What the model sent, checked and turned into what the function takes."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import msgspec

from repertory.errors import ToolRetry
from repertory.llm.messages import Json
from repertory.tools.decorator import Tool


def read_arguments(tool: Tool, arguments: Any) -> dict[str, Any]:
    """Check a call's arguments against the tool's signature.

    Exact values are taken as they are. Where that fails, what models commonly get wrong is put right: ``"5"`` for
    a number, ``"[1, 2]"`` for a list, null for an argument that may be left out.

    Returns:
        The arguments that were given, by name; the function's own defaults fill the rest.

    Raises:
        ToolRetry: They do not fit; the text says where, and repeats the signature.
    """
    definition = tool.definition
    try:
        checked = msgspec.convert(arguments, definition.arguments)
    except msgspec.ValidationError as error:
        try:
            checked = msgspec.convert(_mend(arguments, definition.input_schema), definition.arguments, strict=False)
        except msgspec.ValidationError:
            raise ToolRetry(f"invalid arguments: {error}. Expected {definition.signature}") from error
    values = {name: getattr(checked, name) for name in definition.arguments.__struct_fields__}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def _mend(arguments: Any, schema: Json) -> Any:
    """Undo what models commonly do to arguments, where the schema leaves no doubt."""
    if not isinstance(arguments, dict):
        return arguments
    given = cast("Json", arguments)
    mended: Json = {}
    for name, value in given.items():
        kinds = _kinds(schema["properties"].get(name, {}))
        if value is None and name not in schema["required"] and "null" not in kinds:
            continue
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") and kinds <= {"array", "object", "null"}:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):  # then it is reported as the text it is
                value = msgspec.json.decode(value)  # noqa: PLW2901
        mended[name] = value
    return mended


def _kinds(described: Json) -> set[str]:
    """The JSON types that a schema allows; a reference counts as an object, no statement as anything."""
    if "anyOf" in described:
        return {kind for option in described["anyOf"] for kind in _kinds(option)}
    if "$ref" in described:
        return {"object"}
    return {described.get("type", "any")}
