"""Checks of what callers pass in; each raises ``ConfigurationError`` with the place and the offending value."""

from __future__ import annotations

import math
import re
import reprlib
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast, get_args, get_origin

import msgspec

from repertory.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
NotNegative: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]

_MOST_WHOLE = 2**63 - 1  # the largest whole number that the journal takes

_show = reprlib.Repr()
_show.maxstring = _show.maxother = 200


def show(value: object) -> str:
    """A short representation of a value, for an error message; the value may be huge or contain itself."""
    try:
        return _show.repr(value)
    except ValueError:  # Python does not write whole numbers of thousands of digits
        return f"<{type(value).__name__}>"


def choices(literal: Any) -> str:
    """The words of a ``Literal``, spelled out."""
    return " or ".join(map(repr, get_args(literal)))


def check_choice(where: str, value: object, literal: Any) -> None:
    """Check that a value is one of the words of a ``Literal``.

    Raises:
        ConfigurationError: It is not.
    """
    if value not in get_args(literal):
        raise ConfigurationError(f"{where} is {show(value)}; expected {choices(literal)}")


def check_text(what: str, value: object) -> str:
    """Check that a value is a text with more than whitespace, and return it; libraries may return it in a subclass.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, str) or not value.strip():
        got = "an empty one" if isinstance(value, str) else show(value)
        raise ConfigurationError(f"expected {what} with some text, got {got}")
    return str.__str__(value)


def check_type(where: str, value: object, kinds: Any, words: str) -> None:
    """Check that a value is an instance of a type, or of one of several.

    A class is none, though it has all that the instances of a protocol have.

    Raises:
        ConfigurationError: It is not; ``words`` say what it should be.
    """
    if isinstance(value, type) or not isinstance(value, kinds):
        raise ConfigurationError(f"{where} must be {words}, got {show(value)}")


def check_types(where: str, made: object, fields: Iterable[tuple[str, Any, str]]) -> None:
    """Check that attributes are instances of their types; each is given by its name, its types, and words for these.

    Raises:
        ConfigurationError: One is not.
    """
    for name, kinds, words in fields:
        value = getattr(made, name)  # checked here: every tool call makes two objects with many fields
        if isinstance(value, type) or not isinstance(value, kinds):
            check_type(f"{where}{name}", value, kinds, words)


def check_pattern(what: str, value: object, pattern: re.Pattern[str], words: str) -> str:
    """Check that a value is a text that matches a pattern, and return it as ``check_text`` does.

    Raises:
        ConfigurationError: It is not; ``words`` say what it should be.
    """
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ConfigurationError(f"{what} must {words}, got {show(value)}")
    return str.__str__(value)


def check_labels(where: str, labels: object) -> None:
    """Check that these are labels: printable texts, none of them empty.

    Raises:
        ConfigurationError: They are not.
    """
    several = isinstance(labels, list | tuple)
    if not several or not all(
        isinstance(each, str) and each and each.isprintable() for each in cast("list[Any]", labels)
    ):
        raise ConfigurationError(f"{where} must be a list of printable texts that are not empty, got {show(labels)}")


def check_number(
    name: str,
    value: Any,
    kind: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    none: bool = False,
) -> None:
    """Raise ``ConfigurationError`` unless a value is a number in these bounds, or a permitted None."""
    number = isinstance(value, kind) and not isinstance(value, bool)
    number = number and (value <= _MOST_WHOLE if isinstance(value, int) else math.isfinite(value))
    if not (none if value is None else number and above < value and least <= value <= most):
        words = "a whole number" if kind is int else "a number"
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        bounds = f"above {above}" if above > -math.inf else bounds
        raise ConfigurationError(f"{name} must be {words} {bounds}{' or None' * none}, got {show(value)}")


def check_seconds(name: str, value: Any) -> None:
    """Raise ``ConfigurationError`` unless a value is a number of seconds from 0 on; infinity is one."""
    if value != math.inf:
        check_number(name, value, int | float, least=0)


def check_value(where: str, value: object, kind: Any) -> None:
    """Check that a value is of a type.

    Raises:
        ConfigurationError: It is not.
    """
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except (ValueError, AttributeError) as error:  # of half a character, or of what only looks like a mapping
        raise ConfigurationError(f"{where}: got {show(value)}") from error


def check_fields(where: str, message: msgspec.Struct) -> None:
    """Check that a message's fields have their declared types; otherwise the receiver would crash for everybody.

    Raises:
        ConfigurationError: It does not.
    """
    fields = msgspec.structs.asdict(message)
    for name, kind in _fields_of(type(message)):
        is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        if is_struct and not isinstance(fields[name], msgspec.Struct):  # msgspec would make one of a dict
            raise ConfigurationError(f"{where}: Expected `{kind.__name__}`, got {show(fields[name])} - at `$.{name}`")
    try:
        msgspec.convert(fields, type(message))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    except (UnicodeError, AttributeError):  # which do not say where
        for name, kind in _fields_of(type(message)):
            check_value(f"{where}: {name}", fields[name], kind)
    for value in fields.values():
        if isinstance(value, msgspec.Struct):
            check_fields(where, value)


def check_struct(made: msgspec.Struct) -> None:
    """Check that a struct's fields have their declared types; for its ``__post_init__``.

    Structs do not check what Python code puts into them, so a wrong type would cause an error far from here.

    Raises:
        ConfigurationError: A field has another type; the message says what came and what was expected.
    """
    for name, kind in _fields_of(type(made)):
        value = getattr(made, name)
        try:
            read = msgspec.convert(value, kind)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{type(made).__name__}.{name} is {show(value)}; {expected(kind, error)}"
            ) from error
        if _made_of_dict(read, value):
            raise ConfigurationError(f"{type(made).__name__}.{name} is {show(value)}; expected {show(read)}")


class Checked(msgspec.Struct, frozen=True):
    """A struct that checks the types and bounds of its fields when it is made; see ``check_struct``."""

    def __post_init__(self) -> None:
        check_struct(self)


def _made_of_dict(read: Any, value: Any) -> bool:
    """Whether msgspec has made a struct of a dict; where values are only checked, the dict would stay."""
    if isinstance(read, msgspec.Struct):
        return not isinstance(value, type(read))
    if isinstance(read, dict):
        return any(_made_of_dict(each, value[key]) for key, each in read.items())
    return isinstance(read, list | tuple) and any(map(_made_of_dict, cast("list[Any]", read), value))


def expected(kind: Any, error: Exception) -> str:
    """What a value had to be that msgspec could not convert; it does not name the words of a ``Literal`` itself."""
    literal = next((each for each in (kind, *get_args(kind)) if get_origin(each) is Literal), None)
    if literal is not None:
        return f"expected {choices(literal)}"
    message = str(error) if isinstance(error, msgspec.ValidationError) else "not of the type of this field"
    return f"{message[:1].lower()}{message[1:]}"


@cache
def _fields_of(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in msgspec.structs.fields(kind)]
