"""The place actors live in: the root of their tree, and what they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

from repertory.actors.deadletters import DeadLetter, DeadLetters
from repertory.actors.lifecycle import Actor
from repertory.actors.mailbox import Overflow
from repertory.actors.refs import ActorRef
from repertory.actors.statistics import ActorTree, SystemStatistics
from repertory.actors.supervision import Restart, Supervision

MessageT = TypeVar("MessageT")


class ActorSystem:
    """A tree of actors. Made by ``open_system``; all actors are gone when its block is left."""

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
        """Start an actor at the top of the tree."""
        raise NotImplementedError

    @property
    def dead_letters(self) -> DeadLetters:
        """Messages nobody handled."""
        raise NotImplementedError

    def statistics(self) -> SystemStatistics:
        """The system's counts at this instant."""
        raise NotImplementedError

    def tree(self) -> ActorTree:
        """The living actors for display; ``str()`` draws them."""
        raise NotImplementedError

    async def wait_stopped(self) -> None:
        """Wait until no actor lives any more."""
        raise NotImplementedError


@asynccontextmanager
async def open_system(
    name: str = "system",
    *,
    supervision: Supervision | None = None,
    drain_timeout: float = 5.0,
    cleanup_timeout: float = 5.0,
    on_dead_letter: Callable[[DeadLetter], None] | None = None,
) -> AsyncIterator[ActorSystem]:
    """Open a system of actors. Leaving the block stops all actors gracefully; an error in the block kills them."""
    raise NotImplementedError
    yield ActorSystem()
