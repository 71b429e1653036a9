"""What the tools of a run may read: its own record, and the stored contents of its tree."""

from __future__ import annotations

from collections.abc import Sequence

from repertory.agents.live import LiveRun
from repertory.record import Snapshot
from repertory.record.journal import SearchHit
from repertory.record.records import ContentStored


class RecordOfRun:
    """The run's record, as tools may read it."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live

    def snapshot(self) -> Snapshot:
        """The ledger as it stands; later appends do not show."""
        return self._live.ledger.snapshot()

    async def search(self, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Full-text search over the ledger, best first."""
        return await self._live.ledger.journal.search_entries(self._live.run_id, query, limit=limit)


class ContentsOfTree:
    """The content store, as far as it was filled by the runs of one tree.

    A citation id is no secret: it stands in answers, logs and URLs. So knowing one must not open another tree's
    contents.
    """

    def __init__(self, live: LiveRun) -> None:
        self._journal = live.ledger.journal
        self._root = live.root.run_id

    async def read_content(self, content_id: str) -> ContentStored | None:
        """One stored content; None where this tree has none of that id."""
        stored = await self._journal.read_content(content_id)
        return stored if stored is not None and self._is_ours(stored.run_id) else None

    def _is_ours(self, run_id: str) -> bool:
        return run_id == self._root or run_id.startswith(f"{self._root}.")  # as ids of runs below others begin
