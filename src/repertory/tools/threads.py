"""Running plain functions in threads that can be abandoned.

anyio's own worker threads do not work for this: under asyncio they are joined when the interpreter exits, so one tool
that blocks for ever would keep the whole process alive. These are daemon threads, the same on both backends.
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
from sniffio import current_async_library_cvar

T = TypeVar("T")

MAX_THREADS = 64  # an abandoned tool keeps its place until it really ends, so a broken one cannot use up all threads
# How many compute at once. Python runs one thread at a time, and the event loop's thread takes turns with those that
# compute: each one more delays every response of the loop by some 5 ms (sys.getswitchinterval()), and speeds up none.
MOST_COMPUTING = (os.cpu_count() or 1) + 1

MAX_ON_LOOP = 1_000_000  # characters

_threads: RunVar[anyio.CapacityLimiter] = RunVar("repertory.tools.threads")
_computing: RunVar[anyio.CapacityLimiter] = RunVar("repertory.tools.computing")
_brief: RunVar[anyio.CapacityLimiter] = RunVar("repertory.tools.brief")
_left_behind: ContextVar[threading.Event | None] = ContextVar("repertory.tools.left_behind", default=None)
_loop: ContextVar[EventLoopToken | None] = ContextVar("repertory.tools.loop", default=None)


def is_left_behind() -> bool:
    """Whether nobody waits any more for the plain function that calls this: its call was cancelled or timed out.

    Call it now and then in a long loop of a plain tool, and return if it is True.
    """
    event = _left_behind.get()
    return event is not None and event.is_set()


def current_time() -> float:
    """The event loop's clock, read from the loop or from a thread of ``run_in_thread``."""
    loop = _loop.get()
    return anyio.current_time() if loop is None else anyio.from_thread.run_sync(anyio.current_time, token=loop)


def from_any_thread(function: Callable[[str], None]) -> Callable[[str], None]:
    """The function, callable from any thread: it runs in this event loop's thread, and no more once that has ended."""
    token, home = current_token(), threading.get_ident()

    def call(text: str) -> None:
        if threading.get_ident() == home:
            function(text)
        else:
            with contextlib.suppress(anyio.RunFinishedError):
                anyio.from_thread.run_sync(function, text, token=token)

    return call


def compute_limiter() -> anyio.CapacityLimiter:
    """The limiter for work that computes rather than waits, for ``async with``; it has ``MOST_COMPUTING`` places."""
    return _limiter(_computing, MOST_COMPUTING)


async def compute(function: Callable[[], T], *, size: int) -> T:
    """Process a tool's result of about ``size`` characters; in a thread if there are more than a million.

    Scanning a million takes a millisecond or two, the longest that the event loop may be blocked. The wait cannot be
    cancelled, so that what a tool has done is always recorded; the function must end by itself.
    """
    return function() if size <= MAX_ON_LOOP else await _briefly(function)


async def _briefly(function: Callable[[], T]) -> T:
    """Run what ends soon in a thread, without being cancelled.

    It has places of its own: others may wait for hours in all those that ``anyio.to_thread`` has, and who waits for one
    of these and cannot be cancelled outlasts every deadline.
    """
    results: list[T] = []
    with anyio.CancelScope(shield=True):
        results.append(await anyio.to_thread.run_sync(function, limiter=_limiter(_brief, MOST_COMPUTING)))
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

    If the wait is cancelled, it returns at once and leaves the function running, which may still have its effect.

    Raises:
        BaseException: Whatever the function raised.
    """
    threads, place = _limiter(_threads, MAX_THREADS), object()
    await threads.acquire_on_behalf_of(place)
    left_behind, finished, loop = threading.Event(), anyio.Event(), current_token()
    context = copy_context()
    context.run(current_async_library_cvar.set, None)  # no event loop runs in that thread; it may run its own
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
        with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody waits
            anyio.from_thread.run_sync(finish, token=loop)

    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        # Not on the loop: starting a thread waits until it runs, and it takes turns with all threads that compute.
        await _briefly(thread.start)
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
