"""Who was cancelled: on asyncio a task gets the same error if only what it waited for was; and until when to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio


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
