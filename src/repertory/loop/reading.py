"""What the tools of a run may read of the record."""

from __future__ import annotations

from collections.abc import Sequence

from repertory._ids import is_below, root_of
from repertory.loop.sharing import shared_with
from repertory.record import Entry, Journal, Snapshot
from repertory.record.records import (
    ContentStored,
    SearchHit,
)
from repertory.runs.live import LiveRun
from repertory.tools import (
    RunRecord,
)


class _Record:
    """The record of one run, to read."""

    def __init__(self, journal: Journal, run_id: str, entries: Sequence[Entry]) -> None:
        self._journal = journal
        self._run_id = run_id
        self._entries = entries

    def snapshot(self) -> Sequence[Entry]:
        return self._entries

    async def search(self, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        return await self._journal.search_entries(self._run_id, query, limit=limit)

    async def of_run(self, run_id: str) -> None:
        """Nobody else's: what may be read is asked of the run that reads."""

    def others(self) -> Sequence[str]:
        return ()


class Reading:
    """What the tools of a run may read: its own record, those below it and shared with it, and its tree's contents.

    A citation id is no secret: it stands in answers, logs and URLs. So knowing one must not open another tree's
    contents.
    """

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._journal = live.shared.journal

    def snapshot(self) -> Snapshot:
        """The run's own ledger."""
        return self._live.ledger.snapshot()

    async def search(self, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Search the run's own ledger."""
        return await self._journal.search_entries(self._live.run_id, query, limit=limit)

    async def of_run(self, run_id: str) -> RunRecord | None:
        """The record of a run, where this one may read it."""
        if run_id == self._live.run_id:
            return self
        if not (is_below(run_id, self._live.run_id) or run_id in shared_with(self._live)):
            return None
        entries = await self._journal.read_entries(run_id)
        return _Record(self._journal, run_id, entries) if entries else None

    def others(self) -> Sequence[str]:
        """The other runs whose records it may read."""
        below = sorted(run_id for run_id in self._live.root.members if is_below(run_id, self._live.run_id))
        return [*shared_with(self._live), *below]

    async def read_content(self, content_id: str) -> ContentStored | None:
        """A stored content of its tree."""
        return await self._journal.read_content(content_id, root=root_of(self._live.run_id))
