"""Handlers and hooks: the methods that make an object an actor.

There is no base class. Hooks are found by name, and may be a plain ``def`` or an ``async def``; docs/semantics.md says
when each is called.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, overload

import msgspec

from repertory.errors import ConfigurationError

MessageT_contra = TypeVar("MessageT_contra", contravariant=True)
MethodT = TypeVar("MethodT", bound=Callable[..., Any])
Expected: TypeAlias = type[Exception] | tuple[type[Exception], ...]

_MARK = "__repertory_handler__"
_HOOKS: dict[str, list[str]] = {name: ["self", "ctx"] for name in ("started", "stopping", "stopped")}
_HOOKS.update(restarting=["self", "ctx", "error"], terminated=["self", "ctx", "ref", "reason"])


class _Mark(msgspec.Struct, frozen=True):
    types: tuple[Any, ...]
    expected: tuple[type[Exception], ...]


@overload
def handler(*types: type, expected: Expected = ()) -> Callable[[MethodT], MethodT]: ...


@overload
def handler(method: MethodT, /) -> MethodT: ...


def handler(*types: Any, expected: Expected = ()) -> Any:
    """Mark a method as the handler of the message types in its first parameter's annotation.

    The annotation may be a union. A message goes to the handler of its own type, or otherwise of the nearest base
    class, so a handler annotated ``object`` is the fallback. The method takes the message and, if it has a
    second parameter, the ``ActorContext``. A plain ``def`` may run inside the asking task when the actor is
    idle, which is many times cheaper; such a handler must not block.

    Args:
        types: The message types, if the annotation cannot be resolved at run time.
        expected: Errors that are an answer: the asker gets the same error object and the actor continues. After a
            ``tell`` the message goes to dead letters with the error. Any other exception is a crash.
    """
    if len(types) == 1 and inspect.isfunction(types[0]):
        return handler()(types[0])
    expected = expected if isinstance(expected, tuple) else (expected,)

    def mark(method: MethodT) -> MethodT:
        setattr(method, _MARK, _Mark(types, expected))
        return method

    return mark


class Accepts(Generic[MessageT_contra]):
    """Declares, in an actor's class body, the messages that its reference takes: ``receives: Accepts[Store | Load]``.

    It is used only as an annotation, never as a value. ``spawn`` then returns an ``ActorRef[Store | Load]``, and
    raises an error if one of the types has no handler.
    """


class Actor(Protocol[MessageT_contra]):
    """An object that declares what it receives."""

    @property
    def receives(self) -> Accepts[MessageT_contra]:
        """The declared messages."""
        ...


class HandlerMethod(NamedTuple):
    """One handler of a class; a tuple because the actor's loop unpacks one per message."""

    function: Callable[..., Any]  # called with the actor, the message, and perhaps the context
    is_async: bool  # only a plain ``def`` may run inline in the asker
    wants_context: bool
    expected: tuple[type[Exception], ...]  # errors that are an answer to the asker, not a crash


class Blueprint(msgspec.Struct):
    """What the runtime knows about a class of actors."""

    handlers: dict[type, HandlerMethod]  # by the exact type of the message; subclasses found on the way are added
    hooks: dict[str, Callable[..., Any]]

    def find(self, kind: type) -> HandlerMethod | None:
        """Find the handler of the nearest base class and remember it."""
        found = next((self.handlers[base] for base in kind.__mro__ if base in self.handlers), None)
        if found is not None:
            self.handlers[kind] = found
        return found


@lru_cache(maxsize=1024)
def blueprint_of(cls: type) -> Blueprint:
    """Read the handlers and hooks of a class.

    Args:
        cls: The class of an actor.

    Raises:
        ConfigurationError: There is no handler, two for one type, an annotation is missing or cannot be resolved,
            a type declared in ``receives`` has no handler, or a handler or hook cannot be called as it will be.
    """
    table: dict[type, HandlerMethod] = {}
    for name in dir(cls):
        method = inspect.getattr_static(cls, name)
        mark: _Mark | None = getattr(method, _MARK, None)
        if mark is None:
            continue
        where = f"{cls.__qualname__}.{name}"
        _refuse_generator(method, where)
        parameters = list(inspect.signature(method).parameters.values())[1:]
        if not 1 <= len(parameters) <= 2:
            raise ConfigurationError(f"{where} must take a message and at most a context, not {len(parameters)} values")
        declared = mark.types or (_hints(method, where).get(parameters[0].name),)
        if declared == (None,):
            raise ConfigurationError(f"{where} does not say what it handles: annotate its first parameter")
        found = HandlerMethod(method, inspect.iscoroutinefunction(method), len(parameters) == 2, mark.expected)
        for kind in [kind for each in declared for kind in _members(each, where)]:
            if kind in table:
                raise ConfigurationError(f"{where} and {table[kind].function.__name__} both handle {kind.__qualname__}")
            table[kind] = found
    if not table:
        raise ConfigurationError(f"{cls.__qualname__} has no handlers: decorate its methods with @handler")
    _check_declared(cls, table)
    # Hooks are looked up on the class, so that an attribute such as ``self.stopped = False`` is not mistaken for one.
    hooks = {name: hook for name in _HOOKS if callable(hook := getattr(cls, name, None))}
    for name, hook in hooks.items():
        _check_hook(hook, name, f"{cls.__qualname__}.{name}")
    return Blueprint(table, hooks)


def _check_hook(hook: Callable[..., Any], name: str, where: str) -> None:
    """Refuse what could not be called; that a clean-up never ran would only be in the log."""
    _refuse_generator(hook, where)
    try:
        inspect.signature(hook).bind(*_HOOKS[name])
    except TypeError as error:
        raise ConfigurationError(f"{where} does not take what the hook is given: {', '.join(_HOOKS[name])}") from error


def _refuse_generator(method: Callable[..., Any], where: str) -> None:
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise ConfigurationError(f"{where} is a generator, of which nothing would run; return one value instead")


def _members(annotation: Any, where: str) -> tuple[type, ...]:
    """The classes in an annotation, which may be a union, an alias or a parametrized generic."""
    origin = typing.get_origin(annotation)
    if origin is typing.Union or origin is types.UnionType:
        return tuple(cls for member in typing.get_args(annotation) for cls in _members(member, where))
    found = object if annotation is Any else annotation if origin is None else origin
    if not isinstance(found, type):
        raise ConfigurationError(f"{where} cannot dispatch on {annotation!r}: it is not a class")
    return (found,)


def _hints(owner: Any, where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner)
    except NameError as error:
        raise ConfigurationError(
            f"cannot resolve an annotation of {where}: {error}; import the name at run time, or name the "
            "types in the decorator: @handler(Store, Load)"
        ) from error


def _check_declared(cls: type, table: dict[type, HandlerMethod]) -> None:
    if not any("receives" in inspect.get_annotations(base) for base in cls.__mro__):
        return
    try:
        declared = typing.get_args(typing.get_type_hints(cls)["receives"])
    except NameError:  # a class local to a function: its handlers name their types in the decorator
        return
    for kind in _members(declared[0], cls.__qualname__) if declared else ():
        if not any(base in table for base in kind.__mro__):
            raise ConfigurationError(f"{cls.__qualname__} receives {kind.__qualname__} but has no handler for it")
