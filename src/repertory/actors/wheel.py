"""One timer for all deadlines: a cancel scope per message would cost ten times the message.

Deadlines are rounded up to the next tick and kept in one set per tick, after Varghese and Lauck,
"Hashed and hierarchical timing wheels" (SOSP 1987); the ticks in use are in a heap, since most are empty.
Adding and removing cost a set operation each, and an answered ask leaves nothing behind.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, Protocol

import anyio

from repertory.actors.backend import Backend


class Timer(Protocol):
    """Something with a deadline. The deadline must not change while it is in the wheel."""

    deadline: float

    def expire(self) -> None:
        """Called once, in the scheduler's thread, when the deadline has passed."""
        ...


class Wheel:
    """Calls ``expire`` on timers no earlier than their deadline and no later than a tick after it."""

    __slots__ = ("_backend", "_heap", "_per_second", "_ticks", "parked")

    def __init__(self, backend: Backend, resolution: float) -> None:
        self._backend = backend
        self._per_second = 1.0 / resolution
        self._ticks: dict[int, set[Timer]] = {}
        self._heap: list[int] = []
        self.parked: Any = None

    def __len__(self) -> int:
        return sum(map(len, self._ticks.values()))

    def add(self, timer: Timer) -> None:
        """Start a timer."""
        tick = math.ceil(timer.deadline * self._per_second)
        timers = self._ticks.get(tick)
        if timers is None:
            timers = self._ticks[tick] = set()
            heapq.heappush(self._heap, tick)
            if self._heap[0] == tick:
                self._backend.unpark(self)
        timers.add(timer)

    def discard(self, timer: Timer) -> None:
        """Stop a timer; nothing happens if it has expired."""
        timers = self._ticks.get(math.ceil(timer.deadline * self._per_second))
        if timers is not None:
            timers.discard(timer)

    async def run(self) -> None:
        """Expire timers until cancelled."""
        while True:
            if not self._heap:
                await self._backend.park(self)
                continue
            due = self._heap[0] / self._per_second
            if self._backend.now() < due:
                with anyio.CancelScope(deadline=due):
                    await self._backend.park(self)
                continue
            for timer in self._ticks.pop(heapq.heappop(self._heap)):
                timer.expire()
