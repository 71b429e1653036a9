"""What an actor may do: its own side of the runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

from repertory.actors.lifecycle import Actor
from repertory.actors.options import SpawnOptions
from repertory.actors.refs import ActorRef, cell_of

if TYPE_CHECKING:
    from repertory.actors.cell import Cell
    from repertory.actors.life import Life
    from repertory.actors.system import ActorSystem

MessageT = TypeVar("MessageT")
ArgsT = TypeVarTuple("ArgsT")


class ActorContext:
    """Given to hooks, and to handlers that take it; valid for one incarnation of the actor.

    For this actor's own code, in the scheduler's thread.
    """

    __slots__ = ("_cell", "_life")

    def __init__(self, cell: Cell, life: Life) -> None:
        self._cell = cell
        self._life = life

    @property
    def ref(self) -> ActorRef[Any]:
        """This actor's own reference."""
        return self._cell.ref

    @property
    def parent(self) -> ActorRef[Any] | None:
        """The actor that spawned this one; None at the top of the tree."""
        parent = self._cell.family.parent
        return None if parent is None else parent.ref

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._cell.name

    @property
    def path(self) -> str:
        """The actor's place in the tree, such as ``/lead/researcher``."""
        return self._cell.path

    @property
    def logger_name(self) -> str:
        """A dotted name for loggers, such as ``repertory.actors.lead.researcher``."""
        return "repertory.actors" + self._cell.path.replace("/", ".")

    @property
    def system(self) -> ActorSystem:
        """The system this actor lives in."""
        return self._cell.runtime.system

    @property
    def children(self) -> tuple[ActorRef[Any], ...]:
        """The living children in the order they were started."""
        children = self._life.children
        return () if children is None else tuple(child.ref for child in children.members.values())

    @property
    def time_left(self) -> float:
        """Seconds until the asker gives up on the message being handled; infinite if it has no deadline."""
        cell = self._cell
        deadline = cell.inline_deadline if cell.call is None else cell.call.deadline
        return deadline - cell.runtime.backend.now()

    @overload
    def spawn(
        self, factory: Callable[[], Actor[MessageT]], name: str | None = None, **options: Unpack[SpawnOptions]
    ) -> ActorRef[MessageT]: ...

    @overload
    def spawn(
        self, factory: Callable[[], object], name: str | None = None, **options: Unpack[SpawnOptions]
    ) -> ActorRef[Any]: ...

    def spawn(
        self, factory: Callable[[], object], name: str | None = None, **options: Unpack[SpawnOptions]
    ) -> ActorRef[Any]:
        """Start a child. It lives no longer than this incarnation.

        Args:
            factory: Makes the actor: a class, or a function that returns a fresh object, for each restart anew.
            name: Its name among its living siblings; None makes one up.
            options: See ``SpawnOptions``.

        Returns:
            Its reference, typed by what the actor declares in ``receives``. Messages may be sent at once.

        Raises:
            ConfigurationError: The class has no handlers, the name is taken, or an option is wrong.
            ActorStopped: This actor is stopping or has stopped.
        """
        return self._life.family().spawn(factory, name, options)

    def start_soon(self, function: Callable[[*ArgsT], Awaitable[object]], *args: *ArgsT) -> None:
        """Start a background task that this incarnation owns.

        The mailbox is served meanwhile. A crash of the task is a crash of the actor; the task is cancelled when the
        actor stops or restarts. Asks made in it belong to no chain and inherit no deadline.

        Args:
            function: An async function.
            args: Its arguments.

        Raises:
            ActorStopped: This incarnation has ended.
        """
        self._life.start_task(function, args)

    def watch(self, ref: ActorRef[Any]) -> None:
        """Have ``terminated`` called once when ``ref`` has stopped for good, soon if it has already.

        The call overtakes the messages in the mailbox. Watches end with the incarnation.

        Raises:
            ConfigurationError: This actor has no ``terminated`` hook.
        """
        self._life.watch(cell_of(ref))

    def unwatch(self, ref: ActorRef[Any]) -> None:
        """Undo ``watch``, also for a death that has not been told yet."""
        self._life.unwatch(cell_of(ref))

    def stop(self, *, drain_timeout: float | None = None) -> None:
        """Stop gracefully, as ``ActorRef.stop``, but by itself: a permanent actor comes back."""
        self._cell.stop(drain_timeout, by_itself=True)
