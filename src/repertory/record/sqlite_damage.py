"""Finding damage in an SQLite file, by SQLite's own checks and by the checksums and numbers of the records."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from repertory._counting import counted
from repertory.errors import JournalDamaged
from repertory.record.rows import TABLES, Table, lenient_text
from repertory.record.schema import CURRENT_STATES
from repertory.record.sqlite_file import ERRORS, explain, explained, open_to_read

_MOST: Final = 100  # findings of one kind; SQLite's own limit is the same


def find_damage(path: str, deep: bool) -> list[str]:
    """Find all damage in a file; see ``SqliteJournal.check``."""
    with explained(path, "read"), open_to_read(path) as connection:
        connection.text_factory = lenient_text
        found = _whole(path, "read", _of_sqlite(connection, "integrity_check" if deep else "quick_check"))
        if deep:
            for table in TABLES.values():
                found += _whole(path, f"read {table.name} in", itertools.islice(_of_table(connection, table), _MOST))
            found += _whole(path, "compare the states of runs in", _misplaced(connection))
            found += _whole(path, "count what is in", _missing(connection))
        return found


def _whole(path: str, doing: str, findings: Iterable[str]) -> list[str]:
    """All findings of a check; also if the file is so damaged that SQLite cannot even list the damage."""
    found: list[str] = []
    try:
        found.extend(findings)
    except ERRORS as error:
        found.append(str(explain(error, path, doing)))
    return found


def _of_sqlite(connection: sqlite3.Connection, pragma: str) -> Iterator[str]:
    for (text,) in connection.execute(f"PRAGMA {pragma}"):
        if text != "ok":
            yield str(text)


def _of_table(connection: sqlite3.Connection, table: Table) -> Iterator[str]:
    # In the order of the table itself, because an index may be damaged too.
    for row in connection.execute(f"{table.select_from()} ORDER BY t.seq"):
        try:
            table.read(row)
        except JournalDamaged as error:
            yield str(error)


def _misplaced(connection: sqlite3.Connection) -> Iterator[str]:
    """Check that the table of current states agrees with the records."""
    kept = "SELECT seq, root, state, changed FROM current_states"
    lacking = f"SELECT * FROM ({CURRENT_STATES} EXCEPT {kept})"
    sql = f"SELECT count(*) FROM ({lacking} UNION ALL SELECT * FROM ({kept} EXCEPT {CURRENT_STATES}))"
    (wrong,) = connection.execute(sql).fetchone()
    if wrong:
        yield f"current_states has {counted(wrong, 'row')} that the records contradict"


def _missing(connection: sqlite3.Connection) -> Iterator[str]:
    """Find missing records: over all tables together, numbers have no gaps."""
    connection.execute("BEGIN")  # all tables are counted at one moment, as the owner may go on writing
    there, newest = count_records(connection)
    # These two tables have no checksums, and a damaged number may be a text now.
    removed = (
        "SELECT coalesce(sum(CAST(records AS INTEGER)), 0), coalesce(max(CAST(newest AS INTEGER)), 0) FROM removals"
    )
    gone, newest_gone = connection.execute(removed).fetchone()
    moved = "SELECT coalesce(sum(CAST(records - upto AS INTEGER)), 0) FROM moved"  # numbers that have gaps
    (gaps,) = connection.execute(moved).fetchone()
    written = max(newest, newest_gone) + gaps
    if there + gone != written:
        yield f"{there + gone} of {counted(written, 'record')} that were written are there"


def count_records(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many records a file has, and the number of the newest; 0 if there is none."""
    counts = [
        connection.execute(f"SELECT count(*), coalesce(max(seq), 0) FROM {table.name} NOT INDEXED").fetchone()
        for table in TABLES.values()
    ]
    return sum(count for count, _ in counts), max(seq for _, seq in counts)
