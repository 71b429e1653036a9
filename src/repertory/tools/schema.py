"""Turning a function's signature and docstring into the description and the schema of a tool."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, count
from types import UnionType
from typing import Any, Final, cast

import msgspec

from repertory._choices import check_pattern
from repertory._constraints import read_constraints
from repertory._frozen import freeze_fields, thaw
from repertory._json_text import encode_other, json_text
from repertory._json_types import can_be_sent, resolve, schema_of, why_not
from repertory.errors import ConfigurationError
from repertory.llm.messages import Json
from repertory.tools.context import ToolContext
from repertory.tools.docstrings import read_docstring

LONGEST_NAME: Final = 128
NAME: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{LONGEST_NAME}}}")  # names that the Messages API accepts
_LONGEST_ARGUMENT: Final = 64
# Names of arguments that it accepts: "input_schema.properties: Property keys should match pattern …". It looks at those
# of the arguments alone, not within them, and one that does not fit makes it refuse every request.
ARGUMENT: Final = re.compile(rf"[a-zA-Z0-9_.-]{{1,{_LONGEST_ARGUMENT}}}")
_ARGUMENT_WORDS: Final = f"have 1 to {_LONGEST_ARGUMENT} of the characters a-z A-Z 0-9 _ . -"
_NOT_ON_TOP: Final = ("oneOf", "anyOf", "allOf")  # keywords that the Messages API refuses beside the arguments


class Definition(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a function's signature and docstring say.

    Attributes:
        description: The docstring without its ``Args``, ``Returns``, ``Raises`` and ``Yields`` sections.
        input_schema: JSON schema of the arguments.
        arguments: Struct type with one field per argument; fields that were not given are ``UNSET``. None if somebody
            else wrote the schema: the function then takes all of them as one.
        whole_parameter: The parameter that it takes them by.
        checker: Checks them by that schema; None if whoever gets them does.
        context_parameter: The parameter that receives the ``ToolContext``; None if there is none.
        signature: ``name(argument: type = default, …)`` with the types of JSON schema.
        foreign_names: How somebody else's schema names the arguments that were renamed for the API, by the new names.
    """

    description: str
    input_schema: Json
    arguments: type[msgspec.Struct] | None
    context_parameter: str | None
    signature: str
    whole_parameter: str = "arguments"
    checker: Any = None
    foreign_names: dict[str, str] = {}

    def __post_init__(self) -> None:
        freeze_fields(self, "input_schema", "foreign_names")


def read_definition(function: Callable[..., Any], name: str, scope: Mapping[str, Any]) -> Definition:
    """Read a function's parameters and docstring.

    Args:
        function: A plain or async function; a method must be bound.
        scope: Names visible where the function was decorated, to resolve annotations that are strings.

    Raises:
        ConfigurationError: The function cannot become a tool; the message names it and the parameter.
    """
    check_pattern("a tool's name", name, NAME, "be 1 to 128 of the characters a-z A-Z 0-9 _ -")
    if not callable(function):
        raise ConfigurationError(f"tool {name!r} is made of {function!r}, which cannot be called")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigurationError(f"tool {name!r} is a generator; return the whole result instead")
    names = {**_globals(function), **scope}
    fields: list[tuple[str, Any, Any]] = []
    defaults: dict[str, object] = {}
    context_parameter: str | None = None
    for parameter in _parameters(function, name):
        where = f"tool {name!r}: parameter {parameter.name!r}"
        kind = _resolve(where, parameter, names)
        if _is_context(kind):
            if context_parameter is not None:
                raise ConfigurationError(f"{where} is a second ToolContext, beside {context_parameter!r}")
            context_parameter = parameter.name
            continue
        kind = read_constraints(kind, where)
        _check(where, parameter, kind)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind, msgspec.NODEFAULT))
        else:  # the function applies its own default; the field only shows whether the argument was given
            fields.append((parameter.name, kind | msgspec.UnsetType, msgspec.UNSET))
            defaults[parameter.name] = parameter.default
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, frozen=True, forbid_unknown_fields=True, eq=False)
    described: Any = function.func if isinstance(function, functools.partial) else function
    description, notes = read_docstring(inspect.getdoc(described) or "")
    schema = _build_schema(arguments, defaults, notes)
    return Definition(
        description=description,
        input_schema=schema,
        arguments=arguments,
        context_parameter=context_parameter,
        signature=render_signature(name, schema),
    )


def with_schema(own: Definition, name: str, schema: Json) -> Definition:
    """The definition of a function that takes its arguments as one dict, by a schema that somebody else wrote.

    Args:
        schema: JSON schema of an object, by draft 2020-12.

    Raises:
        ConfigurationError: The function takes something else, or the schema is not valid.
    """
    fields = () if own.arguments is None else msgspec.structs.fields(own.arguments)
    if len(fields) != 1 or (typing.get_origin(fields[0].type) or fields[0].type) not in (dict, Mapping):
        raise ConfigurationError(
            f"tool {name!r}: with a schema its function takes the arguments as one dict, beside a ToolContext; it is "
            f"{own.signature}"
        )
    if schema.get("type", "object") != "object":
        raise ConfigurationError(f"tool {name!r}: schema must be that of an object, got type {schema['type']!r}")
    checker = _checker(schema, f"tool {name!r}", formats=True)
    made = foreign_definition(name, own.description, schema)
    return msgspec.structs.replace(
        made, whole_parameter=fields[0].name, checker=checker, context_parameter=own.context_parameter
    )


def foreign_definition(name: str, description: str, input_schema: Json) -> Definition:
    """The definition of a tool whose schema somebody else wrote, such as an MCP server.

    Its function takes ``arguments``, unchanged and all as one, and ``context``. What the API would refuse is put in
    another way: alternatives beside the arguments go into the description, and arguments get names that it accepts.

    Raises:
        ConfigurationError: The schema is not valid by draft 2020-12. The API may refuse a whole request because of it.
    """
    _checker(input_schema, f"tool {name!r}", formats=False)  # its patterns may be JavaScript's, not Python's
    rules: Json = {word: input_schema[word] for word in _NOT_ON_TOP if word in input_schema}
    properties: Json = _properties_of(rules, input_schema) | input_schema.get("properties", {})
    names = fit_names(properties, ARGUMENT, _LONGEST_ARGUMENT)
    schema: Json = {
        **{word: value for word, value in input_schema.items() if word not in rules},
        "type": "object",
        "properties": {names[argument]: described for argument, described in properties.items()},
        "required": [names.get(argument, argument) for argument in input_schema.get("required", ())],
    }
    if rules:
        description += f"\n\nThe arguments must also fit this JSON schema: {json_text(rules)}"
    return Definition(
        description=description,
        input_schema=schema,
        arguments=None,
        context_parameter="context",
        signature=render_signature(name, schema),
        foreign_names={fit: argument for argument, fit in names.items() if fit != argument},
    )


def _properties_of(rules: Json, root: Json) -> Json:
    """The arguments that only the alternatives of a schema name."""
    found: dict[str, list[Any]] = {}
    for alternative in chain.from_iterable(rules.values()):
        for name, described in resolve(alternative, root).get("properties", {}).items():
            if described not in found.setdefault(name, []):
                found[name].append(described)
    return {name: each[0] if len(each) == 1 else {"anyOf": each} for name, each in found.items()}


def fit_names(names: Collection[str], pattern: re.Pattern[str], longest: int) -> dict[str, str]:
    """A name of its own for each name, which matches a pattern; those that match it already stay as they are."""
    fitting = {name: name for name in names if pattern.fullmatch(name)}
    taken, free = set(fitting), dict[str, Iterator[str]]()
    for name in names:
        if name not in fitting:
            plain = "".join(letter if pattern.fullmatch(letter) else "_" for letter in name)[:longest] or "_"
            numbered = (f"{base}_{number}" for base in [plain[: longest - 8]] for number in count(2))
            fitting[name] = next(each for each in free.setdefault(plain, chain([plain], numbered)) if each not in taken)
            taken.add(fitting[name])
    return fitting


def _checker(schema: Json, where: str, *, formats: bool) -> Any:
    """A validator for a JSON schema; ``formats`` says whether texts in the schema must fit their formats too."""
    try:
        from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]
        from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigurationError(f"to check {where} by its schema: pip install 'repertory[mcp]'") from error
    try:
        plain = thaw(schema)
        Draft202012Validator.check_schema(plain, Draft202012Validator.FORMAT_CHECKER if formats else FormatChecker(()))
    except SchemaError as error:
        told = f"{error.message:.500} (at {error.json_path})"
        raise ConfigurationError(f"{where} cannot be checked, as its schema is none: {told}") from error
    except RecursionError:
        raise ConfigurationError(f"{where} cannot be checked, as its schema is nested too deep") from None
    return Draft202012Validator(plain)


def check_by_schema(value: Any, schema: Json, *, where: str) -> None:
    """Check that a value fits a JSON schema.

    Raises:
        ConfigurationError: It does not fit, the schema is invalid, or the library that checks it is not installed.
    """
    if misfit := find_misfit(value, _checker(schema, where, formats=True)):
        raise ConfigurationError(f"{where} does not fit what was asked for: {misfit}")


def find_misfit(value: Any, checker: Any) -> str:
    """Where a value does not fit a checker's schema, and why; "" if it fits."""
    from jsonschema.exceptions import best_match

    misfit = best_match(checker.iter_errors(value))
    return "" if misfit is None else f"{misfit.message:.500} (at {misfit.json_path})"


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The parameters that a call may give; the model cannot change what a ``functools.partial`` has set."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:  # some functions written in C have no signature
        raise ConfigurationError(f"tool {name!r}: {error}; write a function around it") from error
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return [parameter for parameter in parameters if parameter.name not in bound]


def _globals(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The global names of the function's module."""
    inner: Any = function.func if isinstance(function, functools.partial) else function
    inner = inspect.unwrap(inner)
    return getattr(inner, "__globals__", None) or getattr(type(inner).__call__, "__globals__", {})


def _resolve(where: str, parameter: inspect.Parameter, names: Mapping[str, Any]) -> Any:
    """Resolve the parameter's type."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise ConfigurationError(f"{where} is {parameter.kind.description}; the model names every argument")
    if parameter.annotation is parameter.empty:
        hint = "; make a tool of the bound method: tool(instance.method)" if parameter.name in ("self", "cls") else ""
        raise ConfigurationError(f"{where} has no annotation{hint}")

    def probe() -> None:
        """A stand-in for the function, so that one annotation is resolved at a time."""

    probe.__annotations__ = {parameter.name: parameter.annotation}
    try:
        return typing.get_type_hints(probe, dict(names), include_extras=True)[parameter.name]
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise ConfigurationError(
            f"{where} has an annotation that cannot be resolved: {error}; "
            f"import its names outside `if TYPE_CHECKING` and define them before the tool"
        ) from error


def _is_context(kind: Any) -> bool:
    """Whether a type is ``ToolContext``, ``ToolContext[…]``, or one of these or None; annotations do not matter."""
    kind = kind.__origin__ if typing.get_origin(kind) is typing.Annotated else kind
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, UnionType) else (kind,)
    kinds = {typing.get_origin(option) or option for option in options} - {type(None)}
    return kinds == {ToolContext}


def _check(where: str, parameter: inspect.Parameter, kind: Any) -> None:
    """Refuse a type that JSON schema or the converter does not know."""
    if type(parameter.default).__name__ == "FieldInfo":  # pydantic's, which the function would get as a value
        raise ConfigurationError(
            f"{where} has pydantic's Field as its default; write Annotated[type, Field(…)] instead"
        )
    check_pattern(f"{where}: its name", parameter.name, ARGUMENT, _ARGUMENT_WORDS)
    if parameter.name.startswith("__"):
        raise ConfigurationError(f"{where} begins with two underscores; choose another name")
    try:
        schema_of(kind)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(
            f"{where} has a type that cannot be described as JSON: {why_not(error, kind)}"
        ) from error


def _build_schema(arguments: type[msgspec.Struct], defaults: Mapping[str, object], notes: Mapping[str, str]) -> Json:
    root = schema_of(arguments)
    properties: Json = {}
    for name, described in root["properties"].items():
        entry = dict(described)
        if name in notes and "description" not in entry:
            entry["description"] = notes[name]
        if defaults.get(name) is not None:
            # A default that JSON cannot express is left out; the argument stays optional.
            with contextlib.suppress(TypeError, ValueError):
                default = msgspec.to_builtins(defaults[name], enc_hook=encode_other, str_keys=True)
                if can_be_sent(default):
                    entry["default"] = default
        properties[name] = entry
    root["properties"] = properties
    root.setdefault("required", [])
    return root


def render_signature(name: str, schema: Json) -> str:
    """``name(argument: type = default, …)``, made from the schema of an object."""
    parts: list[str] = []
    for argument, described in schema["properties"].items():
        text = f"{argument}: {_kind(described, schema)}"
        if isinstance(described, dict) and "default" in described:
            text += f" = {msgspec.json.encode(described['default']).decode()}"
        elif argument not in schema["required"]:
            text += " (optional)"
        parts.append(text)
    return f"{name}({', '.join(parts)})"


def _kind(described: Any, root: Json) -> str:
    """A JSON schema as a short type."""
    if not isinstance(described, dict):
        return "any"
    described = cast("Json", described)
    if "anyOf" in described:
        return " | ".join(_kind(option, root) for option in described["anyOf"])
    meant = resolve(described, root)
    if "enum" in meant:
        return " | ".join(msgspec.json.encode(value).decode() for value in meant["enum"])
    if "$ref" in described:
        return str(described["$ref"]).rpartition("/")[2]
    kind: Any = described.get("type", "any")
    if kind == "array" and isinstance(described.get("items"), dict):
        return f"array of {_kind(described['items'], root)}"
    if kind == "string" and isinstance(described.get("format"), str):
        return f"string ({described['format']})"
    return " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
