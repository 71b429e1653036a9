"""Finding damage in an SQLite file, by SQLite's own checks and by the checksums and numbers of the records."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from typing import Final

from repertory.errors import JournalDamaged
from repertory.record.rows import TABLES, Table, lenient_text
from repertory.record.schema import CURRENT_STATES
from repertory.record.sqlite_file import ERRORS, explain, read_uri

_MOST: Final = 100  # findings of one kind; SQLite's own limit is the same


def find_damage(path: str, deep: bool) -> list[str]:
    """Find all damage in a file; see ``SqliteJournal.check``."""
    with contextlib.closing(sqlite3.connect(read_uri(path), uri=True, timeout=30.0)) as connection:
        connection.execute("PRAGMA query_only = 1")
        connection.text_factory = lenient_text
        found = _of_sqlite(connection, path, "integrity_check" if deep else "quick_check")
        if deep:
            for table in TABLES.values():
                found += itertools.islice(_of_table(connection, path, table), _MOST)
            found += _misplaced(connection, path)
            connection.execute("BEGIN")  # all tables are counted at one moment, as the owner may go on writing
            found += _missing(connection, path)
        return found


def _of_sqlite(connection: sqlite3.Connection, path: str, pragma: str) -> list[str]:
    try:
        found = [str(text) for (text,) in connection.execute(f"PRAGMA {pragma}")]
    except ERRORS as error:  # so damaged that SQLite cannot even list the damage
        return [str(explain(error, path, "read"))]
    return [] if found == ["ok"] else found


def _of_table(connection: sqlite3.Connection, path: str, table: Table) -> Iterator[str]:
    try:
        # In the order of the table itself, because an index may be damaged too.
        for row in connection.execute(f"{table.select_from()} ORDER BY t.seq"):
            try:
                table.read(row)
            except JournalDamaged as error:
                yield str(error)
    except ERRORS as error:
        yield str(explain(error, path, f"read {table.name} in"))


def _misplaced(connection: sqlite3.Connection, path: str) -> list[str]:
    """Check that the table of current states agrees with the records."""
    kept = "SELECT seq, root, state, changed FROM current_states"
    lacking = f"SELECT * FROM ({CURRENT_STATES} EXCEPT {kept})"
    sql = f"SELECT count(*) FROM ({lacking} UNION ALL SELECT * FROM ({kept} EXCEPT {CURRENT_STATES}))"
    try:
        (wrong,) = connection.execute(sql).fetchone()
    except ERRORS as error:
        return [str(explain(error, path, "compare the states of runs in"))]
    return [f"{wrong} rows of current_states are not what the records say"] if wrong else []


def _missing(connection: sqlite3.Connection, path: str) -> list[str]:
    """Find missing records: over all tables together, numbers have no gaps."""
    try:
        counts = [
            connection.execute(f"SELECT count(*), coalesce(max(seq), 0) FROM {table.name} NOT INDEXED").fetchone()
            for table in TABLES.values()
        ]
        # These two tables have no checksums, and a damaged number may be a text now.
        removed = (
            "SELECT coalesce(sum(CAST(records AS INTEGER)), 0), coalesce(max(CAST(newest AS INTEGER)), 0) FROM removals"
        )
        counts.append(connection.execute(removed).fetchone())
        moved = "SELECT coalesce(sum(CAST(records - upto AS INTEGER)), 0) FROM moved"  # numbers that have gaps
        (gaps,) = connection.execute(moved).fetchone()
    except ERRORS as error:
        return [str(explain(error, path, "count what is in"))]
    there, newest = sum(count for count, _ in counts), max(seq for _, seq in counts)  # removed records included
    written = newest + gaps
    return [] if there == written else [f"{written} records were written, and {there} are there"]
