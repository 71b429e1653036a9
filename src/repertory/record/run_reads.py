"""Reading runs from a journal: their state, what was said and done in them, what they cost, and their contents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import msgspec

from repertory._choices import show
from repertory._ids import is_made
from repertory.errors import JournalUnreadable, RunNotFound
from repertory.llm.messages import Json
from repertory.llm.profiles import Amount
from repertory.record.contents import HOLDING, HOLDING_SOME, OF_TREE, STORED, due, of_tree, put_together
from repertory.record.entries import Entry
from repertory.record.memory_records import PayloadChanged
from repertory.record.reads import OF_RUN, Reads, Rows, json_list, marks, row_as
from repertory.record.records import (
    ContentStored,
    DecisionMade,
    EntryAppended,
    EventLogged,
    ModelCalled,
    ModelCallRow,
    ModelReplied,
    Record,
    RunRow,
    RunStarted,
    RunState,
    RunStateChanged,
    SummaryStored,
    ToolCallRow,
    ToolFinished,
    ToolIntended,
)
from repertory.record.requests import RecordedRequest
from repertory.record.rows import NEWEST, NO_LIMIT, TABLES, Value, decode_text, encode_json
from repertory.record.schema import LATEST_ITERATION, request_parts
from repertory.record.search import ENTRIES, SearchHit, phrases_of, search_hit
from repertory.record.statistics import (
    PROMPT,
    RESULT_SUMMARIZED,
    STATES_SQL,
    RunStatistics,
    Totals,
    statistics_sql,
    totals_sql,
)

B = TypeVar("B")
R = TypeVar("R", bound=Record)

_RUNS, _RUN_STATES, _ENTRIES = TABLES[RunStarted], TABLES[RunStateChanged], TABLES[EntryAppended]


def _figures(rows: Rows) -> dict[str, RunStatistics]:
    return {decode_text(str(name)): row_as(RunStatistics, figures) for name, *figures in rows}


class RunReads(Reads):
    """The part of a journal that reads runs."""

    async def read_records(self, kind: type[R], run_id: str, *, below: bool = False) -> list[tuple[int, R]]:
        """All records of one kind of a run, with ``below`` also of the runs below it; with their numbers, in order."""
        if below:
            return await self._read(kind, f"WHERE {OF_TREE} ORDER BY t.seq", run_id, run_id, run_id)
        return await self._read(kind, OF_RUN, run_id)

    async def end_of_iteration(self, run_id: str, iteration: int) -> int:
        """The number of the first call of a run's loop after an iteration; if there is none, one above all records."""
        later = "SELECT min(seq) FROM model_calls WHERE run_id = ? AND purpose = 'agent' AND iteration > ?"
        return await self._number("model_calls", f"SELECT coalesce(({later}), ({NEWEST}) + 1)", run_id, iteration)

    async def _pairs(
        self, run_id: str, begun: type[B], ended: type[Any], key: Callable[[Any], Hashable], *, side: bool = True
    ) -> list[tuple[B, Any]]:
        """A run's beginnings (of calls, for instance), in order, each with the last record that ended it, or None.

        What was begun again after a crash occurs once for each attempt. An end without a beginning is left out.
        """
        pairs: list[tuple[B, Any]] = []
        latest: dict[Hashable, int] = {}
        found = [*await self._read(begun, OF_RUN, run_id, side=side), *await self._read(ended, OF_RUN, run_id)]
        for _, record in sorted(found, key=itemgetter(0)):
            if isinstance(record, begun):
                latest[key(record)] = len(pairs)
                pairs.append((record, None))
            elif (index := latest.get(key(record))) is not None:
                pairs[index] = pairs[index][0], record
        return pairs

    async def _read_runs(self, where: str, *values: Value) -> list[RunRow]:
        width = len(_RUNS.columns) + 2  # with seq and checksum

        def decode(row: Sequence[Value]) -> RunRow:
            started: RunStarted = _RUNS.read(row[:width])[1]
            now = RunStateChanged(run_id=started.run_id, state="running", at=started.at)
            if row[width] is not None:
                now = _RUN_STATES.read(row[width:-1])[1]
            same = ("state", "result", "error", "cancelled", "reason", "cause")
            fields: dict[str, Any] = {name: getattr(now, name) for name in same}
            iteration = max(now.iteration, int(row[-1] or 0))
            return RunRow(started=started, updated_at=now.at, iteration=iteration, **fields)

        return await self._fetch(
            "runs",
            f"""SELECT {_RUNS.select("r")}, {_RUN_STATES.select("s")}, {LATEST_ITERATION}
                FROM runs r LEFT JOIN run_states s
                ON s.seq = (SELECT max(seq) FROM run_states WHERE run_id = r.run_id) {where} ORDER BY r.seq""",
            values,
            lambda rows: [decode(row) for row in rows],
        )

    async def read_run(self, run_id: str) -> RunRow:
        """The run with exactly this id. Raises ``RunNotFound``."""
        found = await self.run_or_none(run_id)
        if found is None:
            removed = ": it was removed, and its id stays taken" if await self.was_removed(run_id) else ""
            raise RunNotFound(f"no run has the id {show(run_id)}{removed}")
        return found

    async def run_or_none(self, run_id: str) -> RunRow | None:
        """The run with exactly this id; None if there is none."""
        found = await self._read_runs("WHERE r.run_id = ?", run_id)
        return found[0] if found else None

    async def was_removed(self, run_id: str) -> bool:
        """Whether a root run with this id has been removed, or its removal has begun."""
        return bool(await self._ids("removals", "SELECT run_id FROM removals WHERE run_id = ?", run_id))

    async def find_run(self, part: str) -> RunRow:
        """One run for people, by its id or an unambiguous beginning of it. Raises ``RunNotFound``.

        The beginning of a root's id means the root, whatever runs are below it. Ids that an application made are only
        found whole: one customer's may be the beginning of another's.
        """
        # A range, so that the index is used; U+10FFFF sorts after every character of an id.
        sql = """SELECT run_id FROM runs WHERE run_id >= ? AND run_id < ?
                 AND instr(substr(run_id, length(CAST(? AS TEXT)) + 1), '.') = 0 ORDER BY run_id LIMIT 4"""
        fitting = await self._ids("runs", sql, part, part + "\U0010ffff", part) if part else []
        if len(fitting) > 1 and fitting[0] != part:
            names = ", ".join(fitting[:3]) + (", …" if fitting[3:] else "")
            raise RunNotFound(f"{part!r} fits several runs ({names}); give more of the id")
        return await self.read_run(fitting[0] if fitting and is_made(fitting[0]) else part)

    async def read_runs(self, *, states: Sequence[RunState] | None = None, below: str | None = None) -> list[RunRow]:
        """Runs in the order in which they were started.

        Args:
            states: Only runs in one of these states; None for all.
            below: Only the run with this whole id and all runs below it. None reads every run of the journal, which
                takes longer the more there are.
        """
        conditions, values = list[str](), list[Value]()
        if below is not None:
            conditions.append(of_tree("r.run_id"))
            values += [below] * 3
        if states is not None:
            conditions.append(f"r.seq IN (SELECT seq FROM current_states WHERE state IN ({marks(states)}))")
            values += states
        return await self._read_runs(f"WHERE {' AND '.join(conditions)}" if conditions else "", *values)

    async def read_ids(self, part: str = "") -> list[str]:
        """The ids of runs that contain a text, in order."""
        # In the order of their index, which is then all that is read.
        return await self._ids("runs", "SELECT run_id FROM runs WHERE instr(run_id, ?) > 0 ORDER BY run_id", part)

    async def read_entries(self, run_id: str, *, start: int = 0, stop: int | None = None) -> list[Entry]:
        """The ledger from position ``start`` up to, not including, ``stop``."""
        bound, values = ("", ()) if stop is None else ("AND t.position < ?", (stop,))
        return await self._read_entries(f"t.position >= ? {bound} ORDER BY t.position", run_id, start, *values)

    async def count_entries(self, run_id: str) -> int:
        """The number of entries in a run's ledger."""
        return await self._number("entries", "SELECT max(position) + 1 FROM entries WHERE run_id = ?", run_id)

    async def _read_entries(self, which: str, run_id: str, *values: Value) -> list[Entry]:
        found = await self._records(EntryAppended, f"WHERE t.run_id = ? AND {which}", run_id, *values)
        return [record.entry for record in found]

    async def _read_positions(self, run_id: str, positions: Collection[int]) -> list[Entry]:
        # Only these entries, so that damage to other entries does no harm.
        which = "t.position IN (SELECT CAST(value AS BIGINT) FROM json_each(?))"
        return await self._read_entries(which, run_id, json_list(positions)) if positions else []

    async def search_entries(self, run_id: str, query: str, *, limit: int = 20) -> list[SearchHit]:
        """Full-text search over a run's ledger, best first: entries with any of the words, by BM25.

        Other forms of a word match too; case and accents do not matter. Words in double quotes are a phrase. Only the
        first hundred words of a query count. No query is a syntax error.
        """
        if not phrases_of(query):
            return []
        journal = await self._indexed(ENTRIES, lambda: self._of_run(EntryAppended, run_id))
        sql, values = journal._full_text.entries(run_id, query, _ENTRIES.select("t"))
        return await journal._fetch(
            f"entries of {run_id!r:.60}",
            f"{sql} ORDER BY score DESC, t.seq LIMIT ?",
            (*values, max(0, limit)),
            lambda rows: [search_hit(_ENTRIES.read(row[1:])[1], float(row[0] or 0), query) for row in rows],
        )

    async def read_decisions(self, run_id: str) -> list[DecisionMade]:
        """All changes of the run's plan, in order."""
        return await self._of_run(DecisionMade, run_id)

    async def read_tool_calls(self, run_id: str) -> list[ToolCallRow]:
        """All tool calls of the run, in the order of their intents."""
        pairs = await self._pairs(run_id, ToolIntended, ToolFinished, attrgetter("call_id"))
        return [ToolCallRow(intended=intended, finished=finished) for intended, finished in pairs]

    async def read_intents(self, run_id: str, *, iteration: int) -> list[ToolIntended]:
        """The tool calls of the run that began in an iteration or later, in order; one for each attempt."""
        rest = "WHERE t.run_id = ? AND t.iteration >= ? ORDER BY t.seq"
        return await self._records(ToolIntended, rest, run_id, iteration)

    async def read_outcomes(self, run_id: str, calls: Iterable[str] | None = None) -> list[ToolFinished]:
        """The outcomes of the run's tool calls, or of those with some ids, in order.

        Calls that never began, and so have no intent, are among them.
        """
        if calls is None:
            return await self._of_run(ToolFinished, run_id)
        rest = "WHERE t.run_id = ? AND t.call_id IN (SELECT value FROM json_each(?)) ORDER BY t.seq"
        return await self._records(ToolFinished, rest, run_id, json_list(calls))

    async def read_model_calls(self, run_id: str, *, contents: bool = True) -> list[ModelCallRow]:
        """All model calls of the run, in order. If the ledger holds the content of a reply, it is read from there.

        Without ``contents`` the calls have no request bodies, and no answers that the ledger holds.
        """
        pairs = await self._pairs(run_id, ModelCalled, ModelReplied, attrgetter("call"), side=contents)
        if not contents:
            return [ModelCallRow(called=called, replied=replied) for called, replied in pairs]
        turns = [replied.position for _, replied in pairs if replied is not None and replied.position is not None]
        held = {entry.position: entry.content for entry in await self._read_positions(run_id, turns)}

        def whole(replied: ModelReplied | None) -> ModelReplied | None:
            if replied is None or replied.position is None:
                return replied
            if replied.position not in held:
                raise JournalUnreadable(
                    f"the answer of model call {replied.call} of {run_id} is entry {replied.position}, which is not "
                    "recorded"
                )
            return msgspec.structs.replace(replied, content=held[replied.position])

        return [ModelCallRow(called=called, replied=whole(replied)) for called, replied in pairs]

    async def read_statistics(
        self, run_id: str | None = None, *, of: Collection[str] | None = None
    ) -> dict[str, RunStatistics]:
        """The figures of a run and of all runs below it, by run id; None means every run, in the order they began.

        With ``of``, only the figures of the runs with these ids.

        The figures are added up in SQL, which is fast, while ``read_model_calls`` would read every answer.
        """
        values: tuple[Value, ...]
        where, values = ("", ()) if run_id is None else (OF_TREE, (run_id,) * 3)
        if of is not None:
            where, values = "run_id IN (SELECT value FROM json_each(?))", (json_list(of),)
        sql = statistics_sql(where)
        return await self._fetch("figures", sql, values * sql.count(where) if where else (), _figures)

    async def read_totals(self, *, after: int = 0, upto: int | None = None) -> Totals:
        """What the records after a number add to the figures of all runs, by agent; 0 for all records.

        ``upto`` is the number of the last one; None for the newest.
        """
        removals = await self._number("removals", "SELECT count(*) FROM removals")
        if upto is None:
            upto = max(after, min(await self._number("records", NEWEST), await self._complete_below() - 1))
        stretch, sql, states = (after, upto), totals_sql(), Counter[tuple[str, RunState]]()
        figures = await self._fetch("figures", sql, stretch * (sql.count("?") // 2), _figures)
        changes = await self._rows(tuple[str, RunState, RunState | None, int], "states", STATES_SQL, *stretch * 2)
        for agent, state, was, count in changes:
            states[agent, state] += count
            if was is not None:
                states[agent, was] -= count
        return Totals(upto=upto, removals=removals, figures=figures, states=states)

    async def read_spent(self, since: float) -> tuple[int, int, float]:
        """How many model calls of all runs have ended since a time, with their tokens and US dollars."""
        sql = f"""SELECT count(*), coalesce(sum({PROMPT} + output_tokens), 0), coalesce(sum(cost), 0.0)
                  FROM model_replies WHERE at >= ?"""
        (spent,) = await self._rows(tuple[int, int, float], "model replies", sql, since)
        return spent

    async def read_open_calls(self, run_id: str) -> dict[tuple[str, int], Amount]:
        """The most that each unanswered model call of a run, and of the runs below it, can have taken."""
        answered = "SELECT 1 FROM model_replies r WHERE r.run_id = c.run_id AND r.call = c.call"
        sql = f"""SELECT run_id, call, cost_at_most, tokens_at_most FROM model_calls c
                  WHERE {OF_TREE} AND NOT EXISTS ({answered})"""
        found = await self._rows(tuple[str, int, float, int], "open model calls", sql, run_id, run_id, run_id)
        return {(run, call): Amount(cost, tokens) for run, call, cost, tokens in found}

    async def read_elapsed(self, run_id: str) -> float:
        """How many seconds a tree of runs has been active, according to its events; see ``EventLogged``."""
        sql = f"SELECT coalesce(max(elapsed), 0.0) FROM events WHERE {OF_TREE}"
        ((elapsed,),) = await self._rows(tuple[float], "events", sql, run_id, run_id, run_id)
        return elapsed

    async def count_tools_run(self, run_id: str) -> dict[str, int]:
        """How many tool calls began in a run and in each run below it. A call that began again after a crash is one."""
        sql = f"SELECT run_id, count(DISTINCT call_id) FROM tool_intents WHERE {OF_TREE} GROUP BY run_id"
        return dict(await self._rows(tuple[str, int], "tool calls", sql, run_id, run_id, run_id))

    async def read_request(self, run_id: str, call: int) -> Json:
        """The whole request of one model call, as it was sent, put together from its parts.

        Raises:
            JournalUnreadable: There is no such call, or its parts do not match the recorded digest.
        """
        return (await self.read_request_from(run_id, call))[0]

    async def read_request_from(self, run_id: str, call: int) -> tuple[Json, list[Entry]]:
        """The same, and the entries of the ledger of which it has blocks."""
        newest = " FROM model_calls c WHERE c.seq = (SELECT max(seq) FROM model_calls WHERE run_id = ? AND call = ?)"
        held = f"WITH RECURSIVE {request_parts('?', newest)} SELECT seq FROM parts WHERE start < bound"
        rest = f"WHERE t.seq IN ({held}) ORDER BY t.call DESC"
        chain = await self._records(ModelCalled, rest, run_id, call, run_id)
        if not chain:
            raise JournalUnreadable(f"no model call {call} is recorded; read_model_calls lists those that are")
        request = RecordedRequest(chain)
        entries = await self._read_positions(run_id, request.positions)
        return request.whole(entries), entries

    async def read_summaries(self, run_id: str) -> list[SummaryStored]:
        """All summaries of the run, in the order in which they were stored."""
        return await self._of_run(SummaryStored, run_id)

    async def find_summary(self, root: str, key: str) -> SummaryStored | None:
        """The newest summary with this key in a tree; None if there is none."""
        rest = f"WHERE t.key = ? AND {OF_TREE} ORDER BY t.seq DESC LIMIT 1"
        found = await self._records(SummaryStored, rest, key, root, root, root)
        return found[0] if found else None

    async def find_result_summary(self, root: str, key: str) -> str | None:
        """The newest summary of a single result with this key in a tree; None if there is none."""
        keyed = f"t.type = '{RESULT_SUMMARIZED}' AND json_extract(t.body, '$.key') = ?"
        rest = f"WHERE {keyed} AND {OF_TREE} ORDER BY t.seq DESC LIMIT 1"
        found = await self._records(EventLogged, rest, key, root, root, root)
        return found[0].body["text"] if found else None

    async def read_content(self, content_id: str, *, root: str | None = None) -> ContentStored | None:
        """One stored content, with its body from the ledger if that holds it; None if there never was one.

        If it was cleaned up and the ledger does not hold all of it, the body is "", although the length is not 0.

        Args:
            content_id: Its citation id.
            root: Only what this run and the runs below it stored; None for a caller that may read everything.
        """
        # First the latest with this id, then its body: an earlier body must not replace one that was deleted.
        whose, values = ("", ()) if root is None else (f"AND {OF_TREE}", (root, root, root))
        latest = f"t.seq = (SELECT max(seq) FROM contents WHERE content_id = ? {whose})"
        found: list[ContentStored] = await self._records(ContentStored, f"WHERE {latest}", content_id, *values)
        if not found:
            return None
        stored = found[0]
        if not stored.body and stored.length:
            return msgspec.structs.replace(stored, body=await self.read_held(stored))
        return stored

    async def read_held(self, stored: ContentStored) -> str:
        """The whole of a content, put together from its run's ledger; "" if the ledger does not hold all of it."""
        named = encode_json(stored.content_id)
        return put_together(stored, await self._read_entries(HOLDING, stored.run_id, stored.content_id, named))

    async def read_holding(self, run_id: str, content_ids: Collection[str]) -> dict[str, list[Entry]]:
        """The entries of a run that hold something of these contents, for each of them, in one read."""
        found: dict[str, list[Entry]] = {}
        for entry in await self._read_entries(HOLDING_SOME, run_id, json_list(content_ids)):
            cited = {part.source for part in entry.retrieved.parts} if entry.retrieved is not None else set[str]()
            for content_id in cited | {entry.content_id or ""}:
                found.setdefault(content_id, []).append(entry)
        return found

    async def read_contents(self, run_id: str) -> list[ContentStored]:
        """All stored contents of a run, without their bodies."""
        return await self._records(ContentStored, OF_RUN, run_id, side=False)

    async def read_due_bodies(
        self, now: float, *, ended_after: float = -math.inf, ended_by: float = -math.inf, root: str | None = None
    ) -> list[tuple[int, ContentStored]]:
        """The contents whose bodies in the content store are due for cleaning up, without them and with their numbers.

        All times are seconds since 1970.

        A content is due if its ``expires_at`` is not after ``now``, or its tree ended ``retention`` seconds ago. A
        content with neither is due if its tree ended between ``ended_after`` and ``ended_by`` and its run has retrieved
        anything; if it has not, nothing else can hold the content. ``root`` restricts this to one tree; None means all.
        """
        whose, values = ("", ()) if root is None else (f"{of_tree('t.run_id')} AND", (root, root, root))
        return await self._read(ContentStored, due(whose), *values, now, now, ended_after, ended_by, side=False)

    async def read_bodies(self, run_id: str) -> list[tuple[int, ContentStored]]:
        """The contents of a run and the runs below it whose bodies the content store holds, as ``read_due_bodies``."""
        rest = f"{STORED} WHERE {OF_TREE} ORDER BY t.seq"
        return await self._read(ContentStored, rest, run_id, run_id, run_id, side=False)

    async def read_payload(self, run_id: str) -> list[PayloadChanged]:
        """All versions of a run's payload, in order; [] if it has no payload."""
        return await self._of_run(PayloadChanged, run_id)

    async def payload_version(self, run_id: str) -> int:
        """The number of the newest version of a run's payload; 0 if it has no payload."""
        return await self._number("payloads", "SELECT max(version) FROM payloads WHERE run_id = ?", run_id)

    async def read_events(
        self,
        run_id: str | None,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        types: Collection[str] = (),
    ) -> list[tuple[int, EventLogged]]:
        """A run's events after a sequence number, with their sequence numbers, in order.

        Args:
            run_id: The run; None means every run.
            after: The sequence number of the last event that is already known.
            before: Return the last events before this sequence number, instead of the first ones after ``after``.
            limit: The maximum number of events; None means all.
            types: Only events of these types; empty means all types.
        """
        bound = await self._complete_below() if run_id is None else NO_LIMIT
        whose, values = ("t.seq < ? AND", (bound,)) if run_id is None else ("t.run_id = ? AND", (run_id,))
        if types:
            whose, values = f"{whose} t.type IN ({marks(types)}) AND", (*values, *types)
        most = NO_LIMIT if limit is None else limit
        if before is None:
            first = f"WHERE {whose} t.seq > ? ORDER BY t.seq LIMIT ?"
            return await self._read(EventLogged, first, *values, after, most)
        last = f"WHERE {whose} t.seq > ? AND t.seq < ? ORDER BY t.seq DESC LIMIT ?"
        return (await self._read(EventLogged, last, *values, after, before, most))[::-1]

    async def last_event(self) -> int:
        """The sequence number of the newest event of any run; 0 if there is none."""
        bound = await self._complete_below()
        return await self._number("events", "SELECT max(seq) FROM events WHERE seq < ?", bound)
