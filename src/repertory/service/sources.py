"""Where commands read runs from: a service or a database. Both give the same views."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from repertory._ids import unit_of
from repertory._postgres_address import PostgresAddress
from repertory.llm.messages import Json
from repertory.record import open_journal
from repertory.record.journal import Journal
from repertory.record.opening import is_owned
from repertory.record.run_lists import RootFilter
from repertory.runs.waiting_calls import WAITING_EVENTS, WaitingCall, WaitingCalls
from repertory.service.places import Place
from repertory.service.reports import read_inspection, read_record, read_stats
from repertory.service.requests import MAX_TREES, RunsQuery
from repertory.service.run_reader import UNSETTLED, RunReader
from repertory.service.views import EventView, RunDetail, RunList, event_view

if TYPE_CHECKING:  # otherwise every command would load it
    from repertory.service.client import ServiceClient

_POLL: Final = 0.5  # seconds between two looks at a journal that another process writes
_PAGE: Final = 500  # events that are read at once


RunSource: TypeAlias = "RecordSource | ServiceClient"
"""Where commands read runs from; both types have the same methods for that."""


class RecordSource:
    """Reads the database, while another process may write to it.

    Attributes:
        journal: The open database.
        path: Where it is.
        owned: Whether a living process may write to it.
    """

    place: Place | None = None

    def __init__(self, journal: Journal, path: Path | PostgresAddress, *, owned: bool) -> None:
        self.journal = journal
        self.path = path
        self.database = str(path)
        self.owned = owned

    async def ids_with(self, part: str) -> list[str]:
        """The ids of all runs that have this part."""
        return await self.journal.read_ids(part)

    async def newest_root(self) -> str | None:
        """The id of the newest root; None if there are no runs."""
        roots, _ = await self.journal.read_roots(RootFilter(), 1)
        return roots[0] if roots else None

    async def newest_resumable(self) -> str | None:
        """The id of the newest root that did not finish; None if there is none."""
        left = await self.journal.read_runs(states=(*UNSETTLED, "failed", "stopped"))
        return next((row.started.run_id for row in reversed(left) if row.started.parent_id is None), None)

    async def list_runs(self, limit: int = MAX_TREES) -> RunList:
        """The newest trees of runs, and older ones that have not ended, as many again at most; with their figures."""
        return await (await self._reader()).list_runs(RunsQuery(limit=limit, figures="yes", unfinished="yes"))

    async def read_run(self, run_id: str) -> RunDetail:
        """One run, by its id or an unambiguous beginning of it. Raises ``RunNotFound``."""
        return await (await self._reader()).read_run(run_id)

    async def read_stats(self, run_id: str, *, tree: bool) -> Json:
        """What a run saw and cost; with ``tree`` also each run below it."""
        return await read_stats(self.journal, run_id, tree=tree)

    async def read_inspection(self, run_id: str, iteration: int | None, *, newest: int) -> Json:
        """What the model saw at an iteration; see ``reports.read_inspection``."""
        return await read_inspection(self.journal, run_id, iteration, newest=newest)

    async def read_record(self, run_id: str, start: int, stop: int) -> Json:
        """Some entries of a run's record, their contents in the format of the Messages API."""
        return await read_record(self.journal, run_id, start=start, stop=stop)

    async def waiting(self) -> list[WaitingCall]:
        """The tool calls that wait according to the journal, of unfinished runs, also of those to be resumed."""
        found: list[WaitingCall] = []
        for row in await self.journal.read_runs(states=UNSETTLED):
            run_id = row.started.run_id
            records = [each for _, each in await self.journal.read_events(run_id, types=WAITING_EVENTS)]
            if records:
                answered = {entry.tool_call_id for entry in await self.journal.read_entries(run_id)}
                calls = WaitingCalls()
                for record in records:
                    calls.read_back(record, agent=row.started.agent, answered=answered)
                found += calls.list()
        return sorted(found, key=lambda call: call.since)

    async def read_events(self, run_id: str | None, *, before: int) -> list[EventView]:
        """The last recorded events of a run, or of all runs, before a number; [] if there are none."""
        events = await self.journal.read_events(run_id, before=before, limit=_PAGE)
        return [event_view(seq, event) for seq, event in events]

    async def follow(self, *, after: int = 0) -> AsyncGenerator[EventView]:
        """Events of all runs after a number, as they happen, as long as a process owns the database."""
        while True:
            # Before looking, so that what its owner wrote last is still read.
            owned = await anyio.to_thread.run_sync(is_owned, self.path)
            events = await self.journal.read_events(None, after=after, limit=_PAGE)
            for seq, event in events:
                yield event_view(seq, event)
                after = seq
            if not events:
                if not owned:
                    return
                await anyio.sleep(_POLL)

    async def owners(self) -> dict[str, str]:
        """The names of the machines that own unfinished runs, by root; see ``list_owners``. Empty for a file."""
        if not isinstance(self.path, PostgresAddress):
            return {}
        from repertory.machines.operating import list_owners  # imported here, as it is not needed for a file

        return await anyio.to_thread.run_sync(list_owners, self.path)

    async def _reader(self) -> RunReader:
        owners = await self.owners()
        return RunReader(self.journal, lambda _: self.owned, lambda run_id: owners.get(unit_of(run_id), ""))


@asynccontextmanager
async def open_record(path: Path | PostgresAddress) -> AsyncGenerator[RecordSource]:
    """Open a database for reading until the end of the block; another process may write to it."""
    owned = await anyio.to_thread.run_sync(is_owned, path)
    async with open_journal(path, readonly=True) as journal:
        yield RecordSource(journal, path, owned=owned)
