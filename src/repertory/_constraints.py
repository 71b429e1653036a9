"""Constraints in ``Annotated``, of whichever library: converted to ``msgspec.Meta``, or refused.

Libraries mark types with objects of their own: ``annotated_types.Gt(3)``, ``pydantic.Field(gt=3)``. An ignored
constraint is worse than none, so each mark is read by the names of its attributes, and one with any other attribute is
an error when the tool is made.
"""

from __future__ import annotations

import datetime
import re
import typing
from collections.abc import Iterator, Sequence
from types import EllipsisType, NoneType, UnionType
from typing import Annotated, Any, Final, Union

import msgspec

from repertory.errors import ConfigurationError

# How two values of one constraint are combined: both apply, so the narrower one counts.
_NARROWER: Final[dict[str, Any]] = {
    **dict.fromkeys(("gt", "ge", "min_length"), max),
    **dict.fromkeys(("lt", "le", "max_length"), min),
}
_ONE_VALUE: Final = {"multiple_of", "pattern", "tz"}
_FORMATS: Final[dict[Any, str]] = {datetime.datetime: "date-time", datetime.time: "time"}
_WORDS: Final = {"title", "description", "examples", "extra_json_schema", "extra"}  # constrain nothing: the last counts
_BOUNDS: Final = {*_NARROWER, *_ONE_VALUE}
_KNOWN: Final = {*_BOUNDS, *_WORDS}
_ALIASES: Final = {"documentation": "description"}  # as typing_extensions.Doc calls it


def read_constraints(kind: Any, where: str, *, within: tuple[Any, ...] = ()) -> Any:
    """The same type, with its marks converted to ``msgspec.Meta``.

    Args:
        kind: A type from an annotation, with its extras.
        where: How errors refer to it.
        within: The type aliases that it is a part of.

    Raises:
        ConfigurationError: A mark says something that cannot be honoured, or a type alias is made of itself.
    """
    if hasattr(kind, "__value__"):  # a type alias
        if any(kind is each for each in within):
            raise ConfigurationError(f"{where} is made of {kind}, which is made of itself; use Any, or a dataclass")
        return read_constraints(kind.__value__, where, within=(*within, kind))
    kind = kind.__supertype__ if isinstance(kind, typing.NewType) else kind
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        meta = _meta(kind.__metadata__, where)
        inner = read_constraints(kind.__origin__, where, within=within)
        options = typing.get_args(inner)
        if meta is not None and NoneType in options and any(getattr(meta, name) is not None for name in _BOUNDS):
            return Union[tuple(each if each is NoneType else Annotated[each, meta] for each in options)]  # noqa: UP007
        return inner if meta is None else Annotated[inner, meta]
    _check_fields(kind if origin is None else origin, where, set())
    if isinstance(kind, type) and kind in _FORMATS:  # msgspec states the format only if a time zone is required
        return Annotated[kind, msgspec.Meta(extra_json_schema={"format": _FORMATS[kind]})]
    if origin is None or origin is typing.Literal:
        return kind
    read = tuple(
        each if isinstance(each, EllipsisType) else read_constraints(each, where, within=within) for each in arguments
    )
    if read == arguments:
        return kind
    return Union[read] if origin in (Union, UnionType) else origin[read]  # noqa: UP007 - made of a tuple


def _meta(marks: Sequence[Any], where: str) -> msgspec.Meta | None:
    """The combined constraints of some marks; None for none."""
    said: dict[str, Any] = {}
    for name, value in (each for mark in marks for each in _said_by(mark, where)):
        if name in _ONE_VALUE and said.get(name, value) != value:
            raise ConfigurationError(f"{where} has two values of {name}, {said[name]!r} and {value!r}; choose one")
        said[name] = _NARROWER[name](said[name], value) if name in _NARROWER and name in said else value
    for strict, loose, narrower in (("gt", "ge", max), ("lt", "le", min)):
        if strict in said and loose in said:  # msgspec takes only one of them, and the stricter one suffices
            del said[loose if narrower(said[strict], said[loose]) == said[strict] else strict]
    try:
        return msgspec.Meta(**said) if said else None
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where} cannot be bound by {said!r}: {error}") from error


def _said_by(mark: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The constraints of a mark, by name."""
    if isinstance(mark, str):
        yield "description", mark
        return
    facts = _facts(mark)
    nested = facts.pop("metadata", ())
    unknown = sorted(facts.keys() - _KNOWN)
    if unknown or not (facts or nested or isinstance(mark, msgspec.Meta)):
        raise ConfigurationError(
            f"{where} is annotated with {mark!r}, which cannot be honoured{': ' * bool(unknown)}{', '.join(unknown)}; "
            "use msgspec.Meta(gt=…, ge=…, lt=…, le=…, multiple_of=…, min_length=…, max_length=…, pattern=…), or check "
            "it in the tool and raise ToolRetry"
        )
    for name, value in facts.items():
        yield name, value.pattern if isinstance(value, re.Pattern) else value
    for each in nested:  # pydantic.Field keeps its constraints there
        yield from _said_by(each, where)


def _facts(mark: Any) -> dict[str, Any]:
    """The public attributes of a mark that are set."""
    names: set[str] = set()
    if isinstance(mark, msgspec.Meta):
        names = _KNOWN
    elif not isinstance(mark, type):
        names = {name for each in type(mark).__mro__ for name in each.__dict__.get("__slots__", ())}
        names |= getattr(mark, "__dict__", {}).keys()
    found = {name: getattr(mark, name, None) for name in names if not name.startswith("_")}
    if found.get("min_length") == 0:  # annotated_types.Len says 0 for no bound
        del found["min_length"]
    return {_ALIASES.get(name, name): value for name, value in found.items() if not _is_unset(name, value)}


def _is_unset(name: str, value: object) -> bool:
    # pydantic.Field marks values that were not given by an object of its own, and always has repr=True.
    return value is None or type(value).__name__ == "PydanticUndefinedType" or (name == "repr" and value is True)


def is_pydantic_model(kind: object) -> bool:
    """Whether a type is a pydantic model, which checks and describes itself; pydantic need not be installed."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_fields__") and hasattr(kind, "model_validate")


def _check_fields(kind: Any, where: str, seen: set[Any]) -> None:
    """Refuse foreign marks inside structs, dataclasses and the like, whose field types cannot be replaced."""
    if not isinstance(kind, type) or not any(hasattr(kind, name) for name in _FIELDS) or kind in seen:
        return
    seen.add(kind)
    if is_pydantic_model(kind):
        return  # it checks its fields itself
    if hasattr(kind, "__pydantic_fields__"):
        raise ConfigurationError(f"{where} has {kind.__name__}, a pydantic dataclass; make a BaseModel of it")
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        return  # such a type cannot be described as JSON either, which is reported there
    for name, hint in hints.items():
        inside = f"{where}: field {name!r} of {kind.__name__}"
        for each in _all_in(hint):
            marks = [mark for mark in getattr(each, "__metadata__", ()) if not isinstance(mark, str | msgspec.Meta)]
            if marks:
                raise ConfigurationError(f"{inside} is annotated with {marks[0]!r}; only msgspec.Meta counts there")
            _check_fields(each, where, seen)


_FIELDS: Final = (
    *("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__", "__required_keys__", "_fields"),
    "__pydantic_fields__",
)


def _all_in(kind: Any) -> Iterator[Any]:
    """A type, and all types that it is made of."""
    yield kind
    for each in (getattr(kind, "__origin__", None), *typing.get_args(kind)):
        if each is not None:
            yield from _all_in(each)
