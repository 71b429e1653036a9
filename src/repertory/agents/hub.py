"""Where the events of all runs pass by, for anyone who watches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Self

import anyio

from repertory.agents.events import AnyEvent, Event, EventsMissed


class EventHub:
    """The newest events of a supervisor, readable from the beginning by any number of readers.

    Readers hold a place in the log, not a buffer of their own, so a slow one costs nothing and blocks nobody:
    it is told how many events it missed. The attributes are for readers.

    Attributes:
        events: The newest events.
        count: How many there have been.
        news: Set, and replaced, when something has happened.
        closed: Whether nothing will come any more.
    """

    def __init__(self, *, keep: int = 20_000) -> None:
        self.events: deque[AnyEvent] = deque(maxlen=keep)
        self.count = 0
        self.news = anyio.Event()
        self.closed = False

    def publish(self, event: AnyEvent) -> None:
        """Add an event and wake the readers. Never blocks."""
        self.events.append(event)
        self.count += 1
        self._wake()

    def close(self) -> None:
        """End every reader once it has read what there is."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        news, self.news = self.news, anyio.Event()
        news.set()

    def reader(
        self, wanted: Callable[[Event], bool] | None = None, *, until: Callable[[Event], bool] | None = None
    ) -> EventReader:
        """Read events from the oldest one in memory.

        Args:
            wanted: Which events; None means all.
            until: The event after which the reader ends; None means when the supervisor closes.
        """
        return EventReader(self, wanted, until)


class EventReader:
    """An asynchronous iterator over events. Any number of tasks may each have their own."""

    def __init__(
        self, hub: EventHub, wanted: Callable[[Event], bool] | None, until: Callable[[Event], bool] | None
    ) -> None:
        self._hub = hub
        self._wanted = wanted
        self._until = until
        self._next = 0
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        hub = self._hub
        while not self._ended:
            oldest = hub.count - len(hub.events)
            if self._next < oldest:
                missed, self._next = oldest - self._next, oldest
                newest = hub.events[0]
                return EventsMissed(
                    run_id=newest.run_id, agent=newest.agent, iteration=newest.iteration, at=newest.at, count=missed
                )
            if self._next < hub.count:
                event = hub.events[self._next - oldest]
                self._next += 1
                if self._until is not None and self._until(event):
                    self._ended = True
                if self._wanted is None or self._wanted(event):
                    return event
                continue
            if hub.closed:
                break
            await hub.news.wait()
        raise StopAsyncIteration
