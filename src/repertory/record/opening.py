"""The one way to open a journal."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio.to_thread

from repertory._choices import check_choice
from repertory.errors import JournalUnreadable
from repertory.record.journal import Durability, Journal
from repertory.record.memory_journal import MemoryJournal
from repertory.record.ownership import FileLock
from repertory.record.redaction import Redactor
from repertory.record.sqlite_file import check_readable, explain, make_folder, open_to_write
from repertory.record.sqlite_journal import SqliteJournal
from repertory.record.sqlite_writer import SqliteWriter


@asynccontextmanager
async def open_journal(
    path: str | os.PathLike[str] | None = None,
    *,
    durability: Durability = "power",
    readonly: bool = False,
    close_timeout: float = 30.0,
    redact: Sequence[str] = (),
) -> AsyncGenerator[Journal, None]:
    """Open a journal, and close it at the end of the block.

    Args:
        path: The file; made where there is none, readable by this user alone, as is its folder. None or
            ``":memory:"`` keeps everything in this process: a ``MemoryJournal``.
        durability: What an acknowledged write survives: ``"power"`` the loss of power, ``"process"`` the death of
            the process (many times more appends a second on slow disks), ``"memory"`` nothing.
        readonly: Look only, while another process may own the file. Needs no lock, changes nothing.
        close_timeout: Seconds that closing may take to write what is queued.
        redact: Environment variables whose values, as they are now, are recorded as ``[redacted: NAME]``; see
            ``Redactor`` for the forms in which they are found.

    Raises:
        JournalLocked: Another process owns the file; the message names it.
        JournalUnreadable: Not a journal, damaged, or no permission.
        JournalWriteFailed: The disk does not make durable what the file holds already.
        JournalSchemaTooNew: A newer repertory wrote it.
        ConfigurationError: There is no such durability, or a value to redact is shorter than 8 characters.
    """
    check_choice("open_journal: durability", durability, Durability)
    redactor = Redactor(redact) if redact else None
    journal: MemoryJournal | SqliteJournal
    if path is None or os.fspath(path) == ":memory:":
        journal = MemoryJournal(redactor=redactor)
    else:
        journal = await anyio.to_thread.run_sync(_open, os.fspath(path), durability, readonly, close_timeout, redactor)
    try:
        yield journal
    finally:
        await journal.aclose()


def _open(
    path: str, durability: Durability, readonly: bool, close_timeout: float, redactor: Redactor | None
) -> SqliteJournal:
    path = os.path.realpath(path)  # whatever links and dots lead to a file, it has one name: two would be two locks
    _check_kind(path)
    if readonly:
        check_readable(path)
        return SqliteJournal(path, durability, writer=None, lock=None, close_timeout=close_timeout)
    make_folder(path)
    lock = FileLock(path)
    try:
        connection = open_to_write(path, durability)
        try:
            writer = SqliteWriter(connection, path)
        except sqlite3.Error as error:
            connection.close()
            raise explain(error, path, "open") from error
    except BaseException:
        lock.release()
        raise
    return SqliteJournal(path, durability, writer=writer, lock=lock, close_timeout=close_timeout, redactor=redactor)


def _check_kind(path: str) -> None:
    """Refuse what is there and is no file, before anything waits for a pipe or leaves a lock beside a device."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # not there, or out of reach: what opens it says so
        return
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise JournalUnreadable(f"{path} is {kinds.get(stat.S_IFMT(mode), 'a device')}; name a file in its place")
