"""A connection in a transaction, for work on many records at once: indexing, removing and moving them."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final

from repertory.errors import JournalDamaged
from repertory.record.rows import NO_LIMIT, Row, Value, encode_json, lenient_text
from repertory.record.search import IndexRow, SearchIndex


class Tables:
    """A connection to SQLite; other engines have subclasses. The SQL is SQLite's."""

    for_update = ""  # put after a SELECT of rows that are changed next

    def __init__(self, connection: Any) -> None:
        """Use a connection that is in a transaction."""
        self._connection = connection
        if isinstance(connection, sqlite3.Connection):
            connection.text_factory = lenient_text

    def _execute(self, sql: str, values: Sequence[Value]) -> Any:
        return self._connection.execute(sql, values)

    def query(self, sql: str, *values: Value) -> list[Sequence[Any]]:
        """Query rows."""
        return [*self._execute(sql, values)]

    def stream(self, sql: str, *values: Value, at_once: int) -> Generator[Row]:
        """Query rows, of which at most ``at_once`` are in memory."""
        cursor = self._connection.execute(sql, values)
        while rows := cursor.fetchmany(at_once):
            yield from rows

    def execute(self, sql: str, *values: Value) -> int:
        """Change rows; return how many."""
        return int(self._execute(sql, values).rowcount)

    def fill(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Write rows into a table."""
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def lock_run(self, run_id: str) -> None:
        """Prevent others from removing or continuing a run until the end of the transaction.

        For a file there is nothing to do: it has one owner, which does one thing after the other.

        Raises:
            RunError: Another machine is continuing the run.
        """

    def forget_commands(self, run_id: str) -> None:
        """Delete what machines have asked of a tree of runs, once it is answered; a file has no other machines."""

    def complete_below(self) -> int:
        """The number below which nothing can be written any more; above all numbers if nobody else writes."""
        return NO_LIMIT

    def number_above(self, newest: int) -> None:
        """Number later records above a number; in a file they are always numbered above the existing ones."""

    def index(self, index: SearchIndex, rows: Iterable[IndexRow]) -> None:
        """Add the words of records to an index."""
        names, marks = ", ".join(index.columns), ", ?" * len(index.columns)
        sql = f"INSERT INTO {index.name} (rowid, {names}) VALUES (?{marks})"
        self._connection.executemany(sql, ((row.place, *row.labels, row.words) for row in rows))

    def unindex(self, index: SearchIndex, numbers: Sequence[int]) -> None:
        """Remove the words of records that are about to be deleted. The index has no text, so it must be given them."""
        names, marks = ", ".join(index.columns), ", ?" * len(index.columns)
        ((indexed,),) = self.query(f"SELECT {index.progress} FROM search_progress")
        which = "WHERE t.seq IN (SELECT value FROM json_each(?))"
        wanted = encode_json([number for number in numbers if number <= indexed])
        for row in self.query(f"{index.table.select_from()} {which}", wanted):
            if (found := _index_row(index, row)) is not None:
                sql = f"INSERT INTO {index.name} ({index.name}, rowid, {names}) VALUES ('delete', ?{marks})"
                self.execute(sql, found.place, *found.labels, found.words)


_SLICE: Final = 256  # records whose words one transaction indexes
_SLICE_CHARACTERS: Final = 500_000  # characters that it indexes, so that appends never wait long for a search
_AT_ONCE: Final = 16  # records that are read at a time, as each may be large


def index_slice(tables: Tables, index: SearchIndex) -> tuple[int, int]:
    """Index the words of the next records that are not indexed yet.

    Returns:
        The last ``seq`` that is now indexed, and the last ``seq`` that has a record and may be indexed.
    """
    ((indexed,),) = tables.query(f"SELECT {index.progress} FROM search_progress{tables.for_update}")
    below = tables.complete_below()
    ((last,),) = tables.query(f"SELECT coalesce(max(seq), 0) FROM {index.table.name} WHERE seq < ?", below)
    sql = f"{index.table.select_from()} WHERE t.seq > ? AND t.seq < ? ORDER BY t.seq LIMIT {_SLICE}"
    found: list[IndexRow] = []
    characters = 0
    rows = tables.stream(sql, indexed, below, at_once=_AT_ONCE)
    start = indexed
    for row in rows:
        indexed = int(row[0] or 0)
        if (made := _index_row(index, row)) is not None:
            found.append(made)
            characters += len(made.words)
            if characters > _SLICE_CHARACTERS:
                break
    rows.close()
    if indexed == start:  # also if a damaged table has a last record that is not found
        indexed = max(indexed, int(last))
    tables.index(index, found)
    tables.execute(f"UPDATE search_progress SET {index.progress} = ?", indexed)
    return indexed, int(last)


def _index_row(index: SearchIndex, row: Sequence[Any]) -> IndexRow | None:
    try:
        return index.row(*index.table.read(row))
    except JournalDamaged:  # reading the record reports it; everything else can be searched
        return None
