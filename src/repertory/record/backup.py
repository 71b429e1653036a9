"""Copies of a journal's file: made while a process may be writing to it, and read back before they are kept.

A copy is a snapshot: SQLite lets a reader see the file as it was when the reader began, however long it takes and
whoever writes meanwhile. So the writer need not cooperate, and nobody waits.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from repertory.errors import ConfigurationError, JournalDamaged, JournalMissing, JournalWriteFailed
from repertory.record.sqlite_damage import count_records, find_damage
from repertory.record.sqlite_file import (
    FileLock,
    check_readable,
    explained,
    file_space,
    open_to_read,
    open_to_write,
)

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of bytes copied and the number of all bytes."""

_PAGES: Final = 2048  # copied between two reports of the progress: 8 MiB


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """A copy that was read back completely."""

    path: str
    size: int  # in bytes
    records: int  # how many it has
    seq: int  # the number of the newest


def back_up(source: Path, target: Path, *, progress: Progress = lambda _done, _all: None) -> Copied:
    """Copy a journal's file, also while a process owns it. The copy is one file with mode 0600.

    Raises:
        ConfigurationError: ``target`` exists, or it cannot be created.
        JournalUnreadable: ``source`` is not a journal.
        JournalDamaged: ``source``, and so its copy, is damaged; no ``target`` is left then.
        JournalWriteFailed: The copy cannot be written to the disk.
    """
    check_readable(os.path.realpath(source))
    _check_free(target)
    with _temporary_file(target) as part:
        with explained(str(part), "write"):
            _copy_pages(os.path.realpath(source), str(part), progress)
        _refuse_damage(os.path.realpath(part), source, deep=True)
        with open_to_read(os.path.realpath(part)) as connection:
            records, seq = count_records(connection)
        size = part.stat().st_size
        _sync(part)
        try:
            os.link(part, target)  # unlike renaming, this never replaces another file
        except FileExistsError:
            raise ConfigurationError(f"{target} is there by now; nothing is written over") from None
        except OSError:  # a file system without links
            os.rename(part, target)
    # Only now, when the copy has one name: a journal with two is not opened to write.
    _sync(target.absolute().parent)
    return Copied(path=str(target), size=size, records=records, seq=seq)


def restore(source: Path, target: Path, *, progress: Progress = lambda _done, _all: None) -> Copied:
    """Make a journal from a backup, at a path where there is none yet. It appears there only after it was read whole.

    Raises:
        ConfigurationError: ``target`` exists: nothing is ever overwritten.
        JournalLocked: A process is about to create a journal with that name.
        JournalUnreadable, JournalDamaged, JournalWriteFailed: As ``back_up``.
    """
    check_readable(os.path.realpath(source))  # before the lock leaves a file beside the target
    _check_free(target)
    lock = FileLock(os.path.realpath(target))  # so that nobody creates it meanwhile
    try:
        return back_up(source, target, progress=progress)
    finally:
        lock.release()


def _check_free(target: Path) -> None:
    # From a log of either kind beside it, SQLite would put another file's pages into the copy.
    for name in (str(target), f"{target}-wal", f"{target}-journal"):
        if os.path.lexists(name):
            raise ConfigurationError(f"{name} is there already, and nothing is written over; name another file")


def _refuse_damage(path: str, named: Path, *, deep: bool) -> None:
    damage = find_damage(path, deep)
    if damage:
        raise JournalDamaged(f"{named} is damaged: {'; '.join(damage[:5])}")


def _copy_pages(source: str, target: str, progress: Progress) -> None:
    with (
        open_to_read(source) as reading,
        closing(sqlite3.connect(target, isolation_level=None)) as writing,
    ):
        # One snapshot from the first page to the last. Without it, each write of another process restarts the copy.
        reading.execute("BEGIN")
        (pages,) = reading.execute("PRAGMA page_count").fetchone()
        (page,) = reading.execute("PRAGMA page_size").fetchone()
        reading.execute("SELECT count(*) FROM sqlite_master").fetchone()
        _check_room(target, pages * page)

        def step(_status: int, remaining: int, total: int) -> None:
            progress((total - remaining) * page, total * page)

        reading.backup(writing, pages=_PAGES, progress=step)
        # One file, which can be read anywhere; opening it for writing gives it a write-ahead log again.
        writing.execute("PRAGMA journal_mode = DELETE").fetchone()


def _check_room(path: str, size: int) -> None:
    status = os.statvfs(os.path.dirname(os.path.abspath(path)))
    free = status.f_bavail * status.f_frsize
    if free < size:
        raise JournalWriteFailed(
            f"there is no room for {path}: it takes {size // 2**20:,} MiB, and {free // 2**20:,} MiB are free"
        )


@contextmanager
def _temporary_file(target: Path) -> Generator[Path]:
    """A temporary file in the folder of another file."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigurationError(f"cannot write into {part.parent}: {error.strerror}") from error
    try:
        yield part
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with suppress(FileNotFoundError):
                os.unlink(f"{part}{suffix}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise JournalWriteFailed(f"the disk did not take {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


# --- giving space back ------------------------------------------------------------------------------------


def vacuum_file(path: Path) -> tuple[int, int]:
    """Rewrite a journal's file without its unused space, while no process owns it.

    Returns:
        Its size in bytes before and after.

    Raises:
        JournalLocked: A process owns it.
        JournalDamaged: It is damaged, and to rewrite it would damage more; it is left as it is.
        JournalWriteFailed: There is not enough room: it needs as much again while it runs.
    """
    real = os.path.realpath(path)
    if not os.path.exists(real):
        raise JournalMissing(f"there is no journal at {path}")
    lock = FileLock(real)
    try:
        connection = open_to_write(real, "power")
        with closing(connection):
            before, free = file_space(connection)
            _check_room(real, before - free)
            _refuse_damage(real, path, deep=False)
            with explained(real, "write"):
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # for a file that was made without it
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                return before, file_space(connection)[0]
    finally:
        lock.release()
