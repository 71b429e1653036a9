"""What a caller got wrong is refused where it is written: a word of which there are a few, a value of another type."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from repertory.errors import ConfigurationError


def choices(literal: Any) -> str:
    """The words of a ``Literal``, spelled out."""
    return " or ".join(map(repr, get_args(literal)))


def check_choice(where: str, value: object, literal: Any) -> None:
    """See that a value is one of the words of a ``Literal``.

    Raises:
        ConfigurationError: It is not.
    """
    if value not in get_args(literal):
        raise ConfigurationError(f"{where} is {value!r}; expected {choices(literal)}")


def check_text(what: str, value: object) -> None:
    """See that a value is text that says something.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, str) or not value.strip():
        got = "an empty one" if isinstance(value, str) else repr(value)[:100]
        raise ConfigurationError(f"expected {what} with some text, got {got}")


def check_fields(where: str, message: msgspec.Struct) -> None:
    """See that a message holds what its fields declare: the actor that got another one would crash for everybody.

    Raises:
        ConfigurationError: It does not.
    """
    fields = msgspec.structs.asdict(message)
    for field in fields.values():
        if isinstance(field, msgspec.Struct):
            check_fields(where, field)
    try:
        msgspec.convert(fields, type(message))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
