"""Reading the file: queries over aiosqlite, read-only, from the first read on; and looking for damage in all of it.

aiosqlite needs an asyncio loop. So the journal owns a thread with one, under trio and asyncio alike, and a read
crosses over to it; results are decoded there too, so that a large read does not stall the caller's loop.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from repertory.errors import JournalClosed, JournalDamaged
from repertory.record.ownership import in_a_fork, keep_for_ever, leave_behind_in_forks
from repertory.record.rows import TABLES, UNREADABLE, Table, Value
from repertory.record.sqlite_file import explain, lenient_text, read_uri
from repertory.record.waiting import Latch, wake_all

if TYPE_CHECKING:
    import aiosqlite

T = TypeVar("T")
Rows = Iterable[Sequence[Value]]


class SqliteReader:
    """Answers queries from any task of any loop, one at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()  # guards the two below
        self._stack: ExitStack | None = None
        self._closed = False
        self._portal: BlockingPortal | None = None
        self._turn = anyio.Lock()  # on the portal's loop: one query at a time, and closing behind them
        self._connection: aiosqlite.Connection | None = None
        self._forked = False
        leave_behind_in_forks(self)

    async def fetch(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        """Run one query and decode its rows.

        A cancelled call stops waiting; the query itself runs to its end in the background.

        Raises:
            JournalClosed: After ``aclose``.
            JournalUnreadable: SQLite cannot read the file.
            JournalDamaged: Something in it is not what was written; ``what`` is named in the error.
        """
        if self._portal is None and not self._closed:
            await anyio.to_thread.run_sync(self._start)
        with self._lock:
            if self._portal is None or self._closed:
                raise self._is_closed()
            future = self._portal.start_task_soon(self._query, what, sql, values, decode)
        answered = Latch()
        future.add_done_callback(lambda _: wake_all(answered.finish()))
        await answered.wait_done()
        return future.result()

    def _is_closed(self) -> JournalClosed:
        if self._forked:
            return in_a_fork(self._path)
        return JournalClosed(f"{self._path} is closed; nothing was read")

    def _start(self) -> None:
        with self._lock:
            if self._stack is None and not self._closed:
                self._stack = ExitStack()
                self._portal = self._stack.enter_context(start_blocking_portal("asyncio", name="repertory-reader"))

    async def _query(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        async with self._turn:
            if self._closed:
                raise self._is_closed()
            try:
                connection = await self._connect()
                try:
                    rows = await connection.execute_fetchall(sql, values)
                except sqlite3.OperationalError as error:
                    if "Could not decode to UTF-8" not in str(error):
                        raise
                    # Once more, so that it can be said which record it is. Always so would be much slower.
                    connection.text_factory = lenient_text
                    rows = await connection.execute_fetchall(sql, values)
                return decode(rows)
            except sqlite3.Error as error:
                raise explain(error, self._path, f"read {what} in") from error
            except UNREADABLE as error:
                raise JournalDamaged(f"cannot read {what} in {self._path}: {error}") from error

    async def _connect(self) -> aiosqlite.Connection:
        import aiosqlite

        if self._connection is None:
            self._connection = await aiosqlite.connect(read_uri(self._path), uri=True, timeout=30.0)
            await self._connection.execute("PRAGMA query_only = 1")
        return self._connection

    async def _disconnect(self) -> None:
        async with self._turn:
            if self._connection is not None:
                await self._connection.close()

    def abandon(self) -> None:
        """In a fork, where the thread is not: refuse everything, and never close the connection."""
        keep_for_ever((self._stack, self._connection))
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._closed = self._forked = True
        self._stack = self._portal = self._connection = None

    def close(self) -> None:
        """Close the connection and end the thread; blocks until the query that runs is done. Safe to call twice."""
        with self._lock:
            self._closed = True
            stack, self._stack = self._stack, None
        if stack is not None and self._portal is not None:
            with stack:
                self._portal.call(self._disconnect)


# --- damage -----------------------------------------------------------------------------------------------

_MOST: Final = 100  # findings of one kind; SQLite's own limit is the same


def find_damage(path: str, deep: bool) -> list[str]:
    """Everything that is wrong in a file; see ``SqliteJournal.check``."""
    with contextlib.closing(sqlite3.connect(read_uri(path), uri=True, timeout=30.0)) as connection:
        connection.execute("PRAGMA query_only = 1")
        connection.text_factory = lenient_text
        found = _of_sqlite(connection, path, "integrity_check" if deep else "quick_check")
        if deep:
            for table in TABLES.values():
                found += itertools.islice(_of_table(connection, path, table), _MOST)
            found += _missing(connection, path)
        return found


def _of_sqlite(connection: sqlite3.Connection, path: str, pragma: str) -> list[str]:
    try:
        found = [str(text) for (text,) in connection.execute(f"PRAGMA {pragma}")]
    except sqlite3.Error as error:  # so damaged that SQLite cannot even list the damage
        return [str(explain(error, path, "read"))]
    return [] if found == ["ok"] else found


def _of_table(connection: sqlite3.Connection, path: str, table: Table) -> Iterator[str]:
    try:
        # In the order of the table itself: an index may be damaged, too.
        for row in connection.execute(f"{table.select_from()} ORDER BY t.seq"):
            try:
                table.read(row)
            except JournalDamaged as error:
                yield str(error)
    except sqlite3.Error as error:
        yield str(explain(error, path, f"read {table.name} in"))


def _missing(connection: sqlite3.Connection, path: str) -> list[str]:
    """Whole records that are not there: numbers are dense over all tables."""
    try:
        counts = [
            connection.execute(f"SELECT count(*), coalesce(max(seq), 0) FROM {table.name} NOT INDEXED").fetchone()
            for table in TABLES.values()
        ]
    except sqlite3.Error as error:
        return [str(explain(error, path, "count what is in"))]
    there, newest = sum(count for count, _ in counts), max(seq for _, seq in counts)
    return [] if there == newest else [f"{newest} records were written, and {there} are there"]
