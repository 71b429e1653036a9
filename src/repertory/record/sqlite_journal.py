"""The journal in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec

from repertory.errors import RunNotFound
from repertory.llm.messages import Json
from repertory.record.entries import Entry
from repertory.record.journal import Durability, ModelCallRow, RunRow, SearchHit, Ticket, ToolCallRow
from repertory.record.observers import Observers
from repertory.record.ownership import FileLock
from repertory.record.pairing import choose_run, pair_model_calls, pair_tool_calls, run_row
from repertory.record.records import (
    FINAL_STATES,
    ContentStored,
    DecisionMade,
    EventLogged,
    ItemWritten,
    Record,
    RunState,
    ScopeOpened,
    SummaryStored,
    ToolFinished,
)
from repertory.record.redaction import Redactor
from repertory.record.requests import RecordedRequest
from repertory.record.rows import (
    CONTENTS,
    DECISIONS,
    ENTRIES,
    EVENTS,
    ITEMS,
    MODEL_CALLS,
    MODEL_REPLIES,
    RUN_STATES,
    RUNS,
    SCOPES,
    SUMMARIES,
    TOOL_INTENTS,
    TOOL_OUTCOMES,
    Table,
    encode_json,
    encode_plain,
    encode_records,
)
from repertory.record.search import EntryIndex, match_expression, search_hit
from repertory.record.sqlite_check import find_damage
from repertory.record.sqlite_file import not_writable
from repertory.record.sqlite_jobs import delete_contents, index_slice
from repertory.record.sqlite_reader import Rows, SqliteReader
from repertory.record.sqlite_schema import LATEST_ITERATION
from repertory.record.sqlite_writer import Job, SqliteWriter, WriterStatistics
from repertory.record.statistics import RunStatistics, statistics_sql

T = TypeVar("T")


class SqliteJournal:
    """A journal in one SQLite file. Opened by ``open_journal``; owns the file until it is closed."""

    def __init__(
        self,
        path: str,
        durability: Durability,
        *,
        writer: SqliteWriter | None,
        lock: FileLock | None,
        close_timeout: float,
        redactor: Redactor | None = None,
    ) -> None:
        self.path = path
        self._redactor = redactor
        self._durability: Durability = durability
        self._writer = writer
        self._lock = lock
        self._close_timeout = close_timeout
        self._reader = SqliteReader(path)
        self._observers = Observers()

    @property
    def durability(self) -> Durability:
        """What an acknowledged write survives."""
        return self._durability

    def statistics(self) -> WriterStatistics | None:
        """Counts of what was written since the journal was opened; None where it is read-only."""
        return self._writer.statistics() if self._writer is not None else None

    # --- writing ------------------------------------------------------------------------------------------

    def submit(
        self,
        records: Sequence[Record],
        *,
        on_commit: Callable[[], None] | None = None,
        after: Ticket | None = None,
    ) -> Ticket:
        """Queue a batch; see ``Journal.submit``."""
        if self._writer is None:
            raise not_writable(self.path)
        records = self.redact(records)
        return self._writer.submit(encode_records(records), self._observers.wrap(records, on_commit), after)

    def redact(self, value: T) -> T:
        """The value as it would be recorded; see ``Journal.redact``."""
        return value if self._redactor is None else self._redactor(value)

    def observe(self, committed: Callable[[Sequence[Record]], None]) -> Callable[[], None]:
        """Have a function called with every batch once it is durable; see ``Journal.observe``."""
        return self._observers.add(committed)

    async def write(self, records: Sequence[Record]) -> None:
        """Queue a batch and wait until it is durable."""
        await self.submit(records).wait()

    def _start_job(self, work: Callable[[Any], T]) -> Job[T]:
        if self._writer is None:
            raise not_writable(self.path)
        return self._writer.start_job(work)

    async def delete_expired_contents(self, now: float) -> int:
        """Empty stored contents that expired before ``now``; returns how many."""
        states = sorted(FINAL_STATES)
        return await self._start_job(lambda connection: delete_contents(connection, now, states)).result()

    # --- reading ------------------------------------------------------------------------------------------

    async def _read(self, table: Table, rest: str, *values: object, side: bool = True) -> list[tuple[int, Any]]:
        """Records of one table with their sequence numbers: SELECT seq, columns FROM table ``rest``.

        ``side`` says whether to read the side table, if there is one.
        """
        source = f"{table.name} t"
        if side := side and table.side is not None:
            source += f" LEFT JOIN {table.side} b ON b.seq = t.seq"

        def decode(rows: Rows) -> list[tuple[int, Any]]:
            return [table.read(row) for row in rows]

        columns = table.select("t", "b" if side else "")
        whose = "".join(f" of {value!r:.60}" for value in values[:1] if isinstance(value, str))
        return await self._fetch(f"{table.name}{whose}", f"SELECT {columns} FROM {source} {rest}", values, decode)

    async def _fetch(self, what: str, sql: str, values: Sequence[object], decode: Callable[[Rows], T]) -> T:
        if self._writer is not None:
            await self._writer.wait_queued()
        return await self._reader.fetch(what, sql, [encode_plain(value) for value in values], decode)

    async def _of_run(self, table: Table, run_id: str, rest: str = "ORDER BY t.seq") -> list[tuple[int, Any]]:
        return await self._read(table, f"WHERE t.run_id = ? {rest}", run_id)

    async def _read_runs(self, where: str, *values: object) -> list[RunRow]:
        runs = len(RUNS.columns) + 2  # with seq and checksum

        def decode(rows: Rows) -> list[RunRow]:
            return [
                run_row(
                    RUNS.read(row[:runs])[1],
                    RUN_STATES.read(row[runs:-1])[1] if row[runs] is not None else None,
                    called=int(row[-1] or 0),
                )
                for row in rows
            ]

        return await self._fetch(
            "runs",
            f"""SELECT {RUNS.select("r")}, {RUN_STATES.select("s")}, {LATEST_ITERATION}
                FROM runs r LEFT JOIN run_states s
                ON s.seq = (SELECT max(seq) FROM run_states WHERE run_id = r.run_id) {where} ORDER BY r.seq""",
            values,
            decode,
        )

    async def read_run(self, run_id: str) -> RunRow:
        """One run, by its id or an unambiguous beginning of it."""
        if not run_id:
            raise RunNotFound("no run has the id ''")
        exact = await self._read_runs("WHERE r.run_id = ?", run_id)
        return choose_run(
            run_id, exact or await self._read_runs("WHERE substr(r.run_id, 1, ?) = ?", len(run_id), run_id)
        )

    async def read_runs(self, *, states: Sequence[RunState] | None = None) -> list[RunRow]:
        """Runs in the order they were started; None means all states."""
        if states is None:
            return await self._read_runs("")
        return await self._read_runs(f"WHERE coalesce(s.state, 'running') IN ({_marks(states)})", *states)

    async def read_entries(self, run_id: str, *, start: int = 0, stop: int | None = None) -> list[Entry]:
        """The ledger from position ``start`` up to, not including, ``stop``."""
        bound = "" if stop is None else "AND t.position < ?"
        found = await self._read(
            ENTRIES,
            f"WHERE t.run_id = ? AND t.position >= ? {bound} ORDER BY t.position",
            *(run_id, start) if stop is None else (run_id, start, stop),
        )
        return [record.entry for _, record in found]

    async def search_entries(self, run_id: str, query: str, *, limit: int = 20) -> list[SearchHit]:
        """Full-text search over a run's ledger, best first."""
        if not (match := match_expression(query)):
            return []
        if self._writer is None:
            return await self._search_aside(run_id, query, limit)
        indexed, upto = await self._start_job(index_slice).result()
        while indexed < upto:
            indexed, _ = await self._start_job(index_slice).result()

        def decode(rows: Rows) -> list[SearchHit]:
            return [search_hit(run_id, ENTRIES.read(row[1:])[1].entry, float(row[0] or 0), query) for row in rows]

        return await self._fetch(
            f"entries of {run_id!r:.60}",
            f"""SELECT bm25(entry_search), {ENTRIES.select("t")}
                FROM entry_search JOIN entries t ON t.seq = entry_search.rowid
                WHERE entry_search MATCH ? AND t.run_id = ? ORDER BY 1, t.seq LIMIT ?""",
            (match, run_id, max(0, limit)),
            decode,
        )

    async def _search_aside(self, run_id: str, query: str, limit: int) -> list[SearchHit]:
        # The index in the file lags and only its owner may bring it up to date: make one of this run, in memory.
        entries = await self.read_entries(run_id)

        def search() -> list[SearchHit]:
            index = EntryIndex()
            try:
                index.add((run_id, entry) for entry in entries)
                return index.search(run_id, query, limit=limit)
            finally:
                index.close()

        return await anyio.to_thread.run_sync(search)

    async def read_decisions(self, run_id: str) -> list[DecisionMade]:
        """Every change of the run's plan, in order."""
        return [record for _, record in await self._of_run(DECISIONS, run_id)]

    async def read_tool_calls(self, run_id: str) -> list[ToolCallRow]:
        """Every tool call of the run, in the order of intent."""
        intents = await self._of_run(TOOL_INTENTS, run_id)
        return pair_tool_calls(intents, await self._of_run(TOOL_OUTCOMES, run_id))

    async def read_outcomes(self, run_id: str) -> list[ToolFinished]:
        """How every tool call of the run ended, in order."""
        return [record for _, record in await self._of_run(TOOL_OUTCOMES, run_id)]

    async def read_model_calls(self, run_id: str) -> list[ModelCallRow]:
        """Every model call of the run, in order."""
        calls = await self._of_run(MODEL_CALLS, run_id)
        return pair_model_calls(calls, await self._of_run(MODEL_REPLIES, run_id))

    async def read_statistics(self, run_id: str | None = None) -> dict[str, RunStatistics]:
        """The figures of a run and of all runs below it, by run id; None means every run."""
        sql, values = statistics_sql(), tuple[str, ...]()
        if run_id is not None:
            # '/' comes right after '.', so this is every id that begins with the run's own and a dot.
            sql = statistics_sql("(run_id = ?1 OR (run_id > ?1 || '.' AND run_id < ?1 || '/'))")
            values = (run_id,)

        def decode(rows: Rows) -> dict[str, RunStatistics]:
            names = RunStatistics.__struct_fields__
            return {str(row[0]): msgspec.convert(dict(zip(names, row[1:], strict=True)), RunStatistics) for row in rows}

        return await self._fetch("figures", sql, values, decode)

    async def read_request(self, run_id: str, call: int) -> Json:
        """The whole request of one model call."""
        calls = await self._of_run(MODEL_CALLS, run_id, "ORDER BY t.seq")
        request = RecordedRequest({record.call: record for _, record in calls if record.call <= call}, call)
        if not request.positions:
            return request.whole()
        # Those alone: the request can be read whatever became of other entries.
        named = await self._read(
            ENTRIES,
            "WHERE t.run_id = ? AND t.position IN (SELECT value FROM json_each(?))",
            run_id,
            encode_json(list(request.positions)),
        )
        return request.whole(record.entry for _, record in named)

    async def read_summaries(self, run_id: str) -> list[SummaryStored]:
        """Every summary of the run, in the order they were stored."""
        return [record for _, record in await self._of_run(SUMMARIES, run_id)]

    async def read_content(self, content_id: str) -> ContentStored | None:
        """One stored content, its body "" once it was cleaned up; None where there never was one."""
        # The latest of that id, and only then its body: an earlier one must not shine through a deleted one.
        latest = "t.seq = (SELECT max(seq) FROM contents WHERE content_id = ?)"
        found = await self._read(CONTENTS, f"WHERE {latest}", content_id)
        return found[0][1] if found else None

    async def read_contents(self, run_id: str) -> list[ContentStored]:
        """All stored contents of a run, their bodies left empty."""
        found = await self._read(CONTENTS, "WHERE t.run_id = ? ORDER BY t.seq", run_id, side=False)
        return [record for _, record in found]

    async def read_scopes(self) -> list[ScopeOpened]:
        """Every memory scope."""
        return [record for _, record in await self._read(SCOPES, "ORDER BY t.seq")]

    async def read_items(self, scope_ids: Sequence[str], *, upto: int | None = None) -> list[ItemWritten]:
        """All versions of the scopes' items up to a position of the item log, in order."""
        bound, values = ("", ()) if upto is None else ("AND t.position <= ?", (upto,))
        found = await self._read(
            ITEMS,
            f"WHERE t.scope_id IN (SELECT value FROM json_each(?)) {bound} ORDER BY t.position",
            encode_json(list(scope_ids)),
            *values,
        )
        return [record for _, record in found]

    async def read_events(
        self, run_id: str | None, *, after: int = 0, limit: int | None = None
    ) -> list[tuple[int, EventLogged]]:
        """A run's events with their sequence numbers, those after the given one; None means every run's."""
        whose, values = ("", ()) if run_id is None else ("t.run_id = ? AND", (run_id,))
        most = -1 if limit is None else limit  # which SQLite takes for no limit
        return await self._read(EVENTS, f"WHERE {whose} t.seq > ? ORDER BY t.seq LIMIT ?", *values, after, most)

    async def last_event(self) -> int:
        """The sequence number of the newest event; 0 where there is none."""
        return await self._fetch(
            "events",
            "SELECT coalesce(max(seq), 0) FROM events",
            (),
            lambda rows: next(int(row[0] or 0) for row in rows),
        )

    async def check(self, *, deep: bool = False) -> list[str]:
        """Look for damage in the file.

        Args:
            deep: Also compare every index with its table and every record with its checksum, which reads the whole
                file.

        Returns:
            What is wrong, the first hundred of each kind; empty where all is well.
        """
        if self._writer is not None:
            await self._writer.wait_queued()
        return await anyio.to_thread.run_sync(find_damage, self.path, deep)

    async def aclose(self) -> None:
        """Write what is queued, then close, and give up the ownership of the file. Safe to call twice.

        Shielded from cancellation; bounded by ``close_timeout``.

        Raises:
            JournalWriteFailed: The disk did not take everything in time.
        """
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        try:
            self._reader.close()  # first, so that the writer finds nobody reading when it empties the log
            if self._writer is not None:
                self._writer.close(self._close_timeout)
        finally:
            # A thread that hangs in the disk may still write; then the file stays owned until the process ends.
            if self._lock is not None and (self._writer is None or self._writer.ended):
                self._lock.release()


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
