"""Listing runs: trees by filters and pages, the queue, and what quotas, schedules and webhooks ask of all runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from repertory.errors import RunNotFound
from repertory.llm.profiles import Amount
from repertory.record.contents import FINAL, root_of
from repertory.record.reads import Rows, json_list, marks
from repertory.record.records import RunRow, RunState, RunStateChanged, ScheduleSettled, WebhookTried
from repertory.record.rows import NO_LIMIT, Value, decode_text
from repertory.record.run_reads import RunReads
from repertory.record.statistics import PROMPT

AGEING: Final = 300.0
"""Seconds of waiting that count as much as one level of priority.

This is a choice: runs take minutes, so a level is worth about one run. All waiting runs age at the same rate, so their
order never changes while they wait, and no clock is needed to determine it.
"""

_QUEUED: Final = """SELECT r.run_id, r.agent, r.client, r.priority, s.at
    FROM current_states c JOIN runs r ON r.seq = c.seq JOIN run_states s ON s.seq = c.changed
    WHERE c.state = 'queued'"""
# A call without a reply was cut off or is in progress. The most that it can take is counted, as for limits.
_USED: Final = f"""SELECT r.agent, r.client, sum(u.cost), sum(u.tokens) FROM (
        SELECT run_id, cost + cost_lost AS cost, {PROMPT} + output_tokens + tokens_lost AS tokens
        FROM model_replies WHERE at >= ?
        UNION ALL
        SELECT run_id, cost_at_most, tokens_at_most FROM model_calls c WHERE at >= ? AND NOT EXISTS (
            SELECT 1 FROM model_replies m WHERE m.run_id = c.run_id AND m.call = c.call)) u
    JOIN runs r ON r.run_id = {root_of("u.run_id")}
    GROUP BY r.agent, r.client"""


class QueuedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits in the queue.

    Attributes:
        at: When it was queued, in seconds since 1970.
    """

    run_id: str
    agent: str
    client: str
    priority: int
    at: float


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
    """The part of a journal that reads across all runs."""

    # --- trees of runs ------------------------------------------------------------------------------------

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

    # --- the queue, and schedules -------------------------------------------------------------------------

    async def read_settled(self) -> dict[str, ScheduleSettled]:
        """The last settled due time of each schedule, by its name."""
        latest = "t.seq IN (SELECT max(seq) FROM schedules GROUP BY schedule)"
        found = await self._records(ScheduleSettled, f"WHERE {latest} ORDER BY t.seq")
        return {settled.schedule: settled for settled in found}

    async def read_queue(
        self,
        *,
        without_runs: Collection[str] = (),
        without_agents: Collection[str] = (),
        without_clients: Collection[str] = (),
        limit: int | None = None,
    ) -> list[QueuedRow]:
        """The runs that wait to begin, in the order in which they will begin; ``limit`` of them, None for all.

        Higher priority comes first. Waiting for ``AGEING`` seconds counts as much as one level of priority. Some runs
        can be left out: by their ids, and by the names of their agents and clients.
        """
        sql, values = _QUEUED, list[Value]()
        for column, left_out in (("run_id", without_runs), ("agent", without_agents), ("client", without_clients)):
            if left_out:
                sql += f" AND r.{column} NOT IN ({marks(left_out)})"
                values += left_out
        sql += f" ORDER BY s.at - {AGEING} * r.priority, s.seq"
        if limit is not None:
            sql += " LIMIT ?"
            values.append(limit)
        return await self._rows(QueuedRow, "queue", sql, *values)

    async def read_used(self, since: float) -> dict[tuple[str, str], Amount]:
        """What trees of runs have used since a time, in seconds since 1970, by the agent and the client of their roots.

        Attempts that broke off and calls without a reply count as the most that they can have taken.
        """
        found = await self._rows(tuple[str, str, float, int], "what was used", _USED, since, since)
        return {(agent, client): Amount(cost, tokens) for agent, client, cost, tokens in found}

    # --- webhooks -----------------------------------------------------------------------------------------

    async def read_state_changes(self, *, after: int, limit: int) -> list[tuple[int, RunStateChanged]]:
        """The state changes of root runs after a number, each with its own number, in order."""
        bound = await self._complete_below()
        which = "WHERE t.seq > ? AND t.seq < ? AND instr(t.run_id, '.') = 0 ORDER BY t.seq LIMIT ?"
        return await self._read(RunStateChanged, which, after, bound, limit)

    async def last_state_change(self) -> int:
        """The number of the newest state change; 0 if there is none."""
        return await self._number("states", "SELECT max(seq) FROM run_states")

    async def read_webhook_position(self, url: str) -> int | None:
        """The number of the last change for which a webhook was tried, or at which it began; None if it is new."""
        sql = "SELECT max(change) FROM webhook_attempts WHERE url = ?"
        ((position,),) = await self._rows(tuple[int | None], "webhooks", sql, url)
        return position

    async def read_failed_webhooks(self, url: str) -> list[WebhookTried]:
        """The last attempt for each run whose last attempt at a webhook failed."""
        later = "SELECT 1 FROM webhook_attempts n WHERE n.url = t.url AND n.run_id = t.run_id AND n.seq > t.seq"
        which = "t.url = ? AND t.outcome IN ('failed', 'disabled')"
        return await self._records(WebhookTried, f"WHERE {which} AND NOT EXISTS ({later}) ORDER BY t.seq", url)

    async def read_webhooks(self, *, before: int | None = None, limit: int = 100) -> list[tuple[int, WebhookTried]]:
        """Attempts at webhooks before a number, each with its number, newest first; None begins with the newest."""
        bound = NO_LIMIT if before is None else before
        return await self._read(WebhookTried, "WHERE t.seq < ? ORDER BY t.seq DESC LIMIT ?", bound, limit)
