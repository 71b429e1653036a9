"""The one thread that writes: it gathers what is queued, commits it at once, and wakes everybody at once."""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from repertory.errors import JournalClosed, JournalWriteFailed
from repertory.record.journal import Ticket
from repertory.record.ownership import OpenedFile, in_a_fork, keep_for_ever, leave_behind_in_forks
from repertory.record.rows import AFTER_REFUSED, TABLES, EncodedRecord, Value, refuse_batch
from repertory.record.sqlite_file import explain, is_busy, is_of_the_disk
from repertory.record.waiting import Latch, Waiter, wake_all

T = TypeVar("T")

logger = logging.getLogger("repertory.journal")

# The batch is at fault and not the disk: the others can be written without it.
_REFUSED: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    TypeError,
    ValueError,
)
_BUSY_STEP: Final = 0.25  # seconds that SQLite waits for a program that holds the file, before we look around
_BUSY_NOTICE: Final = 5.0  # seconds until the log says that we wait; then after each doubling

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
    __slots__ = ("after", "on_commit", "refusal", "rows")

    def __init__(
        self, rows: Sequence[EncodedRecord], on_commit: Callable[[], None] | None, after: Ticket | None
    ) -> None:
        super().__init__()
        self.rows = rows
        self.on_commit = on_commit
        self.after = after
        self.refusal: Callable[[], BaseException] | None = None

    def refuse(self, fact: object) -> None:
        """Have everybody who waits told that this batch alone was not written, and why."""
        self.refusal = partial(refuse_batch, self.rows, fact)

    def builds_on_refused(self) -> bool:
        """Whether a batch before it was refused without which it makes no sense."""
        return isinstance(self.after, _Batch) and self.after.refusal is not None


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

    def __init__(self, connection: sqlite3.Connection, path: str, *, busy_notice: float = _BUSY_NOTICE) -> None:
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
        self._busy_notice = busy_notice
        self._busy = False  # waiting for another program that holds the file
        self._hurried = False  # it may wait no longer
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_STEP * 1000:.0f}")
        # A daemon, so that a disk that hangs for ever does not keep a dying process; SQLite needs no good-bye.
        self._thread = threading.Thread(target=self._run, name="repertory-journal", daemon=True)
        self._thread.start()
        leave_behind_in_forks(self)

    def submit(
        self, rows: Sequence[EncodedRecord], on_commit: Callable[[], None] | None, after: Ticket | None = None
    ) -> Latch:
        """Queue a batch; never blocks."""
        batch = _Batch(rows, on_commit, after)
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
            busy = "another program holds the file, and " if self._busy else ""
            left = self._queue.qsize() + bool(busy)
            self._hurried = True
            if busy:
                self._thread.join(2 * _BUSY_STEP)
            raise JournalWriteFailed(
                f"{self._path} did not finish writing within {timeout:g} s: "
                f"{busy}about {left} batches are not on the disk"
            )

    @property
    def ended(self) -> bool:
        """Whether nothing will be written any more."""
        return not self._thread.is_alive()

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
                written = self._write_group(group)
                self._batches += len(written)
                self._records += sum(len(batch.rows) for batch in written)
                for batch in written:
                    if batch.on_commit is not None:
                        batch.on_commit()
            except BaseException as error:  # noqa: BLE001 - this thread's supervisor: whatever it was stops the journal
                self._fail(error)
        waiters: list[Waiter] = []
        for batch in group:
            waiters += batch.finish(batch.refusal or (self._failed if self._failure is not None else None))
            batch.after = None  # or the whole history of a ledger would stay in memory
            if batch.refusal is None:
                batch.rows = ()
        wake_all(waiters)

    def _write_group(self, group: Sequence[_Batch]) -> Sequence[_Batch]:
        """Write a group in one commit, without the batches that contradict what is kept; returns the others."""
        before = self._sequence
        if not any(batch.builds_on_refused() for batch in group):
            try:
                self._write(self._statements.insert(self._number(group)))
                return group
            except _REFUSED:
                self._rollback()
                self._sequence = before
        written: list[_Batch] = []

        def one_by_one() -> None:
            for batch in group:
                if self._try(batch):
                    written.append(batch)

        self._transact(one_by_one)
        return written

    def _try(self, batch: _Batch) -> bool:
        """Write a batch within a transaction; False where it was refused, which leaves no trace."""
        if batch.builds_on_refused():
            batch.refuse(AFTER_REFUSED)
            return False
        before = self._sequence
        self._connection.execute("SAVEPOINT batch")
        try:
            for sql, values in self._statements.insert(self._number([batch])):
                self._connection.execute(sql, values)
        except _REFUSED as error:
            self._connection.execute("ROLLBACK TO batch")
            self._sequence = before
            batch.refuse(error)
        self._connection.execute("RELEASE batch")
        return batch.refusal is None

    def _commit_job(self, job: Job[Any]) -> None:
        failure: Callable[[], BaseException] | None = None
        if self._failure is None:
            try:
                self._transact(lambda: job.run(self._connection))
            except BaseException as error:  # noqa: BLE001 - a job's own mistake is its asker's; the journal goes on
                mistake = error
                if isinstance(error, JournalWriteFailed) or is_of_the_disk(error):
                    self._fail(error)
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
            self._timed(lambda: self._patiently(execute))

    def _transact(self, work: Callable[[], object]) -> None:
        def transaction() -> None:
            self._patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))
            work()
            self._connection.execute("COMMIT")

        self._timed(transaction)

    def _patiently(self, begin: Callable[[], object]) -> None:
        """Do what takes SQLite's lock for writing, and wait for another program that holds it, however long."""
        since, notice = time.monotonic(), self._busy_notice
        while True:
            try:
                begin()
                self._busy = False
                return
            except sqlite3.OperationalError as error:
                self._busy = is_busy(error)
                if not self._busy or self._hurried:
                    raise
            waited = time.monotonic() - since
            if waited >= notice:
                notice *= 2
                logger.warning(
                    "%s waits to write: another program has held it for %.0f s; end its transaction. %d batches are "
                    "queued, and none is acknowledged meanwhile",
                    self._path,
                    waited,
                    self._queue.qsize() + 1,
                )

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
                for table, row, checksum in record:
                    flat = values.setdefault(table, [])
                    flat.append(self._sequence)
                    flat += row
                    flat.append(checksum ^ self._sequence)
        return values

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
        self._rollback()

    def _failed(self) -> BaseException:
        cause = self._failure
        if isinstance(cause, sqlite3.Error):
            fact = str(explain(cause, self._path, "write"))
        else:
            fact = str(cause) if isinstance(cause, JournalWriteFailed) else f"cannot write {self._path}: {cause}"
        error = JournalWriteFailed(f"{fact}; everything acknowledged before is kept, nothing after it")
        error.__cause__ = cause
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
        names = ("seq", *columns, "checksum")
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
