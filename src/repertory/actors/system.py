"""The place actors live in: the root of their tree, and what they share."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import anyio

from repertory.actors.backend import Nursery, current_backend
from repertory.actors.children import Children
from repertory.actors.deadletters import DeadLetter, DeadLetters
from repertory.actors.lifecycle import Actor
from repertory.actors.options import SpawnOptions
from repertory.actors.refs import INLINE_QUOTA, ActorRef
from repertory.actors.statistics import ActorTree, SystemStatistics
from repertory.actors.supervision import Supervision
from repertory.actors.wheel import Wheel

if TYPE_CHECKING:
    from repertory.actors.mailbox import Mailbox

MessageT = TypeVar("MessageT")


class ActorSystem:
    """A tree of actors. Made by ``open_system``; all actors are gone when its block is left."""

    def __init__(
        self,
        name: str,
        nursery: Nursery,
        *,
        supervision: Supervision | None,
        drain_timeout: float,
        cleanup_timeout: float,
        timer_resolution: float,
        dead_letters: DeadLetters,
    ) -> None:
        self.name = name
        self.backend = current_backend()
        self.thread = get_ident()
        self.wheel = Wheel(self.backend, timer_resolution)
        self.drain_timeout = drain_timeout
        self.cleanup_timeout = cleanup_timeout
        self.inline_left = INLINE_QUOTA
        self.actors = self.spawned = self.crashes = self.restarts = self.asks_timed_out = 0
        self.failure: BaseException | None = None
        self.foreign: deque[tuple[Mailbox, Any]] = deque()
        self._foreign_announced = False
        self._dead_letters = dead_letters
        self._nursery = nursery
        self._top = Children(self, None, nursery, supervision, self._fail)

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
        """Start an actor at the top of the tree; see ``ActorContext.spawn``."""
        return self._top.spawn(factory, name, options)

    @property
    def dead_letters(self) -> DeadLetters:
        """Messages nobody handled."""
        return self._dead_letters

    def statistics(self) -> SystemStatistics:
        """The system's counts at this instant."""
        return SystemStatistics(
            actors=self.actors,
            spawned=self.spawned,
            crashes=self.crashes,
            restarts=self.restarts,
            asks_timed_out=self.asks_timed_out,
            asks_with_deadline=len(self.wheel),
            dead_letters=self._dead_letters.counts,
        )

    def tree(self) -> ActorTree:
        """The living actors for display; ``str()`` draws them."""
        return ActorTree(self.name, None, tuple(cell.tree() for cell in self._top.members.values()))

    async def wait_stopped(self) -> None:
        """Wait until no actor lives any more."""
        while self._top.members:
            await next(iter(self._top.members.values())).until_gone()

    def hand_over(self, mailbox: Mailbox, message: Any) -> None:
        """Take a message from another OS thread. Appending to and popping from a deque are atomic.

        Raises:
            RuntimeError: The scheduler's thread has ended.
        """
        self.foreign.append((mailbox, message))
        if not self._foreign_announced:
            # Two threads may both announce, which is harmless; the flag only spares a burst its wake-ups.
            self._foreign_announced = True
            self.backend.post(self._receive_foreign)

    def _receive_foreign(self) -> None:
        # The flag falls before the deque is emptied: what is appended from here on is announced anew.
        self._foreign_announced = False
        while self.foreign:
            mailbox, message = self.foreign.popleft()
            mailbox.receive_foreign(message)

    def _fail(self, error: BaseException) -> None:
        """An actor at the top failed beyond repair: nobody is left to escalate to."""
        self.failure = self.failure or error
        self._nursery.cancel_scope.cancel()

    async def _stop(self) -> None:
        deadline = self.backend.now() + self.drain_timeout
        with anyio.CancelScope(deadline=deadline):
            await self._top.stop_all(deadline)


@asynccontextmanager
async def open_system(
    name: str = "system",
    *,
    supervision: Supervision | None = None,
    drain_timeout: float = 5.0,
    cleanup_timeout: float = 5.0,
    timer_resolution: float = 0.05,
    on_dead_letter: Callable[[DeadLetter], None] | None = None,
) -> AsyncGenerator[ActorSystem]:
    """Open a system of actors.

    Leaving the block stops all actors gracefully, the last started first; an error in the block, or its
    cancellation, kills them. Either way none is left afterwards.

    Args:
        name: For display.
        supervision: How actors at the top are supervised; None for the defaults of ``Supervision``.
        drain_timeout: Seconds to handle accepted messages in a graceful stop.
        cleanup_timeout: Seconds for each ``stopped`` and ``restarting`` hook, which are shielded from cancellation.
        timer_resolution: Deadlines of asks are kept to this many seconds: never early, at most this late.
        on_dead_letter: Called with each dead letter, in the scheduler's thread; must not block.

    Yields:
        The system.

    Raises:
        ActorFailed: An actor at the top failed more often than ``supervision`` allows; ``__cause__`` has its error.
    """
    error: Exception | None = None
    async with current_backend().open_nursery() as nursery:
        system = ActorSystem(
            name,
            nursery,
            supervision=supervision,
            drain_timeout=drain_timeout,
            cleanup_timeout=cleanup_timeout,
            timer_resolution=timer_resolution,
            dead_letters=DeadLetters(observer=on_dead_letter),
        )
        nursery.start_soon(system.wheel.run, name=f"{name} timing wheel")
        try:
            yield system
            await system._stop()
        except Exception as raised:  # noqa: BLE001 - raised again below, without the nursery's group around it
            error = raised
        system._top.closed = True
        nursery.cancel_scope.cancel()
    system._top.sweep()
    system._receive_foreign()
    if system.failure is not None:
        raise system.failure from (system.failure.__cause__ or error)
    if error is not None:
        raise error
