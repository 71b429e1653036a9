"""Hears what other machines announce: a hint that a table has something new, which every reader looks at anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from repertory._postgres_address import PostgresAddress
from repertory.record.postgres_sql import connect, driver
from repertory.record.waiting import Waiter

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

_LOOK: Final = 1.0  # seconds after which it looks whether it is to end
_AGAIN: Final = 1.0  # seconds until it tries again to reach the server


class Listener:
    """Listens on a channel, over a connection and in a thread of its own, which outlives lost connections.

    A notification is lost while there is no connection, and may be at any time: ``hear`` is called with "" after each
    reconnection too, and whoever relies on one looks at the table now and then besides.

    Args:
        address: Of the server.
        channel: What to listen on.
        hear: Called with what is announced, on the event loop of the task that makes this. It must be quick and must
            not raise.
    """

    def __init__(self, address: PostgresAddress, channel: str, hear: Callable[[str], None]) -> None:
        self._address = address
        self._channel = channel
        self._hear = hear
        self._loop = Waiter()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repertory-listener", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to end, which it does at the next notification or look."""
        self._ending.set()

    def join(self) -> None:
        """Wait until it has ended; blocks."""
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                connection = connect(self._address)
                try:
                    self._listen(connection)
                finally:
                    connection.close()
            except driver().Error:
                self._ending.wait(_AGAIN)

    def _listen(self, connection: Connection) -> None:
        sql = driver().sql
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._loop.post(self._hear, "")
        while not self._ending.is_set():
            for news in connection.notifies(timeout=_LOOK, stop_after=1):
                self._loop.post(self._hear, news.payload)
