"""How a signal ends a command that must end in order, because it has a run or a temporary folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from repertory.cli.output import Interrupted
from repertory.cli.signals import leave, told_to
from repertory.record.waiting import Waiter

_BEAT = 0.25  # seconds; a signal that comes just as the loop goes to sleep is noticed when it wakes


class Stop:
    """Reacts to signals; the third ends the process.

    Attributes:
        asked: Set on the first signal.
        heard: The signals so far.
    """

    def __init__(self, act: Callable[[Stop], None]) -> None:
        self.asked = anyio.Event()
        self.heard: list[int] = []
        self._act = act
        self._loop = Waiter()

    def hear(self, number: int) -> None:
        """Take in a signal, in the handler itself: the third one must end the process without the event loop."""
        self.heard.append(number)
        if len(self.heard) > 2:
            leave(number)
        self._loop.post(self._take, None)

    def _take(self, _: None) -> None:
        self.asked.set()
        self._act(self)

    def interrupted(self, words: str) -> Interrupted:
        """The error for a command that a signal ended."""
        return Interrupted(words, 128 + sum(self.heard[:1]))


@asynccontextmanager
async def stopped_by_signals(
    act: Callable[[Stop], None] | None = None, *, orderly: bool = False
) -> AsyncGenerator[Stop]:
    """Let signals stop what the block does.

    Args:
        act: Called for each signal; None to cancel the block.
        orderly: The block ends by itself after the first signal; only the second cancels it.
    """
    async with anyio.create_task_group() as everything:

        def cancel(stop: Stop) -> None:
            if len(stop.heard) > orderly:
                everything.cancel_scope.cancel()

        stop = Stop(act or cancel)
        with told_to(stop.hear):
            everything.start_soon(_beat)
            yield stop
            everything.cancel_scope.cancel()


async def _beat() -> None:
    """Wake the event loop regularly, for signals that come just as it goes to sleep."""
    while True:  # noqa: ASYNC110 - only time is waited for
        await anyio.sleep(_BEAT)
