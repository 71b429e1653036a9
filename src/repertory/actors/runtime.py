"""What all actors of one system share: clock, timers, dead letters, counts, the way in from other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any, TypeVarTuple

from repertory.actors.observation import DeadLetters
from repertory.actors.scheduler import Nursery, TimingWheel, current_scheduler

ArgsT = TypeVarTuple("ArgsT")

INLINE_QUOTA = 256
"""Inline asks in one system between two checkpoints: as many as messages that an actor handles between two."""


class Runtime:
    """The inside of an ``ActorSystem``."""

    def __init__(
        self,
        nursery: Nursery,
        *,
        drain_timeout: float,
        cleanup_timeout: float,
        timer_resolution: float,
        dead_letters: DeadLetters,
    ) -> None:
        self.nursery = nursery
        self.scheduler = current_scheduler()
        self.thread = get_ident()  # the scheduler's
        self.drain_timeout = drain_timeout
        self.cleanup_timeout = cleanup_timeout
        self.wheel = TimingWheel(self.scheduler, timer_resolution)  # the timers of all asks
        self.dead_letters = dead_letters
        self.inline_left = INLINE_QUOTA  # how many more asks may run inline before one must be a checkpoint
        self.foreign: deque[Callable[[], None]] = deque()  # what other OS threads want done, messages above all
        self.parked: Any = None  # the sleeping courier
        self.failure: BaseException | None = None  # the crash at the top that ends the system
        self.actors = self.spawned = self.crashes = self.restarts = self.asks_timed_out = 0
        self._courier_runs = False
        self._announced = False

    def run_in_thread(self, function: Callable[[*ArgsT], None], *args: *ArgsT) -> None:
        """Call a function in the scheduler's thread: now if this is it, else soon."""
        if get_ident() == self.thread:
            self.run_errands()  # what a thread told before the caller heard of it comes first
            function(*args)
        else:
            with suppress(RuntimeError):  # the scheduler has ended, and all actors with it
                self.hand_over(partial(function, *args))

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
                self.scheduler.post(self._announce)
            except RuntimeError:
                self._announced = False  # the next one must hear of it too
                raise

    def _announce(self) -> None:
        if self._courier_runs:
            self.scheduler.unpark(self)
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
        self._courier_runs = True
        try:
            while True:
                self.run_errands()
                await self.scheduler.park(self)  # what comes just now is announced by a callback, so after this
        finally:
            self._courier_runs = False

    def fail(self, error: BaseException) -> None:
        """An actor at the top failed beyond repair, and nobody is left to escalate to."""
        self.failure = self.failure or error
        self.nursery.cancel_scope.cancel()
