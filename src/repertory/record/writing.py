"""The writer thread: it gathers what is queued, writes it in one commit, and wakes all waiters together.

The subclasses say where to: ``SqliteWriter`` writes to a file, ``PostgresWriter`` to a server.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from repertory.errors import JournalClosed, JournalWriteFailed
from repertory.record.forks import abandon_in_forks, forked_error, keep_for_ever
from repertory.record.rows import AFTER_REFUSED, TABLES, EncodedRecord, Value, refuse_batch
from repertory.record.waiting import Failure, Ticket, Waiter, wake_all

L = TypeVar("L", bound=Ticket)

Statement: TypeAlias = tuple[str, Sequence[Value]]
"""SQL with placeholders, and their values."""

COLUMNS: Final = {name: columns for table in TABLES.values() for name, columns in table.layout.items()}
EMPTY: Final = "DELETE FROM content_bodies WHERE seq IN (SELECT CAST(value AS BIGINT) FROM json_each(?))"
GROUP: Final = 512  # records that one commit gathers; a larger batch gets its own commit
UNFIT: Final = (OverflowError, TypeError, ValueError)
"""What a driver raises for a value that it does not take."""
_LAST: Final = 0.5  # seconds for a wait that was aborted to end, which an SQLite writer notices every quarter
_END: Final = Ticket()  # the last element of the queue


@dataclass(slots=True, eq=False, repr=False)
class Batch(Ticket):
    """Records that are written together or not at all."""

    rows: Sequence[EncodedRecord]
    callbacks: Sequence[Callable[[], object]] = ()  # called in this order once it is durable, before any waiter wakes
    after: Ticket | None = None  # the batch on which it depends
    emptied: Sequence[int] = ()  # the numbers of the contents whose bodies it deletes

    def refuse(self, fact: object) -> None:
        """Make every waiter raise the error that only this batch was not written, and why."""
        self.failure = partial(refuse_batch, self.rows, fact)

    def builds_on_refused(self) -> bool:
        """Whether the batch on which it depends was refused."""
        return self.after is not None and self.after.failure is not None

    def end(self, failure: Failure | None = None) -> list[Waiter]:
        """Finish the ticket; ``failure`` is that of the whole group, if it failed."""
        self.after, self.callbacks = None, ()  # otherwise the whole history of a ledger would stay in memory
        if self.failure is None:
            self.rows = ()
        return self.finish(self.failure or failure)


def insert_statements(
    records: Iterable[EncodedRecord], first: int, insert: Callable[[str, int], str], lengths: Sequence[int]
) -> list[Statement]:
    """The statements that write records, numbered from ``first``.

    ``insert`` makes the INSERT of so many rows into a table. How many one may have is one of ``lengths``, the most
    first: engines keep each statement ready, so there must not be one for every number.
    """
    rows: dict[str, list[Value]] = {}
    for number, record in enumerate(records, first):
        for table, row, checksum in record:
            flat = rows.setdefault(table, [])
            flat.append(number)
            flat += row
            flat.append(checksum ^ number)
    statements: list[Statement] = []
    for table, values in rows.items():
        width, start = len(COLUMNS[table]), 0
        for length in lengths:
            while (end := start + width * length) <= len(values):
                statements.append((insert(table, length), values[start:end]))
                start = end
    return statements


class Writer:
    """The queue and the thread of a journal's writer, and the handling of failures."""

    _connection: Any
    # The errors caused by a batch and not by the disk: the other batches can be written without it.
    _refused: tuple[type[BaseException], ...]

    def __init__(self, name: str) -> None:
        self._path = name  # of the file or the database, for errors
        self._queue: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._following: Ticket | None = None  # taken from the queue and not yet handled
        self._lock = threading.Lock()  # so that nothing is queued after the end
        self._last: Ticket | None = None  # the ticket that was queued last
        self._closed = self._forked = False
        self._failure: BaseException | None = None
        self._waits_for = ""  # what keeps it from writing, while something does
        self._wait_aborted = threading.Event()  # closing took too long: it must not wait for that any longer
        # A daemon thread, so that a disk that hangs for ever does not keep the process alive. It needs no clean end.
        self._thread = threading.Thread(target=self._run, name="repertory-journal", daemon=True)

    def _start(self) -> None:
        """Start the thread, when the object is fully initialised."""
        self._thread.start()
        abandon_in_forks(self)

    # --- defined by each engine ---------------------------------------------------------------------------

    def _write(self, group: Sequence[Batch]) -> None:
        """Write batches in one commit."""
        raise NotImplementedError

    def _fact(self, error: BaseException) -> object:
        """The existing fact that a refused batch contradicts."""
        return error

    def _do(self, job: Any) -> None:
        """Do other work that was queued."""
        raise NotImplementedError

    def _rollback(self) -> None:
        """Roll back what is half written; if that fails too, the error is ignored."""
        raise NotImplementedError

    def _close_connection(self) -> None:
        """Close the connection, after everything that was queued has been written."""
        raise NotImplementedError

    def _explain(self, cause: BaseException) -> str:
        """Explain why nothing is written any more."""
        return str(cause) if isinstance(cause, JournalWriteFailed) else f"cannot write {self._path}: {cause}"

    # --- the queue ----------------------------------------------------------------------------------------

    def submit(self, item: L) -> L:
        """Queue a batch, or other work; never blocks."""
        with self._lock:
            if self._forked:
                raise forked_error(self._path)
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
            JournalWriteFailed: Not everything was written in time.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(_END)
        self._thread.join(timeout)
        # Otherwise everything is written, and it only waits for its connection to be closed.
        if self._thread.is_alive() and self._last is not None and not self._last.done:
            waits = self._waits_for
            left = self._queue.qsize() + bool(waits)
            self._wait_aborted.set()
            if waits:
                self._thread.join(_LAST)
            raise JournalWriteFailed(
                f"{self._path} did not finish writing within {timeout:g} s: "
                f"{waits}{waits and ', and '}about {left} batches are not on the disk"
            )

    @property
    def queued(self) -> int:
        """About how many batches wait to be written."""
        return self._queue.qsize()

    def abandon(self) -> None:
        """In a forked child, which has no writer thread: refuse everything, and never close the connection."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._closed = self._forked = True
        keep_for_ever(self._connection)

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._following or self._queue.get()) is not _END:
            self._following = None
            if isinstance(item, Batch):
                self._commit_group(self._gather(item))
            else:
                self._do(item)
        self._close_connection()

    def _gather(self, first: Batch) -> list[Batch]:
        """Take what is queued after ``first``, up to a full group."""
        group, size = [first], len(first.rows)
        while size < GROUP and not self._queue.empty():
            item = self._queue.get()
            if not isinstance(item, Batch) or size + len(item.rows) > GROUP:
                self._following = item
                break
            group.append(item)
            size += len(item.rows)
        return group

    def _write_group(self, group: Sequence[Batch]) -> None:
        """Write a group in one commit. If it is refused, write each batch by itself, except those at fault."""
        if not any(map(Batch.builds_on_refused, group)):
            try:
                self._write(group)
                return
            except self._refused:
                self._rollback()
        for batch in group:
            if batch.builds_on_refused():
                batch.refuse(AFTER_REFUSED)
                continue
            try:
                self._write([batch])
            except self._refused as error:
                self._rollback()
                batch.refuse(self._fact(error))

    def _commit_group(self, group: Sequence[Batch]) -> None:
        if self._failure is None:
            try:
                self._write_group(group)
                for batch in group:
                    for callback in batch.callbacks if batch.failure is None else ():
                        callback()
            except BaseException as error:  # noqa: BLE001 - supervises this thread: any error stops the journal
                self._fail(error)
        failure = self._failed if self._failure is not None else None
        waiters: list[Waiter] = []
        for batch in group:
            waiters += batch.end(failure)
        wake_all(waiters)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
        self._rollback()

    def _failed(self) -> BaseException:
        assert self._failure is not None
        fact = self._explain(self._failure)
        error = JournalWriteFailed(f"{fact}; everything acknowledged before is kept, nothing after it")
        error.__cause__ = self._failure
        return error
