"""The address of a journal on a PostgreSQL server, which never shows its password."""

from __future__ import annotations

import os
import re
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, unquote

from repertory.errors import ConfigurationError

_SCHEMES: Final = ("postgresql://", "postgres://")
# Addresses in other forms: "sqlite:///runs.db", "host=db.example dbname=agents". A file could have such a name, but
# would then show the password in it.
_OTHERS: Final = re.compile(r"\s*([a-z][a-z0-9+.-]*://|[a-z_]+\s*=(?=\s*\S+\s+[a-z_]+\s*=))", re.IGNORECASE)
# https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
_SECRET: Final = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
_SHORTEST: Final = 3  # characters; a shorter secret is part of too many harmless words to be removed from texts


class PostgresAddress:
    """A connection URI of libpq. Its text form has no password; ``uri`` has it.

    Attributes:
        uri: The URI as given; never to be shown, logged or recorded.
    """

    __slots__ = ("_secrets", "_shown", "uri")

    def __init__(self, uri: str) -> None:
        self.uri = uri
        scheme, _, rest = uri.partition("://")
        # Not by urlsplit: a password may contain "#" and "?", which libpq takes literally, and "@" and "/" by mistake.
        query_at = rest.find("?", max(0, rest.partition("/")[0].find("@")))
        place, query = (rest, "") if query_at < 0 else (rest[:query_at], rest[query_at + 1 :])
        user, at, hosts = place.rpartition("@")
        name, _, password = user.partition(":")
        options = [pair for pair in query.split("&") if pair]
        kept = [pair for pair in options if pair.partition("=")[0].lower() not in _SECRET]
        found = {value for key, value in parse_qsl(query) if key.lower() in _SECRET}
        found |= {password, *re.split("[@/?#]", password)}  # errors show the pieces if it was split by mistake
        found |= {unquote(each) for each in found}
        self._secrets = sorted((each for each in found if len(each) >= _SHORTEST), key=len, reverse=True)
        self._shown = f"{scheme}://{name}{at}{hosts}{'?' * bool(kept)}{'&'.join(kept)}"

    def without_secrets(self, text: object) -> str:
        """A foreign text, such as a driver's error, without the secrets."""
        shown = str(text).replace(self.uri, self._shown)
        for secret in self._secrets:
            shown = shown.replace(secret, "***")
        return shown

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"PostgresAddress({self._shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PostgresAddress) and other.uri == self.uri

    def __hash__(self) -> int:
        return hash(self.uri)


Place: TypeAlias = str | os.PathLike[str] | PostgresAddress
"""Where a journal is: a file, or a database of a PostgreSQL server."""


def postgres_address(place: object) -> PostgresAddress | None:
    """The PostgreSQL address of a place; None if the place is a file.

    Raises:
        ConfigurationError: It is the address of something else, such as another database.
    """
    if isinstance(place, PostgresAddress):
        return place
    if not isinstance(place, str):
        return None
    if place.startswith(_SCHEMES):
        return PostgresAddress(place)
    if (other := _OTHERS.match(place)) is not None:
        raise ConfigurationError(f"a database must be a file's path or postgresql://…, got {other[1]}…")
    return None
