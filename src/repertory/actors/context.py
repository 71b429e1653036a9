"""``ActorContext``: what an actor itself can do in the runtime; and how it, or a system, starts actors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple, Unpack, overload

import anyio

from repertory._cancelling import crash_of
from repertory.actors.handlers import Actor
from repertory.actors.references import ActorRef, asking_mailbox
from repertory.actors.scheduler import Nursery
from repertory.actors.supervision import SpawnOptions, Supervision, check_timeout
from repertory.actors.tree import ActorNode, Children
from repertory.errors import ActorStopped, ConfigurationError

MessageT = TypeVar("MessageT")
ArgsT = TypeVarTuple("ArgsT")


class Spawner:
    """What actors may be started in: an actor's context, or a system."""

    __slots__ = ()

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
        """Start an actor: a child, which lives no longer than its parent's incarnation, or one at the top of the tree.

        Args:
            factory: A class, or a function that returns a fresh object; called at the start and at every restart.
            name: Its name, unique among its living siblings; None generates one.
            options: See ``SpawnOptions``.

        Returns:
            Its reference, typed by the actor's ``receives`` annotation. Messages may be sent at once.

        Raises:
            ConfigurationError: The class has no handlers, the name is taken, or an option is wrong.
            ActorStopped: The parent, or the system, is stopping or has stopped.
        """
        return ActorRef(self._open_children().spawn(factory, name, options))

    def _open_children(self) -> Children:
        raise NotImplementedError


class ActorContext(Spawner):
    """What hooks, and handlers with a second parameter, get; for this incarnation, in the scheduler's thread."""

    __slots__ = ("_node",)

    def __init__(self, node: ActorNode) -> None:
        self._node = node

    @property
    def ref(self) -> ActorRef[Any]:
        """This actor's own reference."""
        ref: ActorRef[Any] = self._node.ref
        return ref

    @property
    def parent(self) -> ActorRef[Any] | None:
        """The actor that spawned this one; None at the top of the tree."""
        parent = self._node.siblings.parent
        return None if parent is None else parent.ref

    @property
    def children(self) -> tuple[ActorRef[Any], ...]:
        """The living children, in the order in which they were started."""
        children = self._node.children if self._node.context is self else None
        return () if children is None else tuple(child.ref for child in children.members.values())

    def start_soon(self, function: Callable[[*ArgsT], Awaitable[object]], *args: *ArgsT) -> None:
        """Start a background task that this incarnation owns.

        The actor keeps handling messages meanwhile. If the task crashes, the actor crashes; when the actor stops or
        restarts, the task is cancelled. Asks made in the task belong to no chain of asks and inherit no deadline.

        Args:
            function: An async function.
            args: Its arguments.

        Raises:
            ActorStopped: This incarnation has ended.
        """
        node = self._node
        nursery = self._open_nursery()
        scope = anyio.CancelScope()
        node.tasks = node.tasks or set()
        node.tasks.add(scope)
        nursery.start_soon(_run_task, node, scope, function, args, name=f"{node.mailbox.path} task")

    def watch(self, ref: ActorRef[Any]) -> None:
        """Call this actor's ``terminated`` hook once ``ref`` has stopped for good, or soon if it has already.

        The call overtakes the messages in the mailbox. Watches end with the incarnation.

        Raises:
            ConfigurationError: This actor has no ``terminated`` hook.
        """
        node = self._node
        self._open_nursery()
        if not node.has_hook("terminated"):
            raise ConfigurationError(f"{node.mailbox.path} cannot watch {ref.path}: it has no `terminated` hook")
        node.watching = node.watching or set()
        if (other := ref._node) not in node.watching:  # pyright: ignore[reportPrivateUsage] - the one way in
            node.watching.add(other)
            other.add_watcher(node)

    def stop(self, *, drain_timeout: float | None = None) -> None:
        """Stop gracefully, like ``ActorRef.stop``, but from within: a permanent actor is restarted."""
        check_timeout("drain_timeout", drain_timeout)
        self._node.stop(drain_timeout, by_itself=True)

    def _open_children(self) -> Children:
        node, nursery = self._node, self._open_nursery()
        if node.children is None:
            box = node.mailbox
            policy = box.settings.supervision or Supervision()
            node.children = Children(box.runtime, node, nursery, node.siblings.run, policy)
        return node.children

    def _open_nursery(self) -> Nursery:
        """The nursery for children and tasks; raises ``ActorStopped`` if this incarnation has ended."""
        node = self._node
        if node.context is not self or node.nursery is None:
            raise ActorStopped(f"this incarnation of {node.mailbox.path} has ended")
        return node.nursery


async def _run_task(
    node: ActorNode, scope: anyio.CancelScope, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]
) -> None:
    asking_mailbox.set(None)  # the mailbox is served meanwhile, so what it asks blocks no chain
    try:
        with scope:
            await function(*args)
    except BaseException as raised:  # noqa: BLE001 - the supervisor decides
        node.fail(crash_of(raised))
    finally:
        if node.tasks is not None:
            node.tasks.discard(scope)
        if node.state == "stopping":  # which waits for its tasks
            node.mailbox.runtime.scheduler.unpark(node.mailbox)
