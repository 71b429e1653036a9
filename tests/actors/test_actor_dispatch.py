"""Which method handles what, and what is refused before it can go wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
import pytest
from actor_cast import Add, AddSlowly, Note, Player

from repertory.actors import Accepts, ActorContext, Request, handler, open_system
from repertory.errors import ConfigurationError

T = TypeVar("T")


class Box(msgspec.Struct, Generic[T], frozen=True):
    """A generic message."""

    content: T


class Louder(Note, frozen=True):
    """A kind of note."""


class Loudest(Louder, frozen=True):
    """A kind of louder note."""


class Sorter:
    """Says which of its handlers got a message."""

    @handler
    def union(self, message: Add | AddSlowly) -> str:
        """For two types."""
        return "union"

    @handler
    async def box(self, message: Box[int]) -> str:
        """For a generic type."""
        return "box"

    @handler
    def note(self, message: Note) -> str:
        """For a type and its subclasses."""
        return "note"

    @handler
    def louder(self, message: Louder, ctx: ActorContext) -> str:
        """For a nearer base class; and takes the context."""
        assert ctx.ref.name == "sorter"
        return "louder"

    @handler
    async def rest(self, message: Any) -> str:
        """For everything else."""
        return "rest"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Add(), "union"),
        (AddSlowly(), "union"),
        (Box(3), "box"),
        (Note(""), "note"),
        (Louder(""), "louder"),
        (Loudest(""), "louder"),
        ("a string", "rest"),
        (None, "rest"),
    ],
)
def test_the_nearest_handler_gets_the_message(run_async: Any, message: Any, expected: str) -> None:
    """Unions, generics, base classes, fallback; the first time and from memory, inline and not."""

    async def main() -> None:
        async with open_system() as system:
            ref: Any = system.spawn(Sorter, "sorter")
            for _ in range(3):
                assert await ref.ask(message) == expected

    run_async(main)


def test_a_subclass_inherits_and_overrides_handlers(run_async: Any) -> None:
    """An override must be marked as well, and takes over."""

    class Double(Player):
        @handler
        def add(self, message: Add) -> int:
            return 2 * super().add(message)

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Double)
            assert await ref.ask(Add(2)) == 4
            assert await ref.ask(AddSlowly(1)) == 3

    run_async(main)


def make_empty() -> type:
    """No handler."""

    class Empty:
        pass

    return Empty


def make_twice() -> type:
    """Two handlers for one type."""

    class Twice:
        @handler
        def one(self, message: Note) -> None: ...

        @handler
        def two(self, message: Add | Note) -> None: ...

    return Twice


def make_unannotated() -> type:
    """A handler that does not say what it handles."""

    class Unannotated:
        @handler
        def one(self, message) -> None:  # type: ignore[no-untyped-def]
            ...

    return Unannotated


def make_local() -> type:
    """An annotation that cannot be resolved."""

    class Hidden:
        pass

    class Local:
        @handler
        def one(self, message: Hidden) -> None: ...

    return Local


def make_string() -> type:
    """An annotation that is not a class."""

    class Literal:
        @handler
        def one(self, message: T) -> None: ...

    return Literal


def make_quoted() -> type:
    """The name of a class in the decorator, in place of the class."""

    class Quoted:
        @handler("Note")  # type: ignore[call-overload,untyped-decorator]
        def one(self, message: Note) -> None: ...

    return Quoted


def make_greedy() -> type:
    """A handler with too many parameters."""

    class Greedy:
        @handler
        def one(self, message: Note, ctx: ActorContext, more: int) -> None: ...

    return Greedy


def make_stream() -> type:
    """A handler whose body would never run."""

    class Stream:
        @handler
        async def one(self, message: Note) -> AsyncIterator[int]:
            yield 1

    return Stream


def make_hook(name: str, hook: Callable[..., Any]) -> type:
    """A good actor with a hook that cannot be called as it will be."""

    class Hooked:
        @handler
        def one(self, message: Note) -> None: ...

    setattr(Hooked, name, hook)
    return Hooked


def iterate(self: Any, ctx: ActorContext) -> Iterator[int]:
    """A hook whose body would never run."""
    yield 1


class Boastful:
    """Declares more than it handles."""

    receives: Accepts[Note | Add]

    @handler
    def one(self, message: Note) -> None:
        """Handle the one."""


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (make_empty(), "Empty has no handlers: decorate its methods with @handler"),
        (make_twice(), "Twice.two and one both handle Note"),
        (make_unannotated(), "Unannotated.one does not say what it handles"),
        (make_local(), r"cannot resolve an annotation of .*Local.one: name 'Hidden' is not defined; .*@handler\(Store"),
        (make_string(), "cannot dispatch on ~T: it is not a class"),
        (make_quoted(), "cannot dispatch on 'Note': it is not a class"),
        (make_stream(), "Stream.one is a generator, of which nothing would run"),
        (make_hook("started", lambda self: None), "Hooked.started does not take what the hook is given: self, ctx"),
        (make_hook("stopped", lambda self, ctx, why: None), "Hooked.stopped does not take what the hook is given"),
        (make_hook("restarting", lambda self, ctx: None), "the hook is given: self, ctx, error"),
        (make_hook("terminated", lambda self, ctx, ref: None), "the hook is given: self, ctx, ref, reason"),
        (make_hook("stopping", iterate), "Hooked.stopping is a generator"),
        (make_greedy(), "must take a message and at most a context, not 3 values"),
        (Boastful, "Boastful receives Add but has no handler for it"),
    ],
)
def test_a_class_that_cannot_be_an_actor_is_refused_at_spawn(run_async: Any, cls: type, message: str) -> None:
    """In the spawner, at once, and not as a crash loop."""

    async def main() -> None:
        async with open_system() as system:
            with pytest.raises(ConfigurationError, match=message):
                system.spawn(cls)
            assert system.statistics().actors == 0

    run_async(main)


def test_types_local_to_a_function_are_named_in_the_decorator(run_async: Any) -> None:
    """And what is declared is not checked where it cannot be resolved."""

    class Hidden(Request[int], frozen=True):
        pass

    class Other(Hidden, frozen=True):
        pass

    class Local:
        receives: Accepts[Hidden]

        @handler(Hidden)
        def one(self, message: Hidden) -> int:
            return 1

        @handler(Other | Note)
        def two(self, message: Other | Note) -> int:
            return 2

    async def main() -> None:
        async with open_system() as system:
            ref = system.spawn(Local)
            assert [await ref.ask(Hidden()), await ref.ask(Other())] == [1, 2]

    run_async(main)


def test_receives_without_a_parameter_promises_nothing(run_async: Any) -> None:
    """A bare Accepts is allowed."""

    async def main() -> None:
        async with open_system() as system:
            assert await system.spawn(Vague).ask(Add()) == 1

    run_async(main)


class Vague(Player):
    """Declares that it receives, but not what."""

    receives: Accepts  # type: ignore[assignment,type-arg]


def test_the_marker_for_type_checkers_is_never_called() -> None:
    """It exists for its signature."""
    with pytest.raises(NotImplementedError):
        Add().__answered_by__(None)  # type: ignore[arg-type]
