"""How tasks end: when something else does, and by errors that are no ``Exception``, crashes or not.

On asyncio a task that is cancelled gets the same error as one that only waited for something that was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from repertory._error_texts import name_error


def is_being_cancelled() -> bool:
    """Whether asyncio is cancelling the current task. Always False on trio, which has an error of its own for that."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def part_for_others(error: BaseException, *kinds: type[BaseException]) -> BaseException | None:
    """The part of foreign code's error that is for others: its own cancellation, or of ``kinds``; None if none is."""
    cancelled = anyio.get_cancelled_exc_class()
    if not issubclass(cancelled, asyncio.CancelledError) or is_being_cancelled():
        kinds = (*kinds, cancelled)
    if isinstance(error, BaseExceptionGroup):
        return error.split(kinds)[0]
    return error if isinstance(error, kinds) else None


async def cancel_after(end: Callable[[], Awaitable[object]], scope: anyio.CancelScope) -> None:
    """Wait for an end, and cancel a scope then."""
    await end()
    scope.cancel()


def crash_of(raised: BaseException) -> Exception:
    """The error to which a crash is put down. A panic of an extension in Rust, which is no ``Exception``, is one, too.

    Raises:
        BaseException: It is no crash: the task itself is being cancelled, and not just an asyncio task or future that
            it waited for; or the error is meant for the program.
    """
    if isinstance(raised, Exception):
        return raised
    if part_for_others(raised, KeyboardInterrupt, SystemExit, GeneratorExit) is not None:
        raise raised
    waited = isinstance(raised, asyncio.CancelledError)
    error = RuntimeError("it waited for something that was cancelled" if waited else f"it raised {name_error(raised)}")
    error.__cause__ = raised
    return error
