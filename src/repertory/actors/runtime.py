"""What all actors of one system share: clock, timers, dead letters, counts, the way in from other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from repertory.actors.backend import Nursery, current_backend
from repertory.actors.deadletters import DeadLetters
from repertory.actors.refs import INLINE_QUOTA
from repertory.actors.wheel import Wheel

if TYPE_CHECKING:
    from repertory.actors.cell import Cell
    from repertory.actors.system import ActorSystem


class Runtime:
    """The inside of an ``ActorSystem``.

    Attributes:
        backend: trio or asyncio.
        thread: The scheduler's thread.
        wheel: The timers of all asks.
        run_cell: The task of an actor; an attribute because cells cannot import the module that drives them.
        inline_left: How many more asks may run inline before one must be a checkpoint.
        foreign: What other OS threads want done, messages above all.
        parked: The sleeping courier.
        failure: The crash at the top that ends the system.
    """

    def __init__(
        self,
        nursery: Nursery,
        run_cell: Callable[[Cell], Awaitable[None]],
        *,
        drain_timeout: float,
        cleanup_timeout: float,
        timer_resolution: float,
        dead_letters: DeadLetters,
    ) -> None:
        self.backend = current_backend()
        self.thread = get_ident()
        self.nursery = nursery
        self.run_cell = run_cell
        self.drain_timeout = drain_timeout
        self.cleanup_timeout = cleanup_timeout
        self.wheel = Wheel(self.backend, timer_resolution)
        self.dead_letters = dead_letters
        self.inline_left = INLINE_QUOTA
        self.foreign: deque[Callable[[], None]] = deque()
        self.courier_runs = False
        self.parked: Any = None
        self.failure: BaseException | None = None
        self.system: ActorSystem
        self.actors = self.spawned = self.crashes = self.restarts = self.asks_timed_out = 0
        self._announced = False

    def hand_over(self, errand: Callable[[], None]) -> None:
        """Have something done in the scheduler's thread; from any other. Errands of one thread keep their order.

        Raises:
            RuntimeError: The scheduler's thread has ended.
        """
        self.foreign.append(errand)  # atomic, as is the popleft below
        if not self._announced:
            # Two threads may both announce, which is harmless; the flag only spares a burst its wake-ups.
            self._announced = True
            try:
                self.backend.post(self._announce)
            except RuntimeError:
                self._announced = False  # the next one must hear of it too
                raise

    def _announce(self) -> None:
        if self.courier_runs:
            self.backend.unpark(self)
        else:
            self.run_errands()

    def run_errands(self) -> None:
        """Do what other threads want done."""
        # The flag falls before the deque is emptied: what is appended from here on is announced anew.
        self._announced = False
        while self.foreign:
            self.foreign.popleft()()

    async def run_courier(self) -> None:
        """Run errands until cancelled. A task, because anyio starts no tasks from a bare callback of asyncio's."""
        self.courier_runs = True
        try:
            while True:
                self.run_errands()
                await self.backend.park(self)  # what comes just now is announced by a callback, so after this
        finally:
            self.courier_runs = False

    def fail(self, error: BaseException) -> None:
        """An actor at the top failed beyond repair, and nobody is left to escalate to."""
        self.failure = self.failure or error
        self.nursery.cancel_scope.cancel()
