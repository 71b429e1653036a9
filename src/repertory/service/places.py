"""Where a service listens, and which service serves a database.

A service writes that into the lock file beside its database, or, if the database is on a server, into one in the
user's runtime folder. The lock tells whether the service is alive, so what a killed service left behind is ignored,
as is a process id that belongs to another process by now.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from repertory._json_text import decode_text
from repertory._postgres_address import PostgresAddress
from repertory.record.sqlite_file import FileLock, announce, owner_of
from repertory.service.sockets import default_socket, is_listened_at, private_folder

_SERVED: Final = "served"  # beside the default socket: the lock file that names the database file of its service


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service listens: at a unix socket, or at a port of 127.0.0.1.

    Attributes:
        socket: The path of the socket; None for a port.
        port: The port; None for a socket.
        token_file: The file that keeps the token for the port; None for the default file.
        server: The address of a database on a server, without its password; None if this describes a database file.
    """

    socket: str | None = None
    port: int | None = None
    token_file: str | None = None
    server: str | None = None

    def __str__(self) -> str:
        return f"127.0.0.1:{self.port}" if self.port is not None else f"unix:{self.socket}"


def place_of_listener(listener: socket.socket, *, token_file: Path | None = None) -> Place:
    """Where a listening socket can be reached."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return Place(socket=os.path.abspath(name))
    return Place(port=name[1], token_file=None if token_file is None else os.path.abspath(token_file))


def anchor_of(company: Path | None = None) -> Path:
    """The path that stands in for a database on a server, so that its service can hold a lock beside it.

    One process of this machine at a time serves a company file; None is for a service without one.
    """
    name = f"process-{os.getpid()}" if company is None else f"company-{_digest(company)}"
    return default_socket().with_name(name)


@contextmanager
def holding(anchor: Path) -> Generator[None]:
    """Hold the lock beside an anchor until the end of the block.

    Raises:
        JournalLocked: Another process holds it.
        ConfigurationError: Other users may change the runtime folder.
    """
    lock = FileLock(str(private_folder(anchor.parent) / anchor.name))
    try:
        yield
    finally:
        lock.release()


def announce_service(anchor: str | os.PathLike[str], place: Place) -> None:
    """Write beside a database or an anchor, which this process owns, where its service listens."""
    announce(anchor, json.dumps(msgspec.to_builtins(place)).encode())  # a path may be no UTF-8, which msgspec refuses


def service_of(database: str | os.PathLike[str] | PostgresAddress) -> Place | None:
    """Where the service of a database, or at an anchor, listens on this machine; None if there is none.

    Of a database on a server any of its services will do.
    """
    if isinstance(database, PostgresAddress):
        anchors = sorted(each.with_suffix("") for each in default_socket().parent.glob("*.lock"))
        found = (service_of(each) for each in anchors)
        return next((place for place in found if place is not None and place.server == str(database)), None)
    owner = owner_of(database)
    try:
        return None if owner is None else msgspec.convert(decode_text(owner.words), Place)
    except (ValueError, msgspec.ValidationError):  # it is not written yet, or not whole
        return None


def _digest(path: Path) -> str:
    # Of the name and not of what it links to: that may change while the company is up, as everything in the file may.
    place = os.path.join(os.path.realpath(path.parent), path.name)
    return blake2b(os.fsencode(place), digest_size=10).hexdigest()


def usual_service() -> Place | None:
    """The default unix socket of a service; None if no service of this user listens there."""
    path = default_socket()
    return Place(socket=str(path)) if is_listened_at(path) else None


@contextmanager
def file_announced(listener: socket.socket, database: str | os.PathLike[str] | PostgresAddress) -> Generator[None]:
    """If a service listens at the default socket, announce its database file until the end of the block."""
    usual, name = default_socket(), listener.getsockname()
    # A socket passed by systemd may have an abstract name, which is bytes and not a path.
    is_usual = isinstance(name, str) and os.path.realpath(name) == os.path.realpath(usual)
    if not is_usual or isinstance(database, PostgresAddress):
        yield
        return
    with naming(database, usual.with_name(_SERVED)):
        yield


@contextmanager
def naming(database: str | os.PathLike[str], anchor: Path) -> Generator[None]:
    """Hold the lock beside an anchor, and name a database file in it, until the end of the block.

    Raises the errors of ``holding``.
    """
    with holding(anchor):
        announce(anchor, os.fsencode(os.path.abspath(database)))
        yield


def file_served(anchor: Path | None = None) -> Path | None:
    """The database file that a service names at an anchor, also while it hangs; None if there is none.

    Without an anchor, that of the service at the default socket.
    """
    owner = owner_of(anchor or default_socket().with_name(_SERVED))
    found = Path(os.fsdecode(owner.words)) if owner is not None and owner.words else None
    return found if found is not None and found.exists() else None
