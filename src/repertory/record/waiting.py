"""Wait in a task of any event loop for something that another thread finishes.

The two waiter classes are the only backend-specific lines of this room: a native wake-up costs a third of
``anyio.from_thread`` and, unlike it, wakes every waiter of a batch with one crossing between threads. Each has its
loop, ``post`` to run something there from any thread, ``wake`` to let the task go on, on its loop only, and ``wait``,
to be called at once after making it: a wake-up before that is not remembered.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio.lowlevel

if TYPE_CHECKING:
    import asyncio

    import trio


Failure: TypeAlias = Callable[[], BaseException]
"""Makes the error that a waiter raises, a new one for each."""


class _TrioWaiter:
    def __init__(self) -> None:
        import trio

        self.loop: Any = trio.lowlevel.current_trio_token()
        self._task: trio.lowlevel.Task | None = None

    def post(self, callback: Callable[..., object], argument: object) -> None:
        import trio

        try:
            self.loop.run_sync_soon(callback, argument)
        except trio.RunFinishedError:  # the loop ended, and its tasks with it: nobody waits
            return

    def wake(self) -> None:
        import trio

        task, self._task = self._task, None
        if task is not None:  # None: the wait was cancelled
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        import trio

        self._task = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


class _AsyncioWaiter:
    def __init__(self) -> None:
        import asyncio

        self.loop: Any = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self.loop.create_future()

    def post(self, callback: Callable[..., object], argument: object) -> None:
        try:
            self.loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def wake(self) -> None:
        if not self._future.done():  # done: the wait was cancelled
            self._future.set_result(None)

    async def wait(self) -> None:
        await self._future


Waiter: TypeAlias = _TrioWaiter | _AsyncioWaiter


def new_waiter() -> Waiter:
    """Make a waiter for the running task."""
    trio = sys.modules.get("trio")
    return _TrioWaiter() if trio is not None and trio.lowlevel.in_trio_task() else _AsyncioWaiter()


def _wake_each(waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter.wake()


def wake_all(waiters: Iterable[Waiter]) -> None:
    """Wake tasks from another thread, with one crossing per event loop."""
    by_loop: dict[Any, list[Waiter]] = {}
    for waiter in waiters:
        by_loop.setdefault(waiter.loop, []).append(waiter)
    for group in by_loop.values():
        # The list travels as an argument. A lambda over `group` would bind late: by the time the loop runs it,
        # the name means the last group, and every other group sleeps for ever.
        group[0].post(_wake_each, group)


class Latch:
    """Becomes done once; tasks of any loop and plain threads wait for it.

    Correct without a lock because ``finish`` sets ``done`` before it takes the waiters, and a waiter looks at
    ``done`` again after it has enlisted: one of the two always sees the other.
    """

    __slots__ = ("_tasks", "_threads", "done", "failure")

    def __init__(self) -> None:
        self.done = False
        self.failure: Failure | None = None
        self._tasks: list[Waiter] = []
        self._threads: list[threading.Event] = []

    def finish(self, failure: Failure | None = None) -> list[Waiter]:
        """Mark as done and let waiting threads go on.

        Args:
            failure: What every waiter raises; None for success.

        Returns:
            The waiting tasks, for one ``wake_all`` over many latches.
        """
        self.failure = failure
        self.done = True
        for thread in self._threads:
            thread.set()
        return self._tasks

    async def wait(self) -> None:
        """Wait until done. A cancelled wait changes nothing for what is waited for."""
        await self.wait_done()
        self._check()

    async def wait_done(self) -> None:
        """The same, whether it became done well or with an error."""
        if self.done:
            await anyio.lowlevel.checkpoint()
        else:
            waiter = new_waiter()
            self._tasks.append(waiter)
            if not self.done:
                await waiter.wait()

    def wait_sync(self) -> None:
        """The same, blocking the calling thread."""
        if not self.done:
            event = threading.Event()
            self._threads.append(event)
            if not self.done:
                event.wait()
        self._check()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure()
