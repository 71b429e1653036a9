"""What every journal over SQLite does alike: records become rows, questions become SQL, rows become records again."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from repertory._excerpts import EXCERPT, cut_end, find_words, words_of
from repertory.errors import JournalDamaged, RunNotFound
from repertory.llm.messages import Block, Json, ToolUse, text_of
from repertory.record.entries import Entry
from repertory.record.journal import Journal, ModelCallRow, RunRow, SearchHit, Ticket, ToolCallRow
from repertory.record.records import (
    FINAL_STATES,
    ContentStored,
    DecisionMade,
    EntryAppended,
    EventLogged,
    ItemWritten,
    ModelCalled,
    ModelReplied,
    Record,
    RunStarted,
    RunState,
    RunStateChanged,
    ScopeOpened,
    SummaryStored,
    ToolFinished,
    ToolIntended,
)
from repertory.record.redaction import Redactor
from repertory.record.requests import RecordedRequest
from repertory.record.rows import TABLES, EncodedRecord, Value, encode_json, encode_plain, encode_records
from repertory.record.sqlite_file import lenient_text
from repertory.record.sqlite_schema import LATEST_ITERATION
from repertory.record.statistics import RunStatistics, statistics_sql

T = TypeVar("T")
B = TypeVar("B")

Numbered: TypeAlias = list[tuple[int, Any]]  # records, each with its number
Rows: TypeAlias = Iterable[Sequence[Value]]

_RUNS, _RUN_STATES, _ENTRIES = TABLES[RunStarted], TABLES[RunStateChanged], TABLES[EntryAppended]


class RowJournal(Journal):
    """A journal but for where its rows are; see ``Journal`` for what its methods promise."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor
        # Replaced and never changed: the writer's thread may be going through them.
        self._observers: tuple[Callable[[Sequence[Record]], None], ...] = ()

    # --- where the rows are -------------------------------------------------------------------------------

    def _insert(
        self, rows: Sequence[EncodedRecord], on_commit: Callable[[], None] | None, after: Ticket | None
    ) -> Ticket:
        """Queue the rows of a batch."""
        raise NotImplementedError

    async def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do something else in a transaction of its own, behind what is queued."""
        raise NotImplementedError

    async def _settle(self) -> None:
        """Wait until everything that was queued before this call is written, or has failed."""
        raise NotImplementedError

    async def _query(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        """Ask for rows, of ``what`` as an error names it, and decode them."""
        raise NotImplementedError

    # --- writing ------------------------------------------------------------------------------------------

    def submit(
        self, records: Sequence[Record], *, on_commit: Callable[[], None] | None = None, after: Ticket | None = None
    ) -> Ticket:
        records = self.redact(records)
        return self._insert(encode_records(records), self._announce(records, on_commit), after)

    def _announce(self, records: Sequence[Record], on_commit: Callable[[], None] | None) -> Callable[[], None] | None:
        observers, batch = self._observers, tuple(records)
        if not observers or not batch:
            return on_commit

        def committed() -> None:
            for observer in observers:
                observer(batch)
            if on_commit is not None:
                on_commit()

        return committed

    def redact(self, value: T) -> T:
        return value if self._redactor is None else self._redactor(value)

    def observe(self, committed: Callable[[Sequence[Record]], None]) -> Callable[[], None]:
        self._observers = (*self._observers, committed)

        def end() -> None:
            self._observers = tuple(other for other in self._observers if other is not committed)

        return end

    async def write(self, records: Sequence[Record]) -> None:
        await self.submit(records).wait()

    async def delete_expired_contents(self, now: float) -> int:
        states = sorted(FINAL_STATES)
        sql = f"""DELETE FROM content_bodies WHERE seq IN (
            SELECT c.seq FROM contents c LEFT JOIN run_status s ON s.run_id = c.run_id AND s.state IN ({_marks(states)})
            WHERE c.expires_at <= ? OR s.updated_at + c.retention <= ?)"""
        return await self._transact(lambda connection: connection.execute(sql, (*states, now, now)).rowcount)

    # --- reading ------------------------------------------------------------------------------------------

    async def _fetch(self, what: str, sql: str, values: Sequence[object], decode: Callable[[Rows], T]) -> T:
        await self._settle()
        return await self._query(what, sql, [encode_plain(value) for value in values], decode)

    async def _read(self, kind: type[Record], rest: str, *values: object, side: bool = True) -> Numbered:
        """Records of one kind: SELECT their columns FROM their table ``rest``; with the large field if ``side``."""
        table = TABLES[kind]
        whose = "".join(f" of {value!r:.60}" for value in values[:1] if isinstance(value, str))
        sql = f"{table.select_from(side=side)} {rest}"
        return await self._fetch(f"{table.name}{whose}", sql, values, lambda rows: [table.read(row) for row in rows])

    async def _of_run(self, kind: type[Record], run_id: str) -> Numbered:
        return await self._read(kind, "WHERE t.run_id = ? ORDER BY t.seq", run_id)

    async def _read_runs(self, where: str, *values: object) -> list[RunRow]:
        width = len(_RUNS.columns) + 2  # with seq and checksum

        def decode(row: Sequence[Value]) -> RunRow:
            started: RunStarted = _RUNS.read(row[:width])[1]
            called = int(row[-1] or 0)
            if row[width] is None:
                return RunRow(started=started, state="running", updated_at=started.at, iteration=called)
            now: RunStateChanged = _RUN_STATES.read(row[width:-1])[1]
            iteration = max(now.iteration, called)
            return RunRow(
                started=started,
                state=now.state,
                updated_at=now.at,
                iteration=iteration,
                result=now.result,
                error=now.error,
            )

        return await self._fetch(
            "runs",
            f"""SELECT {_RUNS.select("r")}, {_RUN_STATES.select("s")}, {LATEST_ITERATION}
                FROM runs r LEFT JOIN run_states s
                ON s.seq = (SELECT max(seq) FROM run_states WHERE run_id = r.run_id) {where} ORDER BY r.seq""",
            values,
            lambda rows: [decode(row) for row in rows],
        )

    async def read_run(self, run_id: str) -> RunRow:
        if not run_id:
            raise RunNotFound("no run has the id ''")
        found = await self._read_runs("WHERE r.run_id = ?", run_id) or await self._read_runs(
            "WHERE substr(r.run_id, 1, ?) = ?", len(run_id), run_id
        )
        if not found:
            raise RunNotFound(f"no run has the id {run_id!r}")
        if len(found) > 1:
            names = ", ".join(row.started.run_id for row in found[:3])
            raise RunNotFound(f"{run_id!r} fits {len(found)} runs ({names}, …); give more of the id")
        return found[0]

    async def read_runs(self, *, states: Sequence[RunState] | None = None) -> list[RunRow]:
        if states is None:
            return await self._read_runs("")
        return await self._read_runs(f"WHERE coalesce(s.state, 'running') IN ({_marks(states)})", *states)

    async def read_entries(self, run_id: str, *, start: int = 0, stop: int | None = None) -> list[Entry]:
        bound, values = ("", ()) if stop is None else ("AND t.position < ?", (stop,))
        return await self._read_entries(f"t.position >= ? {bound} ORDER BY t.position", run_id, start, *values)

    async def _read_entries(self, which: str, run_id: str, *values: object) -> list[Entry]:
        found = await self._read(EntryAppended, f"WHERE t.run_id = ? AND {which}", run_id, *values)
        return [record.entry for _, record in found]

    async def search_entries(self, run_id: str, query: str, *, limit: int = 20) -> list[SearchHit]:
        if not (match := match_expression(query)):
            return []
        indexed, upto = await self._transact(index_slice)
        while indexed < upto:
            indexed, _ = await self._transact(index_slice)
        return await self._fetch(
            f"entries of {run_id!r:.60}",
            f"""SELECT bm25(entry_search), {_ENTRIES.select("t")}
                FROM entry_search JOIN entries t ON t.seq = entry_search.rowid
                WHERE entry_search MATCH ? AND t.run_id = ? ORDER BY 1, t.seq LIMIT ?""",
            (match, run_id, max(0, limit)),
            lambda rows: [search_hit(_ENTRIES.read(row[1:])[1], float(row[0] or 0), query) for row in rows],
        )

    async def read_decisions(self, run_id: str) -> list[DecisionMade]:
        return [record for _, record in await self._of_run(DecisionMade, run_id)]

    async def read_tool_calls(self, run_id: str) -> list[ToolCallRow]:
        found = [*await self._of_run(ToolIntended, run_id), *await self._of_run(ToolFinished, run_id)]
        pairs = _paired(found, ToolIntended, lambda record: record.call_id)
        return [ToolCallRow(intended=intended, finished=finished) for intended, finished in pairs]

    async def read_outcomes(self, run_id: str) -> list[ToolFinished]:
        return [record for _, record in await self._of_run(ToolFinished, run_id)]

    async def read_model_calls(self, run_id: str) -> list[ModelCallRow]:
        found = [*await self._of_run(ModelCalled, run_id), *await self._of_run(ModelReplied, run_id)]
        pairs = _paired(found, ModelCalled, lambda record: record.call)
        return [ModelCallRow(called=called, replied=replied) for called, replied in pairs]

    async def read_statistics(self, run_id: str | None = None) -> dict[str, RunStatistics]:
        # '/' comes right after '.', so this is every id that begins with the run's own and a dot.
        where = "" if run_id is None else "(run_id = ?1 OR (run_id > ?1 || '.' AND run_id < ?1 || '/'))"
        names = RunStatistics.__struct_fields__

        def decode(rows: Rows) -> dict[str, RunStatistics]:
            return {str(row[0]): msgspec.convert(dict(zip(names, row[1:], strict=True)), RunStatistics) for row in rows}

        return await self._fetch("figures", statistics_sql(where), () if run_id is None else (run_id,), decode)

    async def read_request(self, run_id: str, call: int) -> Json:
        calls = await self._of_run(ModelCalled, run_id)
        request = RecordedRequest({record.call: record for _, record in calls if record.call <= call}, call)
        if not request.positions:
            return request.whole()
        # Those alone: the request can be read whatever became of other entries.
        which = "t.position IN (SELECT value FROM json_each(?))"
        return request.whole(await self._read_entries(which, run_id, encode_json(list(request.positions))))

    async def read_summaries(self, run_id: str) -> list[SummaryStored]:
        return [record for _, record in await self._of_run(SummaryStored, run_id)]

    async def read_content(self, content_id: str) -> ContentStored | None:
        # The latest of that id, and only then its body: an earlier one must not shine through a deleted one.
        latest = "t.seq = (SELECT max(seq) FROM contents WHERE content_id = ?)"
        found = await self._read(ContentStored, f"WHERE {latest}", content_id)
        if not found:
            return None
        stored: ContentStored = found[0][1]
        if not stored.body and stored.length:
            # A repeated call shows the same result under a note of its own.
            which = (
                "t.content_id = ? AND t.original_length = 0 AND t.deduplicated_from = '' ORDER BY t.position LIMIT 1"
            )
            for entry in await self._read_entries(which, stored.run_id, content_id):
                return msgspec.structs.replace(stored, body=text_of(entry.content))
        return stored

    async def read_contents(self, run_id: str) -> list[ContentStored]:
        found = await self._read(ContentStored, "WHERE t.run_id = ? ORDER BY t.seq", run_id, side=False)
        return [record for _, record in found]

    async def read_scopes(self) -> list[ScopeOpened]:
        return [record for _, record in await self._read(ScopeOpened, "ORDER BY t.seq")]

    async def read_items(self, scope_ids: Sequence[str], *, upto: int | None = None) -> list[ItemWritten]:
        bound, values = ("", ()) if upto is None else ("AND t.position <= ?", (upto,))
        where = f"WHERE t.scope_id IN (SELECT value FROM json_each(?)) {bound} ORDER BY t.position"
        return [record for _, record in await self._read(ItemWritten, where, encode_json(list(scope_ids)), *values)]

    async def read_events(
        self, run_id: str | None, *, after: int = 0, limit: int | None = None
    ) -> list[tuple[int, EventLogged]]:
        whose, values = ("", ()) if run_id is None else ("t.run_id = ? AND", (run_id,))
        most = -1 if limit is None else limit  # which SQLite takes for no limit
        return await self._read(EventLogged, f"WHERE {whose} t.seq > ? ORDER BY t.seq LIMIT ?", *values, after, most)

    async def last_event(self) -> int:
        sql = "SELECT coalesce(max(seq), 0) FROM events"
        return await self._fetch("events", sql, (), lambda rows: next(int(row[0] or 0) for row in rows))


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _paired(found: Numbered, kind: type[B], key: Callable[[Any], Hashable]) -> list[tuple[B, Any]]:
    """Each record of the kind that begins something, in order, with the last one that ended it, if any did.

    What was begun again after a crash is there once for each attempt. An end without a beginning is nobody's.
    """
    pairs: list[tuple[B, Any]] = []
    latest: dict[Hashable, int] = {}
    for _, record in sorted(found, key=itemgetter(0)):
        if isinstance(record, kind):
            latest[key(record)] = len(pairs)
            pairs.append((record, None))
        elif (index := latest.get(key(record))) is not None:
            pairs[index] = pairs[index][0], record
    return pairs


# --- search -----------------------------------------------------------------------------------------------

_PHRASE_OR_WORD = re.compile(r'"([^"]+)"|([^\W_]+)')
_WORD = re.compile(r"[^\W_]+")
_INDEX_SLICE: Final = 256  # entries whose words one transaction indexes, and
_INDEX_CHARACTERS: Final = 500_000  # the most characters, so that appends never wait long for a search


def index_slice(connection: sqlite3.Connection) -> tuple[int, int]:
    """Index the words of the next entries that are not indexed yet.

    Returns:
        Up to which ``seq`` the index now is, and the last ``seq`` that has an entry.
    """
    (indexed,) = connection.execute("SELECT indexed FROM search_progress").fetchone()
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()
    characters = 0
    sql = f"{_ENTRIES.select_from()} WHERE t.seq > ? ORDER BY t.seq LIMIT ?"
    connection.text_factory = lenient_text
    for row in connection.execute(sql, (indexed, _INDEX_SLICE)).fetchall():
        try:
            seq, record = _ENTRIES.read(row)
            words = searchable_text(record.entry.content)
        except JournalDamaged:
            seq, words = row[0], ""  # whoever reads that ledger is told; others can be searched
        connection.execute("INSERT INTO entry_search (rowid, words) VALUES (?, ?)", (seq, words))
        indexed = seq
        characters += len(words)
        if characters > _INDEX_CHARACTERS:
            break
    connection.execute("UPDATE search_progress SET indexed = ?", (indexed,))
    return indexed, last


def searchable_text(content: Sequence[Block]) -> str:
    """The words of an entry: its texts and results, and the names and arguments of the calls it makes."""
    parts = [text_of(content)]
    parts += [f"{block.name} {encode_json(block.input)}" for block in content if isinstance(block, ToolUse)]
    # A lone surrogate is no character, and FTS5 stops reading at a NUL.
    return "\n".join(part for part in parts if part).encode("utf-8", "replace").decode().replace("\0", " ")


def match_expression(query: str) -> str:
    """Turn plain words into an FTS5 query that finds entries with any of them; "" where there is no word.

    Words between double quotes are a phrase. Everything else that FTS5 would read as syntax is dropped.
    """
    parts: list[str] = []
    for phrase, word in _PHRASE_OR_WORD.findall(query):
        words = _WORD.findall(phrase) if phrase else [word]
        if words:
            parts.append('"' + " ".join(words) + '"')
    return " OR ".join(parts)


def excerpt_for(text: str, query: str) -> str:
    """The words around the place where most words of the query stand together; else the beginning."""
    # The index stems words: the beginning of a word finds its other forms.
    stems = " ".join(word[: max(4, len(word) - 3)] for word in words_of(query))
    best = find_words(text, stems, limit=1)
    return best[0].text if best else text[: cut_end(text, EXCERPT)]


def search_hit(found: EntryAppended, rank: float, query: str) -> SearchHit:
    """One answer; SQLite's rank is better the smaller it is."""
    excerpt = excerpt_for(searchable_text(found.entry.content), query)
    return SearchHit(run_id=found.run_id, position=found.entry.position, score=-rank, excerpt=excerpt)
