"""Receives notifications of other machines: hints that a table has news. Readers also look at the tables without."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from repertory._postgres_address import PostgresAddress
from repertory.record.postgres_sql import NOTICE, connect, driver
from repertory.record.waiting import Waiter

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

_LOOK: Final = 1.0  # seconds between two checks whether it should end
_AGAIN: Final = 1.0  # seconds until it tries to reach the server again


class Listener:
    """Listens on a channel, over a connection and in a thread of its own, and reconnects.

    Notifications are lost while there is no connection, and may be lost at any time: after each reconnection ``hear``
    is also called with "", and whoever relies on notifications must also look at the table now and then.

    Args:
        hear: Called with each notification, on the event loop of the task that makes this. It must be quick and must
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

    def close(self) -> None:
        """End the thread; blocks, for longer only if the server says nothing while it connects."""
        self.end()
        self._thread.join(NOTICE)

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
