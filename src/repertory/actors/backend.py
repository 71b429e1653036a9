"""The one place where trio and asyncio differ: how a task sleeps until it is woken, and where tasks are started.

``anyio.Event`` would do for waking, but costs 6 to 9 µs more for a round trip than the native primitives, and an
actor is woken for every burst of messages. Native nurseries are used on trio only: ``asyncio.TaskGroup`` cancels
its tasks once and through any shield, so under asyncio tasks live in anyio's task groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio

if TYPE_CHECKING:
    import trio


class Scope(Protocol):
    """What trio's and anyio's cancel scopes have in common."""

    deadline: float

    def cancel(self) -> object:
        """Cancel what runs inside."""
        ...


class Nursery(Protocol):
    """What trio's nurseries and anyio's task groups have in common."""

    @property
    def cancel_scope(self) -> Scope:
        """The scope around its tasks."""
        ...

    def start_soon(self, function: Callable[..., Awaitable[Any]], /, *args: Any, name: object = None) -> object:
        """Start a task."""
        ...


class Parkable(Protocol):
    """Anything one task may sleep on."""

    parked: Any


class Backend(Protocol):
    """Sleeping, waking, starting, telling the time."""

    def now(self) -> float:
        """Seconds on the scheduler's clock."""
        ...

    def open_nursery(self) -> AbstractAsyncContextManager[Nursery]:
        """Open a place for tasks."""
        ...

    async def park(self, spot: Parkable) -> None:
        """Sleep until ``unpark(spot)``. Cancelling leaves the spot free; nothing else is lost."""
        ...

    def unpark(self, spot: Parkable) -> None:
        """Wake the task that sleeps on the spot, if there is one."""
        ...

    def is_parked(self, spot: Parkable) -> bool:
        """Whether a task sleeps on the spot. One that was cancelled does not, although it has not run since."""
        ...

    def post(self, function: Callable[[], object]) -> None:
        """Run a function in the scheduler's thread, soon; from any thread. RuntimeError when it has ended."""
        ...


class TrioBackend:
    """trio's own primitives."""

    def __init__(self) -> None:
        import trio

        self.now = trio.lowlevel.current_clock().current_time  # trio.current_time looks it up each time
        # trio's nurseries start tasks by ``async_fn`` where the protocol says ``function``, always by position.
        self.open_nursery = cast("Callable[[], AbstractAsyncContextManager[Nursery]]", trio.open_nursery)
        self._token = trio.lowlevel.current_trio_token()
        self._lowlevel = trio.lowlevel
        self._succeeded = trio.lowlevel.Abort.SUCCEEDED

    async def park(self, spot: Parkable) -> None:
        """Sleep until ``unpark(spot)``."""
        spot.parked = self._lowlevel.current_task()

        succeeded = self._succeeded

        def abort(_: object) -> trio.lowlevel.Abort:
            spot.parked = None
            return succeeded

        await self._lowlevel.wait_task_rescheduled(abort)

    def unpark(self, spot: Parkable) -> None:
        """Wake the task that sleeps on the spot."""
        task = spot.parked
        if task is not None:
            spot.parked = None
            self._lowlevel.reschedule(task)

    def is_parked(self, spot: Parkable) -> bool:
        """Whether a task sleeps on the spot."""
        return spot.parked is not None

    def post(self, function: Callable[[], object]) -> None:
        """Run a function in trio's thread, soon."""
        self._token.run_sync_soon(function)


class AsyncioBackend:
    """Futures of the running loop; uvloop too."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.open_nursery = cast("Callable[[], AbstractAsyncContextManager[Nursery]]", anyio.create_task_group)
        self._loop = loop
        self._create_future = loop.create_future

    async def park(self, spot: Parkable) -> None:
        """Sleep until ``unpark(spot)``."""
        spot.parked = future = self._create_future()
        try:
            await future
        finally:
            spot.parked = None

    def unpark(self, spot: Parkable) -> None:
        """Wake the task that sleeps on the spot."""
        future = spot.parked
        if future is not None:
            spot.parked = None
            if not future.done():  # cancelled in this very pass
                future.set_result(None)

    def is_parked(self, spot: Parkable) -> bool:
        """Whether a task sleeps on the spot."""
        return spot.parked is not None and not spot.parked.done()

    def post(self, function: Callable[[], object]) -> None:
        """Run a function in the loop's thread, soon."""
        self._loop.call_soon_threadsafe(function)


def current_backend() -> Backend:
    """The backend of the running scheduler."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return TrioBackend()
    return AsyncioBackend()
