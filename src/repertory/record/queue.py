"""The queue of runs in the journal: which runs wait, in what order, and how much of a day's quotas is used."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from repertory.llm.profiles import Amount
from repertory.record.contents import root_of
from repertory.record.reads import Reads, marks
from repertory.record.records import ScheduleSettled
from repertory.record.rows import Value
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


class QueueReads(Reads):
    """The part of a journal that reads the queue of runs."""

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
