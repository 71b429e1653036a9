"""One incarnation of an actor: the object itself, and what ends with it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from repertory.actors.backend import Nursery
from repertory.actors.calls import current_cell
from repertory.actors.children import Children
from repertory.actors.context import ActorContext
from repertory.actors.dispatch import Blueprint, blueprint_of
from repertory.errors import ActorStopped, ConfigurationError

if TYPE_CHECKING:
    from repertory.actors.cell import Cell


class Life:
    """From the factory to the farewell.

    Attributes:
        actor: The object with the handlers; None if the factory failed.
        context: What its hooks and handlers are given.
        blueprint: What its class can do.
        nursery: Where its children and background tasks live; None when it has ended.
        children: Its children, once there are any.
        tasks: The scopes of its background tasks.
        watching: The actors whose death it wants to hear of.
    """

    __slots__ = ("actor", "blueprint", "cell", "children", "context", "nursery", "tasks", "watching")

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.nursery: Nursery | None = None
        self.context = ActorContext(cell, self)
        self.children: Children | None = None
        self.tasks: set[anyio.CancelScope] | None = None
        self.watching: set[Cell] | None = None
        self.blueprint: Blueprint | None = None
        self.actor: Any = None

    def begin(self) -> Blueprint:
        """Make the actor."""
        self.actor = self.cell.factory()
        self.blueprint = blueprint_of(self.actor)
        return self.blueprint

    def end(self) -> None:
        """Tasks and children are gone; the hook for the farewell is still to come."""
        self.nursery = None
        if self.children is not None:
            self.children.sweep()
            self.children = None
        for cell in self.watching or ():
            if cell.watchers is not None:
                cell.watchers.discard(self.cell)
        self.watching = None

    def has_hook(self, name: str) -> bool:
        """Whether the actor has been made and has this hook."""
        return self.blueprint is not None and name in self.blueprint.hooks

    def has_company(self) -> bool:
        """Whether there are, or may be, other tasks in the nursery."""
        return self.children is not None or bool(self.tasks)

    async def call_hook(self, name: str, *args: Any) -> None:
        """Call one of the actor's hooks if it has it."""
        if self.blueprint is not None and name in self.blueprint.hooks:
            result = self.blueprint.hooks[name](self.actor, self.context, *args)
            if inspect.isawaitable(result):
                await result

    def open_nursery(self) -> Nursery:
        """The nursery, if this incarnation still lives."""
        if self.nursery is None:
            raise ActorStopped(f"this incarnation of {self.cell.path} has ended")
        return self.nursery

    def family(self) -> Children:
        """The children, for one more."""
        nursery = self.open_nursery()
        if self.children is None:
            cell = self.cell
            self.children = Children(cell.runtime, cell, nursery, cell.settings.supervision, cell.fail)
        return self.children

    def start_task(self, function: Callable[..., Awaitable[object]], args: tuple[Any, ...]) -> None:
        """Start a background task."""
        nursery = self.open_nursery()
        scope = anyio.CancelScope()
        if self.tasks is None:
            self.tasks = set()
        self.tasks.add(scope)
        nursery.start_soon(self._run_task, scope, self.tasks, function, args, name=f"{self.cell.path} task")

    async def _run_task(
        self,
        scope: anyio.CancelScope,
        tasks: set[anyio.CancelScope],
        function: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
    ) -> None:
        current_cell.set(None)  # the mailbox is served meanwhile, so what it asks blocks no chain
        try:
            with scope:
                await function(*args)
        except Exception as error:  # noqa: BLE001 - the supervisor decides
            self.cell.fail(error)
        finally:
            tasks.discard(scope)
            self.cell.runtime.backend.unpark(self.cell)  # a graceful stop waits for its tasks

    def watch(self, other: Cell) -> None:
        """Be told of the death of another."""
        me = self.cell
        self.open_nursery()
        if not self.has_hook("terminated"):
            raise ConfigurationError(f"{me.path} cannot watch {other.path}: it has no `terminated` hook")
        if self.watching is None:
            self.watching = set()
        if other in self.watching:
            return
        self.watching.add(other)
        if other.reason is not None:
            me.signal_death(other, other.reason)
            return
        if other.watchers is None:
            other.watchers = set()
        other.watchers.add(me)

    def unwatch(self, other: Cell) -> None:
        """Undo ``watch``."""
        if self.watching is not None:
            self.watching.discard(other)
        if other.watchers is not None:
            other.watchers.discard(self.cell)
