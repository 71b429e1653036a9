"""How a signal ends a command that has something to bring to an end: a run, a temporary folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from repertory.cli.output import Interrupted
from repertory.cli.signals import leave, told_to

_BEAT = 0.1  # seconds after which a signal is noticed; to a person that is at once, and it costs nothing to look


class Stop:
    """What signals ask for: the first an orderly stop, the second a stop at once, the third ends the process.

    Attributes:
        asked: Set after the first signal.
    """

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self._heard: list[int] = []

    def hear(self, number: int) -> None:
        """Note a signal, in the handler itself: that the third one ends the process must not need the loop."""
        self._heard.append(number)
        if len(self._heard) > 2:
            leave(number)

    async def wait(self, count: int) -> None:
        """Wait until so many signals have come."""
        while len(self._heard) < count:  # noqa: ASYNC110 - a handler may not set an event
            await anyio.sleep(_BEAT)

    async def cancel_when_asked(self, scope: anyio.CancelScope) -> None:
        """Cancel a scope after the first signal."""
        await self.asked.wait()
        scope.cancel()

    def interrupted(self, words: str) -> Interrupted:
        """The error of a command that a signal ended."""
        return Interrupted(words, 128 + sum(self._heard[:1]))


@asynccontextmanager
async def stopped_by_signals(announce: Callable[[str], None] | None = None) -> AsyncGenerator[Stop]:
    """Have signals stop what the block does.

    Args:
        announce: Told what the first signal does, where the block itself waits for it; None has the first one
            cancel the block.
    """
    stop = Stop()
    async with anyio.create_task_group() as everything:

        async def obey() -> None:
            await stop.wait(1)
            stop.asked.set()
            if announce is not None:
                announce("stopping at the next boundary; once more stops at once")
                await stop.wait(2)
            everything.cancel_scope.cancel()

        with told_to(stop.hear):
            everything.start_soon(obey)
            yield stop
            everything.cancel_scope.cancel()
