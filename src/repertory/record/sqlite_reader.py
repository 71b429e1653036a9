"""Reads a file of SQLite over aiosqlite, read-only, from the first read on.

aiosqlite needs an asyncio loop. So the reader owns a thread with one, under trio and asyncio alike, and a read crosses
over to it; results are decoded there too, so that a large read does not stall the caller's loop.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from repertory.errors import JournalClosed, JournalDamaged
from repertory.record.forks import in_a_fork, keep_for_ever, leave_behind_in_forks
from repertory.record.reads import Rows
from repertory.record.rows import UNREADABLE, Value, lenient_text
from repertory.record.sqlite_file import explain, read_uri
from repertory.record.waiting import Answer, Failure, wake_all

if TYPE_CHECKING:
    import asyncio

    import aiosqlite

T = TypeVar("T")


class SqliteReader:
    """Answers queries from any task of any loop, one at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()  # guards the two below
        self._stack: ExitStack | None = None
        self._closed = False
        self._portal: BlockingPortal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the portal's
        self._tasks: set[asyncio.Task[None]] = set()  # on that loop
        self._turn = anyio.Lock()  # on the portal's loop: one query at a time, and closing behind them
        self._connection: aiosqlite.Connection | None = None
        self._forked = False
        leave_behind_in_forks(self)

    async def fetch(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        """Run one query and decode its rows.

        A cancelled call stops waiting; the query itself runs to its end in the background.

        Raises:
            JournalClosed: After ``aclose``.
            JournalUnreadable: SQLite cannot read the file.
            JournalDamaged: Something in it is not what was written; ``what`` is named in the error.
        """
        if self._portal is None and not self._closed:
            await anyio.to_thread.run_sync(self._start)
        with self._lock:
            if self._portal is None or self._closed:
                raise self._is_closed()
            assert self._loop is not None
            answer = Answer[T]()
            # The portal's own way waits until its loop has taken the task, while that may be decoding a large answer.
            # In a context of its own: the caller's says that this is trio, where it is.
            query = partial(self._query, what, sql, values, decode)
            self._loop.call_soon_threadsafe(self._begin, answer, query, context=Context())
        return await answer.result()

    def _begin(self, answer: Answer[T], query: Callable[[], Coroutine[Any, Any, T]]) -> None:
        import asyncio

        async def give() -> None:
            failure: Failure | None = None
            try:
                answer.give(await query())
            except BaseException as error:  # noqa: BLE001 - carried over to the waiting task, which raises it
                failed = error
                failure = lambda: failed  # noqa: E731
            wake_all(answer.finish(failure))

        task = asyncio.get_running_loop().create_task(give())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_closed(self) -> JournalClosed:
        if self._forked:
            return in_a_fork(self._path)
        return JournalClosed(f"{self._path} is closed; nothing was read")

    def _start(self) -> None:
        with self._lock:
            if self._stack is None and not self._closed:
                self._stack = ExitStack()
                self._portal = self._stack.enter_context(start_blocking_portal("asyncio", name="repertory-reader"))
                self._loop = self._portal.call(_running_loop)

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
                    # Once more, so that it can be said which record it is. Always so would be much slower.
                    connection.text_factory = lenient_text
                    rows = await connection.execute_fetchall(sql, values)
                return decode(rows)
            except sqlite3.Error as error:
                raise explain(error, self._path, f"read {what} in") from error
            except UNREADABLE as error:
                raise JournalDamaged(f"cannot read {what} in {self._path}: {error}") from error

    async def _connect(self) -> aiosqlite.Connection:
        import aiosqlite

        if self._connection is None:
            self._connection = await aiosqlite.connect(read_uri(self._path), uri=True, timeout=30.0)
            await self._connection.execute("PRAGMA query_only = 1")
        return self._connection

    async def _disconnect(self) -> None:
        import asyncio

        async with self._turn:
            if self._connection is not None:
                await self._connection.close()
        if self._tasks:  # they wait for their turn, to be told that it is closed
            await asyncio.wait(self._tasks)

    def abandon(self) -> None:
        """In a fork, where the thread is not: refuse everything, and never close the connection."""
        keep_for_ever((self._stack, self._connection, self._tasks))
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._closed = self._forked = True
        self._stack = self._portal = self._connection = self._loop = None
        self._tasks = set()

    def close(self) -> None:
        """Close the connection and end the thread; blocks until the query that runs is done. Safe to call twice."""
        with self._lock:
            self._closed = True
            stack, self._stack = self._stack, None
        if stack is not None and self._portal is not None:
            with stack:
                self._portal.call(self._disconnect)


def _running_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    return asyncio.get_running_loop()
