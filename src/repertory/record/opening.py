"""``open_journal``, the one way to open a journal, wherever it is."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from threading import TIMEOUT_MAX
from typing import cast

import anyio.to_thread

from repertory._choices import check_choice, check_number, check_type, show
from repertory._postgres_address import Place, PostgresAddress, postgres_address
from repertory.errors import ConfigurationError
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
        path: The path of a file. A missing file is created; only this user can read it and its new folder. None or
            ``":memory:"`` keeps everything in this process, in a ``MemoryJournal``. ``postgresql://…`` is a database on
            a PostgreSQL server, in which missing tables are created: a ``PostgresJournal``.
        durability: What an acknowledged write survives: ``"power"`` survives a power failure, ``"process"`` the death
            of the process (many times more appends a second on slow disks), ``"memory"`` nothing.
        readonly: Open only for reading, while another process may own the file. Needs no lock and changes nothing.
        close_timeout: Seconds that closing may take to write what is queued.
        redact: Names of environment variables whose current values are recorded as ``[redacted: NAME]``; see
            ``Redactor`` for the forms in which they are found.

    Raises:
        JournalLocked: Another process owns the file; the message names it.
        JournalUnavailable: The database server does not answer.
        JournalUnreadable: It is not a journal, is damaged, or may not be read.
        JournalWriteFailed: The disk does not make durable what the file already holds.
        JournalSchemaTooNew: A newer repertory wrote it.
        ConfigurationError: An argument is invalid, a value to redact is shorter than 8 characters, or psycopg is not
            installed.
    """
    check_choice("open_journal: durability", durability, Durability)
    check_number("open_journal: close_timeout", close_timeout, int | float, least=0, most=TIMEOUT_MAX)
    _check_place(path)
    _check_redact(redact)
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


def _check_place(path: object) -> None:
    words = "a file's path, the address of a PostgreSQL server, or None"
    check_type("a journal's path", path, str | os.PathLike | PostgresAddress | None, words)
    if isinstance(path, str | os.PathLike):
        try:
            is_path = b"\0" not in os.fsencode(path)
        except UnicodeError:
            is_path = False
        if not is_path:
            raise ConfigurationError(f"a journal's path must be {words}, got {show(path)}")


def _check_redact(names: object) -> None:
    """Check for a list of names: each character of a single text would be taken for one, and nothing be redacted."""
    words = "a list of names of environment variables"
    check_type("redact", names, list | tuple | set | frozenset, words)
    for name in cast("Iterable[object]", names):
        if not isinstance(name, str) or not name.isprintable():
            raise ConfigurationError(f"redact must be {words}, got {show(name)}")


def is_owned(place: Place) -> bool:
    """Whether a running process has a journal open to write to it; blocks."""
    if isinstance(place, PostgresAddress):
        from repertory.record.postgres_journal import has_writer

        return has_writer(place)
    return sqlite_file.is_owned(place)
