"""Removing the records of a tree of runs from a journal: slice by slice, so that writers never wait long.

The first slice deletes the runs themselves, so nobody finds the tree from then on. If the process is killed, the next
one that opens the journal continues. Numbers are never reused: ``removals`` remembers the highest ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from repertory._counting import counted
from repertory.errors import JournalDamaged
from repertory.record.contents import OF_TREE, of_tree, root_of
from repertory.record.items import ITEMS
from repertory.record.memory_records import ScopeMerged, ScopeOpened
from repertory.record.reads import marks
from repertory.record.records import RunStarted, ScheduleSettled
from repertory.record.rows import NO_LIMIT, TABLES, Table, Value, encode_json
from repertory.record.search import ENTRIES
from repertory.record.tables import Tables

_SLICE: Final = 500  # records that one transaction deletes; some 10 ms
_SCOPES: Final = 500  # scopes whose records it deletes; all their openings must go in one
# The settled due times of a schedule stay, though they name a run: otherwise they would become due again.
_OF_RUNS: Final = [
    table for table in TABLES.values() if "run_id" in table.columns and table.record is not ScheduleSettled
]
# A scope of a tree that was removed.
_REMOVED_SCOPE: Final = f"""SELECT s.scope_id, s.parent_id FROM scopes s
    JOIN removals r ON r.run_id = {root_of("s.owner")} WHERE s.scope_id = ?"""
_BASED: Final = "SELECT parent_id, scope_id, mode, position FROM scopes WHERE"
_THESE: Final = "seq IN (SELECT CAST(value AS BIGINT) FROM json_each(?))"


def remove_slice(tables: Tables, run_id: str, at: float) -> bool:
    """Delete the next records of a root run and of all runs below it; return whether they were the last.

    Raises:
        RunError: Another machine is continuing the run.
        JournalDamaged: An index of the journal does not fit its table.
    """
    tables.lock_run(run_id)
    tree = (run_id, run_id, run_id)
    begun = tables.query("SELECT finished FROM removals WHERE run_id = ?", run_id)
    if not begun:
        last = f"""(SELECT coalesce(max((SELECT max(position) FROM items WHERE scope_id = s.scope_id)), 0)
                   FROM scopes s WHERE {of_tree("s.owner")})"""
        tables.execute(f"INSERT INTO removals VALUES (?, ?, 0, 0, 0, {last})", run_id, at, *tree)
        runs = TABLES[RunStarted]
        _take(tables, runs, run_id, f"SELECT seq FROM {runs.name} WHERE {OF_TREE}", *tree)
        return False
    if begun[0][0]:
        return True
    for table in _OF_RUNS:
        if _take(tables, table, run_id, f"SELECT seq FROM {table.name} WHERE {OF_TREE} LIMIT {_SLICE}", *tree):
            return False
    # A snapshot of this tree's memory in another tree, such as a fork's, needs of the scopes that it is based on what
    # was there by then.
    nobodys, kept = _scopes_of_nobody(tables, run_id)
    for scope_id, seen in kept.items():
        sql = f"SELECT seq FROM {ITEMS.table.name} WHERE scope_id = ? AND position > ? LIMIT {_SLICE}"
        if _take(tables, ITEMS.table, run_id, sql, scope_id, seen):
            return False
    scopes = nobodys[:_SCOPES]
    for table in (ITEMS.table, TABLES[ScopeMerged], TABLES[ScopeOpened]):
        sql = f"SELECT seq FROM {table.name} WHERE scope_id IN ({marks(scopes)}) LIMIT {_SLICE}"
        if _take(tables, table, run_id, sql, *scopes):
            return False
    tables.forget_commands(run_id)
    tables.execute("UPDATE removals SET finished = 1 WHERE run_id = ?", run_id)
    return True


def _take(tables: Tables, table: Table, run_id: str, sql: str, *values: Value) -> bool:
    """Delete the records whose numbers a query returns; return whether there were any."""
    numbers = [int(number) for (number,) in tables.query(sql, *values)]
    if not numbers:
        return False
    for index in (ENTRIES, ITEMS):
        if index.table is table:
            tables.unindex(index, numbers)
    for name in table.layout:  # the side table too
        deleted = tables.execute(f"DELETE FROM {name} WHERE {_THESE}", encode_json(numbers))
        if name == table.name and deleted != len(numbers):  # otherwise they would be found again, without end
            raise JournalDamaged(
                f"an index of {name} names {counted(len(numbers) - deleted, 'record')} of which nothing is there; "
                "restore the journal from a backup, and see repertory doctor --deep for all that is damaged"
            )
    tables.execute(
        """UPDATE removals SET records = records + ?, newest = CASE WHEN newest < ? THEN ? ELSE newest END
           WHERE run_id = ?""",
        len(numbers),
        max(numbers),
        max(numbers),
        run_id,
    )
    return True


def _scopes_of_nobody(tables: Tables, run_id: str) -> tuple[list[str], dict[str, int]]:
    """The memory scopes of a removed tree that no scope of another tree is based on, each before those based on it; and
    the others, with the last position of them that is seen.

    With them go scopes of trees that were removed earlier, if only this tree's scopes are based on them.
    """
    own = f"SELECT scope_id, parent_id FROM scopes WHERE {of_tree('owner')} ORDER BY seq DESC"
    parents: dict[str, str | None] = dict(map(tuple, tables.query(own, run_id, run_id, run_id)))
    based = defaultdict[str, list[Sequence[Any]]](list)
    of_own = f"parent_id IN (SELECT scope_id FROM scopes WHERE {of_tree('owner')})"
    for row in tables.query(f"{_BASED} {of_own}", run_id, run_id, run_id):
        based[row[0]].append(row)
    nobodys: dict[str, None] = {}
    kept: dict[str, int] = {}
    todo: list[Sequence[Any]] = [*reversed(parents.items())]
    while todo:
        scope_id, parent_id = todo.pop()
        if scope_id in nobodys:
            continue
        if scope_id not in parents:
            based[scope_id] = tables.query(f"{_BASED} parent_id = ?", scope_id)
        seen = [
            upto if mode.startswith("snapshot") else NO_LIMIT
            for _, other, mode, upto in based[scope_id]
            if other not in nobodys
        ]
        if seen:
            kept[scope_id] = max(seen)
            continue
        nobodys[scope_id] = None
        kept.pop(scope_id, None)
        if parent_id not in parents:
            todo += tables.query(_REMOVED_SCOPE, parent_id)
        elif parent_id in kept:  # it was opened before, but looked at already
            todo.append((parent_id, parents[parent_id]))
    return [*reversed(nobodys)], kept
