"""Databases on a PostgreSQL server, one for each case."""

from __future__ import annotations

import secrets
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from repertory._postgres_address import PostgresAddress
from repertory.record.postgres_sql import connect

_PREFIX: Final = "repertory_torture_"


def make_database(server: str) -> PostgresAddress:
    """Make a database with a new name on a server."""
    name = f"{_PREFIX}{secrets.token_hex(6)}"
    with connect(PostgresAddress(server)) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    return PostgresAddress(urlunsplit(urlsplit(server)._replace(path=f"/{name}")))


def drop_database(address: PostgresAddress) -> None:
    """Drop a database that ``make_database`` made, even if clients are connected."""
    name = urlsplit(address.uri).path[1:]
    assert name.startswith(_PREFIX)
    with connect(PostgresAddress(urlunsplit(urlsplit(address.uri)._replace(path="/postgres")))) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
