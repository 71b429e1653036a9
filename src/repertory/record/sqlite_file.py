"""The journal's file: how it is opened, what an SQLite error means, and who owns it.

One process at a time owns it, but none of its forks, and only while the file is not replaced by another one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

from repertory.errors import (
    JournalClosed,
    JournalDamaged,
    JournalError,
    JournalLocked,
    JournalMissing,
    JournalUnreadable,
    JournalWriteFailed,
)
from repertory.record.forks import abandon_in_forks
from repertory.record.journal import Durability
from repertory.record.rows import UNREADABLE
from repertory.record.schema import check_current, migrate, schema_version

# In WAL mode FULL syncs at every commit, NORMAL only at checkpoints. NORMAL loses acknowledged commits in a power
# failure (in 958 of 1,500 simulated power cuts; FULL lost none), but none when only the process dies.
_SYNCHRONOUS: Final[dict[Durability, str]] = {"power": "FULL", "process": "NORMAL", "memory": "OFF"}
_BUSY_TIMEOUT: Final = 30.0  # seconds; only a foreign program can hold the file against the owner
_DISK_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_READONLY,
    }
)
_NO_ROOM: Final = sqlite3.SQLITE_IOERR_SHMSIZE  # for the index of the log, which whoever reads a file needs, too
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
ERRORS: Final = (sqlite3.Error, *UNREADABLE)
"""What reading or writing a file raises: errors of SQLite, and those of values that were damaged."""
_READERS_TIMEOUT: Final = 1000  # milliseconds to wait for readers when opening
_MOST_WORDS: Final = 10_000  # bytes of a lock file: two paths of the greatest length, and some room
_PIECE: Final = 2**20  # bytes of the log that are copied at a time
WAL_LIMIT: Final = 64 * 2**20  # bytes that the write-ahead log keeps on disk between checkpoints


def has_wal_reset_bug(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> bool:
    """Whether this SQLite version can damage a database that several connections write to; see sqlite.org/wal.html."""
    patched = {50: 7, 44: 6}.get(version[1]) if version[0] == 3 else None
    return version < (3, 51, 3) and (patched is None or version[2] < patched)


def _primary_code(error: BaseException) -> int:
    """SQLite's primary error code; 0 if the error is not from SQLite."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether another program holds the file."""
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_disk_error(error: BaseException) -> bool:
    """Whether the error is that of the disk: nobody could write the file."""
    return _primary_code(error) in _DISK_ERRORS


def explain(error: Exception, path: str, doing: str) -> JournalError:
    """Map one of ``ERRORS`` to the journal's error; the only place where this is done."""
    fact = f"cannot {doing} {path}: {error}"
    if not isinstance(error, sqlite3.Error):
        return JournalDamaged(fact)
    match _primary_code(error):
        case sqlite3.SQLITE_NOTADB:
            return JournalUnreadable(f"{fact}; choose another file")
        case sqlite3.SQLITE_CORRUPT:
            return JournalDamaged(f"{fact}; the file is damaged: restore it from a backup")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH | sqlite3.SQLITE_READONLY:
            return JournalUnreadable(f"{fact}; is it a file that you may read and write, in a folder that you may?")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return JournalLocked(f"{fact}; another program holds the file: end its transaction")
        case sqlite3.SQLITE_FULL:
            return JournalWriteFailed(f"{fact}; make room, then start again")
        case sqlite3.SQLITE_IOERR if doing == "write" or getattr(error, "sqlite_errorcode", 0) == _NO_ROOM:
            return JournalWriteFailed(f"{fact}; make room or repair the disk, then start again")
        case sqlite3.SQLITE_IOERR:
            return JournalUnreadable(f"{fact}; is it a file, on a disk that works and has room?")
        case _:
            return JournalUnreadable(fact)


def _refused(fact: str, error: OSError) -> JournalError:
    """The error about a file that cannot be made or locked. If the disk is full, nothing is wrong with the file."""
    if error.errno in _FULL:
        return JournalWriteFailed(f"{fact}; make room, then start again")
    return JournalUnreadable(fact)


@contextlib.contextmanager
def explained(path: str, doing: str) -> Generator[None]:
    """Raise the journal's error for one of ``ERRORS`` in the block."""
    try:
        yield
    except ERRORS as error:
        raise explain(error, path, doing) from error


def make_folder(path: str) -> None:
    """Create the folder for a journal, accessible to this user only, if it does not exist."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    except OSError as error:
        raise _refused(f"cannot make the folder of {path}: {error.strerror} ({error.filename})", error) from error


def open_to_write(path: str, durability: Durability) -> sqlite3.Connection:
    """Open the file as its owner, creating and migrating it as needed. The caller holds the ``FileLock``.

    Unless ``durability`` is ``"memory"``, everything that the file shows is durable when this returns.
    """
    try:
        # Created here so that nobody else can ever read it; the log files get the same mode. Only if there is no
        # file: see FileLock for why an existing file must not be opened.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not os.access(path, os.W_OK):
            raise JournalUnreadable(f"cannot write {path}: it is read-only; look at it with readonly=True") from None
    except OSError as error:
        raise _refused(f"cannot make {path}: {error.strerror}", error) from error
    connection = None
    try:
        connection = sqlite3.connect(
            path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, cached_statements=512
        )
        version = schema_version(connection, path)  # before any change: it may be somebody else's file
        if durability == "memory":
            connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
        if version == 0:
            # So that the space of removed runs can be returned a few pages at a time while the journal is in use.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise JournalUnreadable(f"{path} is on a file system without write-ahead logs; choose a local disk")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
        # What was removed is overwritten, not left in free pages: SQLite leaves this to how it was built.
        connection.execute("PRAGMA secure_delete = ON")
        if version == 0:
            _sync_names(path, upwards=True)  # with "memory" too: a later opening does not sync the folders again
        if durability == "memory":
            migrate(connection, path)
        else:
            _sync_log(connection, path)
            migrate(connection, path)
            _sync_file(connection, path)
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
    except BaseException as error:
        _close_without_checkpoint(connection, path)
        if isinstance(error, OSError):
            raise JournalWriteFailed(
                f"cannot make durable what is in {path}: {error.strerror}; make room or repair the disk, then open it "
                "again"
            ) from error
        if isinstance(error, ERRORS):
            raise explain(error, path, "open") from error
        raise
    return connection


def _sync_log(connection: sqlite3.Connection, path: str) -> None:
    """Make durable what the write-ahead log shows, before anything is built on it.

    A process that was killed, or whose sync failed, leaves commits in the system's memory that may not be on the
    disk. A power failure would then lose acknowledged appends after them, as reading a log ends at its first hole.
    A sync alone does not help, since Linux considers a page clean once its sync has failed. So the log is overwritten
    with its own contents. A checkpoint may only come afterwards: it could move half of such a commit into the file.
    """
    connection.execute("BEGIN IMMEDIATE")  # for its lock: until it ends, no other program writes to the log
    try:
        # Unlike on the file itself (see FileLock), SQLite has no locks on the log that closing it would drop.
        descriptor = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC)
        try:
            start = 0
            while piece := os.pread(descriptor, _PIECE, start):
                start += os.pwrite(descriptor, piece, start)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_names(path, upwards=False)
    finally:
        connection.execute("ROLLBACK")


def _sync_names(path: str, *, upwards: bool) -> None:
    """Make the names of the journal's files durable; with ``upwards`` also those of the folders above them."""
    folder = os.path.dirname(path)
    while True:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:  # a folder that this user may not list was not made by this user
            return
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EROFS):  # a file system that cannot, or need not, sync folders
                raise
        finally:
            os.close(descriptor)
        if not upwards or os.path.ismount(folder):
            return
        folder = os.path.dirname(folder)


def _sync_file(connection: sqlite3.Connection, path: str) -> None:
    """Make durable what is in the file itself, for instance after it was open with durability ``"memory"``."""
    # A checkpoint syncs the file only if it moves anything into it, so there must be something to move.
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")
    connection.execute(f"PRAGMA busy_timeout = {_READERS_TIMEOUT:.0f}")
    (blocked, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if blocked:
        # A reader at this moment can prevent the checkpoint from emptying the log, or from moving anything, and so the
        # file from being synced. The descriptor stays open until this process ends: see FileLock.
        os.fsync(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT * 1000:.0f}")


def _close_without_checkpoint(connection: sqlite3.Connection | None, path: str) -> None:
    """Close a connection that could not be made ready, and leave the log as it is."""
    if connection is None:
        return
    with contextlib.ExitStack() as stack:
        # The last connection to close makes a checkpoint, which must not come before _sync_log. So another one,
        # which is read-only, is closed after it.
        with contextlib.suppress(*ERRORS):
            guard = stack.enter_context(contextlib.closing(sqlite3.connect(read_uri(path), uri=True)))
            guard.execute("SELECT count(*) FROM sqlite_master").fetchone()
        connection.close()


def _check_kind(path: str) -> int:
    """Refuse a path to something other than a file, before anything waits for a pipe or leaves a lock by a device.

    Returns how many names (hard links) the file has.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # missing or out of reach: opening it will say so
        return 0
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(status.st_mode), "a device")
        raise JournalUnreadable(f"{path} is {kind}; name a file in its place")
    return status.st_nlink


def check_readable(path: str) -> None:
    """Check that a journal can be read, without owning or changing it.

    Raises:
        JournalUnreadable: No file, no permission, not a journal, damaged, or of an older schema.
        JournalSchemaTooNew: A newer repertory wrote it.
    """
    _check_kind(path)
    if not os.path.exists(path):
        raise JournalMissing(f"there is no journal at {path}")
    with explained(path, "read"), open_to_read(path) as connection:
        check_current(schema_version(connection, path), path)


@contextlib.contextmanager
def open_to_read(path: str) -> Generator[sqlite3.Connection]:
    """Open a file for reading only, in this thread."""
    with contextlib.closing(sqlite3.connect(read_uri(path), uri=True, timeout=_BUSY_TIMEOUT)) as connection:
        connection.execute("PRAGMA query_only = 1")
        yield connection


def file_space(connection: sqlite3.Connection) -> tuple[int, int]:
    """The size in bytes of a connection's file, and how many of these bytes are unused."""
    found: list[int] = [
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    ]
    page, pages, free = found
    return pages * page, free * page


def read_uri(path: str) -> str:
    """The URI with which SQLite opens a file read-only."""
    # To read a file that has no log, SQLite makes one. Where it may not, and so nobody else has one either, the file
    # alone is read.
    alone = not os.path.exists(f"{path}-wal") and not os.access(os.path.dirname(path), os.W_OK)
    return f"{Path(path).as_uri()}?mode=ro{'&immutable=1' if alone else ''}"


# --- owning -----------------------------------------------------------------------------------------------


class FileLock:
    """The right to write a journal, held by one process until it ends, however it ends.

    It is a lock on ``<path>.lock``, not on the journal: closing any descriptor of a file drops all POSIX locks
    of the process on it, including SQLite's own. So nothing in the owning process may open the journal's file
    except through SQLite, not even to look at it. The lock file is never deleted: that would let two processes lock
    two files of the same name.
    """

    def __init__(self, path: str) -> None:
        """Take the lock.

        Raises:
            JournalLocked: Another process, or another journal in this one, owns the file.
            JournalUnreadable: The path is not that of a file, the file has other names too or is missing beside its
                log, or the lock file is a link or cannot be created or written.
        """
        if (names := _check_kind(path)) > 1:
            raise JournalUnreadable(
                f"{path} has {names} names (hard links), and under each it would have an owner and a log of its own; "
                "remove the others, or copy it (cp) and name the copy"
            )
        log = f"{path}-wal"
        if not names and os.path.isfile(log) and os.path.getsize(log):  # SQLite would remove it beside a new file
            raise JournalUnreadable(
                f"{path} is not there, but {log} is, and may have records of it; put the file back beside its log, or "
                "remove the log"
            )
        lock_path = f"{path}.lock"
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _refused(f"cannot lock {path}: {error.strerror} ({lock_path})", error) from error
        self._descriptor: int | None = descriptor
        abandon_in_forks(self)  # before it is locked: a fork in between would keep the lock
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).partition(b"\n")[0].decode("ascii", "replace").strip()
            self.release()
            whose = "this process" if owner == str(os.getpid()) else f"process {owner}" if owner else "a new process"
            raise JournalLocked(
                f"{path} is owned by {whose}; close it there, or look at it with readonly=True",
                path=path,
                owner=int(owner) if owner.isdigit() else 0,
            ) from None
        except OSError as error:  # a full disk, say
            self.release()
            raise _refused(f"cannot lock {path}: {error.strerror} ({lock_path})", error) from error

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def abandon(self) -> None:
        """In a forked child: the lock belongs to the open file, which parent and child share, so only close it."""
        self.release()


def is_owned(path: str | os.PathLike[str]) -> bool:
    """Whether a running process may write to a journal, that is, holds the lock on its lock file."""
    try:
        with open(f"{os.path.realpath(path)}.lock", "rb") as lock:
            # The lock is tried only if the owner seems alive, so that this never blocks a process that is opening it.
            with contextlib.suppress(PermissionError):  # alive, and owned by another user
                os.kill(int(lock.readline(32)), 0)
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, ValueError):  # no lock file, not ours to read, or nobody's
        pass
    return False


class Owner(NamedTuple):
    """The owner of a journal.

    Attributes:
        pid: The process id; 0 if it has not been written yet.
        words: The line that it has left for others; b"" if there is none, or if somebody else may have written it.
    """

    pid: int
    words: bytes


def announce(path: str | os.PathLike[str], words: bytes) -> None:
    """Leave a line for other processes in the lock file of a journal that this process owns; valid while it is locked.

    Raises:
        JournalClosed: This process does not own the journal any more.
    """
    # The lock belongs to its own descriptor: closing another one of the same file does not release it.
    with open(f"{os.path.realpath(path)}.lock", "r+b", buffering=0) as lock:
        first = b"%d\n" % os.getpid()
        if lock.read(len(first)) != first:
            raise JournalClosed(f"{path} is not owned by this process any more")
        lock.write(words + b"\n")
        lock.truncate()  # a longer line may have been left before


def owner_of(path: str | os.PathLike[str]) -> Owner | None:
    """The running process that owns a journal; None if there is none.

    The held lock proves that the process is running, so a leftover file or a reused process id does no harm.
    """
    if not is_owned(path):
        return None
    with contextlib.suppress(OSError), open(f"{os.path.realpath(path)}.lock", "rb") as lock:
        status = os.fstat(lock.fileno())
        pid, _, words = lock.read(_MOST_WORDS).partition(b"\n")
        ours = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        return Owner(int(pid) if pid.isdigit() else 0, words.strip() if ours else b"")
    return None
