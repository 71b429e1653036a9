"""A journal that lives in this process alone: for tests on virtual time, and for runs nobody will want back."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio.lowlevel

from repertory.errors import JournalClosed
from repertory.record.journal import Durability, Ticket
from repertory.record.redaction import Redactor
from repertory.record.row_journal import RowJournal, Rows
from repertory.record.rows import EncodedRecord, Value
from repertory.record.sqlite_schema import migrate
from repertory.record.sqlite_writer import Batch, Inserter

T = TypeVar("T")


class MemoryJournal(RowJournal):
    """The in-memory twin of ``SqliteJournal``: the same rows and answers, no file, no thread, gone with the process.

    A batch is written before ``submit`` returns, ``on_commit`` included.
    """

    def __init__(self, *, redactor: Redactor | None = None) -> None:
        super().__init__(redactor)
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        migrate(self._connection, ":memory:")
        self._inserter = Inserter(self._connection)
        self._lock = threading.Lock()
        self._closed = False

    @property
    def durability(self) -> Durability:
        """``"memory"``."""
        return "memory"

    def _insert(
        self, rows: Sequence[EncodedRecord], on_commit: Callable[[], None] | None, after: Ticket | None
    ) -> Ticket:
        batch = Batch(rows, on_commit, after)
        with self._lock:
            if self._closed:
                raise JournalClosed("the journal is closed; nothing was written")
            self._inserter.insert_alone(batch)
            if batch.failure is None and on_commit is not None:
                on_commit()
            batch.end()
        return batch

    async def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        await self._settle()
        with self._lock, self._open() as connection:
            connection.execute("BEGIN")
            return work(connection)

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
        """Refuse further use. Safe to call twice."""
        await self._settle()
        with self._lock:
            self._closed = True
            self._connection.close()
