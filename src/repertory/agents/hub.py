"""Where the events of all runs pass by, for anyone who watches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Self
from weakref import WeakSet

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

    def __init__(self, *, keep: int = 20_000, keep_ended: int = 500) -> None:
        self._keep_ended = keep_ended
        self.events: deque[AnyEvent] = deque(maxlen=keep)
        self.count = 0
        self.news = anyio.Event()
        self.closed = False
        self._readers: WeakSet[EventReader] = WeakSet()

    @property
    def oldest(self) -> int:
        """The number of the oldest event in memory."""
        return self.count - len(self.events)

    def publish(self, event: AnyEvent) -> None:
        """Add an event and wake the readers. Never blocks."""
        if len(self.events) == self.events.maxlen:
            for reader in self._readers:
                reader.lose(self.oldest, self.events[0])
        self.events.append(event)
        self.count += 1
        self._wake()

    def forget_ended(self, going: Container[str]) -> None:
        """Let go of the oldest events, up to the first of a run that goes on or that a reader has still to read.

        A few stay, for readers that come late.

        Args:
            going: The ids of the runs that go on.
        """
        wanted = (reader.next_number for reader in self._readers if not reader.is_over(reader.next_number))
        read = min(wanted, default=self.count)
        while len(self.events) > self._keep_ended and self.oldest < read and self.events[0].run_id not in going:
            self.events.popleft()

    def close(self) -> None:
        """End every reader once it has read what there is."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        news, self.news = self.news, anyio.Event()
        news.set()

    def reader(
        self,
        wanted: Callable[[Event], bool] | None = None,
        *,
        since: int = 0,
        until: Callable[[], int | None] | None = None,
    ) -> EventReader:
        """Read events, from the oldest one in memory on.

        Args:
            wanted: Which events; None means all.
            since: The number of the first event to read; what is no longer in memory is passed over.
            until: Gives the number of the event before which the reader ends, or None as long as nobody knows;
                without it the reader ends when the supervisor closes.
        """
        reader = EventReader(self, wanted, max(since, self.oldest), until)
        self._readers.add(reader)
        return reader


class EventReader:
    """An asynchronous iterator over events. Any number of tasks may each have their own.

    Attributes:
        next_number: The number of the event that it reads next.
    """

    def __init__(
        self,
        hub: EventHub,
        wanted: Callable[[Event], bool] | None,
        since: int,
        until: Callable[[], int | None] | None,
    ) -> None:
        self._hub = hub
        self._wanted = wanted
        self.next_number = since
        self._until = until
        self._lost: Event | None = None  # the last one
        self._lost_count = 0

    def lose(self, number: int, event: Event) -> None:
        """An event leaves the memory: count it if it is one that this reader had still to read."""
        if self.next_number > number:
            return
        self.next_number = number + 1
        if not self.is_over(number) and (self._wanted is None or self._wanted(event)):
            self._lost = event
            self._lost_count += 1

    def is_over(self, number: int) -> bool:
        """Whether it reads no event from this one on."""
        end = None if self._until is None else self._until()
        return end is not None and number >= end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        hub = self._hub
        while True:
            if self._lost is not None:
                lost, count = self._lost, self._lost_count
                self._lost, self._lost_count = None, 0
                return EventsMissed(
                    run_id=lost.run_id, agent=lost.agent, iteration=lost.iteration, at=lost.at, count=count
                )
            if self.is_over(self.next_number):
                break
            if self.next_number < hub.count:
                event = hub.events[self.next_number - hub.oldest]
                self.next_number += 1
                if self._wanted is None or self._wanted(event):
                    return event
                continue
            if hub.closed:
                break
            await hub.news.wait()
        raise StopAsyncIteration
