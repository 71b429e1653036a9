"""Moving a journal from one engine to the other: every row unchanged, or nothing at all.

Numbers, checksums and times stay the same, so a reader that followed the old journal can continue with the new one.
Every row is checked against its checksum when it is read, and compared with what the target holds in the transaction
that wrote it. Only if all rows are there, unchanged, is that transaction committed. The index for full-text search is
built again by the first search.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import accumulate, zip_longest
from typing import Final, NamedTuple, TypeAlias, cast

import msgspec

from repertory._postgres_address import Place, PostgresAddress, postgres_address
from repertory.errors import ConfigurationError, JournalDamaged, JournalLocked
from repertory.record import sqlite_file
from repertory.record.records import FINAL_STATES
from repertory.record.rows import NEWEST, TABLES, UNREADABLE, Row, Table
from repertory.record.run_lists import AGEING
from repertory.record.tables import Tables

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, the number of rows done, and the number of all rows."""

_PATIENCE: Final = "5s"  # for tables that somebody else has locked; PostgreSQL's autovacuum releases them within one
_PIECE: Final = 2_000  # rows that are read or written at a time
# What has not ended waits for a machine of the server: each root, and each placed run, whose last part begins with "@".
_LEAVE: Final = f"""INSERT INTO ownership
    SELECT r.run_id, NULL, coalesce((SELECT max(CAST(json_extract(body, '$.fence') AS bigint)) FROM events e
               WHERE e.run_id = r.run_id AND type = 'RunClaimed'), 0),
        CASE s.state WHEN 'queued' THEN 'queued' ELSE 'moved' END, r.agent, r.client, r.agent_ref, r.agent_digest,
        ARRAY(SELECT value FROM json_each(r.labels)), coalesce(s.at, r.at) - {AGEING} * r.priority,
        '00000000-0000-0000-0000-000000000000', r.agent_ref <> '' AND r.has_context = 0
    FROM runs r LEFT JOIN LATERAL (
        SELECT state, at FROM run_states WHERE run_id = r.run_id ORDER BY seq DESC LIMIT 1) s ON true
    WHERE r.run_id ~ '^[^.]+$|[.]@[^.]*$' AND NOT coalesce(s.state, 'running') = ANY($1)"""


class _Part(NamedTuple):
    """A table that is moved; ``table`` says how its rows are checked, None if they have no checksums."""

    name: str
    columns: tuple[str, ...]
    table: Table | None

    @property
    def select(self) -> str:
        return f"SELECT {', '.join(self.columns)} FROM {self.name} ORDER BY {self.columns[0]}"


_REMOVALS: Final = _Part("removals", ("run_id", "at", "finished", "records", "newest", "position"), None)
_PARTS: Final = [
    *(_Part(name, columns, table) for table in TABLES.values() for name, columns in table.layout.items()),
    _REMOVALS,
]


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What was moved.

    Attributes:
        tables: The number of rows in each table, including the side tables for large bodies.
        newest: The number of the newest record; 0 if there is none.
    """

    tables: Mapping[str, int]
    rows: int
    newest: int


def move_journal(source: Place, target: Place, *, progress: Progress = lambda _doing, _done, _rows: None) -> Moved:
    """Copy everything into a journal that is empty or does not exist yet; blocks. The source stays unchanged.

    Nobody may write to either meanwhile. If it ends before it returns, the target is left empty: start again.

    Raises:
        JournalLocked: A process has one of them open for writing.
        JournalDamaged: A row of the source is not what was written, or a row of the target differs from it.
        ConfigurationError: The target already holds records.
        JournalUnreadable: One of them cannot be opened, or is not a journal.
        JournalUnavailable: The server does not answer, or went away meanwhile.
        JournalWriteFailed: The disk of the target is full.
    """
    old_place, new_place = _place(source), _place(target)
    if old_place == new_place:
        raise ConfigurationError(f"{old_place} cannot be moved into itself; name another place to move it to")
    with _opened(old_place, to_write=False) as old, _opened(new_place, to_write=True) as new:
        filled = [part.name for part in _PARTS if _count(new, part)]
        if filled:
            raise ConfigurationError(f"{new_place} holds records already ({filled[0]}); name one that is empty")
        counts = {part.name: _count(old, part) for part in _PARTS}
        rows = sum(counts.values())
        starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))

        def read(doing: str, part: _Part) -> Iterator[Row]:
            for number, row in enumerate(old.stream(part.select, at_once=_PIECE), starts[part.name]):
                if number % _PIECE == 0:
                    progress(f"{doing} {part.name}", number, rows)
                yield row

        newest, records = _numbers(old, old_place)
        for part in _PARTS:
            new.fill(part.name, part.columns, _checked(part, read("moving", part), old_place))
        for part in _PARTS:
            copies = new.stream(part.select, at_once=_PIECE)
            if any(row != copy for row, copy in zip_longest(read("checking", part), copies)):
                raise JournalDamaged(f"{part.name} in {new_place} is not what {old_place} holds; nothing was moved")
        new.execute("INSERT INTO moved VALUES (?, ?)", newest, records)
        new.number_above(newest)
    progress("done", rows, rows)
    return Moved(tables={name: count for name, count in counts.items() if count}, rows=rows, newest=newest)


def _count(tables: Tables, part: _Part) -> int:
    ((count,),) = tables.query(f"SELECT count(*) FROM {part.name}")
    return int(count)


def _place(place: Place) -> PostgresAddress | str:
    """A server's address, or the real path of a file."""
    return postgres_address(place) or os.path.realpath(cast("str | os.PathLike[str]", place))


def _numbers(tables: Tables, where: object) -> tuple[int, int]:
    """The highest number that was assigned, and how many records there were, those that were removed included."""
    ((newest,),) = tables.query(NEWEST)
    removals = tables.query("SELECT newest, records FROM removals")
    there = sum(_count(tables, part) for part in _PARTS if part.table is not None and part.name == part.table.name)
    try:
        return max(newest, *(int(last) for last, _ in removals), 0), there + sum(int(gone) for _, gone in removals)
    except UNREADABLE as error:
        raise JournalDamaged(f"removals of {where} cannot be read: {error}; nothing was moved") from error


def _checked(part: _Part, rows: Iterator[Row], where: object) -> Iterator[Row]:
    for row in rows:
        if part.table is not None and not part.table.is_whole(part.name, row):
            raise JournalDamaged(
                f"record {row[0]!r} in {part.name} of {where} is not what was written; see repertory doctor "
                "--deep for all that is damaged. Nothing was moved"
            )
        yield row


def _opened(place: PostgresAddress | str, *, to_write: bool) -> AbstractContextManager[Tables]:
    if isinstance(place, PostgresAddress):
        return _on_server(place, to_write=to_write)
    return _in_file(place, to_write=to_write)


# --- files ------------------------------------------------------------------------------------------------


@contextmanager
def _in_file(path: str, *, to_write: bool) -> Generator[Tables]:
    if to_write:
        sqlite_file.make_folder(path)
    else:
        sqlite_file.check_readable(path)
    lock = sqlite_file.FileLock(path)  # so that nobody writes to it meanwhile
    try:
        opened = closing(sqlite_file.open_to_write(path, "power")) if to_write else sqlite_file.open_to_read(path)
        with opened as connection, sqlite_file.explained(path, "write" if to_write else "read"):
            connection.execute("BEGIN IMMEDIATE" if to_write else "BEGIN")
            yield Tables(connection)
            connection.execute("COMMIT")
    finally:
        lock.release()


# --- servers ----------------------------------------------------------------------------------------------


@contextmanager
def _on_server(address: PostgresAddress, *, to_write: bool) -> Generator[Tables]:
    from repertory.record.postgres_journal import has_writer
    from repertory.record.postgres_schema import check_readable, migrate
    from repertory.record.postgres_search import PostgresTables
    from repertory.record.postgres_sql import check_server, connect, driver, explain

    try:
        with connect(address) as connection:
            check_server(connection, address)
            if to_write:
                migrate(connection, address)
            else:
                check_readable(connection, address)
            if has_writer(address):
                raise JournalLocked(f"{address} is open in a process that may write to it; end that first")
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # while the other journal is read
            # Nobody may write meanwhile; reading is still possible.
            connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'")
            connection.execute(f"LOCK TABLE {', '.join(part.name for part in _PARTS)} IN SHARE ROW EXCLUSIVE MODE")
            yield PostgresTables(connection)
            if to_write:
                connection.execute(_LEAVE, [sorted(FINAL_STATES)])
            connection.execute("COMMIT")
            if to_write:
                connection.execute("ANALYZE")
    except driver().errors.LockNotAvailable:
        raise JournalLocked(f"somebody else moves {address}, or holds its tables; try again later") from None
    except driver().Error as error:
        raise explain(error, address, "move to" if to_write else "move from") from None
