"""The journal on a PostgreSQL server: one connection that writes and a few that read, each used in a thread.

psycopg's own asynchronous connections need an asyncio loop; threads also work under trio.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from repertory._postgres_address import PostgresAddress
from repertory.errors import JournalDamaged
from repertory.record.forks import keep_for_ever
from repertory.record.journal import Durability
from repertory.record.postgres_schema import ITEM_POSITIONS, check_readable, migrate
from repertory.record.postgres_search import PostgresFullText, PostgresTables
from repertory.record.postgres_sql import check_server, connect, driver, explain, hang_up, is_away, translate
from repertory.record.postgres_writer import OPEN, PATIENCE, PostgresWriter
from repertory.record.reads import Reader, Rows
from repertory.record.redaction import Redactor
from repertory.record.rows import UNREADABLE, Value
from repertory.record.sqlite_journal import OwnedJournal
from repertory.record.tables import Tables

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

T = TypeVar("T")

_CANCEL_PATIENCE: Final = 2.0  # seconds for a server to take in that a query is to be cancelled
_READONLY_PATIENCE: Final = 5.0  # seconds for which a server may be away if the journal is read-only
_RETRY: Final = 0.1  # seconds between attempts to connect
# Others were in the way, on a standby also what it replays; or somebody has cancelled it.
_BROKEN_OFF: Final = frozenset({"40001", "40P01", "57014"})
_ATTEMPTS: Final = 4  # after the first, if it was broken off
_FOLLOWING: Final = 2.0  # seconds that a read of the whole journal waits for transactions of other processes
_POLL_INTERVAL: Final = 0.005  # seconds between two checks of these transactions


def open_postgres(
    address: PostgresAddress, durability: Durability, readonly: bool, close_timeout: float, redactor: Redactor | None
) -> PostgresJournal:
    """Connect, create or migrate the tables, and start the writer; blocks. See ``open_journal``."""
    with ExitStack() as failed:
        try:
            connection = failed.enter_context(closing(connect(address, durability=durability, readonly=readonly)))
            check_server(connection, address)
            if readonly:
                check_readable(connection, address)
                reader = PostgresReader(address, readonly=True)
                return PostgresJournal(address, durability, None, reader, None, close_timeout=close_timeout)
            migrate(connection, address)
            writer = PostgresWriter(address, connection, durability)
        except driver().Error as error:
            raise explain(error, address, "open") from None
        failed.pop_all()
    reader = PostgresReader(address, readonly=False)
    return PostgresJournal(address, durability, redactor, reader, writer, close_timeout=close_timeout)


def has_writer(address: PostgresAddress) -> bool:
    """Whether any process has a journal open for writing; blocks. False if there is none, or no server to reach."""
    try:
        with connect(address, readonly=True) as connection:
            return connection.execute(f"SELECT 1 FROM writers WHERE {OPEN}").fetchone() is not None
    except driver().Error:
        return False


class PostgresJournal(OwnedJournal[PostgresAddress, "PostgresReader", PostgresWriter]):
    """A journal in a PostgreSQL database. ``open_journal`` opens it; several processes may write to it.

    Record numbers ascend, with gaps. A read of the whole journal (the events of every run) shows everything below a
    number below which nothing can be written any more, so a reader that continues from the last number misses nothing.
    """

    _full_text = PostgresFullText()

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it too; a reader has no part in that."""
        return self._writer is not None

    async def _query(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        def fetch(connection: Connection) -> T:
            return decode(connection.execute(translate(sql), values).fetchall())

        return await self.reader.use(f"read {what} in", fetch)

    async def _change(self, doing: str, work: Callable[[Tables], T]) -> T:
        def change(connection: Connection) -> T:
            with connection.transaction():
                return work(PostgresTables(connection))

        await self.writer.wait_queued()
        return await self.reader.use(f"{doing} in", change)

    async def _complete_below(self) -> int:
        await self._settle()
        newest = 0 if self._writer is None else self._writer.newest
        until = time.monotonic() + _FOLLOWING
        while True:
            ((found,),) = await self._query("numbers", "SELECT followed_up_to()", (), list)
            if int(found or 0) >= newest or time.monotonic() > until:
                return int(found or 0)
            await anyio.sleep(_POLL_INTERVAL)

    async def take_item_positions(self) -> int:
        """The position after which only this process assigns positions, above all that were assigned before."""
        return await self._number("items", "SELECT nextval('item_positions')")

    async def last_item_position(self) -> int:
        """A position at or after the last one in the item log."""
        return await self._number("items", f"SELECT last_value + {ITEM_POSITIONS} FROM item_positions")


class PostgresReader(Reader):
    """Lends connections to threads, from any task of any loop."""

    threads = 4

    def __init__(self, address: PostgresAddress, *, readonly: bool) -> None:
        self._address = address
        self._readonly = readonly
        self._patience = _READONLY_PATIENCE if readonly else PATIENCE
        self._changed = threading.Condition()  # guards what follows
        self._idle: list[Connection] = []
        self._lent: set[Connection] = set()
        super().__init__(address)

    async def use(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Do something over a connection, in a thread; again if the server went away meanwhile, or broke it off.

        Raises:
            JournalClosed: After ``aclose``.
            JournalUnavailable: The server stays away.
            JournalUnreadable: It refuses the query.
            JournalDamaged: Something there is not what was written.
        """
        return await self._in_thread(partial(self._use, doing, work))

    def _use(self, doing: str, work: Callable[[Connection], T]) -> T:
        since, left = time.monotonic(), _ATTEMPTS
        error_of_driver = driver().Error
        while True:
            try:
                connection = self._borrow()
                try:
                    return work(connection)
                except error_of_driver:
                    connection.close()  # if it was in a pipeline, it is unknown which statements are prepared there
                    raise
                finally:
                    self._give_back(connection)
            except error_of_driver as error:
                self._check()
                broken_off = getattr(error, "sqlstate", None) in _BROKEN_OFF and left > 0
                left -= broken_off
                if not (is_away(error) or broken_off) or time.monotonic() - since > self._patience:
                    raise explain(error, self._address, doing) from None
            except UNREADABLE as error:
                raise JournalDamaged(f"cannot {doing} {self._address}: {error}") from error
            self.drop_idle()  # the idle connections were lost with it
            time.sleep(_RETRY)

    def _borrow(self) -> Connection:
        with self._changed:
            self._check()
            connection = self._idle.pop() if self._idle else None
            if connection is not None:
                self._lent.add(connection)
                return connection
        connection = connect(self._address, readonly=self._readonly)
        with self._changed:
            self._lent.add(connection)
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._changed:
            self._lent.discard(connection)
            whole = connection.info.transaction_status == driver().pq.TransactionStatus.IDLE
            if whole and not self._closed and len(self._idle) < self.threads:
                self._idle.append(connection)
            else:
                connection.close()
            self._changed.notify_all()

    def drop_idle(self) -> None:
        """Close the connections that nobody uses; from any thread."""
        with self._changed:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: refuse everything; see ``Reader``."""
        keep_for_ever((self._idle, self._lent))
        self._idle, self._lent = [], set()  # so that closing ends none of the parent's
        self._changed = threading.Condition()  # another thread of the parent may have held it
        super().abandon()

    def close(self) -> None:
        """End the running queries and close the connections; blocks. Safe to call twice."""
        with self._changed:
            self._closed = True
            with suppress(driver().Error):  # the server does not answer, and so ends no query either
                # Before libpq 17, to cancel holds up all threads of the process for as long as the server says nothing.
                for connection in self._lent if driver().capabilities.has_cancel_safe() else ():
                    connection.cancel_safe(timeout=_CANCEL_PATIENCE)
                self._changed.wait_for(lambda: not self._lent, timeout=_READONLY_PATIENCE)
            for connection in self._lent:  # threads that wait for a silent server would keep the process alive
                hang_up(connection)
        self.drop_idle()
