"""The one thread that writes: it gathers what is queued, commits it at once, and wakes everybody at once."""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from repertory._log import Log
from repertory.errors import JournalClosed, JournalWriteFailed
from repertory.record.rows import AFTER_REFUSED, TABLES, EncodedRecord, Value, encode_json, refuse_batch
from repertory.record.sqlite_file import (
    OpenedFile,
    explain,
    in_a_fork,
    is_busy,
    is_of_the_disk,
    keep_for_ever,
    leave_behind_in_forks,
)
from repertory.record.waiting import Failure, Ticket, Waiter, wake_all

T = TypeVar("T")
L = TypeVar("L", bound=Ticket)

log = Log("repertory.journal")

# The batch is at fault and not the disk: the others can be written without it.
REFUSED: Final = (
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


class Batch(Ticket):
    """Records that are written together or not at all.

    Attributes:
        rows: What they are in the file.
        on_commit: Called once that is durable, before anybody who waits goes on.
        after: The batch without which this one makes no sense.
        emptied: The numbers of the contents whose bodies go with it.
    """

    __slots__ = ("after", "emptied", "on_commit", "rows")

    def __init__(
        self,
        rows: Sequence[EncodedRecord],
        on_commit: Callable[[], None] | None,
        after: Ticket | None,
        emptied: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.rows = rows
        self.on_commit = on_commit
        self.after = after
        self.emptied = emptied

    def refuse(self, fact: object) -> None:
        """Have everybody who waits told that this batch alone was not written, and why."""
        self.failure = partial(refuse_batch, self.rows, fact)

    def builds_on_refused(self) -> bool:
        """Whether the batch before it was refused."""
        return self.after is not None and self.after.failure is not None

    def end(self, failure: Failure | None = None) -> list[Waiter]:
        """Have those who wait go on; ``failure`` is that of all batches, if they failed."""
        self.after = None  # or the whole history of a ledger would stay in memory
        if self.failure is None:
            self.rows = ()
        return self.finish(self.failure or failure)


class Inserter:
    """Writes the rows of batches over a connection, and numbers the records.

    One INSERT has many rows. ``executemany`` would give the GIL away at every row: with a busy event loop each time can
    cost the 5 ms of a thread switch (195,800 rows/s became 6,300).
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        newest = (f"SELECT coalesce(max(seq), 0) AS seq FROM {table.name}" for table in TABLES.values())
        (self.sequence,) = connection.execute(f"SELECT max(seq) FROM ({' UNION ALL '.join(newest)})").fetchone()
        most = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        self._tables: dict[str, tuple[str, str, int, int]] = {}
        for table in TABLES.values():
            for name, columns in table.layout.items():
                head = f"INSERT INTO {name} ({', '.join(columns)}) VALUES "
                width = len(columns)
                self._tables[name] = head, f"({', '.join('?' * width)})", width, min(_CHUNK, most // width)

    def statements(self, batches: Sequence[Batch]) -> list[tuple[str, Sequence[Value]]]:
        """Give every record its number; the statements, with their values, that write them all."""
        values: dict[str, list[Value]] = {}
        for batch in batches:
            for record in batch.rows:
                self.sequence += 1
                for table, row, checksum in record:
                    flat = values.setdefault(table, [])
                    flat.append(self.sequence)
                    flat += row
                    flat.append(checksum ^ self.sequence)
        statements: list[tuple[str, Sequence[Value]]] = []
        for table, flat in values.items():
            head, row_marks, width, most = self._tables[table]
            for start in range(0, len(flat), most * width):
                chunk = flat[start : start + most * width]
                # SQLite3's cache keeps each length that occurs as a prepared statement.
                statements.append((head + ", ".join([row_marks] * (len(chunk) // width)), chunk))
        if emptied := [number for batch in batches for number in batch.emptied]:
            sql = "DELETE FROM content_bodies WHERE seq IN (SELECT value FROM json_each(?))"
            statements.append((sql, [encode_json(emptied)]))
        return statements

    def insert_alone(self, batch: Batch) -> None:
        """Write a batch, or refuse it, which leaves no trace; a transaction of its own where none is open."""
        if batch.builds_on_refused():
            batch.refuse(AFTER_REFUSED)
            return
        before, statements = self.sequence, self.statements([batch])
        several = len(statements) > 1  # one by itself is whole or not there
        if several:
            self._connection.execute("SAVEPOINT batch")
        try:
            for sql, values in statements:
                self._connection.execute(sql, values)
        except REFUSED as error:
            if several:
                self._connection.execute("ROLLBACK TO batch")
            self.sequence = before
            batch.refuse(error)
        if several:
            self._connection.execute("RELEASE batch")


class Job(Ticket, Generic[T]):
    """Other work for the writer's connection: one transaction of its own."""

    __slots__ = ("_results", "_work")

    def __init__(self, work: Callable[[sqlite3.Connection], T]) -> None:
        super().__init__()
        self._work = work
        self._results: list[T] = []

    def run(self, connection: sqlite3.Connection) -> None:
        """Do the work; on the writer's thread."""
        self._results.append(self._work(connection))

    async def result(self) -> T:
        """Wait until the work is durable, then give what it returned."""
        await self.wait()
        return self._results[0]


_END: Final = Ticket()  # stands in the queue behind everything else


class SqliteWriter:
    """Owns the writing connection. Batches go to the disk in the order of ``submit``."""

    def __init__(self, connection: sqlite3.Connection, path: str, *, busy_notice: float = _BUSY_NOTICE) -> None:
        self._connection = connection
        self._path = path
        self._opened = OpenedFile(path)
        self._queue: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._following: Ticket | None = None  # taken from the queue and not yet done
        self._lock = threading.Lock()  # nothing may be queued behind the end
        self._last: Ticket | None = None  # what was queued last
        self._closed = self._forked = False
        self._failure: BaseException | None = None
        self._inserter = Inserter(connection)
        self.commits = 0  # so far
        self._busy_notice = busy_notice
        self._busy = False  # waiting for another program that holds the file
        self._hurried = False  # it may wait no longer
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_STEP * 1000:.0f}")
        # A daemon, so that a disk that hangs for ever does not keep a dying process; SQLite needs no good-bye.
        self._thread = threading.Thread(target=self._run, name="repertory-journal", daemon=True)
        self._thread.start()
        leave_behind_in_forks(self)

    def submit(
        self,
        rows: Sequence[EncodedRecord],
        on_commit: Callable[[], None] | None,
        after: Ticket | None = None,
        emptied: Sequence[int] = (),
    ) -> Ticket:
        """Queue a batch; never blocks."""
        return self._put(Batch(rows, on_commit, after, emptied))

    def start_job(self, work: Callable[[sqlite3.Connection], T]) -> Job[T]:
        """Queue a transaction of another kind."""
        return self._put(Job(work))

    def _put(self, item: L) -> L:
        with self._lock:
            if self._forked:
                raise in_a_fork(self._path)
            if self._closed:
                raise JournalClosed(f"{self._path} is closed; nothing was written")
            if self._failure is not None:
                raise self._failed()
            self._queue.put(item)
            self._last = item
        return item

    async def wait_queued(self) -> None:
        """Wait until everything that was queued before this call is written, or has failed."""
        with self._lock:
            last = None if self._closed else self._last
        if last is not None and not last.done:
            await last.wait_done()

    def close(self, timeout: float) -> None:
        """Write what is queued and end the thread; blocks for at most ``timeout`` seconds. Safe to call twice.

        Raises:
            JournalWriteFailed: The disk did not take everything in time.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(_END)
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
    def queued(self) -> int:
        """How many batches and jobs wait for the disk, about."""
        return self._queue.qsize()

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
        while (item := self._following or self._queue.get()) is not _END:
            self._following = None
            if isinstance(item, Batch):
                self._commit_group(self._gather(item))
            elif isinstance(item, Job):
                self._commit_job(item)
        # The last words of the file: an empty log, so that it can be copied as one file. Somebody reading, or a
        # disk that failed, may prevent it, and nothing is lost then.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _gather(self, first: Batch) -> list[Batch]:
        """Take what is queued behind ``first`` up to a full group."""
        group, size = [first], len(first.rows)
        while size < GROUP and not self._queue.empty():
            item = self._queue.get()
            if not isinstance(item, Batch) or size + len(item.rows) > GROUP:
                self._following = item
                break
            group.append(item)
            size += len(item.rows)
        return group

    def _commit_group(self, group: Sequence[Batch]) -> None:
        if self._failure is None:
            try:
                self._write_group(group)
                for batch in group:
                    if batch.failure is None and batch.on_commit is not None:
                        batch.on_commit()
            except BaseException as error:  # noqa: BLE001 - this thread's supervisor: whatever it was stops the journal
                self._fail(error)
        failure = self._failed if self._failure is not None else None
        wake_all([waiter for batch in group for waiter in batch.end(failure)])

    def _write_group(self, group: Sequence[Batch]) -> None:
        """Write a group in one commit, without the batches that contradict what is kept."""
        before = self._inserter.sequence
        if not any(batch.builds_on_refused() for batch in group):
            try:
                self._write(self._inserter.statements(group))
                return
            except REFUSED:
                self._rollback()
                self._inserter.sequence = before

        def one_by_one() -> None:
            for batch in group:
                self._inserter.insert_alone(batch)

        self._transact(one_by_one)

    def _commit_job(self, job: Job[Any]) -> None:
        failure: Failure | None = None
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
            self._checked(lambda: self._patiently(execute))

    def _transact(self, work: Callable[[], object]) -> None:
        def transaction() -> None:
            self._patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))
            work()
            self._connection.execute("COMMIT")

        self._checked(transaction)

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
                log(
                    logging.WARNING,
                    "journal.busy",
                    path=self._path,
                    queued=self._queue.qsize() + 1,
                    reason=f"another program has held it for {waited:.0f} s; end its transaction, as nothing is "
                    "acknowledged meanwhile",
                )

    def _checked(self, commit: Callable[[], object]) -> None:
        commit()
        self._opened.check()  # before anybody is told that it is durable
        self.commits += 1

    def _rollback(self) -> None:
        # What could not be written must not linger in an open transaction. If that fails too, it adds nothing.
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

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
