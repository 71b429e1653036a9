"""Event streams for followers: events from the journal, each with its sequence number.

Every follower is a position in the log. Followers that keep up share the newest events, which are read and encoded
once for all; one that is further behind reads the journal. So a slow client costs nothing, and one that reconnects
continues from the last number that it saw, in this process or the next.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Self
from weakref import WeakSet

import anyio
import anyio.lowlevel
import msgspec

from repertory._cancelling import cancel_after
from repertory._ids import root_of
from repertory._json_text import json_bytes
from repertory._repeated_event import RepeatedEvent
from repertory.record.journal import Journal
from repertory.record.records import EventLogged
from repertory.runs.streaming import Piece, StreamReader
from repertory.service.views import REMOVED, EventView, event_view

PAGE: Final = 50  # events in one piece of an answer
PING: Final = 15.0  # seconds of silence after which an event shows that the connection is alive
_ROUND: Final = 0.05  # seconds between two looks at the journal; nobody reads faster
_READ: Final = 500  # events that are read at once for all followers
_TAIL: Final = 2**20  # bytes of encoded events that followers share: some 2,500 events, a minute of five busy teams
_SLICE: Final = 25  # followers that are woken at once: each takes about 0.2 ms of the loop to send its events
_ALIVE: Final = b"event: ping\ndata: {}\n\n"  # no comment: a browser shows none to its page
_SHARE: Final = 4  # rounds take at most a fifth of the loop, however many followers there are


class _Frame(msgspec.Struct, frozen=True, gc=False):
    seq: int
    run_id: str
    text: bytes


class Feed:
    """Reads new events once for all followers, when ``notify`` is called, and wakes the followers of their runs.

    Attributes:
        ending: Set once no more events will come.
        size: Bytes of the newest events that followers share.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._happened = RepeatedEvent()
        self._followers: dict[str | None, WeakSet[Follower]] = {}  # by the run that they follow; None is every run
        self._tail: deque[_Frame] = deque()
        self.size = 0
        self._start: int | None = None  # the tail has every event after this one; None while there are no followers
        self._seq = 0  # of the newest event that was read
        # Hundreds of followers that are far behind would otherwise all stand before a run that wants to read something.
        self._catching_up = anyio.Lock()
        self._closing = anyio.Event()
        self.ending = anyio.Event()

    @property
    def followers(self) -> int:
        """How many there are."""
        return sum(map(len, self._followers.values()))

    async def run(self) -> None:
        """Hand out new events, until ``close``."""
        seen = 0
        while True:
            await self._happened.wait(seen)
            seen = self._happened.count
            begun = anyio.current_time()
            await self._deliver()
            if self._closing.is_set():
                break
            with anyio.move_on_after(max(_ROUND, _SHARE * (anyio.current_time() - begun))):
                await self._closing.wait()
        self.ending.set()
        await self._wake(self._followers)

    def notify(self) -> None:
        """Make it look for new events."""
        self._happened.set()

    def tell_removed(self, root: str) -> None:
        """Tell of a removed tree: this ends the streams of followers of its runs, and informs followers of all runs."""
        for run_id, those in self._followers.items():
            if run_id is None or root_of(run_id) == root:
                for follower in those:
                    follower.removed.append(root)
                    follower.wake()

    def close(self) -> None:
        """End every follower once it has sent all that there is."""
        self._closing.set()
        self._happened.set()

    # --- the tail that followers share ----------------------------------------------------------------------

    def join(self, follower: Follower, run_id: str | None) -> None:
        """Register a follower: it is woken when there is something new for it, as long as it exists."""
        self._followers.setdefault(run_id, WeakSet()).add(follower)

    async def _deliver(self) -> None:
        await self._journal.write([])  # afterwards, everything published before is on the disk
        self._followers = {run_id: those for run_id, those in self._followers.items() if those}
        if not self._followers:
            self._start = None
            self._tail.clear()
            self.size = 0
            return
        if self._start is None:  # followers that came meanwhile read the journal up to here
            self._start = self._seq = await self._journal.last_event()
            await self._wake(self._followers)
            return
        while events := await self._journal.read_events(None, after=self._seq, limit=_READ):
            for sequence, event in events:
                self._append_frame(_Frame(sequence, event.run_id, frame(sequence, event)))
            self._seq = events[-1][0]
            await self._wake({None, *(event.run_id for _, event in events)})

    def _append_frame(self, new: _Frame) -> None:
        self._tail.append(new)
        self.size += len(new.text)
        while self.size > _TAIL:
            oldest = self._tail.popleft()
            self.size -= len(oldest.text)
            self._start = oldest.seq

    async def _wake(self, run_ids: Iterable[str | None]) -> None:
        """Wake the followers of these runs, a few at a time, so that other tasks can run in between."""
        woken = [follower for run_id in run_ids for follower in self._followers.get(run_id, ())]
        for number, follower in enumerate(woken, start=1):
            follower.wake()
            if number % _SLICE == 0:
                await anyio.lowlevel.checkpoint()

    def after(self, sequence: int, run_id: str | None) -> tuple[list[bytes], int] | None:
        """The next page of the tail after an event: encoded events of a run, or of all, and up to which number they go.

        None if the tail begins later: then the journal has what is missing.
        """
        if self._start is None or sequence < self._start:
            return None
        found: list[_Frame] = []
        for each in reversed(self._tail):
            if each.seq <= sequence:
                break
            if run_id is None or each.run_id == run_id:
                found.append(each)
        page = found[: -PAGE - 1 : -1]
        return [each.text for each in page], page[-1].seq if len(found) > PAGE else max(self._seq, sequence)

    async def was_removed(self, run_id: str) -> bool:
        """Whether a run was removed from the journal, perhaps by another machine."""
        return await self._journal.was_removed(root_of(run_id))

    async def read(self, sequence: int, run_id: str | None) -> tuple[list[bytes], int]:
        """Return the same as ``after``, from the journal; one follower at a time."""
        async with self._catching_up:
            known = self._seq if self._start is not None else sequence  # before looking: it is on the disk
            events = await self._journal.read_events(run_id, after=sequence, limit=PAGE)
        texts = [frame(number, event) for number, event in events]
        last = events[-1][0] if events else sequence
        return texts, last if len(events) == PAGE else max(last, known)


class _Stream:
    """The body of an event stream, piece by piece."""

    def __init__(self, feed: Feed, ping: float) -> None:
        self._feed = feed
        self._ping = ping
        self._greeted = False
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        if not self._greeted:
            self._greeted = True  # tells the client at once that it is connected, and how soon to reconnect
            return b"retry: 2000\n\n"
        return await self._next()

    async def _next(self) -> bytes:
        raise NotImplementedError


class Follower(_Stream):
    """The stream of the events of a run, or of all runs, after the last one that a client knows.

    Attributes:
        removed: Trees that were removed and that the client was not told of yet.
    """

    def __init__(self, feed: Feed, run_id: str | None, *, after: int, ping: float = PING) -> None:
        super().__init__(feed, ping)
        self.removed: list[str] = []
        self._run_id = run_id
        self._after = after
        self._news = RepeatedEvent()
        feed.join(self, run_id)

    def wake(self) -> None:
        """Make it look again, if it waits."""
        self._news.set()

    async def _next(self) -> bytes:
        with anyio.move_on_after(self._ping):
            while True:
                seen = self._news.count  # before looking, so that nothing is missed
                texts, self._after = self._feed.after(self._after, self._run_id) or await self._feed.read(
                    self._after, self._run_id
                )
                if texts:
                    return b"".join(texts)
                if self.removed:
                    self._ended = self._run_id is not None
                    root, now = self.removed.pop(0), time.time()
                    view = EventView(seq=self._after, run_id=root, type=REMOVED, iteration=0, at=now, body={})
                    return b"event: removed\ndata: %b\n\n" % json_bytes(view)
                if self._feed.ending.is_set():
                    self._ended = True
                    return b'event: bye\ndata: {"reason":"the service ends"}\n\n'
                await self._news.wait(seen)
        if self._run_id is not None and await self._feed.was_removed(self._run_id):
            self.removed.append(root_of(self._run_id))
        return _ALIVE


def frame(sequence: int, event: EventLogged) -> bytes:
    """One event of a stream. JSON has no line breaks, so it is one ``data`` line."""
    return b"id: %d\ndata: %b\n\n" % (sequence, json_bytes(event_view(sequence, event)))


class ModelStream(_Stream):
    """The stream of what a run says, until the end of its turn, or of a further turn that it has begun meanwhile.

    ``read`` returns a reader of the newest turn from its beginning; None if the run is not under way.
    """

    def __init__(self, feed: Feed, read: Callable[[], StreamReader | None], *, ping: float = PING) -> None:
        super().__init__(feed, ping)
        self._read = read
        self._reader = read()

    async def _next(self) -> bytes:
        pieces: list[Piece | None] = []
        with anyio.move_on_after(self._ping):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_after, self._feed.ending.wait, tasks.cancel_scope)
                pieces.append(await self._next_piece())
                tasks.cancel_scope.cancel()
        if pieces and pieces[0] is not None:
            return b"data: %b\n\n" % json_bytes(pieces[0])
        if pieces or self._feed.ending.is_set():
            self._ended = True
            return b"event: end\ndata: {}\n\n"
        return _ALIVE

    async def _next_piece(self) -> Piece | None:
        """The next piece; None once the run has ended and got no further message."""
        while self._reader is not None:
            piece = await anext(self._reader, None)
            if piece is not None:
                return piece
            self._reader = self._read()
        return None
