"""The journal in a file, its twin in memory, and the one way to open either.

A file is read over aiosqlite, read-only, from the first read on. aiosqlite needs an asyncio loop. So the journal owns
a thread with one, under trio and asyncio alike, and a read crosses over to it; results are decoded there too, so that
a large read does not stall the caller's loop.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import stat
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from contextvars import Context
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from repertory.errors import JournalClosed, JournalDamaged, JournalReadOnly, JournalUnreadable
from repertory.record.forks import in_a_fork, keep_for_ever, leave_behind_in_forks
from repertory.record.items import ItemQuery, Layer
from repertory.record.journal import Durability, Journal, Rows
from repertory.record.records import EntryAppended, ItemWritten, SearchHit
from repertory.record.redaction import Redactor
from repertory.record.removal import SqliteTables, remove_slice
from repertory.record.rows import TABLES, UNREADABLE, EncodedRecord, Table, Value, lenient_text
from repertory.record.schema import migrate
from repertory.record.search import SearchIndex, index_slice
from repertory.record.sqlite_file import (
    FileLock,
    check_readable,
    explain,
    file_space,
    make_folder,
    open_to_write,
    read_uri,
)
from repertory.record.sqlite_writer import Inserter, SqliteWriter
from repertory.record.waiting import Ticket, wake_all
from repertory.record.writing import Batch, Writer

if TYPE_CHECKING:
    import asyncio

    import aiosqlite

T = TypeVar("T")


# --- opening ----------------------------------------------------------------------------------------------


def open_file(
    path: str, durability: Durability, readonly: bool, close_timeout: float, redactor: Redactor | None
) -> SqliteJournal:
    """Open a journal in a file; blocks. See ``open_journal``."""
    path = os.path.realpath(path)  # whatever links and dots lead to a file, it has one name: two would be two locks
    _check_kind(path)
    if readonly:
        check_readable(path)
        return SqliteJournal(path, durability, writer=None, lock=None, close_timeout=close_timeout)
    make_folder(path)
    lock = FileLock(path)
    try:
        connection = open_to_write(path, durability)
        try:
            writer = SqliteWriter(connection, path)
        except sqlite3.Error as error:
            connection.close()
            raise explain(error, path, "open") from error
    except BaseException:
        lock.release()
        raise
    return SqliteJournal(path, durability, writer=writer, lock=lock, close_timeout=close_timeout, redactor=redactor)


def _check_kind(path: str) -> None:
    """Refuse what is there and is no file, before anything waits for a pipe or leaves a lock beside a device."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # not there, or out of reach: what opens it says so
        return
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise JournalUnreadable(f"{path} is {kinds.get(stat.S_IFMT(mode), 'a device')}; name a file in its place")


# --- the journals -----------------------------------------------------------------------------------------


class MemoryJournal(Journal):
    """The in-memory twin of ``SqliteJournal``: the same rows and answers, no file, no thread, gone with the process.

    A batch is written before ``submit`` returns, ``on_commit`` included.
    """

    def __init__(self, *, redactor: Redactor | None = None) -> None:
        super().__init__("memory", redactor)
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        migrate(self._connection, ":memory:")
        weakref.finalize(self, self._connection.close)  # nothing is lost with one that nobody closes
        self._inserter = Inserter(self._connection)
        self._lock = threading.Lock()
        self._closed = False

    def _insert(
        self,
        rows: Sequence[EncodedRecord],
        on_commit: Callable[[], None] | None,
        after: Ticket | None,
        emptied: Sequence[int] = (),
    ) -> Ticket:
        batch = Batch(rows, on_commit, after, emptied)
        with self._lock:
            if self._closed:
                raise JournalClosed("the journal is closed; nothing was written")
            self._inserter.insert_alone(batch)
            if batch.failure is None and on_commit is not None:
                on_commit()
            batch.end()
        return batch

    async def _index_slice(self, index: SearchIndex) -> tuple[int, int]:
        await self._settle()
        with self._lock, self._open() as connection:
            connection.execute("BEGIN")
            return index_slice(connection, index)

    async def _remove_slice(self, run_id: str, at: float) -> bool:
        await self._settle()
        with self._lock, self._open() as connection:
            connection.execute("BEGIN")
            return remove_slice(SqliteTables(connection), run_id, at)

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


class OwnedJournal(Journal):
    """A journal with a writer, or with none: opened to look only, so that it may not bring the index up to date."""

    def __init__(self, durability: Durability, redactor: Redactor | None, writer: Writer | None) -> None:
        super().__init__(durability, redactor)
        self._writer = writer

    def _not_writable(self) -> JournalReadOnly:
        """The error of every write to a journal that was opened to look only."""
        raise NotImplementedError

    def _insert(
        self,
        rows: Sequence[EncodedRecord],
        on_commit: Callable[[], None] | None,
        after: Ticket | None,
        emptied: Sequence[int] = (),
    ) -> Ticket:
        if self._writer is None:
            raise self._not_writable()
        return self._writer.submit(rows, on_commit, after, emptied)

    async def _settle(self) -> None:
        if self._writer is not None:
            await self._writer.wait_queued()

    @property
    def queued(self) -> int:
        """How many batches wait to be durable, about."""
        return 0 if self._writer is None else self._writer.queued

    async def search_entries(self, run_id: str, query: str, *, limit: int = 20) -> list[SearchHit]:
        """As every journal does, also where the index in the file may not be brought up to date."""
        if self._writer is not None:
            return await super().search_entries(run_id, query, limit=limit)
        # It lags and only the file's owner may bring it up to date: make one of this run, in memory.
        entries = await self.read_entries(run_id)
        aside = MemoryJournal()
        records = [EntryAppended(run_id=run_id, entry=entry) for entry in entries]
        await anyio.to_thread.run_sync(aside.submit, records)
        return await aside.search_entries(run_id, query, limit=limit)

    async def find_items(
        self,
        layers: Sequence[Layer],
        query: ItemQuery | None = None,
        *,
        ids: Collection[str] | None = None,
        bodies: bool = False,
        ended: bool = False,
    ) -> list[ItemWritten]:
        """As every journal does, also where the index in the file may not be brought up to date."""
        if self._writer is not None or query is None:
            return await super().find_items(layers, query, ids=ids, bodies=bodies, ended=ended)
        items = await super().find_items(layers, ids=ids, bodies=True, ended=ended)
        aside = MemoryJournal()
        await anyio.to_thread.run_sync(aside.submit, sorted(items, key=attrgetter("position")))
        return await aside.find_items(layers, query, ids=ids, bodies=bodies, ended=ended)


class SqliteJournal(OwnedJournal):
    """A journal in one SQLite file. Opened by ``open_journal``; owns the file until it is closed."""

    def __init__(
        self,
        path: str,
        durability: Durability,
        *,
        writer: SqliteWriter | None,
        lock: FileLock | None,
        close_timeout: float,
        redactor: Redactor | None = None,
    ) -> None:
        super().__init__(durability, redactor, writer)
        self.path = path
        self._lock = lock
        self._close_timeout = close_timeout
        self._reader = SqliteReader(path)

    def _not_writable(self) -> JournalReadOnly:
        return JournalReadOnly(f"{self.path} was opened with readonly=True; open it without to write")

    async def _index_slice(self, index: SearchIndex) -> tuple[int, int]:
        if not isinstance(self._writer, SqliteWriter):
            raise self._not_writable()
        return await self._writer.start_job(partial(index_slice, index=index)).result()

    async def _remove_slice(self, run_id: str, at: float) -> bool:
        if not isinstance(self._writer, SqliteWriter):
            raise self._not_writable()
        job = self._writer.start_job(lambda connection: remove_slice(SqliteTables(connection), run_id, at))
        return await job.result()

    async def _query(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        return await self._reader.fetch(what, sql, values, decode)

    async def give_back(self, pages: int) -> tuple[int, int]:
        """Give up to so many pages of the file back to the disk that hold nothing any more.

        Returns:
            The bytes of the file afterwards, and how many of them hold nothing yet.
        """

        def step(connection: sqlite3.Connection) -> tuple[int, int]:
            connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
            return file_space(connection)

        if not isinstance(self._writer, SqliteWriter):
            raise self._not_writable()
        return await self._writer.start_job(step).result()

    async def check(self, *, deep: bool = False) -> list[str]:
        """Look for damage in the file.

        Args:
            deep: Also compare every index with its table and every record with its checksum, which reads the whole
                file.

        Returns:
            What is wrong, the first hundred of each kind; empty where all is well.
        """
        await self._settle()
        return await anyio.to_thread.run_sync(find_damage, self.path, deep)

    async def aclose(self) -> None:
        """Write what is queued, then close, and give up the ownership of the file. Safe to call twice.

        Shielded from cancellation; bounded by ``close_timeout``.

        Raises:
            JournalWriteFailed: The disk did not take everything in time.
        """
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        writer = self._writer
        try:
            self._reader.close()  # first, so that the writer finds nobody reading when it empties the log
            if writer is not None:
                writer.close(self._close_timeout)
        finally:
            # A thread that hangs in the disk may still write; then the file stays owned until the process ends.
            if self._lock is not None and (writer is None or writer.ended):
                self._lock.release()


class _Answer(Ticket, Generic[T]):
    """What a query gave, once it is done."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        super().__init__()
        self._values: list[T] = []

    def give(self, value: T) -> None:
        """Have it, and let go on who waits."""
        self._values.append(value)
        wake_all(self.finish())

    def fail(self, error: BaseException) -> None:
        """Have the error raised by who waits."""
        wake_all(self.finish(lambda: error))

    async def value(self) -> T:
        """Wait for it."""
        await self.wait()
        return self._values[0]


class SqliteReader:
    """Answers queries from any task of any loop, one at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()  # guards the two below
        self._stack: ExitStack | None = None
        self._closed = False
        self._portal: BlockingPortal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the portal's
        self._tasks: set[asyncio.Task[None]] = set()  # on that loop
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
            assert self._loop is not None
            answer = _Answer[T]()
            # The portal's own way waits until its loop has taken the task, while that may be decoding a large answer.
            # In a context of its own: the caller's says that this is trio, where it is.
            query = partial(self._query, what, sql, values, decode)
            self._loop.call_soon_threadsafe(self._begin, answer, query, context=Context())
        return await answer.value()

    def _begin(self, answer: _Answer[T], query: Callable[[], Coroutine[Any, Any, T]]) -> None:
        import asyncio

        async def give() -> None:
            try:
                answer.give(await query())
            except BaseException as error:  # noqa: BLE001 - carried over to the waiting task, which raises it
                answer.fail(error)

        task = asyncio.get_running_loop().create_task(give())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_closed(self) -> JournalClosed:
        if self._forked:
            return in_a_fork(self._path)
        return JournalClosed(f"{self._path} is closed; nothing was read")

    def _start(self) -> None:
        with self._lock:
            if self._stack is None and not self._closed:
                self._stack = ExitStack()
                self._portal = self._stack.enter_context(start_blocking_portal("asyncio", name="repertory-reader"))
                self._loop = self._portal.call(_running_loop)

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
        import asyncio

        async with self._turn:
            if self._connection is not None:
                await self._connection.close()
        if self._tasks:  # they wait for their turn, to be told that it is closed
            await asyncio.wait(self._tasks)

    def abandon(self) -> None:
        """In a fork, where the thread is not: refuse everything, and never close the connection."""
        keep_for_ever((self._stack, self._connection, self._tasks))
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._closed = self._forked = True
        self._stack = self._portal = self._connection = self._loop = None
        self._tasks = set()

    def close(self) -> None:
        """Close the connection and end the thread; blocks until the query that runs is done. Safe to call twice."""
        with self._lock:
            self._closed = True
            stack, self._stack = self._stack, None
        if stack is not None and self._portal is not None:
            with stack:
                self._portal.call(self._disconnect)


def _running_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    return asyncio.get_running_loop()


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
        removed = "SELECT coalesce(sum(records), 0), coalesce(max(newest), 0) FROM removals"
        counts.append(connection.execute(removed).fetchone())
        moved = "SELECT coalesce(sum(records - upto), 0) FROM moved"  # of numbers with gaps
        (gaps,) = connection.execute(moved).fetchone()
    except sqlite3.Error as error:
        return [str(explain(error, path, "count what is in"))]
    there, newest = sum(count for count, _ in counts), max(seq for _, seq in counts)  # with what was removed
    written = newest + gaps
    return [] if there == written else [f"{written} records were written, and {there} are there"]
