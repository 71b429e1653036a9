"""What all actors of one system share: clock, timers, dead letters, counts, and calls from other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any, TypeVarTuple

from repertory.actors.observation import DeadLetters
from repertory.actors.scheduler import Scheduler, TimingWheel

ArgsT = TypeVarTuple("ArgsT")

QUOTA = 256
"""Messages that a busy actor handles, and asks that run inline in one system, between two checkpoints."""


@dataclass(slots=True, eq=False, repr=False)
class Runtime:
    """The internals of an ``ActorSystem``."""

    scheduler: Scheduler
    wheel: TimingWheel  # the timers of all asks
    drain_timeout: float
    cleanup_timeout: float
    dead_letters: DeadLetters
    thread: int = field(default_factory=get_ident)  # the scheduler's
    inline_left: int = QUOTA  # how many more asks may run inline before one must be a checkpoint
    foreign: deque[Callable[[], None]] = field(default_factory=deque)  # calls from other OS threads, mostly messages
    parked: Any = None  # the sleeping task of serve_foreign_calls
    failure: BaseException | None = None  # the crash at the top that ends the system
    actors: int = 0  # that live
    spawned: int = 0
    crashes: int = 0
    restarts: int = 0
    asks_timed_out: int = 0
    _serves_foreign_calls: bool = False
    _announced: bool = False

    def run_in_thread(self, function: Callable[[*ArgsT], None], *args: *ArgsT) -> None:
        """Call a function in the scheduler's thread: now if this is that thread, otherwise soon."""
        if get_ident() == self.thread:
            self.run_foreign_calls()  # first what other threads have already handed over
            function(*args)
        else:
            with suppress(RuntimeError):  # the scheduler has ended, and all actors with it
                self.call_soon_threadsafe(partial(function, *args))

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        """Run a function in the scheduler's thread, from any other thread. Calls of one thread keep their order.

        Raises:
            RuntimeError: The scheduler's thread has ended.
        """
        self.foreign.append(function)  # atomic, as is the popleft below
        if not self._announced:
            # Two threads may both announce, which is harmless; the flag only spares a burst its wake-ups.
            self._announced = True
            try:
                self.scheduler.post(self._announce)
            except RuntimeError:
                self._announced = False  # the next one must hear of it too
                raise

    def _announce(self) -> None:
        if self._serves_foreign_calls:
            self.scheduler.unpark(self)
        else:
            self.run_foreign_calls()

    def run_foreign_calls(self) -> None:
        """Run what other threads have handed over so far."""
        # Clear the flag before counting, so that what is appended from here on is announced again. It is left for then:
        # threads that hand over more as fast as this runs it would keep the event loop from ever going on.
        self._announced = False
        for _ in range(len(self.foreign)):
            self.foreign.popleft()()

    async def serve_foreign_calls(self) -> None:
        """Run foreign calls until cancelled: in a task, so that what one of them raises ends the system."""
        self._serves_foreign_calls = True
        try:
            while True:
                self.run_foreign_calls()
                await self.scheduler.park(self)  # calls are announced by a callback, which runs only after this
        finally:
            self._serves_foreign_calls = False
