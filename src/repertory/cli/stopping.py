"""How a signal ends a command that has something to bring to an end: a run, a temporary folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from repertory.cli.output import Interrupted
from repertory.cli.signals import leave, told_to
from repertory.record.waiting import new_waiter

_BEAT = 0.25  # seconds; a signal that comes just as the loop goes to sleep is seen when it wakes


class Stop:
    """What signals ask for: the first an orderly stop, the second a stop at once, the third ends the process.

    Attributes:
        signal: The first signal; 0 where none has come.
        asked: Set on the first signal.
    """

    def __init__(self, everything: anyio.CancelScope, announce: Callable[[str], None] | None) -> None:
        self.signal = 0
        self.asked = anyio.Event()
        self._everything = everything
        self._announce = announce
        self._count = 0
        self._loop = new_waiter()

    def hear(self, number: int) -> None:
        """Take in a signal, in the handler itself: that the third one ends the process must not need the loop."""
        self._count += 1
        if self._count == 1:
            self.signal = number
        elif self._count > 2:
            leave(number)
        self._loop.post(self._act, self._count)

    def _act(self, count: int) -> None:
        self.asked.set()
        if count > 1 or self._announce is None:
            self._everything.cancel()
        else:
            self._announce("stopping at the next boundary; once more stops at once")

    async def cancel_when_asked(self, scope: anyio.CancelScope) -> None:
        """Cancel a scope on the first signal."""
        await self.asked.wait()
        scope.cancel()

    def interrupted(self, words: str) -> Interrupted:
        """The error of a command that a signal ended."""
        return Interrupted(words, 128 + self.signal)


@asynccontextmanager
async def stopped_by_signals(announce: Callable[[str], None] | None = None) -> AsyncGenerator[Stop]:
    """Have signals stop what the block does.

    Args:
        announce: Told what the first signal does, where the block itself waits for it; None has the first one
            cancel the block.
    """
    async with anyio.create_task_group() as everything:
        stop = Stop(everything.cancel_scope, announce)
        with told_to(stop.hear):
            everything.start_soon(_beat)
            yield stop
            everything.cancel_scope.cancel()


async def _beat() -> None:
    while True:  # noqa: ASYNC110 - nothing is waited for but the time
        await anyio.sleep(_BEAT)
