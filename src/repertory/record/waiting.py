"""Wait in a task of any event loop for something that another thread finishes.

A native wake-up costs a third of ``anyio.from_thread`` and, unlike it, wakes every waiter of a batch with one crossing
between threads.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")

Failure: TypeAlias = Callable[[], BaseException]
"""Makes the error that a waiter raises, a new one for each."""


class Waiter:
    """The running task, as other threads wake it.

    Attributes:
        loop: Its event loop.
        wake: Lets the task go on; to be called on its loop only.
        wait: What the task waits with.
    """

    __slots__ = ("_post", "loop", "wait", "wake")

    def __init__(self) -> None:
        event = anyio.Event()
        self.wait, self.wake = event.wait, event.set
        trio = sys.modules.get("trio")
        self.loop: Any
        if trio is not None and trio.lowlevel.in_trio_task():
            self.loop = trio.lowlevel.current_trio_token()
            self._post: Callable[..., object] = self.loop.run_sync_soon
        else:
            import asyncio

            self.loop = asyncio.get_running_loop()
            self._post = self.loop.call_soon_threadsafe

    def post(self, callback: Callable[..., object], argument: object) -> None:
        """Have something called on the task's loop; from any thread."""
        with suppress(RuntimeError):  # the loop ended, and its tasks with it: nobody waits
            self._post(callback, argument)


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


class Ticket:
    """What tasks of any loop and plain threads wait with for what another thread does: a batch on its way to the disk.

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
            The waiting tasks, for one ``wake_all`` over many tickets.
        """
        self.failure = failure
        self.done = True
        for thread in self._threads:
            thread.set()
        return self._tasks

    async def wait(self) -> None:
        """Wait until it is done; for a batch, until it is durable.

        A cancelled wait does not take the batch back: it will still be written.

        Raises:
            RecordRefused: It contradicts what is kept already: a run or a position of a ledger that exists. Nothing
                of it was written; other batches go on.
            JournalWriteFailed: It could not be written, and neither can anything after it.
        """
        await self.wait_done()
        if self.failure is not None:
            raise self.failure()

    async def wait_done(self) -> None:
        """The same, whether it became done well or with an error."""
        if self.done:
            await anyio.lowlevel.checkpoint()
        else:
            waiter = Waiter()
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
        if self.failure is not None:
            raise self.failure()


class Answer(Ticket, Generic[T]):
    """A ticket with what comes of the work."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        super().__init__()
        self._values: list[T] = []

    def give(self, value: T) -> None:
        """Have it; ``finish`` lets go on who waits."""
        self._values.append(value)

    async def result(self) -> T:
        """Wait until it is done, then give it; raises as ``wait``."""
        await self.wait()
        return self._values[0]
