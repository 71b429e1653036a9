"""The writer of a journal on PostgreSQL: one round trip for a group of batches, and recovery of a lost one.

A transaction is sent in one piece: BEGIN, the guard, its numbers, the mark of the batch, the rows, COMMIT. If the
connection is lost meanwhile, it is unknown whether it was written. Then the writer makes sure that the old connection
has ended and looks for the mark: if it is not there, the transaction is sent again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import uuid4

from repertory._counting import counted
from repertory._log import Log
from repertory._postgres_address import PostgresAddress
from repertory.errors import JournalError, JournalWriteFailed, LeaseLost
from repertory.record.journal import Durability
from repertory.record.postgres_schema import BLOCK
from repertory.record.postgres_sql import (
    FENCED,
    TRANSACTION_TIMEOUT,
    check_server,
    connect,
    driver,
    explain,
    is_away,
    translate,
)
from repertory.record.rows import encode_json
from repertory.record.schema import SHARED
from repertory.record.writing import COLUMNS, EMPTY, UNFIT, Batch, Statement, Writer, insert_statements

if TYPE_CHECKING:
    from repertory.record.postgres_sql import Connection

log = Log("repertory.journal")

Guard: TypeAlias = Callable[[Sequence[Batch]], Sequence[Statement]]
"""The statements at the start of a group's transaction; one that raises SQLSTATE ``FENCED`` stops the journal."""

_WRITING: Final = "repertory writer "  # the prefix of the name of a writer's connection
OPEN: Final = f"""EXISTS (SELECT 1 FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.application_name = '{_WRITING}' || writers.id)"""
"""Whether the process of a mark in ``writers`` has the journal open."""
PATIENCE: Final = 60.0  # seconds for which a server may be away, as long as a restart or a failover takes
_RETRY: Final = 0.05  # seconds until the first attempt to reconnect; doubled for each further one, up to the next
_LONGEST_RETRY: Final = 2.0
_NOTICE: Final = 5.0  # seconds until it is logged again that the server is away
_IDLE: Final = 10.0  # seconds for which the server lets one of our transactions be idle
_TRANSACTION: Final = (
    20.0  # seconds that one may take in all: a process that was stopped must not block the one that replaces it
)
_CONFLICTS: Final = frozenset({"40001", "40P01"})  # two transactions blocked each other
_TOO_LONG: Final = frozenset({"57014", "25P04"})  # somebody else holds a lock, or the network is slow
_ATTEMPTS: Final = 4  # after the first
_DOUBLINGS: Final = 6  # of the time that a transaction may take, at most: to 21 minutes

_UNIQUE: Final = re.compile(r"CREATE UNIQUE INDEX (\w+) ON (\w+) \((.*)\)")
# SQLite's message for a value that already exists, by the name of the index in PostgreSQL's error.
_UNIQUE_ERRORS: Final = {
    name: "UNIQUE constraint failed: " + ", ".join(f"{table}.{column}" for column in columns.split(", "))
    for sql in SHARED
    for name, table, columns in _UNIQUE.findall(sql)
}

# The number that a transaction takes next is above its floor; see ``followed_up_to``. A key has 32 bits, of which the
# highest is the sign.
_FLOOR: Final = """SELECT pg_advisory_xact_lock_shared('record_seq'::regclass::oid::int4,
    (((last_value & 4294967295) # 2147483648) - 2147483648)::int4) FROM record_seq"""
_TAKE: Final = "SELECT nextval('record_seq')"
_MARK: Final = """INSERT INTO writers VALUES ($1, $2, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, at = excluded.at"""
# The marks of processes that were killed.
_FORGET: Final = f"DELETE FROM writers WHERE at < clock_timestamp() - interval '30 days' AND NOT {OPEN}"


def application_name(writer_id: str) -> str:
    """The name under which the server lists a writer's connection."""
    return f"{_WRITING}{writer_id}"


_PREPARED: Final = 500  # statements that the server keeps ready: more than there are
_LENGTHS: Final = (32, 16, 8, 4, 2, 1)  # with one statement for each row the server took 40% longer for an iteration


@cache
def _insert(table: str, rows: int) -> str:
    """The INSERT for rows of records, by their places in the block of numbers that the transaction took last."""
    columns = COLUMNS[table]
    values: list[str] = []
    for row in range(rows):
        place, *own, checksum = (f"${row * len(columns) + mark}" for mark in range(1, len(columns) + 1))
        number = f"currval('record_seq') + {place}::bigint"
        values.append(f"({', '.join([number, *own, f'{checksum}::bigint # {place}::bigint # ({number})'])})")
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join(values)}"


class PostgresWriter(Writer):
    """Owns the writing connection, and opens another one if it is lost and the server is not away for too long.

    Attributes:
        id: The writer's id, new for each writer; also that of the machine, if several share the journal.
        guard: Makes the statements at the start of every transaction; None for none. Set it before the first write.
    """

    def __init__(
        self,
        address: PostgresAddress,
        connection: Connection,
        durability: Durability,
        *,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(str(address))
        self._address = address
        self._durability: Durability = durability
        self.guard: Guard | None = None
        self._idle, self._longest = _IDLE, _TRANSACTION
        self._patience = patience
        self.id = str(uuid4())
        self.commits = 0  # so far; the number of the last transaction that was written
        self.newest = 0  # above every number that was written
        errors = driver().errors
        self._refused = (errors.IntegrityError, errors.DataError, errors.ProgramLimitExceeded, *UNFIT)
        self._use(connection)
        connection.execute(_FORGET)
        connection.execute(_MARK, (self.id, 0))
        self._start()

    def hold_at_most(self, seconds: float) -> None:
        """Have the server end a transaction that takes that many seconds, or is idle for half of them; blocks.

        Call it before the first write.
        """
        self._idle, self._longest = seconds / 2, seconds
        try:
            self._use(self._connection)
        except driver().Error as error:
            if not is_away(error):  # otherwise the first write opens another connection with the same settings
                raise explain(error, self._address, "open") from None

    def _use(self, connection: Connection) -> None:
        newer = connection.info.server_version >= TRANSACTION_TIMEOUT
        self._limit = "transaction_timeout" if newer else "statement_timeout"
        # By the name a machine that takes this one over finds the transaction that blocks it.
        for setting in (*self._limits(), f"application_name = '{application_name(self.id)}'"):
            connection.execute(f"SET {setting}")
        # The process of the server at the other end, and when it began.
        process = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        self._server = connection.execute(process).fetchone()
        connection.prepared_max = _PREPARED
        # Prepare at once. With a count, psycopg would also consider a statement prepared if the server never reached
        # it because an earlier statement in the pipeline had failed.
        connection.prepare_threshold = 0
        self._connection = connection

    def _limits(self, times: int = 1) -> tuple[str, str]:
        """The settings that have the server end a transaction."""
        idle, longest = (f"{seconds * times * 1000:.0f}" for seconds in (self._idle, self._longest))
        return f"idle_in_transaction_session_timeout = {idle}", f"{self._limit} = {longest}"

    # --- the thread ---------------------------------------------------------------------------------------

    def _fact(self, error: BaseException) -> str:
        # An error about the size of a value names the index too.
        diagnosis = getattr(error, "diag", None) if isinstance(error, driver().errors.UniqueViolation) else None
        index = getattr(diagnosis, "constraint_name", None)
        said = getattr(getattr(error, "diag", None), "message_primary", None) or error  # without where in our function
        return _UNIQUE_ERRORS.get(index or "") or " ".join(self._address.without_secrets(said).split())

    def _write(self, group: Sequence[Batch]) -> None:
        """Write batches in one transaction, however often the server goes away meanwhile."""
        if not any(batch.rows or batch.emptied for batch in group):
            return
        number, since = self.commits + 1, time.monotonic()
        for attempt in itertools.count():
            try:
                self._send(group, number, attempt)
                break
            except BaseException as error:
                state = getattr(error, "sqlstate", None)
                waited = time.monotonic() - since
                held_up = state in _TOO_LONG and not self._wait_aborted.is_set()
                if held_up:
                    log(logging.WARNING, "journal.held_up", path=self._path, seconds=round(waited, 1))
                if is_away(error):
                    if self._recover(number, error):
                        break
                    if not held_up and attempt >= _ATTEMPTS and waited > self._patience:
                        raise JournalWriteFailed(
                            f"{explain(error, self._address, 'write')}; this happened {attempt + 1} times while the "
                            f"same {counted(sum(len(batch.rows) for batch in group), 'record')} had to be written"
                        ) from error
                elif held_up or (state in _CONFLICTS and attempt < _ATTEMPTS):
                    self._rollback()
                else:
                    raise
        self.commits = number

    def _send(self, group: Sequence[Batch], number: int, attempt: int) -> None:
        records = [record for batch in group for record in batch.rows]
        emptied = [place for batch in group for place in batch.emptied]
        taken = None
        with self._connection.pipeline(), self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            if attempt:  # otherwise what takes too long over a slow network would never be written
                # A limit of the whole transaction that is not switched off first stays as it was.
                for setting in (f"{self._limit} = 0", *self._limits(2 ** min(attempt, _DOUBLINGS))):
                    cursor.execute(f"SET LOCAL {setting}")
            for sql, values in self.guard(group) if self.guard is not None else ():
                cursor.execute(sql, values)
            cursor.execute(_MARK, (self.id, number))
            if records:
                cursor.execute(_FLOOR)
            for start in range(0, len(records), BLOCK):
                taken = self._connection.execute(_TAKE)
                for sql, values in insert_statements(records[start : start + BLOCK], 0, _insert, _LENGTHS):
                    cursor.execute(sql, values, prepare=True)
            if emptied:
                cursor.execute(translate(EMPTY), (encode_json(emptied),))
            cursor.execute("COMMIT")
        if taken is not None:
            (first,) = taken.fetchone()
            self.newest = first + BLOCK

    def _rollback(self) -> None:
        try:
            if self._connection.info.transaction_status != driver().pq.TransactionStatus.IDLE:
                self._connection.execute("ROLLBACK")
        except driver().Error:  # somebody cancelled it; the next write opens another connection
            self._connection.close()

    def _close_connection(self) -> None:
        with contextlib.suppress(driver().Error):
            if self._failure is None:
                self._connection.execute("DELETE FROM writers WHERE id = $1", (self.id,))
        self._connection.close()

    # --- a lost connection --------------------------------------------------------------------------------

    def _recover(self, number: int, error: BaseException) -> bool:
        """Reconnect, and find out whether a transaction was written; nothing of it can be written afterwards.

        Raises:
            JournalWriteFailed: The server stays away. It is then unknown whether the batch was written.
        """
        self._connection.close()
        self._waits_for = "the server is away"
        since, pause, notice = time.monotonic(), _RETRY, 0.0
        while True:
            waited = time.monotonic() - since
            if waited >= notice:
                notice = 2 * notice or _NOTICE
                log(
                    logging.WARNING,
                    "journal.server_away",
                    path=self._path,
                    waited=round(waited, 1),
                    queued=self._queue.qsize() + 1,
                    error=" ".join(self._address.without_secrets(error).split()),
                )
            try:
                written = self._reconnect(number)
                self._waits_for = ""
                return written
            except Exception as another:
                error = another
                if not is_away(another) and getattr(another, "sqlstate", None) not in _TOO_LONG:
                    raise
            if waited >= self._patience or self._wait_aborted.wait(pause):
                raise JournalWriteFailed(
                    f"{explain(error, self._address, 'reach')} It was away for {waited:.0f} s while a batch was being "
                    "written; whether that batch is there is not known, and it was not acknowledged"
                ) from error
            pause = min(2 * pause, _LONGEST_RETRY)

    def _reconnect(self, number: int) -> bool:
        connection = connect(self._address, durability=self._durability)
        try:
            check_server(connection, self._address)
            self._end_old(connection)
            written = self._was_written(connection, number)
            # When a standby confirms this commit, it has also confirmed the one that was found. And a server that has
            # itself become a standby refuses this.
            connection.execute(_MARK, (self.id, number if written else number - 1))
            self._use(connection)
        except BaseException:
            connection.close()
            raise
        return written

    def _end_old(self, connection: Connection) -> None:
        """End the lost connection on the server, where it may be in the middle of COMMIT."""
        old = "FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
        connection.execute(f"SELECT pg_terminate_backend(pid) {old}", self._server)
        while connection.execute(f"SELECT 1 {old}", self._server).fetchone() is not None:
            if self._wait_aborted.wait(_RETRY):
                raise JournalWriteFailed(f"{self._path} has not ended a lost connection")

    def _was_written(self, connection: Connection, number: int) -> bool:
        (last,) = connection.execute("SELECT batch FROM writers WHERE id = $1", (self.id,)).fetchone() or (0,)
        if last < number - 1:  # to go on would leave a gap in the record
            raise JournalWriteFailed(
                f"{self._path} has lost the last {number - 1 - last} transactions that it confirmed, as it may when it "
                'fails over to a standby that is not synchronous, or crashes at durability "process"'
            )
        return bool(last == number)

    # --- the end ------------------------------------------------------------------------------------------

    def _failed(self) -> BaseException:
        error = super()._failed()
        if getattr(self._failure, "sqlstate", None) != FENCED:
            return error
        lost = LeaseLost(str(error))
        lost.__cause__ = error.__cause__
        return lost

    def _explain(self, cause: BaseException) -> str:
        if isinstance(cause, driver().Error):
            return str(explain(cause, self._address, "write"))
        return str(cause) if isinstance(cause, JournalError) else super()._explain(cause)
