"""Waiting in a task, on any event loop, for something that another thread finishes.

A wake-up by the event loop's own functions costs a third of ``anyio.from_thread`` and, unlike it, wakes all waiters of
a batch with one crossing between threads.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel

Failure: TypeAlias = Callable[[], BaseException]
"""Makes the error that a waiter raises, a new one for each waiter."""


class Waiter:
    """The current task, to be woken by other threads.

    Attributes:
        loop: The task's event loop.
        wake: Wakes the task; call it only on its loop.
        wait: Waits in the task until it is woken.
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
        """Call something on the task's loop; from any thread."""
        with suppress(RuntimeError):  # the loop and its tasks have ended: nobody waits
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
        # The list is passed as an argument. A lambda over `group` would bind late: when the loop runs it, the name
        # would mean the last group, and every other group would sleep for ever.
        group[0].post(_wake_each, group)


@dataclass(slots=True, eq=False, repr=False)
class Ticket:
    """Lets tasks of any loop, and plain threads, wait for another thread's work, such as writing a batch to the disk.

    It is correct without a lock because ``finish`` sets ``done`` before it takes the waiters, and a waiter checks
    ``done`` again after it has enlisted: one of the two always sees the other.
    """

    done: bool = field(default=False, init=False)
    failure: Failure | None = field(default=None, init=False)
    _tasks: list[Waiter] = field(default_factory=list[Waiter], init=False)
    _threads: list[threading.Event] = field(default_factory=list[threading.Event], init=False)

    def finish(self, failure: Failure | None = None) -> list[Waiter]:
        """Mark it as done and wake waiting threads.

        Args:
            failure: Makes the error that every waiter raises; None for success.

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

        Cancelling the wait does not take the batch back: it will still be written.

        Raises:
            RecordRefused: It contradicts existing records, such as a run or a ledger position that exists. Nothing
                of it was written; other batches are not affected.
            JournalWriteFailed: It could not be written, and neither can anything after it.
        """
        await self.wait_done()
        if self.failure is not None:
            raise self.failure()

    async def wait_done(self) -> None:
        """Wait until it is done, whether it succeeded or failed; does not raise its failure."""
        if self.done:
            await anyio.lowlevel.checkpoint()
        else:
            waiter = Waiter()
            self._tasks.append(waiter)
            if not self.done:
                await waiter.wait()

    def wait_sync(self) -> None:
        """Like ``wait``, but blocks the calling thread."""
        if not self.done:
            event = threading.Event()
            self._threads.append(event)
            if not self.done:
                event.wait()
        if self.failure is not None:
            raise self.failure()
