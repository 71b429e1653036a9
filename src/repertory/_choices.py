"""What a caller got wrong is refused where it is written: a word of which there are a few, a value of another type."""

from __future__ import annotations

import math
import re
import reprlib
from functools import cache
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec

from repertory.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_WHOLE = 2**63 - 1  # of a whole number in the journal

_show = reprlib.Repr()
_show.maxstring = _show.maxother = 200


def show(value: object) -> str:
    """A value in a few words, for an error: also of one that is huge, or that contains itself."""
    return _show.repr(value)


def choices(literal: Any) -> str:
    """The words of a ``Literal``, spelled out."""
    return " or ".join(map(repr, get_args(literal)))


def check_choice(where: str, value: object, literal: Any) -> None:
    """See that a value is one of the words of a ``Literal``.

    Raises:
        ConfigurationError: It is not.
    """
    if value not in get_args(literal):
        raise ConfigurationError(f"{where} is {show(value)}; expected {choices(literal)}")


def check_text(what: str, value: object) -> None:
    """See that a value is text that says something.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, str) or not value.strip():
        got = "an empty one" if isinstance(value, str) else show(value)
        raise ConfigurationError(f"expected {what} with some text, got {got}")


def check_type(where: str, value: object, kinds: Any, words: str) -> None:
    """See that a value is an instance of a type, or of one of several.

    Raises:
        ConfigurationError: It is not; ``words`` say what it should be.
    """
    if not isinstance(value, kinds):
        raise ConfigurationError(f"{where} must be {words}, got {show(value)}")


def check_types(where: str, made: object, fields: Iterable[tuple[str, Any, str]]) -> None:
    """See that attributes are instances of their types: each by its name, its types, and words for these.

    Raises:
        ConfigurationError: One is not.
    """
    for name, kinds, words in fields:
        if not isinstance(value := getattr(made, name), kinds):
            raise ConfigurationError(f"{where}{name} must be {words}, got {show(value)}")


def check_pattern(what: str, value: object, pattern: re.Pattern[str], words: str) -> None:
    """See that a value is a text of some form.

    Raises:
        ConfigurationError: It is not; ``words`` say what it should be.
    """
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ConfigurationError(f"{what} must {words}, got {show(value)}")


def check_labels(where: str, labels: object) -> None:
    """See that these are labels: texts that can be shown, none of them empty.

    Raises:
        ConfigurationError: They are not.
    """
    several = isinstance(labels, list | tuple)
    if not several or not all(
        isinstance(each, str) and each and each.isprintable() for each in cast("list[Any]", labels)
    ):
        raise ConfigurationError(f"{where} must be a list of printable texts that are not empty, got {show(labels)}")


def check_number(name: str, value: Any, kind: Any, *, least: int, most: float = math.inf, none: bool = False) -> None:
    """Raise ``ConfigurationError`` for what is no such number from ``least`` to ``most``, nor a permitted None."""
    number = isinstance(value, kind) and not isinstance(value, bool)
    number = number and (value <= _MOST_WHOLE if isinstance(value, int) else math.isfinite(value))
    if not (none if value is None else number and least <= value <= most):
        words = "a whole number" if kind is int else "a number"
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ConfigurationError(f"{name} must be {words} {bounds}{' or None' * none}, got {show(value)}")


def check_value(where: str, value: object, kind: Any) -> None:
    """See that a value is of a type.

    Raises:
        ConfigurationError: It is not.
    """
    try:
        msgspec.convert(value, kind)
    except (ValueError, AttributeError) as error:  # msgspec's own are ValueErrors
        raise ConfigurationError(f"{where}: {misfit(error, value)}") from error


def check_fields(where: str, message: msgspec.Struct) -> None:
    """See that a message holds what its fields declare: the actor that got another one would crash for everybody.

    Raises:
        ConfigurationError: It does not.
    """
    fields = msgspec.structs.asdict(message)
    for name, kind in _fields_of(type(message)):
        if isinstance(fields[name], msgspec.Struct):
            check_fields(where, fields[name])
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):  # msgspec would make one of a dict
            raise ConfigurationError(f"{where}: Expected `{kind.__name__}`, got {show(fields[name])} - at `$.{name}`")
    try:
        msgspec.convert(fields, type(message))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except (UnicodeError, AttributeError):  # which do not say where
        for name, kind in _fields_of(type(message)):
            check_value(f"{where}: {name}", fields[name], kind)


def check_struct(made: msgspec.Struct) -> None:
    """See that what somebody made holds what its fields declare; for its ``__post_init__``.

    Raises:
        ConfigurationError: It does not.
    """
    for name, kind in _fields_of(type(made)):
        check_value(f"{type(made).__name__}.{name}", getattr(made, name), kind)


@cache
def _fields_of(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in msgspec.structs.fields(kind)]


def misfit(error: Exception, value: object) -> str:
    """Why msgspec does not take a value.

    It stumbles where half a character stands in place of a number, and where something that is no dict has an index,
    as a range does: it takes that for a mapping, and asks for its keys.
    """
    return f"got {show(value)}" if isinstance(error, UnicodeError | AttributeError) else str(error)
