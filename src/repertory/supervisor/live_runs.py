"""The runs of this process: finding, adding and removing them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio

from repertory._choices import show
from repertory.actors import ActorRef
from repertory.errors import ActorStopped, RunError, RunNotFound
from repertory.record.journal import Journal
from repertory.record.records import RunRow, RunStarted
from repertory.runs.live import LiveRun
from repertory.runs.shared import Home

_CLOSED: Final = "the supervisor is closed, as its async with block has ended; begin runs inside of one"


def check_root(started: RunStarted, verb: str) -> None:
    """Raise ``RunError`` for a run below another one; ``verb`` is what can be done to the whole tree only."""
    if started.parent_id is not None:
        raise RunError(f"run {started.run_id} belongs to {started.parent_id}; {verb} that one")


async def read_whole_id(journal: Journal, run_id: str) -> RunRow:
    """A run by its full id, as for what cannot be undone. Raises ``RunNotFound``."""
    row = await journal.run_or_none(run_id)
    if row is None:
        raise RunNotFound(f"no run has exactly the id {show(run_id)}; what is removed is named in full")
    return row


class LiveRuns:
    """The runs of this process.

    Attributes:
        by_id: The runs of trees that have not ended.
        actors: The references of their actors, while these run.
        closing: Whether no more runs may begin.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self.by_id: dict[str, LiveRun] = {}
        self.actors: dict[str, ActorRef[Any]] = {}
        self.closing = False
        self._newest: WeakValueDictionary[str, LiveRun] = WeakValueDictionary()  # including runs that have ended
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()  # as long as somebody waits

    @contextmanager
    def beginning(self) -> Generator[None]:
        """Begin or continue a run in the block.

        Raises:
            RunError: The supervisor is closed, or closes meanwhile; or this is another event loop.
        """
        self.check_open()
        self._home.check()
        try:
            yield
        except ActorStopped as error:  # the memory actor, or the system that would run the run's own
            raise RunError(_CLOSED) from error

    def check_open(self) -> None:
        """Raise ``RunError`` if no more runs may begin."""
        if self.closing:
            raise RunError(_CLOSED)

    def find(self, run_id: str) -> LiveRun | None:
        """A run that is under way in this process."""
        live = self.by_id.get(run_id)
        return live if live is not None and not live.ended.is_set() else None

    async def wait_ending(self, run_id: str) -> None:
        """Wait while a run is ending in this process; its end can be read a moment before it is acknowledged."""
        live = self.find(run_id)
        if live is not None and live.is_ending:
            await live.ended.wait()

    def under_way(self) -> list[LiveRun]:
        """All runs that are under way in this process."""
        return [live for live in self.by_id.values() if not live.ended.is_set()]

    def lock(self, run_id: str) -> anyio.Lock:
        """A lock under which one task at a time checks for a run and starts it: two loops would ruin its record."""
        self._home.check()
        return self._locks.setdefault(run_id, anyio.Lock())

    def add(self, live: LiveRun) -> None:
        """Add a run that begins or continues; whoever waits for it in a run above it is woken."""
        self.by_id[live.run_id] = live
        self.make_newest(live)
        self.attach(live)
        for above in live.lineage():
            above.wake()

    def make_newest(self, live: LiveRun) -> None:
        """Make ``live`` the newest object of its run, so that holders of an earlier one find it."""
        earlier, self._newest[live.run_id] = self._newest.get(live.run_id), live
        if earlier is not None and earlier is not live:
            live.succeed(earlier)

    @staticmethod
    def attach(live: LiveRun) -> None:
        """Add a run to its parent's children, in place of an earlier object of it."""
        if live.parent is not None:
            by_id = {child.run_id: child for child in live.parent.children}
            live.parent.children = [*(by_id | {live.run_id: live}).values()]

    def remove_tree(self, root: LiveRun) -> None:
        """Remove a run and those below it: they have ended, or are under way elsewhere."""
        for run in root.tree():
            self.by_id.pop(run.run_id, None)
