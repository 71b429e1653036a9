"""The writer of a journal in a file: its statements, its transactions, and waiting for other users of the file."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, TypeVar

from repertory._log import Log
from repertory.errors import JournalWriteFailed
from repertory.record.reads import marks
from repertory.record.rows import NEWEST, EncodedRecord, Value, encode_json
from repertory.record.sqlite_file import FileLock, explain, is_busy, is_disk_error
from repertory.record.waiting import Failure, Ticket, wake_all
from repertory.record.writing import COLUMNS, EMPTY, UNFIT, Batch, Statement, Writer, insert_statements

T = TypeVar("T")

log = Log("repertory.journal")

# Errors caused by a batch and not by the disk: the other batches can be written without it.
REFUSED: Final = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError, *UNFIT)
_BUSY_STEP: Final = 0.25  # seconds that SQLite waits for a program that holds the file, before we check for closing
_BUSY_NOTICE: Final = 5.0  # seconds of waiting until it is logged; then again each time that they double

# How many rows one statement may have. sqlite3 keeps a prepared statement for each length, of some kB a row: with every
# length up to 64 they grew to 50 MB over weeks. With these lengths, up to 64 rows take one or two statements.
_LENGTHS: Final = (*range(64, 16, -8), *range(16, 0, -1))


@cache
def _insert(table: str, rows: int) -> str:
    columns = COLUMNS[table]
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([f'({marks(columns)})'] * rows)}"


class Inserter:
    """Numbers the records of batches, and writes them with few statements.

    ``executemany`` would release the GIL at every row, and with a busy event loop each release can cost the 5 ms of a
    thread switch (195,800 rows/s became 6,300).
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        (removed,) = connection.execute("SELECT coalesce(max(newest), 0) FROM removals").fetchone()
        (newest,) = connection.execute(NEWEST).fetchone()
        self.sequence: int = max(newest, removed)

    def statements(self, batches: Sequence[Batch]) -> tuple[list[Statement], int]:
        """The statements that write batches, and the value of ``sequence`` once they are written."""
        records, emptied = list[EncodedRecord](), list[int]()
        for batch in batches:
            records += batch.rows
            emptied += batch.emptied
        statements = insert_statements(records, self.sequence + 1, _insert, _LENGTHS)
        if emptied:
            statements.append((EMPTY, [encode_json(emptied)]))
        return statements, self.sequence + len(records)


@dataclass(slots=True, eq=False, repr=False)
class Job(Ticket, Generic[T]):
    """Other work for the writer's connection, in its own transaction."""

    work: Callable[[sqlite3.Connection], T]
    value: T = field(init=False)  # of the work, before any waiter wakes

    async def result(self) -> T:
        """Wait until it is done and return its value; raises as ``wait``."""
        await self.wait()
        return self.value


class OpenedFile:
    """Remembers which file, log and lock the owner has, to notice when something else is in their places.

    Who deletes the lock, because it looks stale, lets another process own the file too.
    """

    def __init__(self, path: str) -> None:
        """Remember the files that are there now."""
        self._names = path, f"{path}-wal", f"{path}.lock"
        self._seen = self._look()

    def _look(self) -> list[tuple[int, ...] | None]:
        # os.stat opens nothing; see FileLock for why that matters.
        found: list[tuple[int, ...] | None] = []
        for name in self._names:
            try:
                status = os.stat(name)
            except OSError:
                found.append(None)
            else:
                # Only the log is ever empty.
                found.append((status.st_dev, status.st_ino, status.st_size > 0 or name == self._names[1]))
        return found

    def check(self) -> None:
        """Check that they are still there.

        Raises:
            JournalWriteFailed: One was deleted, moved, replaced or emptied. What was written since may be in a file
                without a name, or beside what another owner writes.
        """
        now = self._look()
        if now != self._seen:
            (name, *_) = (name for name, was, found in zip(self._names, self._seen, now, strict=True) if was != found)
            raise JournalWriteFailed(
                f"{name} was deleted, moved, replaced or emptied while the journal was open; leave the files of a "
                "journal alone while a process owns it, and start again"
            )


class SqliteWriter(Writer):
    """Owns the writing connection. Batches go to the disk in the order of ``submit``."""

    _refused = REFUSED

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        *,
        lock: FileLock | None = None,
        busy_notice: float = _BUSY_NOTICE,
    ) -> None:
        super().__init__(path)
        self._connection = connection
        self._owned = lock
        self._opened = OpenedFile(path)
        self._inserter = Inserter(connection)
        self.commits = 0  # so far
        self._busy_notice = busy_notice
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_STEP * 1000:.0f}")
        self._start()

    def start_job(self, work: Callable[[sqlite3.Connection], T]) -> Job[T]:
        """Queue a transaction of another kind."""
        return self.submit(Job(work))

    # --- the thread ---------------------------------------------------------------------------------------

    def _close_connection(self) -> None:
        # Empty the log, so that the file can be copied alone. A reader, or a disk that failed, may prevent this;
        # nothing is lost then.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        # Here, as whoever closes does not wait for ever for a thread that hangs on the disk, and may still write.
        if self._owned is not None:
            self._owned.release()

    def _do(self, job: Job[Any]) -> None:
        failure: Failure | None = None
        if self._failure is None:
            try:
                self._execute_with_retry("BEGIN IMMEDIATE")
                job.value = job.work(self._connection)
                self._connection.execute("COMMIT")
                self._committed()
            except BaseException as error:  # noqa: BLE001 - a job's own error goes to its caller; the journal continues
                mistake = error
                if isinstance(error, JournalWriteFailed) or is_disk_error(error):
                    self._fail(error)
                self._rollback()
                failure = lambda: mistake  # noqa: E731
        wake_all(job.finish(self._failed if self._failure is not None else failure))

    def _write(self, group: Sequence[Batch]) -> None:
        statements, sequence = self._inserter.statements(group)
        # A single statement is its own transaction. That saves two calls into SQLite, and so four times that this
        # thread releases the GIL and must win it back from a busy event loop.
        if len(statements) > 1:
            statements = [("BEGIN IMMEDIATE", ()), *statements, ("COMMIT", ())]
        for number, (sql, values) in enumerate(statements):
            (self._connection.execute if number else self._execute_with_retry)(sql, values)
        if statements:
            self._committed()
        self._inserter.sequence = sequence

    def _execute_with_retry(self, sql: str, values: Sequence[Value] = ()) -> None:
        """Execute SQL that needs SQLite's write lock, and wait as long as another program holds it."""
        since, notice = time.monotonic(), self._busy_notice
        while True:
            try:
                self._connection.execute(sql, values)
                self._waits_for = ""
                return
            except sqlite3.OperationalError as error:
                self._waits_for = "another program holds the file" if is_busy(error) else ""
                if not self._waits_for or self._wait_aborted.is_set():
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

    def _committed(self) -> None:
        self._opened.check()  # before anybody is told that it is durable
        self.commits += 1

    def _rollback(self) -> None:
        # What could not be written must not stay in an open transaction. If that fails too, the error is ignored.
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _explain(self, cause: BaseException) -> str:
        return str(explain(cause, self._path, "write")) if isinstance(cause, sqlite3.Error) else super()._explain(cause)
