"""Listing trees of runs: filtering, counting and paging in SQL, however many there are."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec

from repertory.errors import RunNotFound
from repertory.record.contents import FINAL, root_of
from repertory.record.reads import Rows, json_list, marks
from repertory.record.records import RunRow, RunState
from repertory.record.rows import Value, decode_text
from repertory.record.run_reads import RunReads


class InState(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for roots by state.

    Attributes:
        states: The recorded states.
        among: Only roots with these ids; None for all.
        without: No roots with these ids.
    """

    states: Collection[RunState]
    among: Collection[str] | None = None
    without: Collection[str] = ()


class RootFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which roots to list. A field that is "" or () does not restrict them.

    Attributes:
        in_state: The root passes one of these filters.
        agent: The name of the agent.
        client: The client that asked for it.
        part: A text that occurs in its id, or in that of a run below it.
        text: A text that occurs anywhere in the task; case is ignored.
        since: Started at this time or later, in seconds since 1970.
        until: Started before this time.
        before: Started before this root.
        after: Started after this root.
        oldest: List the first roots that fit, rather than the last.
    """

    in_state: Sequence[InState] = ()
    agent: str = ""
    client: str = ""
    part: str = ""
    text: str = ""
    since: float = 0.0
    until: float = math.inf
    before: str = ""
    after: str = ""
    oldest: bool = False


class ListReads(RunReads):
    """The part of a journal that lists trees of runs."""

    async def read_roots(self, wanted: RootFilter, limit: int) -> tuple[list[str], int]:
        """The ids of the last (or first) roots that fit, in the order in which they were started; and how many fit.

        Raises:
            RunNotFound: There is no root ``before`` or ``after``.
        """
        conditions, values = ["r.parent_id IS NULL"], list[Value]()
        for bound, sign in ((wanted.before, "<"), (wanted.after, ">")):
            if bound:
                conditions.append(f"r.seq {sign} ?")
                values.append(await self._place_of_root(bound))
        for column, name in (("agent", wanted.agent), ("client", wanted.client)):
            if name:
                conditions.append(f"r.{column} = ?")
                values.append(name)
        if wanted.part:
            conditions.append(f"r.run_id IN (SELECT {root_of('run_id')} FROM runs WHERE instr(run_id, ?) > 0)")
            values.append(wanted.part)
        for sign, at, always in ((">=", wanted.since, 0.0), ("<", wanted.until, math.inf)):
            if at != always:
                conditions.append(f"r.at {sign} ?")
                values.append(at)
        if wanted.in_state:
            conditions.append(f"({' OR '.join(self._in_state(each, values) for each in wanted.in_state)})")
        source = f"FROM runs r WHERE {' AND '.join(conditions)}"
        order = f"ORDER BY r.seq {'' if wanted.oldest else 'DESC'}"
        if wanted.text:
            found = await self._with_text(f"SELECT r.run_id, r.task {source} {order}", values, wanted.text)
            count, found = len(found), found[:limit]
        else:
            count = await self._number("runs", f"SELECT count(*) {source}", *values)
            found = await self._ids("runs", f"SELECT r.run_id {source} {order} LIMIT ?", *values, limit)
        return found if wanted.oldest else found[::-1], count

    async def read_trees(self, roots: Collection[str]) -> list[RunRow]:
        """Some roots and all runs below them, in the order in which they were started."""
        # '/' comes right after '.'; '-', which an id may also have, right before it.
        tree = """SELECT t.seq FROM json_each(?) k JOIN runs t ON t.run_id >= k.value AND t.run_id < k.value || '/'
            WHERE t.run_id = k.value OR substr(t.run_id, length(k.value) + 1, 1) = '.'"""
        return await self._read_runs(f"WHERE r.seq IN ({tree})", json_list(roots)) if roots else []

    async def read_ended_roots(self, before: float) -> list[str]:
        """The ids of the roots that ended before a time, in seconds since 1970, and have not been resumed since."""
        sql = f"""SELECT r.run_id FROM current_states c
            JOIN runs r ON r.seq = c.seq JOIN run_states s ON s.seq = c.changed
            WHERE c.root = 1 AND c.state IN ({FINAL}) AND s.at < ? ORDER BY r.seq"""
        return await self._ids("runs", sql, before)

    async def read_roots_since(self, since: float, state: RunState) -> list[str]:
        """The ids of the roots that came into a state at a time or later and are in it, by when they did."""
        # From the newest number that is surely older, so that it costs what has happened since, not what ever has.
        older = "SELECT seq FROM model_replies WHERE at < ? ORDER BY at DESC LIMIT 1"
        sql = f"""SELECT s.run_id FROM run_states s JOIN runs r ON r.run_id = s.run_id
            JOIN current_states c ON c.seq = r.seq AND c.changed = s.seq
            WHERE s.seq > coalesce(({older}), 0) AND s.at >= ? AND s.state = ? AND c.root = 1 ORDER BY s.seq"""
        return await self._ids("runs", sql, since, since, state)

    async def _place_of_root(self, run_id: str) -> int:
        sql = "SELECT max(seq) FROM runs WHERE run_id = ? AND parent_id IS NULL"
        if place := await self._number("runs", sql, run_id):
            return place
        raise RunNotFound(f"there is no root {run_id[:200]!r} to go on from; it may have been removed")

    def _in_state(self, wanted: InState, values: list[Value]) -> str:
        # Placeholders, because with a JSON list PostgreSQL would not use the index but scan all roots.
        conditions = [f"r.seq IN (SELECT seq FROM current_states WHERE root = 1 AND state IN ({marks(wanted.states)}))"]
        values += wanted.states
        for sign, ids in (("IN", wanted.among), ("NOT IN", wanted.without or None)):
            if ids is not None:
                conditions.append(f"r.run_id {sign} (SELECT value FROM json_each(?))")
                values.append(json_list(ids))
        return f"({' AND '.join(conditions)})"

    async def _with_text(self, sql: str, values: Sequence[Value], text: str) -> list[str]:
        # In Python, not in SQL: engines fold case in different ways, and none for every language as Python does.
        folded = text.casefold()

        def decode(rows: Rows) -> list[str]:
            return [str(run_id) for run_id, task in rows if folded in decode_text(str(task)).casefold()]

        return await self._fetch("runs", sql, values, decode)
