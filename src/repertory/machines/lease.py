"""The lease of this machine: renewed in a thread of its own, over a connection of its own.

A long batch, or an event loop that a tool blocks, must not delay the renewals that show that this machine is alive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import anyio

from repertory._log import Log
from repertory._postgres_address import PostgresAddress
from repertory.errors import LeaseLost
from repertory.record.postgres_sql import NOTICE, connect, driver

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

_log = Log("repertory.machines")

RENEWALS: Final = 3  # per lease: two may fail
_EFFECTS: Final = 2 / 3  # share of a lease after which no irreversible effect may begin
_LOOK: Final = 0.05  # seconds between two looks at whether the lease was renewed

# The server decides: a machine that was not taken over meanwhile may renew, however late it is.
_RENEW: Final = """UPDATE machines SET until = clock_timestamp() + make_interval(secs => $2)
    FROM (SELECT machine_id AS id, until < clock_timestamp() AS expired FROM machines WHERE machine_id = $1) was
    WHERE machine_id = was.id AND lost_at IS NULL RETURNING was.expired"""


class Lease:
    """Renews the lease of a machine, whose row exists already.

    The clock of this process can only make it more careful: the server's clock decides which machines may be taken
    over.

    Args:
        seconds: How long the lease lasts after each renewal.
        sent: ``time.monotonic()`` just before the lease was taken.
        make_room: Called before it connects again, as the server may have no connection left: closes others of this
            process that are idle.

    Attributes:
        renewed: When the last successful renewal was sent, by ``time.monotonic()``.
        steady_since: Since when it was never overdue, by ``time.monotonic()``.
    """

    def __init__(
        self, address: PostgresAddress, machine_id: str, seconds: float, sent: float, make_room: Callable[[], None]
    ) -> None:
        self._address = address
        self._make_room = make_room
        self._machine_id = machine_id
        self.seconds = seconds
        self.renewed = sent
        self.steady_since = sent
        self._lost = ""
        self._overdue = False  # whether the last attempt failed: an outage is logged once
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repertory-lease", daemon=True)
        self._thread.start()

    @property
    def is_fresh(self) -> bool:
        """Whether an irreversible effect may begin: no other machine can have taken this one over."""
        return not self._lost and time.monotonic() - self.renewed < _EFFECTS * self.seconds

    @property
    def is_steady(self) -> bool:
        """Whether it was renewed without a break for so long that other machines had time for it too.

        After an outage of the server, a jump of its clock, or a suspension of the computer, all leases have expired,
        though their machines may all be alive.
        """
        return self.is_fresh and time.monotonic() - self.steady_since > self.seconds / 2

    async def wait_fresh(self) -> None:
        """Wait until an effect may begin.

        Raises:
            LeaseLost: Another machine has taken this one over.
        """
        while not self.is_fresh:
            self.check()
            await anyio.sleep(_LOOK)

    def check(self) -> None:
        """Raise ``LeaseLost`` if another machine has taken this one over."""
        if self._lost:
            raise LeaseLost(self._lost)

    def close(self) -> None:
        """End the renewals; blocks for a moment. Safe to call twice."""
        self._ending.set()
        self._thread.join(self.seconds)

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        connection: Connection | None = None
        pause = 0.0  # connect before the readers do, as the server may have too few connections for all
        while not self._ending.wait(pause):
            pause = self.seconds / RENEWALS
            try:
                if connection is None:
                    if self._overdue:
                        self._make_room()
                    connection = self._connect()
                    if not self._overdue:
                        continue  # it was only taken a moment ago
                if not self._renew(connection):
                    self._lost = (
                        f"machine {self._machine_id} was not heard of for {self.seconds:g} s, and another one has "
                        "taken over its runs; everything acknowledged before is kept, nothing after it"
                    )
                    _log(logging.ERROR, "lease.lost", machine=self._machine_id)
                    break
            except driver().Error as error:
                if not self._overdue:
                    _log(logging.WARNING, "lease.not.renewed", machine=self._machine_id, exc_info=error)
                self._overdue = True
                if connection is not None:
                    connection.close()
                connection = None
                pause = self.seconds / RENEWALS / 10
        if connection is not None:
            connection.close()

    def _connect(self) -> Connection:
        # A connection that is cut for less than the lease must not lose it.
        connection = connect(self._address, notice=min(NOTICE, self.seconds / RENEWALS))
        patience = f"{self.seconds / RENEWALS * 1000:.0f}"
        connection.execute("SELECT set_config('statement_timeout', $1, false)", [patience])
        return connection

    def _renew(self, connection: Connection) -> bool:
        sent = time.monotonic()
        if (row := connection.execute(_RENEW, [self._machine_id, self.seconds]).fetchone()) is None:
            return False
        if row[0] or sent - self.renewed > _EFFECTS * self.seconds:
            self.steady_since = sent
        if self._overdue:
            _log(logging.INFO, "lease.renewed", machine=self._machine_id, after=round(sent - self.renewed, 1))
        self._overdue = False
        self.renewed = sent
        return True
