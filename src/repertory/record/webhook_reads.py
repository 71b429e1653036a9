"""Reading the changes of state that webhooks are told of, and what was tried to tell them."""

from __future__ import annotations

from repertory.record.reads import Reads
from repertory.record.records import RunStateChanged, WebhookTried
from repertory.record.rows import NO_LIMIT


class WebhookReads(Reads):
    """The part of a journal that reads what webhooks need."""

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
