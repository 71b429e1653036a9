"""A journal that lives in this process alone: for tests on virtual time, and for runs nobody will want back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import anyio.lowlevel
import msgspec

from repertory.errors import JournalClosed
from repertory.llm.messages import Json
from repertory.record.entries import Entry
from repertory.record.journal import Durability, ModelCallRow, RunRow, SearchHit, Ticket, ToolCallRow
from repertory.record.observers import Observers
from repertory.record.pairing import (
    choose_run,
    is_expired,
    pair_model_calls,
    pair_tool_calls,
    run_row,
)
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
    AFTER_REFUSED,
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
    TABLES,
    TOOL_INTENTS,
    TOOL_OUTCOMES,
    UNIQUE,
    EncodedRecord,
    Row,
    Table,
    encode_plain,
    encode_records,
    refuse_batch,
)
from repertory.record.search import EntryIndex
from repertory.record.statistics import RunStatistics, add_up
from repertory.record.waiting import Latch


class _Written:
    """The ticket of a batch that is as durable as it will ever be."""

    async def wait(self) -> None:
        await anyio.lowlevel.checkpoint()

    def wait_sync(self) -> None:
        return


_WRITTEN = _Written()


T = TypeVar("T")


class MemoryJournal:
    """The in-memory twin of ``SqliteJournal``: the same answers, no file, no thread, gone with the process.

    Records are kept as the same rows, so what one journal refuses or restores the other does too.
    """

    def __init__(self, *, redactor: Redactor | None = None) -> None:
        self._redactor = redactor
        self._lock = threading.Lock()
        self._sequence = 0
        self._rows: dict[str, list[tuple[int, Row]]] = {table.name: [] for table in TABLES.values()}
        self._sides: dict[str, dict[int, Row]] = {table.side: {} for table in TABLES.values() if table.side}
        self._taken: dict[str, set[Row]] = {table: set() for table in UNIQUE}
        self._index: EntryIndex | None = None  # made by the first search
        self._closed = False
        self._observers = Observers()

    @property
    def durability(self) -> Durability:
        """``"memory"``."""
        return "memory"

    def submit(
        self,
        records: Sequence[Record],
        *,
        on_commit: Callable[[], None] | None = None,
        after: Ticket | None = None,
    ) -> Ticket:
        """Keep a batch; see ``Journal.submit``. ``on_commit`` runs before this returns."""
        records = self.redact(records)
        encoded = encode_records(records)
        with self._lock:
            if self._closed:
                raise JournalClosed("the journal is closed; nothing was written")
            if isinstance(after, Latch) and after.failure is not None:
                refusal: str = AFTER_REFUSED
            else:
                refusal = self._take(encoded)
            if refusal:
                ticket = Latch()
                ticket.finish(partial(refuse_batch, encoded, refusal))
                return ticket
            for rows in encoded:
                self._sequence += 1
                for name, row, _ in rows:
                    if name in self._sides:
                        self._sides[name][self._sequence] = row
                    else:
                        self._rows[name].append((self._sequence, row))
            committed = self._observers.wrap(records, on_commit)
            if committed is not None:
                committed()
        return _WRITTEN

    def redact(self, value: T) -> T:
        """The value as it would be recorded; see ``Journal.redact``."""
        return value if self._redactor is None else self._redactor(value)

    def observe(self, committed: Callable[[Sequence[Record]], None]) -> Callable[[], None]:
        """Have a function called with every batch once it is kept; see ``Journal.observe``."""
        return self._observers.add(committed)

    def _take(self, encoded: Sequence[EncodedRecord]) -> str:
        # What the unique indexes do in the file; returns what is wrong.
        taken: dict[str, list[Row]] = {table: [] for table in UNIQUE}
        for (name, row, _), *_ in encoded:
            if name in UNIQUE:
                keys, _ = UNIQUE[name]
                taken[name].append(tuple(row[column] for column in range(len(keys))))
        for table, places in taken.items():
            new = set(places)
            if len(new) < len(places) or not new.isdisjoint(self._taken[table]):
                columns = ", ".join(f"{table}.{column}" for column in UNIQUE[table][0])
                return f"UNIQUE constraint failed: {columns}"
        for table, places in taken.items():
            self._taken[table].update(places)
        return ""

    async def write(self, records: Sequence[Record]) -> None:
        """Keep a batch."""
        await self.submit(records).wait()

    # --- reading ------------------------------------------------------------------------------------------

    async def _read(self, table: Table, key: str = "", *values: str) -> list[tuple[int, Any]]:
        """The records of one table, with their sequence numbers, whose ``key`` is one of the values."""
        await anyio.lowlevel.checkpoint()
        if self._closed:
            raise JournalClosed("the journal is closed; nothing was read")
        column = table.columns.index(key) if key else 0
        wanted = {encode_plain(value) for value in values}
        side = self._sides[table.side] if table.side else None
        return [
            (sequence, table.decode(row if side is None else (*row, *side.get(sequence, ("",)))))
            for sequence, row in list(self._rows[table.name])
            if not key or row[column] in wanted
        ]

    async def read_run(self, run_id: str) -> RunRow:
        """One run, by its id or an unambiguous beginning of it."""
        return choose_run(run_id, await self.read_runs())

    async def read_runs(self, *, states: Sequence[RunState] | None = None) -> list[RunRow]:
        """Runs in the order they were started."""
        changed = {record.run_id: record for _, record in await self._read(RUN_STATES)}
        calls = [record for _, record in await self._read(MODEL_CALLS) if record.purpose == "agent"]
        called = {call.run_id: call.iteration for call in sorted(calls, key=attrgetter("call"))}
        rows = [
            run_row(record, changed.get(record.run_id), called=called.get(record.run_id, 0))
            for _, record in await self._read(RUNS)
        ]
        return [row for row in rows if states is None or row.state in states]

    async def read_entries(self, run_id: str, *, start: int = 0, stop: int | None = None) -> list[Entry]:
        """The ledger from position ``start`` up to, not including, ``stop``."""
        entries = [record.entry for _, record in await self._read(ENTRIES, "run_id", run_id)]
        entries.sort(key=lambda entry: entry.position)
        return [entry for entry in entries if entry.position >= start and (stop is None or entry.position < stop)]

    async def search_entries(self, run_id: str, query: str, *, limit: int = 20) -> list[SearchHit]:
        """Full-text search over a run's ledger, best first."""
        everything = await self._read(ENTRIES)
        with self._lock:
            index = self._index = self._index or EntryIndex()
            index.add((record.run_id, record.entry) for _, record in everything[index.size :])
            return index.search(run_id, query, limit=limit)

    async def read_decisions(self, run_id: str) -> list[DecisionMade]:
        """Every change of the run's plan, in order."""
        return [record for _, record in await self._read(DECISIONS, "run_id", run_id)]

    async def read_tool_calls(self, run_id: str) -> list[ToolCallRow]:
        """Every tool call of the run, in the order of intent."""
        intents = await self._read(TOOL_INTENTS, "run_id", run_id)
        return pair_tool_calls(intents, await self._read(TOOL_OUTCOMES, "run_id", run_id))

    async def read_outcomes(self, run_id: str) -> list[ToolFinished]:
        """How every tool call of the run ended, in order."""
        return [record for _, record in await self._read(TOOL_OUTCOMES, "run_id", run_id)]

    async def read_model_calls(self, run_id: str) -> list[ModelCallRow]:
        """Every model call of the run, in order."""
        calls = await self._read(MODEL_CALLS, "run_id", run_id)
        return pair_model_calls(calls, await self._read(MODEL_REPLIES, "run_id", run_id))

    async def read_statistics(self, run_id: str | None = None) -> dict[str, RunStatistics]:
        """The figures of a run and of all runs below it, by run id; None means every run."""
        counted = (RUNS, MODEL_CALLS, MODEL_REPLIES, DECISIONS, TOOL_OUTCOMES, EVENTS)
        records = [pair for table in counted for pair in await self._read(table)]
        found = add_up(record for _, record in sorted(records, key=itemgetter(0)))
        if run_id is None:
            return found
        return {name: now for name, now in found.items() if name == run_id or name.startswith(f"{run_id}.")}

    async def read_request(self, run_id: str, call: int) -> Json:
        """The whole request of one model call."""
        calls = await self._read(MODEL_CALLS, "run_id", run_id)
        request = RecordedRequest({record.call: record for _, record in calls}, call)
        entries = await self.read_entries(run_id)
        return request.whole(entry for entry in entries if entry.position in request.positions)

    async def read_summaries(self, run_id: str) -> list[SummaryStored]:
        """Every summary of the run, in the order they were stored."""
        return [record for _, record in await self._read(SUMMARIES, "run_id", run_id)]

    async def read_content(self, content_id: str) -> ContentStored | None:
        """One stored content, its body "" once it was cleaned up; None where there never was one."""
        found = await self._read(CONTENTS, "content_id", content_id)
        return found[-1][1] if found else None

    async def read_contents(self, run_id: str) -> list[ContentStored]:
        """All stored contents of a run, their bodies left empty."""
        found = await self._read(CONTENTS, "run_id", run_id)
        return [msgspec.structs.replace(record, body="") for _, record in found]

    async def read_scopes(self) -> list[ScopeOpened]:
        """Every memory scope."""
        return [record for _, record in await self._read(SCOPES)]

    async def read_items(self, scope_ids: Sequence[str], *, upto: int | None = None) -> list[ItemWritten]:
        """All versions of the scopes' items up to a position of the item log, in order."""
        items = [record for _, record in await self._read(ITEMS, "scope_id", *scope_ids)]
        items.sort(key=lambda item: item.position)
        return [item for item in items if upto is None or item.position <= upto]

    async def read_events(
        self, run_id: str | None, *, after: int = 0, limit: int | None = None
    ) -> list[tuple[int, EventLogged]]:
        """A run's events with their sequence numbers, those after the given one; None means every run's."""
        events = await (self._read(EVENTS) if run_id is None else self._read(EVENTS, "run_id", run_id))
        return [pair for pair in events if pair[0] > after][:limit]

    async def last_event(self) -> int:
        """The sequence number of the newest event; 0 where there is none."""
        events = await self._read(EVENTS)
        return events[-1][0] if events else 0

    async def delete_expired_contents(self, now: float) -> int:
        """Empty stored contents that expired before ``now``; returns how many."""
        ended = {row.started.run_id: row.updated_at for row in await self.read_runs() if row.state in FINAL_STATES}
        bodies = self._sides[str(CONTENTS.side)]
        expired = [
            sequence
            for sequence, record in await self._read(CONTENTS)
            if sequence in bodies and is_expired(record, ended.get(record.run_id), now)
        ]
        for sequence in expired:
            bodies.pop(sequence, None)
        return len(expired)

    async def aclose(self) -> None:
        """Refuse further use. Safe to call twice."""
        await anyio.lowlevel.checkpoint()
        with self._lock:
            self._closed = True
            if self._index is not None:
                self._index.close()
                self._index = None
