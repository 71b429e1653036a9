"""How a signal ends a command that must end in order, because it has a run or a temporary folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio

from repertory.cli.output import Interrupted
from repertory.cli.signals import leave, told_to
from repertory.record.waiting import Waiter

_BEAT = 0.25  # seconds; a signal that comes just as the loop goes to sleep is noticed when it wakes


class Stop:
    """Reacts to signals: the first asks for an orderly stop, the second stops at once, the third ends the process.

    Attributes:
        asked: Set on the first signal.
    """

    def __init__(self, everything: anyio.CancelScope, *, orderly: bool) -> None:
        self.asked = anyio.Event()
        self._everything = everything
        self._orderly = orderly
        self._heard: list[int] = []
        self._loop = Waiter()

    def hear(self, number: int) -> None:
        """Take in a signal, in the handler itself: the third one must end the process without the event loop."""
        self._heard.append(number)
        if len(self._heard) > 2:
            leave(number)
        self._loop.post(self._act, len(self._heard))

    def _act(self, count: int) -> None:
        self.asked.set()
        if count > 1 or not self._orderly:
            self._everything.cancel()

    async def cancel_when_asked(self, scope: anyio.CancelScope) -> None:
        """Cancel a scope on the first signal."""
        await self.asked.wait()
        scope.cancel()

    def interrupted(self, words: str) -> Interrupted:
        """The error for a command that a signal ended."""
        return Interrupted(words, 128 + sum(self._heard[:1]))


@asynccontextmanager
async def stopped_by_signals(*, orderly: bool = False) -> AsyncGenerator[Stop]:
    """Let signals stop what the block does.

    Args:
        orderly: The block ends by itself when asked; otherwise the first signal cancels it.
    """
    async with anyio.create_task_group() as everything:
        stop = Stop(everything.cancel_scope, orderly=orderly)
        with told_to(stop.hear):
            everything.start_soon(beat)
            yield stop
            everything.cancel_scope.cancel()


@contextmanager
def raised_by_signals() -> Generator[Callable[[], None]]:
    """Let the first signal end what the block does, and the second one the process.

    The yielded function raises ``Interrupted`` after a signal; the block must call it now and then.
    """
    heard: list[int] = []

    def hear(number: int) -> None:
        heard.append(number)
        if len(heard) > 1:
            leave(number)

    def check() -> None:
        if heard:
            raise Interrupted("interrupted before it was done", 128 + heard[0])

    with told_to(hear):
        yield check


async def beat() -> None:
    """Wake the event loop regularly, for signals that come just as it goes to sleep."""
    while True:  # noqa: ASYNC110 - only time is waited for
        await anyio.sleep(_BEAT)
