"""The journal in a file, and the one way to open any journal."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.to_thread

from repertory._choices import check_choice
from repertory.errors import JournalUnreadable
from repertory.record.journal import Durability, Journal, SearchHit, Ticket
from repertory.record.memory_journal import MemoryJournal
from repertory.record.ownership import FileLock
from repertory.record.records import EntryAppended
from repertory.record.redaction import Redactor
from repertory.record.row_journal import RowJournal, Rows
from repertory.record.rows import EncodedRecord, Value
from repertory.record.sqlite_file import check_readable, explain, make_folder, not_writable, open_to_write
from repertory.record.sqlite_reader import SqliteReader, find_damage
from repertory.record.sqlite_writer import SqliteWriter

T = TypeVar("T")


class SqliteJournal(RowJournal):
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
        super().__init__(redactor)
        self.path = path
        self._durability: Durability = durability
        self._writer = writer
        self._lock = lock
        self._close_timeout = close_timeout
        self._reader = SqliteReader(path)

    @property
    def durability(self) -> Durability:
        """What an acknowledged write survives."""
        return self._durability

    def _insert(
        self, rows: Sequence[EncodedRecord], on_commit: Callable[[], None] | None, after: Ticket | None
    ) -> Ticket:
        if self._writer is None:
            raise not_writable(self.path)
        return self._writer.submit(rows, on_commit, after)

    async def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._writer is None:
            raise not_writable(self.path)
        return await self._writer.start_job(work).result()

    async def _settle(self) -> None:
        if self._writer is not None:
            await self._writer.wait_queued()

    async def _query(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        return await self._reader.fetch(what, sql, values, decode)

    async def search_entries(self, run_id: str, query: str, *, limit: int = 20) -> list[SearchHit]:
        """Full-text search over a run's ledger, best first."""
        if self._writer is not None:
            return await super().search_entries(run_id, query, limit=limit)
        # The index in the file lags and only its owner may bring it up to date: make one of this run, in memory.
        entries = await self.read_entries(run_id)
        aside = MemoryJournal()
        records = [EntryAppended(run_id=run_id, entry=entry) for entry in entries]
        await anyio.to_thread.run_sync(aside.submit, records)
        return await aside.search_entries(run_id, query, limit=limit)

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


# --- opening ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_journal(
    path: str | os.PathLike[str] | None = None,
    *,
    durability: Durability = "power",
    readonly: bool = False,
    close_timeout: float = 30.0,
    redact: Sequence[str] = (),
) -> AsyncGenerator[Journal, None]:
    """Open a journal, and close it at the end of the block.

    Args:
        path: The file; made where there is none, readable by this user alone, as is its folder. None or
            ``":memory:"`` keeps everything in this process: a ``MemoryJournal``.
        durability: What an acknowledged write survives: ``"power"`` the loss of power, ``"process"`` the death of
            the process (many times more appends a second on slow disks), ``"memory"`` nothing.
        readonly: Look only, while another process may own the file. Needs no lock, changes nothing.
        close_timeout: Seconds that closing may take to write what is queued.
        redact: Environment variables whose values, as they are now, are recorded as ``[redacted: NAME]``; see
            ``Redactor`` for the forms in which they are found.

    Raises:
        JournalLocked: Another process owns the file; the message names it.
        JournalUnreadable: Not a journal, damaged, or no permission.
        JournalWriteFailed: The disk does not make durable what the file holds already.
        JournalSchemaTooNew: A newer repertory wrote it.
        ConfigurationError: There is no such durability, or a value to redact is shorter than 8 characters.
    """
    check_choice("open_journal: durability", durability, Durability)
    redactor = Redactor(redact) if redact else None
    journal: MemoryJournal | SqliteJournal
    if path is None or os.fspath(path) == ":memory:":
        journal = MemoryJournal(redactor=redactor)
    else:
        journal = await anyio.to_thread.run_sync(_open, os.fspath(path), durability, readonly, close_timeout, redactor)
    try:
        yield journal
    finally:
        await journal.aclose()


def _open(
    path: str, durability: Durability, readonly: bool, close_timeout: float, redactor: Redactor | None
) -> SqliteJournal:
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
