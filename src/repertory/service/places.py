"""Where a service listens, and which one serves a database.

A service leaves that in the lock file beside its database; where the database is on a server, in one in the user's
runtime folder. The lock says whether the service lives, so what a killed one left behind is never believed, and neither
is the number of a process that is another by now.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from repertory._postgres_address import PostgresAddress
from repertory.record.sqlite_file import FileLock, announce, owner_of
from repertory.service.sockets import default_socket, private_folder

_CONNECT_TIMEOUT: Final = 1.0  # seconds to find out whether anybody listens
_SERVED: Final = "served"  # beside the usual socket: the lock that says which file its service works on


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service listens: at a unix socket, or at a port of 127.0.0.1.

    Attributes:
        socket: The path of the socket; None for a port.
        port: The port; None for a socket.
        token_file: Where the token for the port is kept; None for the usual file.
        server: The database, without its password, where that is on a server; None for the file that this stands at.
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
    """What stands for the database of a service where that is on a server, so that a lock can be held beside it.

    Args:
        company: Its file, which one process of this machine at a time serves; None for a service without one.
    """
    name = f"process-{os.getpid()}" if company is None else f"company-{_digest(company)}"
    return default_socket().with_name(name)


@contextmanager
def holding(anchor: Path) -> Generator[None]:
    """Hold the lock beside an anchor until the end of the block.

    Raises:
        JournalLocked: Another process does.
        ConfigurationError: Others may change the runtime folder.
    """
    lock = FileLock(str(private_folder(anchor.parent) / anchor.name))
    try:
        yield
    finally:
        lock.release()


def announce_service(anchor: str | os.PathLike[str], place: Place) -> None:
    """Say beside a database or an anchor, which this process owns, where its service listens."""
    announce(anchor, msgspec.json.encode(place))


def service_of(database: str | os.PathLike[str] | PostgresAddress) -> Place | None:
    """Where the service of this machine listens that has a database; None where no service has it.

    Args:
        database: A file or an anchor, of which one service at a time has the lock; or the address of a database on a
            server, of which any will do.
    """
    if isinstance(database, PostgresAddress):
        anchors = sorted(each.with_suffix("") for each in default_socket().parent.glob("*.lock"))
        found = (service_of(each) for each in anchors)
        return next((place for place in found if place is not None and place.server == str(database)), None)
    owner = owner_of(database)
    try:
        return msgspec.json.decode(owner.words, type=Place) if owner is not None and owner.words else None
    except msgspec.DecodeError:  # it is being written
        return None


def _digest(path: Path) -> str:
    return blake2b(os.fsencode(path.resolve()), digest_size=10).hexdigest()


def usual_service() -> Place | None:
    """The unix socket that a service listens at unless told otherwise; None where nobody of this user listens."""
    path = default_socket()
    try:
        status = path.lstat()
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_TIMEOUT)
            probe.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):  # none, or what a killed one left behind
        return None
    except OSError:  # one that takes no connection: asking it says so
        pass
    return Place(socket=str(path))


@contextmanager
def file_announced(listener: socket.socket, database: str | os.PathLike[str] | PostgresAddress) -> Generator[None]:
    """Where it is the usual socket that a service listens at, say until the end of the block which file it works on."""
    usual, name = default_socket(), listener.getsockname()
    # A name that systemd has passed may be an abstract one, which is bytes and no path.
    is_usual = isinstance(name, str) and os.path.realpath(name) == os.path.realpath(usual)
    if not is_usual or isinstance(database, PostgresAddress):
        yield
        return
    anchor = usual.with_name(_SERVED)
    with holding(anchor):
        announce(anchor, os.fsencode(os.path.abspath(database)))
        yield


def file_served() -> Path | None:
    """The file that the service at the usual socket works on, also while it hangs; None where there is none."""
    owner = owner_of(default_socket().with_name(_SERVED))
    found = Path(os.fsdecode(owner.words)) if owner is not None and owner.words else None
    return found if found is not None and found.exists() else None
