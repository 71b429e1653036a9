"""Who owns the journal's file: one process at a time, none of its forks, and only while it is the same file."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import weakref
from typing import Final, Protocol

from repertory.errors import JournalClosed, JournalLocked, JournalUnreadable, JournalWriteFailed


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
            JournalUnreadable: The lock file cannot be made or written.
        """
        lock_path = f"{path}.lock"
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalUnreadable(f"cannot lock {path}: {error.strerror} ({lock_path})") from error
        self._descriptor: int | None = descriptor
        leave_behind_in_forks(self)  # before it is locked: a fork in between would keep the lock
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            self.release()
            whose = "this process" if owner == str(os.getpid()) else f"process {owner or '(starting)'}"
            raise JournalLocked(
                f"{path} is owned by {whose}; close it there, or look at it with readonly=True",
                path=path,
                owner=int(owner) if owner.isdigit() else 0,
            ) from None
        except OSError as error:  # a full disk, say
            self.release()
            raise JournalUnreadable(f"cannot lock {path}: {error.strerror} ({lock_path})") from error

    def release(self) -> None:
        """Give the right up. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def abandon(self) -> None:
        """In a fork: the lock belongs to the open file, which parent and child share, so only close it."""
        self.release()


def is_owned(path: str | os.PathLike[str]) -> bool:
    """Whether a living process may write to a journal: it holds the lock on the file beside it."""
    try:
        with open(f"{os.path.realpath(path)}.lock", "rb") as lock:
            # Only where the owner seems alive is the lock tried, so that looking never gets in an opener's way.
            with contextlib.suppress(PermissionError):  # alive, and another user's
                os.kill(int(lock.read(32)), 0)
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, ValueError):  # no lock file, not ours to read, or nobody's
        pass
    return False


class OpenedFile:
    """Which file and which log the owner has open, to notice that they are not what stands there any more."""

    def __init__(self, path: str) -> None:
        """Remember what stands there now."""
        self._path = path
        self._log = f"{path}-wal"
        self._seen = self._look()

    def _look(self) -> tuple[int, ...]:
        # Looking at names opens nothing; see FileLock for why that matters.
        file, log = os.stat(self._path), os.stat(self._log)
        return file.st_dev, file.st_ino, log.st_dev, log.st_ino

    def check(self) -> None:
        """See whether it is still there.

        Raises:
            JournalWriteFailed: It was deleted, moved or replaced. What was written since is in a file without a name.
        """
        try:
            if self._look() == self._seen:
                return
        except OSError:
            fact = "was deleted or moved"
        else:
            fact = "was replaced by another file"
        raise JournalWriteFailed(
            f"{self._path} (or {self._log}) {fact} while it was open; leave the files of a journal alone while a "
            "process owns it, and start again"
        )


# --- forks ------------------------------------------------------------------------------------------------


class Forkable(Protocol):
    """What must not be used in a forked child."""

    def abandon(self) -> None:
        """Become unusable, in the child, without touching what the parent goes on using."""
        ...


_forkables: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()
_hooked: Final[list[bool]] = []


def leave_behind_in_forks(one: Forkable) -> None:
    """Have something abandoned in every child that this process forks from now on."""
    if not _hooked:
        _hooked.append(True)
        os.register_at_fork(after_in_child=_abandon_all)
    _forkables.add(one)


def _abandon_all() -> None:
    for one in list(_forkables):
        one.abandon()


def keep_for_ever(thing: object) -> None:
    """Never let Python free something.

    A forked child must not even close an SQLite connection of its parent: it would take back the parent's running
    transaction, in memory that both share.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def in_a_fork(path: str) -> JournalClosed:
    """The error of every use of a journal in a forked child."""
    return JournalClosed(
        f"{path} belongs to the process that this one was forked from; open it here with readonly=True, or start "
        "processes by spawning them"
    )
