"""From the type of a message to the method that handles it."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, overload

import msgspec

MethodT = TypeVar("MethodT", bound=Callable[..., Any])

_MARK = "__repertory_handler__"


class _Mark(msgspec.Struct, frozen=True):
    types: tuple[type, ...]
    expected: tuple[type[Exception], ...]


class HandlerSpec(msgspec.Struct, frozen=True):
    """One handler as found on a class.

    Attributes:
        name: The method's name.
        is_async: Whether it is an ``async def``; only a plain ``def`` may run inline in the asker.
        wants_context: Whether it takes the ``ActorContext`` as a second argument.
        expected: Errors that are an answer to the asker, not a crash.
    """

    name: str
    is_async: bool
    wants_context: bool
    expected: tuple[type[Exception], ...]


@overload
def handler(method: MethodT, /) -> MethodT: ...


@overload
def handler(
    *types: type, expected: type[Exception] | tuple[type[Exception], ...] = ()
) -> Callable[[MethodT], MethodT]: ...


def handler(*types: Any, expected: type[Exception] | tuple[type[Exception], ...] = ()) -> Any:
    """Mark a method as the handler of the messages its first parameter is annotated with.

    The annotation may be a union. A message goes to the handler of its own type, or else of the nearest base
    class, so a handler annotated ``object`` is the fallback. The method takes the message and, if it has a
    second parameter, the ``ActorContext``. A plain ``def`` may run inside the asking task when the actor is
    idle, which is many times cheaper; such a handler must not block.

    Args:
        types: The message types, where the annotation cannot be resolved at run time.
        expected: Errors that are an answer: the asker gets this very error and the actor goes on. After a
            ``tell`` the message goes to dead letters with the error. Any other exception is a crash.
    """
    expected = expected if isinstance(expected, tuple) else (expected,)
    if len(types) == 1 and inspect.isfunction(types[0]):
        setattr(types[0], _MARK, _Mark((), ()))
        return types[0]

    def mark(method: MethodT) -> MethodT:
        setattr(method, _MARK, _Mark(types, expected))
        return method

    return mark


def _members(annotation: Any) -> tuple[type, ...]:
    """The classes in an annotation: of a union, of an alias, of a parametrized generic."""
    origin = typing.get_origin(annotation)
    if origin is typing.Union or origin is types.UnionType:
        return tuple(cls for member in typing.get_args(annotation) for cls in _members(member))
    if annotation is Any:
        return (object,)
    found = origin if origin is not None else annotation
    if not isinstance(found, type):
        raise TypeError(f"cannot dispatch on {annotation!r}: it is not a class")
    return (found,)


def _hints(owner: Any, where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner)
    except NameError as error:
        raise TypeError(
            f"cannot resolve an annotation of {where}: {error}; import the name at run time, or name the "
            "types in the decorator: @handler(Store, Load)"
        ) from error


@lru_cache(maxsize=1024)
def handlers_of(cls: type) -> dict[type, HandlerSpec]:
    """Find the handlers of a class by message type.

    Args:
        cls: The class of an actor.

    Returns:
        One entry per handled type.

    Raises:
        TypeError: There is no handler, two for one type, an annotation is missing or cannot be resolved, or a
            type declared in ``receives`` has no handler.
    """
    table: dict[type, HandlerSpec] = {}
    for name in dir(cls):
        method = inspect.getattr_static(cls, name)
        mark: _Mark | None = getattr(method, _MARK, None)
        if mark is None:
            continue
        where = f"{cls.__qualname__}.{name}"
        parameters = list(inspect.signature(method).parameters.values())[1:]
        if not 1 <= len(parameters) <= 2:
            raise TypeError(f"{where} must take a message and at most a context, not {len(parameters)} arguments")
        kinds = mark.types
        if not kinds:
            annotation = _hints(method, where).get(parameters[0].name)
            if annotation is None:
                raise TypeError(f"{where} does not say which messages it handles: annotate its first parameter")
            kinds = _members(annotation)
        spec = HandlerSpec(name, inspect.iscoroutinefunction(method), len(parameters) == 2, mark.expected)
        for kind in kinds:
            if kind in table:
                raise TypeError(f"{where} and {cls.__qualname__}.{table[kind].name} both handle {kind.__qualname__}")
            table[kind] = spec
    if not table:
        raise TypeError(f"{cls.__qualname__} has no handlers: decorate its methods with @handler")
    _check_declared(cls, table)
    return table


def _check_declared(cls: type, table: dict[type, HandlerSpec]) -> None:
    if not any("receives" in vars(base).get("__annotations__", {}) for base in cls.__mro__):
        return
    for declared in _members(typing.get_args(_hints(cls, cls.__qualname__)["receives"])[0]):
        if not any(base in table for base in declared.__mro__):
            raise TypeError(f"{cls.__qualname__} declares that it receives {declared.__qualname__} but has no handler")
