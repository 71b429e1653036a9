"""The runs that live in this process, as whoever begins, looks for or ends one finds them."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import anyio

from repertory.actors import ActorRef
from repertory.errors import RunError, RunNotFound
from repertory.record.journal import Journal
from repertory.record.records import RunRow
from repertory.runs.live import LiveRun


class LiveRuns:
    """The runs that live in this process.

    Attributes:
        by_id: Those of trees that have not ended.
        actors: Theirs, as long as they run.
        closing: Whether nothing may begin any more.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.by_id: dict[str, LiveRun] = {}
        self.actors: dict[str, ActorRef[Any]] = {}
        self.closing = False
        self._newest: WeakValueDictionary[str, LiveRun] = WeakValueDictionary()  # also of those that have ended
        self._beginning: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()  # as long as somebody waits

    def check_open(self) -> None:
        """Raise ``RunError`` where nothing may begin any more."""
        if self.closing:
            raise RunError("the supervisor is closed, as its async with block has ended; begin runs inside of one")

    def find(self, run_id: str) -> LiveRun | None:
        """A run that is under way in this process."""
        live = self.by_id.get(run_id)
        return live if live is not None and not live.ended.is_set() else None

    def under_way(self) -> list[LiveRun]:
        """All runs that are under way in this process."""
        return [live for live in self.by_id.values() if not live.ended.is_set()]

    async def read_run(self, run_id: str) -> RunRow | None:
        """The run of exactly this id, in the journal."""
        try:
            row = await self._journal.read_run(run_id)
        except RunNotFound:
            return None
        return row if row.started.run_id == run_id else None

    def alone_with(self, run_id: str) -> anyio.Lock:
        """Lets only one task at a time look whether a run is there, and begin it: two loops would ruin its record."""
        return self._beginning.setdefault(run_id, anyio.Lock())

    def add(self, live: LiveRun) -> None:
        """Take in a run that begins or goes on."""
        self.by_id[live.run_id] = live
        self.make_newest(live)
        self.attach(live)

    def make_newest(self, live: LiveRun) -> None:
        """Have those who hold a run as it was find it as it is now."""
        earlier, self._newest[live.run_id] = self._newest.get(live.run_id), live
        if earlier is not None and earlier is not live:
            earlier.successor = live

    @staticmethod
    def attach(live: LiveRun) -> None:
        """Put a run in the place below its parent."""
        if live.parent is not None:
            others = [child for child in live.parent.children if child.run_id != live.run_id]
            live.parent.children = [*others, live]

    def remove_tree(self, root: LiveRun) -> None:
        """Let go of a run, and of those below it: they have ended, or go on elsewhere."""
        for run in root.tree():
            self.by_id.pop(run.run_id, None)
