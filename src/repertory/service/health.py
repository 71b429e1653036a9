"""Health checks: whether the service works, and what is wrong if it does not.

One task checks once a second. A request gets the last results, so it costs nothing and cannot hang on a disk that
hangs.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias

import anyio
import anyio.to_thread
import msgspec

from repertory.errors import JournalError
from repertory.record.journal import Journal
from repertory.record.sqlite_file import WAL_LIMIT, has_wal_reset_bug
from repertory.record.sqlite_journal import SqliteJournal

CheckState: TypeAlias = Literal["ok", "warn", "fail"]

EVERY: Final = 1.0  # seconds between two checks
STUCK: Final = 5.0  # seconds that the writer may take for a round trip; the log reports a held file after as many
_READS_STUCK: Final = 30.0  # seconds; a read of a whole journal of some gigabytes takes that
_LAG_EVERY: Final = 0.1  # seconds between two ticks of the loop
_LAG_KEPT: Final = 600  # ticks: the largest lag of a minute is shown
_LAG_WARN: Final = 1.0  # seconds; users notice a page that hangs so long, while a watchdog of a minute is far away
_DISK_EVERY: Final = 10  # checks
_DISK_WARN: Final = 1024 * 2**20  # bytes; a busy team of five writes some 10 MiB an hour
_DISK_FAIL: Final = WAL_LIMIT  # bytes: what the log alone may take
_WAL_WARN: Final = 4 * WAL_LIMIT  # bytes; it grows while somebody reads one snapshot for long
_QUEUE_WARN: Final = 5000  # batches: some ten groups of the writer


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        name: The check's name.
        state: ``ok``; ``fail`` if the service cannot do its work, ``warn`` if that is near.
        fact: What was found.
        advice: What to do; "" if it is ok.
    """

    name: str
    state: CheckState
    fact: str
    advice: str = ""


class Monitor:
    """Checks a journal, its disk and the event loop.

    An empty write and a read of the newest number make a round trip through both threads of the journal.

    Attributes:
        seq: The number of the newest event at the last check.
        on_round: Called after each successful round trip, the only proof that the service is alive.
        connections: How many connections are open.
        most_connections: How many may be open.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._begun: float | None = None  # of the round trip under way
        self._reading = False  # whether it has come back from the writer
        self._took = 0.0  # seconds, of the last one
        self._failure = ""
        self._lags: deque[float] = deque(maxlen=_LAG_KEPT)
        self._ticked: float | None = None
        self._free: int | None = None
        self._wal = 0
        self.seq = 0
        self.on_round: list[Callable[[], None]] = []
        self.connections = 0
        self.most_connections = 0

    def count_connection(self, more: int) -> None:
        """Count a connection that was opened (1) or closed (-1)."""
        self.connections += more

    async def run(self) -> None:
        """Check, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tick)
            tasks.start_soon(self._look_at_files)
            while True:
                await self._round()
                await anyio.sleep(EVERY)

    async def _round(self) -> None:
        self._begun = begun = anyio.current_time()
        self._reading = False
        try:
            await self._journal.write([])
            self._reading = True
            self.seq = await self._journal.last_event()
        except JournalError as error:  # the runs get the error themselves, and the service ends with them
            self._failure = str(error)
        else:
            self._failure = ""
            for listener in self.on_round:
                listener()
        self._took, self._begun = anyio.current_time() - begun, None

    async def _tick(self) -> None:
        while True:
            self._ticked = anyio.current_time()
            await anyio.sleep(_LAG_EVERY)
            self._lags.append(max(0.0, anyio.current_time() - self._ticked - _LAG_EVERY))

    async def _look_at_files(self) -> None:
        if not isinstance(self._journal, SqliteJournal):
            return
        path = self._journal.place
        while True:
            # In a thread, because a disk may hang. By names only; see FileLock for why no file is opened.
            self._free, self._wal = await anyio.to_thread.run_sync(_read_disk, path, abandon_on_cancel=True)
            await anyio.sleep(EVERY * _DISK_EVERY)

    # --- what was seen ------------------------------------------------------------------------------------

    def checks(self) -> list[Check]:
        """The last results of all checks."""
        queued, advice = self._journal.queued, "runs write faster than the disk takes it: start fewer at once"
        queue = make_check("queue", f"{queued} batches wait to be written", advice, warn=queued > _QUEUE_WARN)
        there, most = self.connections, self.most_connections
        advice = "raise the limit on open files (ulimit -n, LimitNOFILE=), or close clients"
        connections = make_check("connections", f"{there} of at most {most} open", advice, warn=there >= most > 0)
        sqlite = [] if self._journal.is_shared else [sqlite_check()]  # that is on a server
        return [self._of_journal(), queue, self._of_loop(), *self._of_files(), connections, *sqlite]

    def _of_journal(self) -> Check:
        server = "look whether the database server runs and can be reached" if self._journal.is_shared else ""
        if self._failure:
            advice = server or "nothing is recorded any more: make room or repair the disk, then start again"
            return make_check("journal", self._failure, advice, fail=True)
        waited = 0.0 if self._begun is None else anyio.current_time() - self._begun
        if waited > (_READS_STUCK if self._reading else STUCK):
            fact = f"its {'reader' if self._reading else 'writer'} has not answered for {waited:.0f} s"
            advice = "end a program that holds the database (fuser shows which), or look whether the disk hangs"
            return make_check("journal", fact, server or advice, fail=True)
        return make_check("journal", f"answered in {self._took * 1000:.0f} ms, event {self.seq}")

    def _of_loop(self) -> Check:
        now = anyio.current_time()
        under_way = 0.0 if self._ticked is None else max(0.0, now - self._ticked - _LAG_EVERY)
        worst = max([*self._lags, under_way], default=0.0)
        advice = "a tool computes on the loop: make it a plain function, which gets a thread"
        return make_check("loop", f"at most {worst * 1000:.0f} ms late in a minute", advice, warn=worst > _LAG_WARN)

    def _of_files(self) -> Iterator[Check]:
        if (free := self._free) is None:
            return
        low, full, advice = free < _DISK_WARN, free < _DISK_FAIL, "make room: remove old runs, then repertory vacuum"
        yield make_check("disk", f"{free // 2**20:,} MiB free", advice, warn=low, fail=full)
        fact = f"{self._wal / 2**20:.1f} MiB not yet in the file"
        advice = "a program reads one snapshot for long, so the log is not emptied: end it"
        yield make_check("log", fact, advice, warn=self._wal > _WAL_WARN)


def sqlite_check(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> Check:
    """Whether the version of the SQLite library is reliable."""
    text, has_bug = ".".join(map(str, version)), has_wal_reset_bug(version)
    advice = "harmless as long as no other program writes to the database; 3.51.3, 3.50.7 and 3.44.6 have it fixed"
    return make_check("sqlite", f"{text} has the WAL-reset bug" if has_bug else text, advice, warn=has_bug)


def make_check(name: str, fact: str, advice: str = "", *, warn: bool = False, fail: bool = False) -> Check:
    """Make a check's result; its advice is kept only if the check is not ok."""
    state: CheckState = "fail" if fail else "warn" if warn else "ok"
    return Check(name=name, state=state, fact=fact, advice="" if state == "ok" else advice)


def _read_disk(path: str) -> tuple[int | None, int]:
    """Bytes that are free for this user on the file's disk, and the size of its log."""
    try:
        status = os.statvfs(os.path.dirname(path))
        free = status.f_bavail * status.f_frsize
    except OSError:
        return None, 0
    try:
        return free, os.stat(f"{path}-wal").st_size
    except OSError:
        return free, 0
