"""The application's types as JSON: their schemas, and how values are read and written.

It covers all types that msgspec knows (structs, dataclasses, TypedDicts, lists, unions, literals, …), paths, and
pydantic models, which describe and check themselves. pydantic is never imported here: whoever has a model has pydantic.
"""

from __future__ import annotations

import contextlib
import json
import typing
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import PurePath
from types import UnionType
from typing import Any, Final, TypeAlias, Union, cast

import msgspec

from repertory._choices import show
from repertory._constraints import is_pydantic_model, read_constraints
from repertory._error_texts import name_error
from repertory._frozen import thaw
from repertory._json_text import decode_text, json_text
from repertory.errors import ConfigurationError

Json: TypeAlias = dict[str, Any]

_REF: Final = "#/$defs/"
_MOST_RETOLD: Final = 3  # errors of a pydantic model that are reported at once


def json_type(kind: Any, where: str) -> JsonType | None:
    """A prepared type, from a cache if possible; None for None and ``str``, which mean plain text.

    Raises:
        ConfigurationError: As ``JsonType``.
    """
    if kind is None or kind is str:
        return None
    try:
        return _ready(kind, where)
    except TypeError:  # for a type that cannot be hashed, such as a Literal of a list
        return JsonType(kind, where)


@lru_cache(maxsize=256)
def _ready(kind: Any, where: str) -> JsonType:
    return JsonType(kind, where)


class JsonType:
    """One type, prepared once.

    Attributes:
        kind: The type.
        name: Its name.
        schema: Its JSON schema. What it refers to is under ``$defs``; titles, which repeat names, are left out.

    Args:
        kind: The type.
        where: How errors refer to it.

    Raises:
        ConfigurationError: It cannot be described as JSON, or has a constraint that cannot be honoured.
    """

    def __init__(self, kind: Any, where: str) -> None:
        self.kind = kind
        self.name = kind.__name__ if isinstance(kind, type) else _name_of(kind)
        read = read_constraints(kind, where)
        try:
            self._options = _options(read)
            self.schema = schema_of(*self._options)
        except (TypeError, ValueError, NameError) as error:
            raise ConfigurationError(
                f"{where} is {self.name}, which cannot be described as JSON: {why_not(error, kind)}"
            ) from error

    def read(self, value: Any) -> Any:
        """Make a value of the type from decoded JSON.

        Values that fit exactly are taken as they are. Otherwise common mistakes of models are corrected; see ``mend``.

        Raises:
            ValueError: It does not fit; the text says what was expected, what came, and where (``$.steps[2].name``).
        """
        errors: list[str] = []
        for schema, option in self._likeliest(value):
            try:
                return convert(value, option, {**schema, "$defs": self.schema.get("$defs", {})})
            except msgspec.ValidationError as error:
                errors.append(str(error))
        raise ValueError("; or ".join(errors))

    def read_exactly(self, value: Any) -> Any:
        """Make a value of the type from decoded JSON, without correcting anything.

        Raises:
            ValueError: As ``read``.
        """
        for option in self._options[:-1]:
            with contextlib.suppress(msgspec.ValidationError):
                return _convert(value, option, str_keys=True)
        return _convert(value, self._options[-1], str_keys=True)

    def read_text(self, text: str) -> Any:
        """Make a value of the type from a JSON text.

        Raises:
            ValueError: The text does not fit, or is not JSON.
        """
        return self.read(decode_text(text))

    def write(self, value: Any) -> str:
        """A value of the type as JSON text; the same value always gives the same text.

        Raises:
            TypeError: Something in it cannot be written as JSON.
        """
        try:
            return json_text(value)
        except RecursionError:
            raise TypeError("it is nested too deep") from None

    def _likeliest(self, value: Any) -> list[tuple[Json, Any]]:
        """The types to try, with their schemas; for an object first the type that has most of its fields."""
        if len(self._options) == 1:
            return [(self.schema, self._options[0])]
        pairs = list(zip(self.schema["anyOf"], self._options, strict=True))
        if not isinstance(value, dict):
            return pairs
        names = cast("Json", value).keys()
        return sorted(pairs, key=lambda pair: len(names - resolve(pair[0], self.schema).get("properties", {}).keys()))


def why_not(error: Exception, kind: Any) -> str:
    """Why a type cannot be described as JSON, by the error of ``schema_of``, and what to do about it."""
    reason = str(error).strip().splitlines()[-1][:500]
    if isinstance(error, NameError):
        return f"{reason}; define it, and import all that it names, at the top level of a module"
    if isinstance(kind, list | tuple):
        return f"{reason}; a choice of types is written A | B"
    if "unions" in reason and "custom type" in reason:
        return f"{reason}; use one of the types alone, or make a union of pydantic models a field of a pydantic model"
    if "unions" in reason and ("Struct" in reason or "dataclass" in reason):
        return f"{reason}; tag its structs: class A(msgspec.Struct, tag=True)"
    return reason


def _name_of(kind: object) -> str:
    return show(kind) if isinstance(kind, str) else str(kind).replace("typing.", "")


def convert(value: Any, kind: Any, schema: Json) -> Any:
    """Make a value of a type from decoded JSON; if that does not fit, from what was meant (see ``mend``).

    Raises:
        msgspec.ValidationError: It does not fit.
    """
    try:
        return _convert(value, kind)
    except msgspec.ValidationError as error:
        try:
            mended = mend(value, schema, schema)
        except RecursionError:
            raise error from None
    return _convert(mended, kind, strict=False)


def _convert(value: Any, kind: Any, *, strict: bool = True, str_keys: bool = False) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict, dec_hook=_decode_other, str_keys=str_keys)
    except UnicodeEncodeError as error:  # such as half an emoji: fine as text, but not as a number or a choice
        raise msgspec.ValidationError(
            f"Expected something else than {show(error.object)}, half of a character"
        ) from None
    except RecursionError:
        raise msgspec.ValidationError("Expected something that is nested less deep") from None
    except (msgspec.ValidationError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the application's types may raise any error, also SystemExit or a panic in Rust
        raise msgspec.ValidationError(name_error(error)) from error


def mend(value: Any, schema: Json, root: Json) -> Any:
    """Correct common mistakes of models in JSON, if the schema leaves no doubt.

    These are ``"[1, 2]"`` for a list, null for an optional field, and ``"HIGH"`` if ``"high"`` is one of the choices.

    Args:
        value: The value to correct.
        schema: The schema that it should fit.
        root: The schema whose ``$defs`` it refers to.
    """
    schema = resolve(schema, root)
    kinds = kinds_of(schema, root)
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") and kinds <= {"array", "object", "null"}:
        try:
            value = decode_text(value)
        except ValueError:
            return value  # then it is reported as a text
    wanted = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else "string"
    options = [each for each in _alternatives(schema, root) if wanted in kinds_of(each, root)]
    if isinstance(value, dict) and len(options) > 1:
        options = [each for each in options if _has_tag(cast("Json", value), each)]
    if len(options) != 1:
        return value
    schema = options[0]
    if isinstance(value, list):
        items = schema.get("items")
        return [mend(each, items, root) for each in value] if isinstance(items, dict) else value
    if isinstance(value, dict):
        known, required = schema.get("properties", {}), schema.get("required", ())
        return {
            name: mend(each, known.get(name, {}), root)
            for name, each in cast("Json", value).items()
            if not (each is None and name in known and name not in required and _needless(known[name], root))
        }
    if isinstance(value, str) and value not in schema.get("enum", (value,)):
        same = [word for word in schema["enum"] if isinstance(word, str) and word.lower() == value.strip().lower()]
        return same[0] if len(same) == 1 else value
    return value


def _has_tag(value: Json, schema: Json) -> bool:
    """Whether an object has the fixed words that a schema asks for, such as the tag of a struct in a union."""
    for name, inner in schema.get("properties", {}).items():
        if isinstance(inner, dict) and name in value:  # True and False are schemas too
            words = inner.get("enum", [inner["const"]] if "const" in inner else [])
            if len(words) == 1 and value[name] not in words:
                return False
    return True


def _needless(schema: Json, root: Json) -> bool:
    """Whether null can only mean that the field is left out."""
    return "null" not in kinds_of(schema, root) and bool(resolve(schema, root))


def resolve(schema: Json | bool, root: Json) -> Json:
    """The schema that a reference leads to; a schema without a reference itself."""
    for _ in range(100):  # a schema may refer to itself
        if isinstance(schema, bool):  # a schema too: True takes anything
            break
        if "$ref" not in schema:
            return schema
        schema = root.get("$defs", {}).get(schema["$ref"].removeprefix(_REF), {})
    return {}


def kinds_of(schema: Json, root: Json) -> set[str]:
    """The JSON types that a schema allows; ``any`` if it does not say."""
    kinds: set[str] = set()
    for each in _alternatives(schema, root):
        kind = each.get("type")
        words = [word for word in (*each.get("enum", ()), each.get("const")) if word is not None]
        if kind is None and words:
            kind = "string" if all(isinstance(word, str) for word in words) else "any"
        kinds.update(kind if isinstance(kind, list) else [kind or "any"])
    return kinds


def _alternatives(schema: Json, root: Json) -> list[Json]:
    schema = resolve(schema, root)
    options: list[Json] = schema.get("anyOf") or schema.get("oneOf") or []
    return [inner for each in options for inner in _alternatives(each, root)] if options else [schema]


def inner_schemas(schema: Json) -> Iterator[tuple[Json | list[Any], Any, Json]]:
    """The schemas directly within a schema: for each its container, its key there, and the schema."""
    for key in ("properties", "$defs"):
        for name, inner in (schema.get(key) or {}).items():
            if isinstance(inner, dict):
                yield schema[key], name, inner
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield schema, key, schema[key]
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, inner in enumerate(schema.get(key) or list[Any]()):
            if isinstance(inner, dict):
                yield schema[key], index, inner


def inlined(schema: Json) -> Json:
    """The same schema without references, so that it can be embedded anywhere; recursion ends in a plain object."""

    def within(part: Json, above: tuple[str, ...]) -> Json:
        ref = part.get("$ref", "")
        if ref in above:
            return {"type": "object"}
        if ref:
            return within({**resolve(part, schema), **{k: v for k, v in part.items() if k != "$ref"}}, (*above, ref))
        copy = thaw({name: value for name, value in part.items() if name != "$defs"})
        for holder, key, inner in list(inner_schemas(copy)):
            holder[key] = within(inner, above)
        return copy

    return within(schema, ())


# --- how they are made --------------------------------------------------------------------------------------------


def _options(kind: Any) -> tuple[Any, ...]:
    """The types to try one by one; several if msgspec cannot tell the members of a union apart by itself."""
    try:
        msgspec.json.Decoder(kind, dec_hook=_decode_other)
    except TypeError:
        if typing.get_origin(kind) not in (Union, UnionType):
            raise
        return typing.get_args(kind)
    return (kind,)


def schema_of(*kinds: Any) -> Json:
    """JSON schema for a value of any of some types, with definitions under ``$defs`` and without titles.

    Raises:
        TypeError: A type cannot be described as JSON; also ``ValueError`` or ``NameError``.
    """
    for kind in kinds:
        msgspec.json.Decoder(kind, dec_hook=_decode_other)
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=_describe_other, ref_template=_REF + "{name}"
    )
    root: Json = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    root, definitions = thaw(root), thaw(components)
    for each in (root, *definitions.values()):
        _tidy(each, definitions)
    if "$ref" in root:
        root = {**definitions[root["$ref"].removeprefix(_REF)]}
    used = _referred(root, definitions)
    return {**root, "$defs": {name: definitions[name] for name in sorted(used)}} if used else root


def can_be_sent(value: Any) -> bool:
    """Whether a value of plain types can be sent as JSON, which has no NaN, infinity or lone surrogate."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def _tidy(schema: Json, definitions: Json) -> None:
    """Remove titles and defaults that JSON cannot express, and move a pydantic model's definitions to the others."""
    schema.pop("title", None)
    if not can_be_sent(schema.get("default")):
        del schema["default"]
    for name, each in schema.pop("$defs", {}).items():
        definitions[name] = each
        _tidy(each, definitions)
    for _, _, inner in list(inner_schemas(schema)):
        _tidy(inner, definitions)


def _referred(root: Json, definitions: Json) -> set[str]:
    """The definitions that a schema needs."""
    found: set[str] = set()
    todo = [root]
    while todo:
        schema = todo.pop()
        name = schema.get("$ref", "").removeprefix(_REF)
        if name and name not in found:
            found.add(name)
            todo.append(definitions[name])
        todo.extend(inner for _, _, inner in inner_schemas(schema))
    return found


def _is_path(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, PurePath)


def _describe_other(kind: Any) -> Json:
    if _is_path(kind):
        return {"type": "string", "format": "path"}
    if not is_pydantic_model(kind):
        raise TypeError(f"type {kind!r} has no form in JSON")
    if (secret := _find_secret(kind, set())) is not None:
        raise TypeError(
            f"field {secret} is a secret, which JSON shows as stars, so that it would be lost, while what a model says "
            "is on record in clear. Hand secrets to tools in spawn(…, context=…), which is never recorded"
        )
    # Its own definitions are prefixed with its name: two models may use different classes of the same name.
    prefix = f"{kind.__name__}_"
    schema: Json = kind.model_json_schema(ref_template=_REF + prefix + "{model}")
    if "$defs" in schema:
        schema["$defs"] = {prefix + name: each for name, each in schema["$defs"].items()}
    return schema


def _find_secret(kind: Any, seen: set[Any]) -> str | None:
    """The place in a type of a pydantic secret, such as ``SecretStr``; None if there is none."""
    if not typing.get_args(kind):
        if hasattr(kind, "get_secret_value"):
            return ""
        if not isinstance(kind, type) or kind in seen:
            return None
        seen.add(kind)
        fields: dict[str, Any] = {}
        if is_pydantic_model(kind):
            fields = {name: field.annotation for name, field in cast("Any", kind).__pydantic_fields__.items()}
        elif hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__total__"):
            fields = typing.get_type_hints(kind)
        for name, inner in fields.items():
            if (found := _find_secret(inner, seen)) is not None:
                return f"{name}.{found}" if found else name
        return None
    places = [_find_secret(each, seen) for each in (typing.get_origin(kind), *typing.get_args(kind))]
    return next((place for place in places if place is not None), None)


def _decode_other(kind: Any, value: Any) -> Any:
    if isinstance(value, kind) and (_is_path(kind) or is_pydantic_model(kind)):
        return value
    if _is_path(kind):
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"Expected a path, got {value!r:.100}")
        return kind(value)
    if not is_pydantic_model(kind):
        raise NotImplementedError
    try:
        return kind.model_validate(value)
    except ValueError as error:
        raise ValueError(_retell(error)) from error


def _retell(error: Any) -> str:
    """The errors of a pydantic model, worded like msgspec's own."""
    errors: Callable[[], list[Json]] | None = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    told = [f"{each['msg']} in field {'.'.join(map(str, each['loc'])) or 'itself'}" for each in errors()]
    left = len(told) - _MOST_RETOLD
    return "; ".join(told[:_MOST_RETOLD]) + (f"; and {left} more" if left > 0 else "")
