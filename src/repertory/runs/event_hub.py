"""Where the events of all runs pass by, and who reads along."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Self
from weakref import WeakSet

import anyio

from repertory.runs.events import AnyEvent, Event, EventsMissed


class EventHub:
    """Where the events of all runs pass by. It keeps the newest, so that a reader who comes late has the beginning.

    Attributes:
        count: How many events there have been; the number of the next one.
        closed: Whether nothing will come any more.
    """

    def __init__(self, *, keep: int = 20_000, keep_ended: int = 500) -> None:
        self.count = 0
        self.closed = False
        self.keep = keep
        self._keep_ended = keep_ended
        self._events: deque[AnyEvent] = deque(maxlen=keep)
        self._readers: WeakSet[EventReader] = WeakSet()

    def publish(self, event: AnyEvent) -> None:
        """Add an event and wake the readers who want it. Never blocks."""
        self._events.append(event)
        for reader in self._readers:
            reader.put(self.count, event)
        self.count += 1

    def forget_ended(self, going: Container[str]) -> None:
        """Let go of the oldest events, up to one of the runs still going; a few stay for readers who come late."""
        while len(self._events) > self._keep_ended and self._events[0].run_id not in going:
            self._events.popleft()

    def close(self) -> None:
        """End every reader once it has read what there is."""
        self.closed = True
        for reader in self._readers:
            reader.wake()

    def reader(
        self,
        wanted: Callable[[Event], bool] = lambda _: True,
        *,
        since: int = 0,
        until: Callable[[], int | None] = lambda: None,
    ) -> EventReader:
        """Read events, from the oldest one in memory on.

        Args:
            wanted: Which events.
            since: The number of the first event to read; what is no longer in memory is passed over.
            until: Gives the number of the event before which the reader ends, or None as long as nobody knows;
                without it the reader ends when the supervisor closes.
        """
        reader = EventReader(self, wanted, until)
        for number, event in enumerate(self._events, start=self.count - len(self._events)):
            if number >= since:
                reader.put(number, event)
        self._readers.add(reader)
        return reader


class EventReader:
    """An asynchronous iterator over events. Any number of tasks may each have their own.

    It holds what it has still to read, as many events as the hub keeps. One that is slower blocks nobody: it is told
    how many events it missed.
    """

    def __init__(self, hub: EventHub, wanted: Callable[[Event], bool], until: Callable[[], int | None]) -> None:
        self._hub = hub
        self._wanted = wanted
        self._until = until
        self._events: deque[AnyEvent] = deque()
        self._missed: EventsMissed | None = None
        self._news: anyio.Event | None = None

    def put(self, number: int, event: AnyEvent) -> None:
        """Take an event, if it is one to read."""
        end = self._until()
        if (end is None or number < end) and self._wanted(event):
            if len(self._events) == self._hub.keep:
                lost, count = self._events.popleft(), self._missed.count if self._missed is not None else 0
                common = {name: getattr(lost, name) for name in Event.__struct_fields__}
                self._missed = EventsMissed(**common, count=count + 1)
            self._events.append(event)
            self.wake()

    def wake(self) -> None:
        """Have the waiting task look again."""
        if self._news is not None:
            self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        while self._missed is None and not self._events:
            if self._hub.closed or self._until() is not None:
                raise StopAsyncIteration
            self._news = anyio.Event()
            await self._news.wait()
        missed, self._missed = self._missed, None
        return missed if missed is not None else self._events.popleft()
