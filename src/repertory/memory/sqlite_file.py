"""The journal's file: who owns it, how it is opened, and what an SQLite error means."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import Final

from repertory.errors import (
    JournalError,
    JournalLocked,
    JournalReadOnly,
    JournalUnreadable,
    JournalWriteFailed,
)
from repertory.memory.journal import Durability
from repertory.memory.sqlite_schema import OLDEST_READABLE, migrate, schema_version

# In WAL mode FULL syncs at every commit; NORMAL only at checkpoints, which loses acknowledged commits with the
# power (958 of 1,500 simulated power cuts, where FULL lost none) but none with the process.
_SYNCHRONOUS: Final[dict[Durability, str]] = {"power": "FULL", "process": "NORMAL", "memory": "OFF"}
_BUSY_TIMEOUT: Final = 30.0  # seconds; only a foreign program can hold the file against the owner
_WAL_LIMIT: Final = 64 * 2**20  # bytes that the write-ahead log keeps on disk between checkpoints


class FileLock:
    """The right to write a journal, held by one process until it ends, however it ends.

    It is a lock on ``<path>.lock``, not on the journal: closing any descriptor of a file drops all POSIX locks
    of the process on it, SQLite's own among them. So nothing in the owning process may open the journal's file
    other than through SQLite, not even to look at it. The lock file stays behind; unlinking it would let two
    processes lock two files of one name.
    """

    def __init__(self, path: str) -> None:
        """Take the lock.

        Raises:
            JournalLocked: Another process, or another journal in this one, owns the file.
            JournalUnreadable: The lock file cannot be made.
        """
        lock_path = f"{path}.lock"
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalUnreadable(f"cannot lock {path}: {error.strerror} ({lock_path})") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            whose = "this process" if owner == str(os.getpid()) else f"process {owner or '(starting)'}"
            raise JournalLocked(
                f"{path} is owned by {whose}; close it there, or look at it with readonly=True"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Give the right up. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def explain(error: sqlite3.Error, path: str, doing: str) -> JournalError:
    """Say what an SQLite error means for the journal; the one place where they are mapped."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the primary code, without its detail
    fact = f"cannot {doing} {path}: {error}"
    match code:
        case sqlite3.SQLITE_NOTADB:
            return JournalUnreadable(f"{fact}; choose another file")
        case sqlite3.SQLITE_CORRUPT:
            return JournalUnreadable(f"{fact}; the file is damaged: restore it from a backup")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH | sqlite3.SQLITE_READONLY:
            return JournalUnreadable(f"{fact}; is it a file that you may read and write, in a folder that you may?")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return JournalLocked(f"{fact}; another program holds the file: end its transaction")
        case sqlite3.SQLITE_FULL:
            return JournalWriteFailed(f"{fact}; make room, then start again")
        case sqlite3.SQLITE_IOERR:
            return JournalUnreadable(f"{fact}; is it a file, on a disk that works?")
        case _:
            return JournalUnreadable(fact)


def make_folder(path: str) -> None:
    """Make the folder that a journal is to stand in, for this user alone, if there is none."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    except OSError as error:
        raise JournalUnreadable(f"cannot make the folder of {path}: {error.strerror} ({error.filename})") from error


def open_to_write(path: str, durability: Durability) -> sqlite3.Connection:
    """Open the file as its owner, making and migrating it as needed. The caller holds the ``FileLock``."""
    try:
        # Made here so that nobody else can read it from its first byte on; the log files take its mode. Only
        # where there was none: see FileLock for why an existing file must not be opened.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise JournalUnreadable(f"cannot make {path}: {error.strerror}") from error
    connection = None
    try:
        connection = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=512
        )
        schema_version(connection, path)  # before anything is changed: it may be somebody else's
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise JournalUnreadable(f"{path} is on a file system without write-ahead logs; choose a local disk")
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
        migrate(connection, path)
    except sqlite3.Error as error:
        _close(connection)
        raise explain(error, path, "open") from error
    except JournalError:
        _close(connection)
        raise
    return connection


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        connection.close()


def check_readable(path: str) -> None:
    """Prove that a journal can be read, without becoming its owner and without changing it.

    Raises:
        JournalUnreadable: No file, no permission, not a journal, damaged, or of an older schema.
        JournalSchemaTooNew: A newer repertory wrote it.
    """
    if not os.path.exists(path):
        raise JournalUnreadable(f"there is no journal at {path}")
    connection = None
    try:
        connection = sqlite3.connect(read_uri(path), uri=True, timeout=_BUSY_TIMEOUT)
        connection.execute("PRAGMA query_only = 1")
        version = schema_version(connection, path)
        if version < OLDEST_READABLE:
            raise JournalUnreadable(
                f"{path} has schema {version or 'none'} and {OLDEST_READABLE} is expected; "
                "open it once to write, which brings it up to date"
            )
    except sqlite3.Error as error:
        raise explain(error, path, "read") from error
    finally:
        _close(connection)


def read_uri(path: str) -> str:
    """The address under which SQLite opens a file without the right to write it."""
    return f"{Path(path).as_uri()}?mode=ro"


def not_writable(path: str) -> JournalReadOnly:
    """The error of every write to a journal that was opened to look only."""
    return JournalReadOnly(f"{path} was opened with readonly=True; open it without to write")
