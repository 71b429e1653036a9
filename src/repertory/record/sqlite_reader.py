"""Reading an SQLite file through aiosqlite, read-only. The file is opened at the first read.

aiosqlite needs an asyncio loop. So the reader owns a thread with such a loop, under trio and asyncio alike, and every
read runs there. Results are decoded there too, so that a large read does not block the caller's loop.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from repertory.errors import JournalClosed
from repertory.record.forks import abandon_in_forks, forked_error, keep_for_ever
from repertory.record.reads import Rows
from repertory.record.rows import Value, lenient_text
from repertory.record.sqlite_file import ERRORS, explain, read_uri
from repertory.record.waiting import Answer, wake_all

if TYPE_CHECKING:
    import asyncio

    import aiosqlite

T = TypeVar("T")


class SqliteReader:
    """Answers queries from any task of any loop, one at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()  # guards the next three
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None  # the loop's
        self._closed = False
        self._turn = anyio.Lock()  # on the loop: one query at a time, and closing after them
        self._connection: aiosqlite.Connection | None = None
        self._uri = ""
        self._forked = False
        abandon_in_forks(self)

    async def fetch(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        """Run one query and decode its rows.

        If the call is cancelled, it stops waiting; the query itself runs to its end in the background.

        Raises:
            JournalClosed: After ``aclose``.
            JournalUnreadable: SQLite cannot read the file.
            JournalDamaged: Something in it is not what was written; the error names ``what``.
        """
        if self._loop is None and not self._closed:
            await anyio.to_thread.run_sync(self._start)
        answer = Answer[T]()
        with self._lock:
            if self._loop is None or self._closed:
                raise self._is_closed()
            future = _run_on_loop(self._loop, self._query(what, sql, values, decode))
        future.add_done_callback(partial(_copy_result, answer))
        return await answer.result()

    def _is_closed(self) -> JournalClosed:
        if self._forked:
            return forked_error(self._path)
        return JournalClosed(f"{self._path} is closed; nothing was read")

    def _start(self) -> None:
        import asyncio

        with self._lock:
            if self._loop is None and not self._closed:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="repertory-reader", daemon=True)
                self._thread.start()

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
                    # Read again in a way that can tell which record is damaged. Always reading so would be much slower.
                    connection.text_factory = lenient_text
                    rows = await connection.execute_fetchall(sql, values)
                return decode(rows)
            except ERRORS as error:
                raise explain(error, self._path, f"read {what} in") from error

    async def _connect(self) -> aiosqlite.Connection:
        import aiosqlite

        uri = read_uri(self._path)  # another one once there is a log in a folder that may not be written to
        if self._connection is None or uri != self._uri:
            await self._drop_connection()
            self._connection, self._uri = await aiosqlite.connect(uri, uri=True, timeout=30.0), uri
            await self._connection.execute("PRAGMA query_only = 1")
        return self._connection

    async def _disconnect(self) -> None:
        async with self._turn:
            await self._drop_connection()

    async def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def abandon(self) -> None:
        """In a forked child, which has no such thread: refuse everything, and never close the connection."""
        keep_for_ever((self._loop, self._thread, self._connection))
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._closed = self._forked = True
        self._loop = self._thread = self._connection = None

    def close(self) -> None:
        """Close the connection and end the thread; blocks until the current query is done. Safe to call twice."""
        with self._lock:
            self._closed = True
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        try:
            _run_on_loop(loop, self._disconnect()).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _run_on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on the loop of another thread, after what it was asked to run before."""
    import asyncio

    # In a context of its own, because the caller's context may say that this is trio.
    return Context().run(asyncio.run_coroutine_threadsafe, work, loop)


def _copy_result(answer: Answer[T], done: Future[T]) -> None:
    failed = done.exception()
    if failed is None:
        answer.value = done.result()
    wake_all(answer.finish(None if failed is None else lambda: failed))
