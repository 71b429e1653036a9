"""Checking the arguments that the model sent, and converting them for the function."""

from __future__ import annotations

import inspect
from typing import Any, cast

import msgspec

from repertory._frozen import thaw
from repertory._json_types import convert, mend
from repertory.errors import ToolRetry
from repertory.llm.messages import Json
from repertory.tools.decorator import Tool
from repertory.tools.schema import find_misfit


def read_arguments(tool: Tool, arguments: Any) -> dict[str, Any]:
    """Check a call's arguments against the tool's signature.

    Exact values are taken as they are. If that fails, common mistakes of models are corrected: ``"5"`` for a number,
    ``"[1, 2]"`` for a list, null for an argument that may be left out, ``"HIGH"`` for ``"high"``.

    Returns:
        The arguments that were given, by name; the function's own defaults apply to the rest.

    Raises:
        ToolRetry: They do not fit; the text says where, and repeats the signature.
    """
    definition = tool.definition
    if definition.arguments is None:
        if not isinstance(arguments, dict):
            raise ToolRetry(f"invalid arguments: expected an object. Expected {definition.signature}")
        mended = mend(arguments, definition.input_schema, definition.input_schema)
        given = {definition.foreign_names.get(name, name): value for name, value in mended.items()}
        if len(given) < len(mended):  # whoever allows the call could not say which of the two counts
            raise ToolRetry(f"invalid arguments: one is there under two names. Expected {definition.signature}")
        if definition.checker is not None and (misfit := find_misfit(given, definition.checker)):
            raise ToolRetry(f"invalid arguments: {misfit}. Expected {definition.signature}")
        return {definition.whole_parameter: given}
    try:
        checked = convert(arguments, definition.arguments, definition.input_schema)
    except msgspec.ValidationError as error:
        raise ToolRetry(f"invalid arguments: {error}. Expected {definition.signature}") from error
    values = {name: getattr(checked, name) for name in definition.arguments.__struct_fields__}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def proposed_arguments(tool: Tool, arguments: Json) -> dict[str, Any]:
    """The arguments that a tool would be given for a call, by name, its defaults included.

    Raises:
        ToolRetry: The arguments do not fit.
    """
    values = read_arguments(tool, thaw(arguments))
    if tool.definition.arguments is None:
        return cast("dict[str, Any]", values[tool.definition.whole_parameter])
    parameters = inspect.signature(tool.function).parameters.values()
    own = tool.definition.context_parameter
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty and each.name != own}
    return defaults | values
