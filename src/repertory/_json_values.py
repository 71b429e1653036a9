"""Values of the user's own types as JSON and back; an error names the field that does not fit.

This is for values that programs keep. Unlike ``repertory._json_types``, on which it builds and which is for what models
send, it leaves no field out and mends nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final, get_type_hints

import msgspec

from repertory._choices import show
from repertory._constraints import is_pydantic_model
from repertory._frozen import thaw
from repertory._json_types import JsonType

_DEEPEST: Final = 100  # levels; far below the recursion limit on any stack
_PLAIN = frozenset({str, int, float, bool, type(None)})


class Misfit(ValueError):
    """A value does not fit a type; the text says what was expected, what was given, and finally where."""


class ValueType:
    """One of the user's own types, whose values are written with all their fields and read exactly.

    Attributes:
        kind: The type itself.
        name: Its name in errors.
    """

    def __init__(self, kind: Any, where: str) -> None:
        """Prepare a type.

        Args:
            kind: The type.
            where: Where it was given, for the error.

        Raises:
            ConfigurationError: It cannot be written as JSON.
        """
        self.kind = kind
        self._json = JsonType(kind, where)
        self.name = self._json.name

    def from_json(self, data: Any) -> Any:
        """Make a value from JSON; the value shares nothing with ``data``.

        Raises:
            Misfit: It does not fit.
        """
        try:
            return self._json.read_exactly(thaw(data))
        except ValueError as error:
            raise Misfit(str(error)) from error

    @property
    def fields(self) -> frozenset[str] | None:
        """The names of its fields in JSON; None if any name is allowed."""
        if dataclasses.is_dataclass(self.kind):
            return frozenset(field.name for field in dataclasses.fields(self.kind))
        if isinstance(self.kind, type) and issubclass(self.kind, msgspec.Struct):
            return frozenset(self.kind.__struct_encode_fields__)
        if (models := getattr(self.kind, "model_fields", None)) is not None:
            return frozenset(field.alias or name for name, field in models.items())
        return frozenset(self.kind.__annotations__) if hasattr(self.kind, "__total__") else None

    def hints(self) -> dict[str, Any]:
        """The types of its fields, by their names in JSON; {} if any name is allowed."""
        names = self.fields
        hints: dict[str, Any] = get_type_hints(self.kind) if names is not None else {}
        if names is not None and isinstance(self.kind, type) and issubclass(self.kind, msgspec.Struct):
            own = zip(self.kind.__struct_fields__, self.kind.__struct_encode_fields__, strict=True)
            return {encoded: hints[name] for name, encoded in own}
        models: dict[str, Any] = getattr(self.kind, "model_fields", None) or {}
        return {(models[name].alias or name) if name in models else name: hint for name, hint in hints.items()}


def to_plain(value: Any) -> Any:
    """Write any value as JSON with all its fields, including those that ``omit_defaults`` would leave out.

    Raises:
        Misfit: The value contains something that JSON cannot express.
    """
    try:
        return _plain(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise Misfit(f"expected what JSON can say, got {show(value)}: {error}") from error


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, msgspec.Struct) and not kind.__struct_config__.array_like:
        config = kind.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        found = {encoded: getattr(value, name) for name, encoded in names}
        return tag | {name: _plain(field, depth + 1) for name, field in found.items() if field is not msgspec.UNSET}
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if is_pydantic_model(kind):
        return kind.model_dump(value, mode="json", by_alias=True)
    return str.__str__(value) if isinstance(value, str) else msgspec.to_builtins(value, str_keys=True)


def _key(key: Any) -> str:
    (text,) = msgspec.to_builtins({key: None}, str_keys=True)
    return str(text)
