"""An event that happens again and again, for tasks that look at something and wait until it may have changed."""

from __future__ import annotations

import anyio
import anyio.lowlevel


class RepeatedEvent:
    """Wakes every task that waits for it; one that waits later waits for the next time. After trio-util's.

    Setting it works in callbacks of an event loop too, and costs little if nobody waits.

    Attributes:
        count: How often it has happened. Taken before a look that awaits something, it is what ``wait`` is given.
    """

    __slots__ = ("_event", "count")

    def __init__(self) -> None:
        self.count = 0
        self._event: anyio.Event | None = None  # as long as somebody waits

    def set(self) -> None:
        """Let it happen."""
        self.count += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, seen: int | None = None) -> None:
        """Wait until it happens, or has happened since ``count`` was ``seen``."""
        if seen is not None and seen != self.count:
            await anyio.lowlevel.checkpoint()
            return
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
