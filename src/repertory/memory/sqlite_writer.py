"""The one thread that writes: it gathers what is queued, commits it at once, and wakes everybody at once."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from repertory.errors import JournalClosed, JournalWriteFailed
from repertory.memory.ownership import OpenedFile, in_a_fork, keep_for_ever, leave_behind_in_forks
from repertory.memory.rows import TABLES, EncodedRecord, Value
from repertory.memory.waiting import Latch, Waiter, wake_all

T = TypeVar("T")

GROUP: Final = 512  # records that one commit gathers; a larger batch is a commit of its own
_CHUNK: Final = 64  # most rows of one statement


class WriterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer has done since it began.

    Attributes:
        records: Records that are durable.
        batches: Batches that are durable.
        commits: Transactions that made them so.
        waiting: Batches queued now.
        slowest_commit: Seconds of the slowest transaction.
    """

    records: int
    batches: int
    commits: int
    waiting: int
    slowest_commit: float


class _Batch(Latch):
    __slots__ = ("on_commit", "rows")

    def __init__(self, rows: Sequence[EncodedRecord], on_commit: Callable[[], None] | None) -> None:
        super().__init__()
        self.rows = rows
        self.on_commit = on_commit


class Job(Latch, Generic[T]):
    """Other work for the writer's connection: one transaction of its own."""

    __slots__ = ("_result", "_work")

    def __init__(self, work: Callable[[sqlite3.Connection], T]) -> None:
        super().__init__()
        self._work = work
        self._result: list[T] = []

    def run(self, connection: sqlite3.Connection) -> None:
        """Do the work; on the writer's thread."""
        self._result.append(self._work(connection))

    async def result(self) -> T:
        """Wait until the work is durable, then give what it returned."""
        await self.wait()
        return self._result[0]


class SqliteWriter:
    """Owns the writing connection. Batches go to the disk in the order of ``submit``."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._opened = OpenedFile(path)
        self._queue: queue.SimpleQueue[_Batch | Job[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nothing may be queued behind the end
        self._last: Latch | None = None  # what was queued last
        self._closed = self._forked = False
        self._failure: BaseException | None = None
        self._sequence = max(
            connection.execute(f"SELECT coalesce(max(seq), 0) FROM {table.name}").fetchone()[0]
            for table in TABLES.values()
        )
        self._statements = _Statements(connection)
        self._records = self._batches = self._commits = 0
        self._slowest = 0.0
        # A daemon, so that a disk that hangs for ever does not keep a dying process; SQLite needs no good-bye.
        self._thread = threading.Thread(target=self._run, name="repertory-journal", daemon=True)
        self._thread.start()
        leave_behind_in_forks(self)

    def submit(self, rows: Sequence[EncodedRecord], on_commit: Callable[[], None] | None) -> Latch:
        """Queue a batch; never blocks."""
        batch = _Batch(rows, on_commit)
        self._put(batch)
        return batch

    def start_job(self, work: Callable[[sqlite3.Connection], T]) -> Job[T]:
        """Queue a transaction of another kind."""
        job = Job(work)
        self._put(job)
        return job

    def _put(self, item: _Batch | Job[Any]) -> None:
        with self._lock:
            if self._forked:
                raise in_a_fork(self._path)
            if self._closed:
                raise JournalClosed(f"{self._path} is closed; nothing was written")
            if self._failure is not None:
                raise self._failed()
            self._queue.put(item)
            self._last = item

    async def wait_queued(self) -> None:
        """Wait until everything that was queued before this call is written, or has failed."""
        with self._lock:
            last = None if self._closed else self._last
        if last is not None and not last.done:
            await last.wait_done()

    def statistics(self) -> WriterStatistics:
        """The counts at this instant."""
        return WriterStatistics(
            records=self._records,
            batches=self._batches,
            commits=self._commits,
            waiting=self._queue.qsize(),
            slowest_commit=self._slowest,
        )

    def close(self, timeout: float) -> None:
        """Write what is queued and end the thread; blocks for at most ``timeout`` seconds. Safe to call twice.

        Raises:
            JournalWriteFailed: The disk did not take everything in time.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise JournalWriteFailed(
                f"{self._path} did not finish writing within {timeout:g} s: "
                f"about {self._queue.qsize()} batches are not on the disk"
            )

    def abandon(self) -> None:
        """In a fork, where the thread is not: refuse everything, and never close the connection."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._closed = self._forked = True
        keep_for_ever(self._connection)

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        following: _Batch | Job[Any] | None = None
        while (item := following or self._queue.get()) is not None:
            following = None
            if isinstance(item, _Batch):
                group, following, ended = self._gather(item)
                self._commit_group(group)
                if ended:
                    break
            else:
                self._commit_job(item)
        self._end()

    def _gather(self, first: _Batch) -> tuple[list[_Batch], _Batch | Job[Any] | None, bool]:
        """Take what is queued behind ``first`` up to a full group; then what is next, and whether the end came."""
        group, size = [first], len(first.rows)
        while size < GROUP:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return group, None, True
            if not isinstance(item, _Batch) or size + len(item.rows) > GROUP:
                return group, item, False
            group.append(item)
            size += len(item.rows)
        return group, None, False

    def _commit_group(self, group: Sequence[_Batch]) -> None:
        if self._failure is None:
            try:
                self._write(self._statements.insert(self._number(group)))
                self._batches += len(group)
                self._records += sum(len(batch.rows) for batch in group)
                for batch in group:
                    if batch.on_commit is not None:
                        batch.on_commit()
            except BaseException as error:  # noqa: BLE001 - this thread's supervisor: whatever it was stops the journal
                self._fail(error)
        waiters: list[Waiter] = []
        for batch in group:
            waiters += batch.finish(self._failed if self._failure is not None else None)
        wake_all(waiters)

    def _commit_job(self, job: Job[Any]) -> None:
        failure: Callable[[], BaseException] | None = None
        if self._failure is None:
            try:
                self._transact(lambda: job.run(self._connection))
            except sqlite3.Error as error:
                self._fail(error)
            except BaseException as error:  # noqa: BLE001 - a job's own mistake is its asker's; the journal goes on
                mistake = error
                self._rollback()
                failure = lambda: mistake  # noqa: E731
        wake_all(job.finish(self._failed if self._failure is not None else failure))

    def _write(self, statements: Sequence[tuple[str, Sequence[Value]]]) -> None:
        def execute() -> None:
            for sql, values in statements:
                self._connection.execute(sql, values)

        if len(statements) > 1:
            self._transact(execute)
        elif statements:
            # A statement by itself is a transaction. Two calls into SQLite less are four times less that this
            # thread gives the GIL away and must win it back from a busy event loop.
            self._timed(execute)

    def _transact(self, work: Callable[[], object]) -> None:
        def transaction() -> None:
            self._connection.execute("BEGIN IMMEDIATE")
            work()
            self._connection.execute("COMMIT")

        self._timed(transaction)

    def _timed(self, commit: Callable[[], object]) -> None:
        started = time.perf_counter()
        commit()
        self._opened.check()  # before anybody is told that it is durable
        self._commits += 1
        self._slowest = max(self._slowest, time.perf_counter() - started)

    def _rollback(self) -> None:
        # What could not be written must not linger in an open transaction. If that fails too, it adds nothing.
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _number(self, group: Sequence[_Batch]) -> dict[str, list[Value]]:
        """Give every record of a group its number; the rows of each table as one flat list."""
        values: dict[str, list[Value]] = {}
        for batch in group:
            for record in batch.rows:
                self._sequence += 1
                for table, row in record:
                    flat = values.setdefault(table, [])
                    flat.append(self._sequence)
                    flat += row
        return values

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
        self._rollback()

    def _failed(self) -> BaseException:
        error = JournalWriteFailed(
            f"{self._path} could not be written: {self._failure}; everything acknowledged before is kept, nothing "
            "after it. Make room or repair the disk, then start again"
        )
        error.__cause__ = self._failure
        return error

    def _end(self) -> None:
        # The last words of the file: an empty log, so that it can be copied as one file. Somebody reading, or a
        # disk that failed, may prevent it, and nothing is lost then.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


class _Statements:
    """One INSERT for many rows.

    ``executemany`` would give the GIL away at every row: with a busy event loop each time can cost the 5 ms of a
    thread switch (195,800 rows/s became 6,300).
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        most = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        self._tables: dict[str, tuple[str, str, int, int]] = {}
        for table in TABLES.values():
            self._add(table.name, table.columns, most)
            if table.side:
                self._add(table.side, (table.side_column,), most)

    def _add(self, table: str, columns: Iterable[str], most: int) -> None:
        names = ("seq", *columns)
        head = f"INSERT INTO {table} ({', '.join(names)}) VALUES "
        row = f"({', '.join('?' * len(names))})"
        self._tables[table] = head, row, len(names), min(_CHUNK, most // len(names))

    def insert(self, rows: Mapping[str, list[Value]]) -> list[tuple[str, Sequence[Value]]]:
        """Statements, with their values, for rows given as one flat list for each table."""
        statements: list[tuple[str, Sequence[Value]]] = []
        for table, flat in rows.items():
            head, row, width, most = self._tables[table]
            for start in range(0, len(flat), most * width):
                values = flat[start : start + most * width]
                # SQLite3's cache keeps each length that occurs as a prepared statement.
                statements.append((head + ", ".join([row] * (len(values) // width)), values))
        return statements
