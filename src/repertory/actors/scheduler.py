"""The differences between trio and asyncio: how a task sleeps until it is woken; and one timer for all deadlines.

``anyio.Event`` would do for waking, but costs 6 to 9 µs more for a round trip than the native primitives, and an
actor is woken for every burst of messages. Native nurseries are used on trio only: ``asyncio.TaskGroup`` cancels
its tasks once and through any shield, so under asyncio tasks live in anyio's task groups.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import anyio
import sniffio
from anyio.abc import TaskGroup

if TYPE_CHECKING:
    import trio


Nursery: TypeAlias = TaskGroup
"""anyio's task group, or trio's nursery, which also has what is used here: ``start_soon``, ``cancel_scope``."""


class Parkable(Protocol):
    """Anything on which one task may sleep."""

    parked: Any


class _TrioScheduler:
    """Sleeping, waking, starting, telling the time, with trio's own primitives."""

    def __init__(self) -> None:
        import trio

        # Seconds on the scheduler's clock. trio.current_time looks the clock up each time.
        self.now: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self.open_nursery = cast("Callable[[], AbstractAsyncContextManager[Nursery]]", trio.open_nursery)
        self._token = trio.lowlevel.current_trio_token()
        self._lowlevel = trio.lowlevel
        self._succeeded = trio.lowlevel.Abort.SUCCEEDED

    def park(self, spot: Parkable) -> Awaitable[object]:
        """Sleep until ``unpark(spot)``; await the result at once. Cancelling frees the spot.

        A plain function, since a coroutine would add a frame to every wake-up.
        """
        spot.parked = self._lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            spot.parked = None
            return self._succeeded

        return self._lowlevel.wait_task_rescheduled(abort)

    def unpark(self, spot: Parkable) -> None:
        """Wake the task that sleeps on the spot, if there is one."""
        task = spot.parked
        if task is not None:
            spot.parked = None
            self._lowlevel.reschedule(task)

    def is_parked(self, spot: Parkable) -> bool:
        """Whether a task sleeps on the spot. A cancelled task does not, even if it has not run since."""
        return spot.parked is not None

    def post(self, function: Callable[[], object]) -> None:
        """Run a function soon in the scheduler's thread, from any thread. Raises RuntimeError if that has ended."""
        self._token.run_sync_soon(function)


class _AsyncioScheduler:
    """The same with futures of the running loop; uvloop too."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = loop.time
        self.open_nursery = cast("Callable[[], AbstractAsyncContextManager[Nursery]]", anyio.create_task_group)
        self._loop = loop

    def park(self, spot: Parkable) -> Awaitable[object]:
        spot.parked = future = self._loop.create_future()
        return future

    def unpark(self, spot: Parkable) -> None:
        future = spot.parked
        if future is not None:
            spot.parked = None
            if not future.done():  # else the sleeper was cancelled
                future.set_result(None)

    def is_parked(self, spot: Parkable) -> bool:
        return spot.parked is not None and not spot.parked.done()

    def post(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)


Scheduler: TypeAlias = _TrioScheduler | _AsyncioScheduler


def current_scheduler() -> Scheduler:
    """The scheduler of the current task. Where trio is the guest of an asyncio loop, both of them run."""
    trio = sys.modules.get("trio")
    return _TrioScheduler() if trio is not None and trio.lowlevel.in_trio_task() else _AsyncioScheduler()


def start_soon(nursery: Nursery, function: Callable[..., Any], *args: Any, name: object = None) -> None:
    """Start a task; also in a bare callback of asyncio, such as a signal's, where anyio finds no event loop."""
    context = copy_context()
    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        context.run(sniffio.current_async_library_cvar.set, "asyncio")
    context.run(lambda: nursery.start_soon(function, *args, name=name))


class Timer(Protocol):
    """Something with a deadline, which must not change while the timer is in the wheel."""

    deadline: float

    def expire(self) -> None:
        """Called once, in the scheduler's thread, when the deadline has passed."""
        ...


class TimingWheel:
    """Calls ``expire`` on timers no earlier than their deadline and no later than a tick after it.

    A cancel scope per message would cost ten times the message. Deadlines are rounded up to the next tick and kept
    in one set per tick, after Varghese and Lauck, "Hashed and hierarchical timing wheels" (SOSP 1987); the ticks in
    use are in a heap, since most are empty. Adding and removing cost a set operation each, and an answered ask
    leaves nothing behind.
    """

    def __init__(self, scheduler: Scheduler, resolution: float) -> None:
        self._scheduler = scheduler
        self._per_second = 1.0 / resolution
        self._ticks: dict[int, set[Timer]] = {}
        self._heap: list[int] = []
        self.parked: Any = None

    def __len__(self) -> int:
        return sum(map(len, self._ticks.values()))

    def add(self, timer: Timer) -> None:
        """Start a timer."""
        tick = math.ceil(timer.deadline * self._per_second)
        timers = self._ticks.get(tick)
        if timers is None:
            timers = self._ticks[tick] = set()
            heapq.heappush(self._heap, tick)
            if self._heap[0] == tick:
                self._scheduler.unpark(self)
        timers.add(timer)

    def discard(self, timer: Timer) -> None:
        """Stop a timer; nothing happens if it has expired."""
        timers = self._ticks.get(math.ceil(timer.deadline * self._per_second))
        if timers is not None:
            timers.discard(timer)

    async def run(self) -> None:
        """Expire timers until cancelled."""
        while True:
            if not self._heap:
                await self._scheduler.park(self)
                continue
            due = self._heap[0] / self._per_second
            if self._scheduler.now() < due:
                with anyio.CancelScope(deadline=due):
                    await self._scheduler.park(self)
                continue
            for timer in self._ticks.pop(heapq.heappop(self._heap)):
                timer.expire()
