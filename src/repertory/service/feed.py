"""Events for those who follow along: out of the journal, each under its sequence number, for as long as they read.

A follower holds a place in the log and no buffer. It reads the next page when its client has taken the last one, so
a slow client costs nothing, and one that comes back goes on from the number it saw last, in this process or the next.
"""

from __future__ import annotations

from typing import Final, Self

import anyio
import msgspec

from repertory.agents import Supervisor
from repertory.agents.streaming import Piece, StreamReader
from repertory.record.journal import Journal
from repertory.record.records import EventLogged
from repertory.service.views import event_view

PAGE: Final = 50  # events in one piece of an answer
PING: Final = 15.0  # seconds of silence after which a comment shows that the connection lives
_ROUND: Final = 0.05  # seconds between two looks at the journal; nobody reads faster


class Feed:
    """Rings for all followers once something new is durable."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._happened = anyio.Event()
        self.bell = anyio.Event()
        self.ending = anyio.Event()
        self.closed = False

    async def run(self) -> None:
        """Ring whenever there is something new, until ``close``."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch)
            while not self.closed:
                await self._happened.wait()
                self._happened = anyio.Event()
                await self._supervisor.journal.write([])  # what was published before is on the disk after this
                self.ring()
                await anyio.sleep(_ROUND)
            tasks.cancel_scope.cancel()

    async def _watch(self) -> None:
        async for _ in self._supervisor.events():
            self._happened.set()

    def ring(self) -> None:
        """Let every follower look into the journal."""
        bell, self.bell = self.bell, anyio.Event()
        bell.set()

    def close(self) -> None:
        """End every follower once it has sent what there is."""
        self.closed = True
        self.ending.set()
        self._happened.set()
        self.ring()


class Follower:
    """The body of one event stream, piece by piece.

    Args:
        feed: Says when to look.
        journal: Where to look.
        run_id: Whose events; None means every run's.
        after: The number of the last event that the client knows.
        ping: Seconds of silence until a comment is sent.
    """

    def __init__(self, feed: Feed, journal: Journal, run_id: str | None, *, after: int, ping: float = PING) -> None:
        self._feed = feed
        self._journal = journal
        self._run_id = run_id
        self._after = after
        self._ping = ping
        self._greeted = False
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        if not self._greeted:
            self._greeted = True  # a client learns at once that it is connected, and how soon to come back
            return b"retry: 2000\n\n"
        with anyio.move_on_after(self._ping):
            while True:
                bell = self._feed.bell  # before looking, so that nothing falls in between
                events = await self._journal.read_events(self._run_id, after=self._after, limit=PAGE)
                if events:
                    self._after = events[-1][0]
                    return b"".join(frame(sequence, event) for sequence, event in events)
                if self._feed.closed:
                    self._ended = True
                    return b'event: bye\ndata: {"reason":"the service ends"}\n\n'
                await bell.wait()
        return b": ping\n\n"


def frame(sequence: int, event: EventLogged) -> bytes:
    """One event of a stream. JSON has no line breaks, so it is one ``data`` line."""
    return b"id: %d\ndata: %b\n\n" % (sequence, msgspec.json.encode(event_view(sequence, event)))


class Along:
    """The body of a stream of what a run says, piece by piece.

    Args:
        feed: Says when the service ends.
        reader: Reads along; None where the run is not under way.
        ping: Seconds of silence until a comment is sent.
    """

    def __init__(self, feed: Feed, reader: StreamReader | None, *, ping: float = PING) -> None:
        self._feed = feed
        self._reader = reader
        self._ping = ping
        self._greeted = False
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        if not self._greeted:
            self._greeted = True
            return b"retry: 2000\n\n"
        pieces: list[Piece | None] = []
        with anyio.move_on_after(self._ping):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._wait_closed, tasks.cancel_scope)
                pieces.append(await anext(self._reader, None) if self._reader is not None else None)
                tasks.cancel_scope.cancel()
        if pieces and pieces[0] is not None:
            return b"data: %b\n\n" % msgspec.json.encode(pieces[0])
        if pieces or self._feed.closed:
            self._ended = True
            return b"event: end\ndata: {}\n\n"
        return b": ping\n\n"

    async def _wait_closed(self, scope: anyio.CancelScope) -> None:
        while not self._feed.closed:
            await self._feed.bell.wait()
        scope.cancel()
