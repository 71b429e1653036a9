"""The event hub: passes the events of all runs to the application's log and to readers."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Container
from typing import Final, Self
from weakref import WeakSet

import msgspec

from repertory._repeated_event import RepeatedEvent
from repertory.runs.events import (
    Alert,
    AnyEvent,
    ContextEdited,
    Event,
    EventsMissed,
    IterationStarted,
    ModelRetrying,
    RunResumed,
    RunSpawned,
    StateChanged,
    SummaryRefused,
)
from repertory.runs.log import log

_LEVELS: Final[dict[type[Event], int]] = {
    RunSpawned: logging.INFO,
    RunResumed: logging.INFO,
    StateChanged: logging.INFO,
    IterationStarted: logging.INFO,  # the size of the context, iteration by iteration
    ContextEdited: logging.INFO,
    Alert: logging.WARNING,
    ModelRetrying: logging.WARNING,
    SummaryRefused: logging.WARNING,
}
_WORD: Final = re.compile(r"(?<!^)(?=[A-Z])")

_MOST: Final = 20_000  # events
# Of all texts in these together. 20,000 usual events have some 8 MiB; one that writes a file holds the whole text.
_MOST_CHARACTERS: Final = 16 * 2**20
_KEPT_ENDED: Final = 500  # events of runs that have ended


class _Newest:
    """The newest events, up to a bound, but always at least one."""

    def __init__(self, most: int, most_characters: int) -> None:
        self._most = most
        self._most_characters = most_characters
        self._characters = 0
        self.events: deque[tuple[int, AnyEvent]] = deque()  # each with its size in characters

    def add(self, size: int, event: AnyEvent) -> list[AnyEvent]:
        """Add an event; returns the old ones that had to go for it."""
        self.events.append((size, event))
        self._characters += size
        lost = []
        while len(self.events) > self._most or (self._characters > self._most_characters and len(self.events) > 1):
            lost.append(self.take())
        return lost

    def take(self) -> AnyEvent:
        """Remove and return the oldest event."""
        size, event = self.events.popleft()
        self._characters -= size
        return event


class EventHub:
    """Passes the events of all runs to readers. It keeps the newest events, so that a late reader gets the beginning.

    Attributes:
        count: How many events there have been, which is the number of the next one.
        closed: Whether there will be no more events.
    """

    def __init__(self, *, keep: int = _MOST, characters: int = _MOST_CHARACTERS) -> None:
        self.count = 0
        self.closed = False
        self._bounds = keep, characters
        self._newest = self.room()
        self._readers: WeakSet[EventReader] = WeakSet()

    def room(self) -> _Newest:
        """An empty buffer with the same bounds as the hub's own."""
        return _Newest(*self._bounds)

    def publish(self, event: AnyEvent) -> None:
        """Add an event, wake the readers who want it, and log it. Never blocks."""
        size, parts = 0, [*msgspec.structs.astuple(event)]
        while parts:
            part = parts.pop()
            if isinstance(part, str):
                size += len(part)
            elif isinstance(part, dict):
                parts += part
                parts += part.values()
            elif isinstance(part, list | tuple):
                parts += part
        self._newest.add(size, event)
        for reader in self._readers:
            reader.put(self.count, size, event)
        self.count += 1
        level = _LEVELS.get(type(event), logging.DEBUG)
        if log.is_on(level):
            _log(event, level)

    def forget_ended(self, going: Container[str]) -> None:
        """Forget the oldest events, up to the first of a run still under way; some stay for late readers."""
        events = self._newest.events
        while len(events) > _KEPT_ENDED and events[0][1].run_id not in going:
            self._newest.take()

    def close(self) -> None:
        """End every reader once it has read everything."""
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
            since: The number of the first event to read; events no longer in memory are skipped.
            until: Returns the number of the event before which the reader ends, or None while that is unknown;
                without it the reader ends when the supervisor closes.
        """
        reader = EventReader(self, wanted, until)
        events = self._newest.events
        for number, (size, event) in enumerate(events, start=self.count - len(events)):
            if number >= since:
                reader.put(number, size, event)
        self._readers.add(reader)
        return reader


def _log(event: AnyEvent, level: int) -> None:
    """Log an event of a run under its dotted name: ``ToolEnded`` is ``tool.ended``."""
    facts = msgspec.to_builtins(event)
    del facts["event"], facts["at"]
    log(level, _WORD.sub(".", type(event).__name__).lower(), run=facts.pop("run_id"), **facts)


class EventReader:
    """An asynchronous iterator over events. Any number of tasks may each have their own.

    It buffers its unread events, up to the hub's own bounds. A reader that is too slow blocks nobody: it is told how
    many events it missed.
    """

    def __init__(self, hub: EventHub, wanted: Callable[[Event], bool], until: Callable[[], int | None]) -> None:
        self._hub = hub
        self._wanted = wanted
        self._until = until
        self._unread = hub.room()
        self._missed: EventsMissed | None = None
        self._news = RepeatedEvent()

    def put(self, number: int, size: int, event: AnyEvent) -> None:
        """Add an event of ``size`` characters, if the reader wants it."""
        end = self._until()
        if (end is None or number < end) and self._wanted(event):
            for lost in self._unread.add(size, event):
                count = self._missed.count if self._missed is not None else 0
                common = {name: getattr(lost, name) for name in Event.__struct_fields__}
                self._missed = EventsMissed(**common, count=count + 1)
            self.wake()

    def wake(self) -> None:
        """Wake the waiting task."""
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        while self._missed is None and not self._unread.events:
            if self._hub.closed or self._until() is not None:
                raise StopAsyncIteration
            await self._news.wait()
        missed, self._missed = self._missed, None
        return missed if missed is not None else self._unread.take()
