"""PostgreSQL for the journal, whose SQL is SQLite's: placeholders, connections, errors."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
from functools import lru_cache
from typing import Any, Final, TypeAlias

from repertory._postgres_address import PostgresAddress
from repertory._version import __version__
from repertory.errors import (
    ConfigurationError,
    JournalError,
    JournalUnavailable,
    JournalUnreadable,
    JournalWriteFailed,
    LeaseLost,
)
from repertory.record.journal import Durability

# A ``psycopg.Connection``. Its own types accept only literal SQL, and ours is built from the names of tables.
Connection: TypeAlias = Any

FENCED: Final = "RPF01"
"""The SQLSTATE that the server returns to a machine that was taken over."""
_OLDEST: Final = 150000  # the oldest major version that is tested
TRANSACTION_TIMEOUT: Final = 170000
"""The first version that can limit how long a whole transaction takes."""
NOTICE: Final = 10.0
"""Seconds of silence until a connection counts as lost: a third of a machine's usual lease."""
_SETTINGS: Final = "; ".join(
    f"SET {setting}"
    for setting in (
        # A lock is waited for, a large table is moved, and a connection that is quiet for long is not a lost one.
        *("statement_timeout = 0", "lock_timeout = 0", "idle_session_timeout = 0"),
        # A process that was stopped in the middle of a transaction must not block others with its locks.
        "idle_in_transaction_session_timeout = '20s'",
        # When the server considers a connection lost, so that a computer that is gone does not keep its connections.
        *("tcp_keepalives_idle = 5", "tcp_keepalives_interval = 2", "tcp_keepalives_count = 3"),
        "tcp_user_timeout = 10000",
        *("bytea_output = 'hex'", "extra_float_digits = 1", "standard_conforming_strings = on", "DateStyle = 'ISO'"),
        "default_transaction_isolation = 'read committed'",
    )
)
"""Whatever the defaults of the database, the user and the address are."""


# --- SQL --------------------------------------------------------------------------------------------------

_PING_TIMEOUT: Final = 5  # seconds to ask a server whether it accepts connections
_MARK: Final = re.compile(r"\?|'[^']*'|INDEXED BY \w+")


@lru_cache(maxsize=512)
def translate(sql: str) -> str:
    """The journal's SQL for PostgreSQL: with numbered placeholders, and without hints about indexes."""
    numbers = itertools.count(1)

    def replace(match: re.Match[str]) -> str:
        if match[0] == "?":
            return f"${next(numbers)}"
        return match[0] if match[0].startswith("'") else ""

    return _MARK.sub(replace, sql)


# --- connections ------------------------------------------------------------------------------------------


def driver() -> Any:
    """The module ``psycopg``, imported when it is first needed.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise ConfigurationError(
            f"a journal on PostgreSQL needs psycopg: pip install 'repertory[postgres]' ({error})"
        ) from error
    return psycopg


def _network(notice: float) -> dict[str, str]:
    """Settings of libpq unless the address has others. Without them a lost network blocks the client for ever."""
    return {
        "connect_timeout": str(max(2, round(notice))),  # libpq's minimum
        "keepalives_idle": str(max(1, round(notice / 2))),
        "keepalives_interval": str(max(1, round(notice / 5))),
        "keepalives_count": "3",
        "tcp_user_timeout": f"{1000 * notice:.0f}",
    }


def connect(
    address: PostgresAddress, *, durability: Durability = "power", readonly: bool = False, notice: float = NOTICE
) -> Connection:
    """Open a connection. Each statement is its own transaction unless it says otherwise.

    After about ``notice`` seconds in which the server is silent the connection counts as lost.

    Raises:
        psycopg.Error: The server cannot be reached, or refuses the connection.
        ConfigurationError: psycopg is not installed, or does not understand the address.
    """
    psycopg = driver()
    try:
        given = psycopg.conninfo.conninfo_to_dict(address.uri)
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(
            f"{address} is no address of a PostgreSQL server: {address.without_secrets(error).strip()}"
        ) from None
    options = {
        **_network(notice),
        "application_name": f"repertory {__version__}",
        **given,
        "client_encoding": "UTF8",
    }
    connection: Connection = psycopg.connect(**options, autocommit=True, cursor_factory=psycopg.RawCursor)
    try:
        _adapt(connection)
        _set_up(connection, durability, readonly=readonly)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: Connection, durability: Durability, *, readonly: bool) -> None:
    if readonly:
        lasting = "SET default_transaction_read_only = on"
    elif durability != "power":
        lasting = "SET synchronous_commit = off"
    else:
        # A stronger setting (remote_apply) is kept.
        lasting = """SELECT set_config('synchronous_commit', 'on', false)
                     WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"""
    newer = "SET transaction_timeout = 0;" if connection.info.server_version >= TRANSACTION_TIMEOUT else ""
    connection.execute(f"{newer} {_SETTINGS}; {lasting}")


_adapters: list[Any] = []


def _adapt(connection: Connection) -> None:
    """Send every number as the type of its column, and read sums of whole numbers as whole numbers.

    psycopg would send an int as the smallest type that holds it, and each combination of types would be another
    prepared statement.
    """
    if not _adapters:
        from psycopg.adapt import Loader
        from psycopg.types.numeric import FloatDumper, Int8Dumper

        class Whole(Int8Dumper):
            oid = 0

        class Fraction(FloatDumper):
            oid = 0

        class Sum(Loader):
            def load(self, data: Any) -> int | float:
                text = bytes(data)
                return int(text) if text.lstrip(b"-").isdigit() else float(text)

        _adapters.extend((Whole, Fraction, Sum))
    whole, fraction, numeric = _adapters
    connection.adapters.register_dumper(int, whole)
    connection.adapters.register_dumper(float, fraction)
    connection.adapters.register_loader("numeric", numeric)


def hang_up(connection: Connection) -> None:
    """Break a connection on which another thread waits, which then gets an error. To close it could crash."""
    with (
        contextlib.suppress(driver().Error, OSError),  # it was closed meanwhile
        socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as broken,
    ):
        broken.shutdown(socket.SHUT_RDWR)


def check_server(connection: Connection, address: PostgresAddress) -> None:
    """Check that a server can keep a journal.

    Raises:
        JournalUnreadable: It is too old, its database has another encoding than UTF-8, or its address is that of a
            pooler which does not keep a session for each connection.
        JournalWriteFailed: It could lose what it has acknowledged.
    """
    version = connection.info.server_version
    if version < _OLDEST:
        raise JournalUnreadable(
            f"{address} is PostgreSQL {version // 10000} and {_OLDEST // 10000} or newer is expected; upgrade it"
        )
    names = ("fsync", "full_page_writes", "server_encoding")
    row = connection.execute(f"SELECT {', '.join(f'current_setting({name!r})' for name in names)}").fetchone()
    found = dict(zip(names, row, strict=True))
    for name in names[:2]:
        if found[name] != "on":
            raise JournalWriteFailed(
                f"{address} has {name} = off, so that it may lose or damage what it acknowledged; set it to on"
            )
    if found["server_encoding"] != "UTF8":
        raise JournalUnreadable(
            f"{address} is a database in {found['server_encoding']} and UTF8 is expected; create one with "
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )
    if _is_lent(connection, address):
        raise JournalUnreadable(
            f"{address} is a pooler that lends a session to others between transactions; use its port for sessions "
            "(pool_mode=session), or the address of the server itself"
        )


def _is_lent(connection: Connection, address: PostgresAddress) -> bool:
    """Whether a pooler lends the session of a connection to others, with all that was set in it."""
    session = "SELECT pg_backend_pid()"
    (pid,) = connection.execute(session).fetchone()
    if pid == connection.info.backend_pid:  # a pooler has numbers of its own
        return False
    with connect(address) as other, other.transaction():
        return bool(other.execute(session).fetchone() == (pid,))


# --- errors -----------------------------------------------------------------------------------------------

# https://www.postgresql.org/docs/current/errcodes-appendix.html: the server goes away or is not ready yet. A server
# that has become a standby returns 25006; 57P05 and 25P03/25P04 mean that a connection was idle or open for too long.
_AWAY: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "25006"})


def is_away(error: BaseException) -> bool:
    """Whether an error is about the connection or the server's availability, and not about the statement."""
    psycopg = driver()
    state = getattr(error, "sqlstate", None)
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _AWAY or state.startswith("08")


_HINT: Final = re.compile(r"\s*Is the server running[^?]*\?")  # the driver's, which says less than ours
# A server or a pooler without a connection left. The driver does not pass on the code of such a refusal.
_FULL: Final = re.compile("too many (clients|connections)|connection slots|no more connections")


def explain(error: BaseException, address: PostgresAddress, doing: str) -> JournalError:
    """Map an error of the server or the driver to the journal's error; the only place where this is done."""
    fact = f"cannot {doing} {address}: {' '.join(_HINT.sub('', address.without_secrets(error)).split())}"
    state = getattr(error, "sqlstate", None) or ""
    if state == FENCED:
        return LeaseLost(fact)
    if state in ("42501", "28000", "28P01"):
        return JournalUnreadable(f"{fact}; may this user do that there?")
    if state == "3D000":
        return JournalUnreadable(f"{fact}; create it with createdb")
    if state == "3F000":
        return JournalUnreadable(f"{fact}; create it with CREATE SCHEMA, or name another in search_path")
    if doing == "write" or state == "53100":  # a full disk, also where a search adds to its index
        return JournalWriteFailed(f"{fact}{'; make room, then start again' if state.startswith('53') else ''}")
    if not is_away(error):
        return JournalUnreadable(fact)
    if _FULL.search(fact):
        return JournalUnavailable(f"{fact}; close other programs' connections, or let it have more (max_connections)")
    if state == "25006":
        return JournalUnavailable(f"{fact}; is it a standby, or its database read-only by default?")
    if not state and _refuses(address):
        return JournalUnreadable(f"{fact}; do its user and its database exist, and is the password right?")
    return JournalUnavailable(f"{fact}; is the server running, and is the address right?")


def _refuses(address: PostgresAddress) -> bool:
    """Whether a server accepts connections, but none to this address; blocks. The driver does not pass on why."""
    psycopg = driver()
    info = psycopg.conninfo.make_conninfo(address.uri, connect_timeout=_PING_TIMEOUT)

    def is_refused() -> bool:
        try:
            connect(address, notice=_PING_TIMEOUT).close()
        except psycopg.Error as error:
            return not isinstance(error, psycopg.errors.ConnectionTimeout)
        return False  # the connection was only lost

    # First, because a ping holds up all threads of the process for as long as the server says nothing.
    return is_refused() and psycopg.pq.PGconn.ping(info.encode()) == psycopg.pq.Ping.OK and is_refused()
