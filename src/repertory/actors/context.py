"""What an actor may do: its own side of the runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from repertory.actors.lifecycle import Actor
from repertory.actors.mailbox import Overflow
from repertory.actors.refs import ActorRef
from repertory.actors.supervision import Restart, Supervision

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    from repertory.actors.system import ActorSystem

    ArgsT = TypeVarTuple("ArgsT")

MessageT = TypeVar("MessageT")


class ActorContext:
    """Given to hooks, and to handlers that take it; valid for one incarnation.

    Attributes are read-only views of the runtime; the methods are for this actor's own tasks only.
    """

    __slots__ = ("_cell",)

    @property
    def ref(self) -> ActorRef[Any]:
        """This actor's own reference."""
        raise NotImplementedError

    @property
    def parent(self) -> ActorRef[Any] | None:
        """The actor that spawned this one; None at the top of the tree."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The last part of the path."""
        raise NotImplementedError

    @property
    def path(self) -> str:
        """The actor's place in the tree."""
        raise NotImplementedError

    @property
    def logger_name(self) -> str:
        """A dotted name for loggers, such as ``repertory.actors.lead.researcher``."""
        raise NotImplementedError

    @property
    def system(self) -> ActorSystem:
        """The system this actor lives in."""
        raise NotImplementedError

    @property
    def children(self) -> tuple[ActorRef[Any], ...]:
        """The living children in the order they were started."""
        raise NotImplementedError

    @property
    def time_left(self) -> float:
        """Seconds until the asker gives up on the message being handled; infinite if it has no deadline."""
        raise NotImplementedError

    @overload
    def spawn(
        self,
        factory: Callable[[], Actor[MessageT]],
        name: str | None = None,
        *,
        restart: Restart = "transient",
        supervision: Supervision | None = None,
        capacity: int = 10_000,
        overflow: Overflow = "wait",
        attempts: int = 1,
        lazy: bool = False,
    ) -> ActorRef[MessageT]: ...

    @overload
    def spawn(
        self,
        factory: Callable[[], object],
        name: str | None = None,
        *,
        restart: Restart = "transient",
        supervision: Supervision | None = None,
        capacity: int = 10_000,
        overflow: Overflow = "wait",
        attempts: int = 1,
        lazy: bool = False,
    ) -> ActorRef[Any]: ...

    def spawn(self, factory: Callable[[], object], name: str | None = None, **options: Any) -> ActorRef[Any]:
        """Start a child."""
        raise NotImplementedError

    def start_soon(self, function: Callable[[Unpack[ArgsT]], Awaitable[object]], *args: Unpack[ArgsT]) -> None:
        """Run a background task owned by this incarnation: its crash is the actor's, its end comes with the stop."""
        raise NotImplementedError

    def watch(self, ref: ActorRef[Any]) -> None:
        """Have ``terminated`` called when ``ref`` stops, or soon if it has."""
        raise NotImplementedError

    def unwatch(self, ref: ActorRef[Any]) -> None:
        """Undo ``watch``."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop after the current message and those already accepted."""
        raise NotImplementedError
