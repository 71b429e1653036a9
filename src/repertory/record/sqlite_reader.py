"""Reading an SQLite file through aiosqlite, read-only. The file is opened at the first read.

aiosqlite needs an asyncio loop. So the reader has one of its own, under trio and asyncio alike, which runs in the
thread of whoever reads. Results are decoded there too, so that a large read does not block the caller's loop.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from repertory.record.forks import keep_for_ever
from repertory.record.reads import Reader, Rows
from repertory.record.rows import Value, lenient_text
from repertory.record.sqlite_file import ERRORS, explain, read_uri

if TYPE_CHECKING:
    import asyncio

    import aiosqlite

T = TypeVar("T")


class SqliteReader(Reader):
    """Answers queries from any task of any loop, one at a time."""

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
