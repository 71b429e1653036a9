"""Databases on a PostgreSQL server: one for each case, and none that stays."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from repertory._postgres_address import PostgresAddress
from repertory.record.postgres_sql import connect, driver, explain


def make_database(server: str, name: str) -> PostgresAddress:
    """Make a database on a server, and return its address.

    Raises:
        JournalError: The server cannot be reached, or refuses.
    """
    _execute(server, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    # The last word of an address counts. It is not taken apart: a password may have any sign in it.
    return PostgresAddress(f"{server}{'&' if '?' in server.rpartition('@')[2] else '?'}dbname={name}")


def drop_databases(server: str, beginning: str) -> None:
    """Drop the databases whose names begin so, even if clients are connected.

    Raises:
        JournalError: The server cannot be reached, or refuses.
    """
    for (name,) in _execute(server, f"SELECT datname FROM pg_database WHERE starts_with(datname, '{beginning}')"):
        # What a case began to drop when it was ended may be gone by now.
        _execute(server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def databases_on(server: str) -> Generator[str]:
    """Yield how the names of databases are to begin, and drop those at the end, however the cases that made them ended.

    Raises:
        JournalError: The server cannot be reached, or its user may not make databases there.
    """
    beginning = f"repertory_torture_{secrets.token_hex(4)}_"
    make_database(server, f"{beginning}first")
    try:
        yield beginning
    finally:
        drop_databases(server, beginning)


def _execute(server: str, statement: str) -> list[Any]:
    address = PostgresAddress(server)
    try:
        with connect(address) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []
    except driver().Error as error:
        raise explain(error, address, "make and drop databases on") from error
