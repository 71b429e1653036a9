"""The journal in an SQLite file, and the one in memory.

A file is read through aiosqlite, which needs an asyncio loop. So the reader has one of its own, under trio and asyncio
alike, which runs in the thread of whoever reads. Results are decoded there too, so that a large read does not block the
caller's loop.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from repertory._postgres_address import PostgresAddress
from repertory.errors import JournalClosed, JournalReadOnly
from repertory.record.forks import keep_for_ever
from repertory.record.journal import Durability, Journal
from repertory.record.reads import Reader, Reads, Rows
from repertory.record.records import Record
from repertory.record.redaction import Redactor
from repertory.record.rows import AFTER_REFUSED, Value, lenient_text
from repertory.record.schema import migrate
from repertory.record.search import SearchIndex
from repertory.record.sqlite_damage import find_damage
from repertory.record.sqlite_file import (
    ERRORS,
    FileLock,
    check_readable,
    explain,
    explained,
    file_space,
    make_folder,
    open_to_write,
    read_uri,
)
from repertory.record.sqlite_writer import REFUSED, Inserter, SqliteWriter
from repertory.record.tables import Tables
from repertory.record.waiting import Ticket
from repertory.record.writing import Batch, Writer

if TYPE_CHECKING:
    import asyncio

    import aiosqlite

T = TypeVar("T")
P = TypeVar("P", bound=str | PostgresAddress)
R = TypeVar("R", bound=Reader)
W = TypeVar("W", bound=Writer)


# --- opening ----------------------------------------------------------------------------------------------


def open_file(
    path: str, durability: Durability, readonly: bool, close_timeout: float, redactor: Redactor | None
) -> SqliteJournal:
    """Open a journal in a file; blocks. See ``open_journal``."""
    path = os.path.realpath(path)  # one name for each file, whatever links and dots: two names would be two locks
    if readonly:
        check_readable(path)
        return SqliteJournal(path, durability, None, SqliteReader(path), None, close_timeout=close_timeout)
    make_folder(path)
    with ExitStack() as failed:
        lock = FileLock(path)
        failed.callback(lock.release)
        connection = failed.enter_context(closing(open_to_write(path, durability)))
        with explained(path, "open"):
            writer = SqliteWriter(connection, path, lock=lock)
        failed.pop_all()
    return SqliteJournal(path, durability, redactor, SqliteReader(path), writer, close_timeout=close_timeout)


# --- the journals -----------------------------------------------------------------------------------------


class MemoryJournal(Journal):
    """The in-memory version of ``SqliteJournal``: the same rows and answers, without a file or a thread.

    It is lost with the process. ``submit`` has written the batch and called ``on_commit`` before it returns.
    """

    def __init__(self, *, redactor: Redactor | None = None) -> None:
        super().__init__("memory", redactor)
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        migrate(self._connection, ":memory:")
        weakref.finalize(self, self._connection.close)  # closes it if nobody else does; nothing is lost
        self._inserter = Inserter(self._connection)
        self._lock = threading.Lock()
        self._closed = False

    def _insert(self, batch: Batch) -> Ticket:
        with self._lock:
            if self._closed:
                raise JournalClosed("the journal is closed; nothing was written")
            self._write(batch)
            for callback in batch.callbacks if batch.failure is None else ():
                callback()
            batch.end()
        return batch

    def _write(self, batch: Batch) -> None:
        if batch.builds_on_refused():
            batch.refuse(AFTER_REFUSED)
            return
        try:
            with self._connection:
                self._connection.execute("BEGIN")
                statements, sequence = self._inserter.statements([batch])
                for sql, values in statements:
                    self._connection.execute(sql, values)
            self._inserter.sequence = sequence
        except REFUSED as error:
            batch.refuse(error)

    async def _change(self, doing: str, work: Callable[[Tables], T]) -> T:
        await self._settle()
        with self._lock, self._open() as connection:
            connection.execute("BEGIN")
            return work(Tables(connection))

    async def _settle(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def _query(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        with self._lock:
            rows = self._open().execute(sql, values).fetchall()
        return decode(rows)

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise JournalClosed("the journal is closed; nothing was read")
        return self._connection

    async def aclose(self) -> None:
        """Refuse further use."""
        await self._settle()
        with self._lock:
            self._closed = True
            self._connection.close()


class OwnedJournal(Journal, Generic[P, R, W]):
    """A journal with a writer thread, or read-only without one, and then it may not update the search index."""

    def __init__(
        self,
        place: P,
        durability: Durability,
        redactor: Redactor | None,
        reader: R,
        writer: W | None,
        *,
        close_timeout: float,
    ) -> None:
        super().__init__(durability, redactor)
        self._place = place
        self.reader = reader
        self._writer = writer
        self._close_timeout = close_timeout

    @property
    def place(self) -> P:
        """The path of its file, or the address of its database."""
        return self._place

    @property
    def writer(self) -> W:
        """The writer. Raises ``JournalReadOnly`` if there is none."""
        if self._writer is None:
            raise JournalReadOnly(f"{self.place} was opened with readonly=True; open it without to write")
        return self._writer

    def _insert(self, batch: Batch) -> Ticket:
        return (self._writer or self.writer).submit(batch)

    def _close(self) -> None:
        """Close the reader, so that nobody is reading when the writer empties a file's log, and then the writer."""
        try:
            self.reader.close()
        finally:
            if self._writer is not None:
                self._writer.close(self._close_timeout)

    async def aclose(self) -> None:
        """Write what is queued, then close and give up ownership of a file. Safe to call twice.

        Shielded from cancellation; bounded by ``close_timeout`` and half a second.

        Raises:
            JournalWriteFailed: The disk, or the server, did not accept everything in time.
        """
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close)

    async def _settle(self) -> None:
        if self._writer is not None:
            await self._writer.wait_queued()

    @property
    def queued(self) -> int:
        """About how many batches wait to become durable."""
        return 0 if self._writer is None else self._writer.queued

    async def _indexed(self, index: SearchIndex, records: Callable[[], Awaitable[Sequence[Record]]]) -> Reads:
        if self._writer is not None:
            return await super()._indexed(index, records)
        # The index lags, and only the file's owner may update it: build one for these records, in memory.
        aside = MemoryJournal()
        await anyio.to_thread.run_sync(aside.submit, await records())
        return await aside._indexed(index, records)


class SqliteJournal(OwnedJournal[str, "SqliteReader", SqliteWriter]):
    """A journal in one SQLite file. ``open_journal`` opens it; it owns the file until it is closed."""

    async def _change(self, doing: str, work: Callable[[Tables], T]) -> T:
        return await self._in_writer(f"{doing} in", lambda connection: work(Tables(connection)))

    async def _in_writer(self, doing: str, work: Callable[[sqlite3.Connection], T]) -> T:
        with explained(self.place, doing):
            return await self.writer.start_job(work).result()

    async def _query(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        return await self.reader.fetch(what, sql, values, decode)

    async def give_back(self, pages: int) -> tuple[int, int]:
        """Return up to ``pages`` unused pages of the file to the disk.

        Returns:
            The size of the file in bytes afterwards, and how many of these bytes are still unused.
        """

        def step(connection: sqlite3.Connection) -> tuple[int, int]:
            connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
            return file_space(connection)

        return await self._in_writer("return unused space of", step)

    async def check(self, *, deep: bool = False) -> list[str]:
        """Look for damage in the file.

        Args:
            deep: Also compare every index with its table and every record with its checksum, which reads the whole
                file.

        Returns:
            The problems, the first hundred of each kind; empty if there are none.
        """
        await self._settle()
        return await anyio.to_thread.run_sync(find_damage, self.place, deep)


class SqliteReader(Reader):
    """Answers queries from any task of any loop, one at a time. The file is opened at the first read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: aiosqlite.Connection | None = None
        self._uri = ""
        super().__init__(path)

    async def fetch(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        """Run one query and decode its rows.

        Raises:
            JournalClosed: After ``aclose``.
            JournalUnreadable: SQLite cannot read the file.
            JournalDamaged: Something in it is not what was written; the error names ``what``.
        """
        return await self._in_thread(partial(self._fetch, what, sql, values, decode))

    def _fetch(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        import asyncio

        self._check()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            return decode(self._loop.run_until_complete(self._query(sql, values)))
        except ERRORS as error:
            raise explain(error, self._path, f"read {what} in") from error

    async def _query(self, sql: str, values: Sequence[Value]) -> Rows:
        connection = await self._connect()
        try:
            return await connection.execute_fetchall(sql, values)
        except sqlite3.OperationalError as error:
            if "Could not decode to UTF-8" not in str(error):
                raise
            # Read again in a way that can tell which record is damaged. Always reading so would be much slower.
            connection.text_factory = lenient_text
            return await connection.execute_fetchall(sql, values)

    async def _connect(self) -> aiosqlite.Connection:
        import aiosqlite

        uri = read_uri(self._path)  # another one once there is a log in a folder that may not be written to
        if self._connection is None or uri != self._uri:
            await self._disconnect()
            self._connection, self._uri = await aiosqlite.connect(uri, uri=True, timeout=30.0), uri
            await self._connection.execute("PRAGMA query_only = 1")
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def abandon(self) -> None:
        """In a forked child: refuse everything; see ``Reader``."""
        keep_for_ever((self._loop, self._connection))
        self._loop = self._connection = None
        super().abandon()

    def close(self) -> None:
        """Close the connection; blocks until the current query is done. Safe to call twice."""
        self._closed = True
        with self._turns:
            loop, self._loop = self._loop, None
            if loop is not None:
                try:
                    loop.run_until_complete(self._disconnect())
                finally:
                    loop.close()
