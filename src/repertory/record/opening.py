"""The one way to open a journal, wherever it is."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio.to_thread

from repertory._choices import check_choice
from repertory._postgres_address import Place, PostgresAddress, postgres_address
from repertory.record import sqlite_file
from repertory.record.journal import Durability, Journal
from repertory.record.redaction import Redactor
from repertory.record.sqlite_journal import MemoryJournal, open_file


@asynccontextmanager
async def open_journal(
    path: Place | None = None,
    *,
    durability: Durability = "power",
    readonly: bool = False,
    close_timeout: float = 30.0,
    redact: Sequence[str] = (),
) -> AsyncGenerator[Journal, None]:
    """Open a journal, and close it at the end of the block.

    Args:
        path: The file; made where there is none, readable by this user alone, as is its folder. None or
            ``":memory:"`` keeps everything in this process: a ``MemoryJournal``. ``postgresql://…`` is a database of a
            PostgreSQL server, whose tables are made where there are none: a ``PostgresJournal``.
        durability: What an acknowledged write survives: ``"power"`` the loss of power, ``"process"`` the death of
            the process (many times more appends a second on slow disks), ``"memory"`` nothing.
        readonly: Look only, while another process may own the file. Needs no lock, changes nothing.
        close_timeout: Seconds that closing may take to write what is queued.
        redact: Environment variables whose values, as they are now, are recorded as ``[redacted: NAME]``; see
            ``Redactor`` for the forms in which they are found.

    Raises:
        JournalLocked: Another process owns the file; the message names it.
        JournalUnreadable: Not a journal, damaged, or no permission; or the server cannot be reached.
        JournalWriteFailed: The disk does not make durable what the file holds already.
        JournalSchemaTooNew: A newer repertory wrote it.
        ConfigurationError: There is no such durability, or a value to redact is shorter than 8 characters; or psycopg
            is not installed.
    """
    check_choice("open_journal: durability", durability, Durability)
    redactor = Redactor(redact) if redact else None
    journal: Journal
    if isinstance(path, str):
        path = postgres_address(path) or path
    if isinstance(path, PostgresAddress):
        from repertory.record.postgres_journal import open_postgres

        journal = await anyio.to_thread.run_sync(open_postgres, path, durability, readonly, close_timeout, redactor)
    elif path is None or os.fspath(path) == ":memory:":
        journal = MemoryJournal(redactor=redactor)
    else:
        journal = await anyio.to_thread.run_sync(
            open_file, os.fspath(path), durability, readonly, close_timeout, redactor
        )
    try:
        yield journal
    finally:
        await journal.aclose()


def is_owned(place: Place) -> bool:
    """Whether a living process may write to a journal; blocks."""
    if isinstance(place, PostgresAddress):
        from repertory.record.postgres_journal import has_writer

        return has_writer(place)
    return sqlite_file.is_owned(place)
