"""One thread that writes: it gathers what is queued, commits it at once, and wakes everybody at once.

Where to is for those who inherit: ``SqliteWriter`` writes to a file, ``PostgresWriter`` to a server.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from repertory.errors import JournalClosed, JournalWriteFailed
from repertory.record.forks import in_a_fork, leave_behind_in_forks
from repertory.record.rows import AFTER_REFUSED, EncodedRecord, refuse_batch
from repertory.record.waiting import Failure, Ticket, Waiter, wake_all

L = TypeVar("L", bound=Ticket)

GROUP: Final = 512  # records that one commit gathers; a larger batch is a commit of its own
_END: Final = Ticket()  # stands in the queue behind everything else


class Batch(Ticket):
    """Records that are written together or not at all.

    Attributes:
        rows: What they are in the file.
        told: What is called once that is durable, in order, before anybody who waits goes on.
        after: The batch without which this one makes no sense.
        emptied: The numbers of the contents whose bodies go with it.
    """

    __slots__ = ("after", "emptied", "rows", "told")

    def __init__(
        self,
        rows: Sequence[EncodedRecord],
        told: Sequence[Callable[[], object]] = (),
        after: Ticket | None = None,
        emptied: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.rows = rows
        self.told = told
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
        self.after, self.told = None, ()  # or the whole history of a ledger would stay in memory
        if self.failure is None:
            self.rows = ()
        return self.finish(self.failure or failure)


class Writer:
    """The queue, the thread, and what becomes of both when something fails.

    Args:
        name: Of what is written to, as errors say it.
    """

    def __init__(self, name: str) -> None:
        self._path = name
        self._queue: queue.SimpleQueue[Ticket] = queue.SimpleQueue()
        self._following: Ticket | None = None  # taken from the queue and not yet done
        self._lock = threading.Lock()  # nothing may be queued behind the end
        self._last: Ticket | None = None  # what was queued last
        self._closed = self._forked = False
        self._failure: BaseException | None = None
        # A daemon, so that a disk that hangs for ever does not keep a dying process; nothing needs a good-bye.
        self._thread = threading.Thread(target=self._run, name="repertory-journal", daemon=True)

    def _start(self) -> None:
        """Start the thread, once the object is whole."""
        self._thread.start()
        leave_behind_in_forks(self)

    # --- where to -----------------------------------------------------------------------------------------

    def _write(self, group: Sequence[Batch]) -> None:
        """Write batches in one commit."""
        raise NotImplementedError

    def _refused(self) -> tuple[type[BaseException], ...]:
        """The errors that are a batch's fault and not the disk's: the others can be written without it."""
        raise NotImplementedError

    def _fact(self, error: BaseException) -> object:
        """What a refused batch contradicts."""
        return error

    def _do(self, item: Ticket) -> None:
        """Do other work that was queued."""
        raise NotImplementedError

    def _rollback(self) -> None:
        """Take back what is half written; if that fails too, it adds nothing."""
        raise NotImplementedError

    def _last_words(self) -> None:
        """Close the connection, after everything that was queued."""
        raise NotImplementedError

    def _waits_for(self) -> str:
        """What writing waits for, for an error that says that it did not end in time; "" for nothing known."""
        return ""

    def _hurry(self) -> None:
        """Give up waiting soon: closing took too long."""

    def _explain(self, cause: BaseException) -> str:
        """Say why nothing is written any more."""
        return str(cause) if isinstance(cause, JournalWriteFailed) else f"cannot write {self._path}: {cause}"

    # --- the queue ----------------------------------------------------------------------------------------

    def submit(self, item: L) -> L:
        """Queue a batch, or other work; never blocks."""
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
            JournalWriteFailed: Not everything was taken in time.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(_END)
        self._thread.join(timeout)
        if self._thread.is_alive():
            waits = self._waits_for()
            left = self._queue.qsize() + bool(waits)
            self._hurry()
            raise JournalWriteFailed(
                f"{self._path} did not finish writing within {timeout:g} s: "
                f"{waits}{waits and ', and '}about {left} batches are not on the disk"
            )

    @property
    def queued(self) -> int:
        """How many batches wait to be written, about."""
        return self._queue.qsize()

    @property
    def ended(self) -> bool:
        """Whether nothing will be written any more."""
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """In a fork, where the thread is not: refuse everything."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._closed = self._forked = True

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._following or self._queue.get()) is not _END:
            self._following = None
            if isinstance(item, Batch):
                self._commit_group(self._gather(item))
            else:
                self._do(item)
        self._last_words()

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

    def _write_group(self, group: Sequence[Batch]) -> None:
        """Write a group in one commit; else each batch in its own, but for those that contradict what is kept."""
        if not any(map(Batch.builds_on_refused, group)):
            try:
                self._write(group)
                return
            except self._refused():
                self._rollback()
        for batch in group:
            if batch.builds_on_refused():
                batch.refuse(AFTER_REFUSED)
                continue
            try:
                self._write([batch])
            except self._refused() as error:
                self._rollback()
                batch.refuse(self._fact(error))

    def _commit_group(self, group: Sequence[Batch]) -> None:
        if self._failure is None:
            try:
                self._write_group(group)
                for batch in group:
                    for tell in batch.told if batch.failure is None else ():
                        tell()
            except BaseException as error:  # noqa: BLE001 - this thread's supervisor: whatever it was stops the journal
                self._fail(error)
        failure = self._failed if self._failure is not None else None
        wake_all([waiter for batch in group for waiter in batch.end(failure)])

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
