"""Where the service listens: a unix socket that only its user can reach, or a port of this machine."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from repertory.errors import AddressInUse, ConfigurationError
from repertory.record.forks import abandon_in_forks

BACKLOG: Final = 1024  # connections that wait to be accepted: after a restart a thousand clients may return at once
_SOCKET_MASK: Final = 0o177  # leaves 0600
_CONNECT_TIMEOUT: Final = 1.0  # seconds to find out whether any process answers at a socket
_ANOTHER: Final = "choose another with --socket, or as socket in a company file"


class _ClosedInForks:
    """Closes a file in every child that is forked meanwhile: one that outlives this process must not keep its address.

    It does so for as long as it exists itself.
    """

    def __init__(self, opened: socket.socket | IO[bytes]) -> None:
        self.abandon = opened.close
        abandon_in_forks(self)


def default_socket() -> Path:
    """The default path of the service's socket: in the user's runtime folder."""
    import platformdirs

    with warnings.catch_warnings():
        # It warns when it falls back to a folder in /tmp; private_folder() checks that this one is ours.
        warnings.simplefilter("ignore")
        return Path(platformdirs.user_runtime_dir("repertory", appauthor=False)) / "ctl.sock"


def private_folder(folder: Path) -> Path:
    """Make a folder for this user alone, if it is not there, and check that nobody else can replace what is in it.

    Raises:
        ConfigurationError: It cannot be made, or another user owns, or may write to, it or a folder above it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        places = [(place, place.stat()) for place in (folder, *folder.parents)]
    except OSError as error:
        raise ConfigurationError(f"cannot use the folder {folder}: {error.strerror}") from error
    for place, status in places:
        shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if shared or status.st_uid not in (0, os.geteuid()):
            raise ConfigurationError(
                f"{place} can be changed by other users (owner {status.st_uid}, mode {status.st_mode & 0o7777:04o}), "
                f"so {folder} is not a safe place; {_ANOTHER}"
            )
    return folder


@contextmanager
def unix_listener(path: Path) -> Generator[socket.socket]:
    """Listen at a unix socket of mode 0600 until the end of the block.

    A lock beside it is held meanwhile, so that of two processes one gets the address and the other an error. A socket
    that a killed process left behind is removed, and so is our own at the end; another's never.

    Raises:
        AddressInUse: Another process listens there.
        ConfigurationError: The path is too long, is not a socket, or its folder is not safe.
    """
    path = private_folder(path.parent) / path.name
    with _lock(path):
        _remove_stale(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            _ours = _ClosedInForks(listener)
            before = os.umask(_SOCKET_MASK)
            try:
                listener.bind(str(path))
            except OSError as error:
                raise ConfigurationError(f"cannot listen at {path}: {error.strerror or error}") from error
            finally:
                os.umask(before)
            ours = _identity(path)
            try:
                listener.listen(BACKLOG)
                listener.setblocking(False)
                yield listener
            finally:
                if _identity(path) == ours:
                    path.unlink()


@contextmanager
def tcp_listener(port: int) -> Generator[socket.socket]:
    """Listen at a port of 127.0.0.1 until the end of the block; 0 lets the system choose one.

    Raises:
        AddressInUse: Another process listens there.
        ConfigurationError: The port cannot be used.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        _ours = _ClosedInForks(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    f"port {port} is taken; choose another with --port, or in the company file"
                ) from error
            raise ConfigurationError(f"cannot listen at port {port}: {error.strerror}") from error
        listener.setblocking(False)
        yield listener


def peer_is_allowed(connection: socket.socket) -> bool:
    """Whether the process at the other end of a unix socket is ours or root's. True for TCP, where a token decides."""
    if connection.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())


def hang_up(connection: socket.socket) -> None:
    """End a connection for both sides. Closing does not if a tool has forked a child, which has the socket, too."""
    number, family = connection.fileno(), connection.family
    # It may have ended already. A copy, because the sockets that uvloop shows have no shutdown.
    with suppress(OSError), socket.fromfd(number, family, socket.SOCK_STREAM) as copy:
        copy.shutdown(socket.SHUT_RDWR)


@contextmanager
def _lock(path: Path) -> Generator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        lock = os.fdopen(os.open(f"{path}.lock", flags, 0o600), "rb")
    except OSError as error:
        raise ConfigurationError(f"cannot lock {path}: {error.strerror}") from error
    with lock:  # the file stays: unlinking it would let two processes lock two files of one name
        _ours = _ClosedInForks(lock)  # before it is locked: a fork in between would keep the lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AddressInUse(f"another service listens at {path}; {_ANOTHER}") from None
        yield


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _remove_stale(path: Path) -> None:
    """Remove the socket of a process that is gone. The caller holds the lock."""
    is_used = is_listened_at(path)
    if is_used is None and os.path.lexists(path):
        raise ConfigurationError(f"{path} exists and is not a socket of this user; {_ANOTHER}")
    if is_used:
        raise AddressInUse(f"another program listens at {path}; {_ANOTHER}")
    path.unlink(missing_ok=True)


def is_listened_at(path: Path) -> bool | None:
    """Whether a process listens at a unix socket of this user, even if it is too busy to answer; None if it is none."""
    try:
        status = path.lstat()
    except OSError:  # there is nothing, or nothing that this user may look at
        return None
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):  # removed meanwhile, or left behind by a killed process
            return False
        except OSError:
            pass
    return True
