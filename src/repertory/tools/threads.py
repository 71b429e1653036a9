"""Plain functions in threads that may be left behind.

anyio's own worker threads will not do: under asyncio they are joined when the interpreter exits, so one tool that
blocks for ever would keep the whole process alive. These are daemon threads, the same on both backends.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.lowlevel import EventLoopToken, RunVar, current_token

T = TypeVar("T")

MAX_THREADS = 64  # a tool left behind holds its place until it really ends, so a broken one cannot eat all threads
# How many compute at once. Python runs one thread at a time, and the event loop's takes its turn with those that
# compute: each one more makes every answer of the loop some 5 ms later (sys.getswitchinterval()), and none faster.
MOST_COMPUTING = (os.cpu_count() or 1) + 1

MAX_ON_LOOP = 1_000_000  # characters

_threads: RunVar[anyio.CapacityLimiter] = RunVar("repertory.tools.threads")
_computing: RunVar[anyio.CapacityLimiter] = RunVar("repertory.tools.computing")
_left_behind: ContextVar[threading.Event | None] = ContextVar("repertory.tools.left_behind", default=None)
_loop: ContextVar[EventLoopToken | None] = ContextVar("repertory.tools.loop", default=None)


def is_left_behind() -> bool:
    """Whether nobody waits for the plain function that asks, because its call was cancelled or timed out.

    Long loops in plain tools look here now and then, and return.
    """
    event = _left_behind.get()
    return event is not None and event.is_set()


def current_time() -> float:
    """The event loop's clock, read from the loop or from a thread of ``run_in_thread``."""
    loop = _loop.get()
    return anyio.current_time() if loop is None else anyio.from_thread.run_sync(anyio.current_time, token=loop)


def turn_to_compute() -> anyio.CapacityLimiter:
    """A turn for what computes rather than waits, to be held by ``async with``; there are ``MOST_COMPUTING``."""
    return _limiter(_computing, MOST_COMPUTING)


async def compute(function: Callable[[], T], *, size: int) -> T:
    """Do what follows a tool's work: in a thread where it is about ``size`` characters, more than a million of them.

    To look through a million takes a millisecond or two, as long as the event loop may be held up. The wait cannot be
    cancelled, so that what a tool has done is recorded in any case; the function must come to an end by itself.
    """
    if size <= MAX_ON_LOOP:
        return function()
    results: list[T] = []
    with anyio.CancelScope(shield=True):
        results.append(await anyio.to_thread.run_sync(function))
    return results[0]


def _limiter(variable: RunVar[anyio.CapacityLimiter], places: int) -> anyio.CapacityLimiter:
    """The limiter of this event loop."""
    try:
        return variable.get()
    except LookupError:
        variable.set(limiter := anyio.CapacityLimiter(places))
        return limiter


async def run_in_thread(function: Callable[[], T], *, name: str = "repertory tool") -> T:
    """Run a plain function in a daemon thread and wait for it.

    A cancelled wait returns at once and leaves the function running; it may still have its effect.

    Raises:
        BaseException: Whatever the function raised.
    """
    threads, place = _limiter(_threads, MAX_THREADS), object()
    await threads.acquire_on_behalf_of(place)
    left_behind, finished, loop = threading.Event(), anyio.Event(), current_token()
    context = copy_context()
    context.run(_left_behind.set, left_behind)
    context.run(_loop.set, loop)
    results: list[T] = []
    errors: list[BaseException] = []

    def finish() -> None:
        threads.release_on_behalf_of(place)
        finished.set()

    def work() -> None:
        try:
            results.append(context.run(function))
        except BaseException as error:  # noqa: BLE001 - carried over to the waiting task, which raises it
            errors.append(error)
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            anyio.from_thread.run_sync(finish, token=loop)

    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        # Beside the loop: to start a thread is to wait until it has run, which takes its turn with all that compute.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(thread.start)
    except RuntimeError:  # the system gives no more threads
        threads.release_on_behalf_of(place)
        raise
    try:
        await finished.wait()
    finally:
        left_behind.set()
    if errors:
        raise errors[0]
    return results[0]
