"""Retention of stored contents: when they expire, what keeps them longer, and the timer that deletes them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import groupby
from typing import Final
from weakref import WeakValueDictionary

import anyio

from repertory._ids import root_of
from repertory.context import decode_decision
from repertory.context.plan import PinEntry, UnpinEntry
from repertory.errors import JournalError, RunError
from repertory.memory.documents import document_of
from repertory.memory.sources import without_sources
from repertory.record.contents import put_together
from repertory.record.entries import Entry
from repertory.record.journal import Journal
from repertory.record.memory_records import PayloadChanged
from repertory.record.records import FINAL_STATES, ContentStored, DecisionMade
from repertory.runs.live import LiveRun
from repertory.runs.log import log
from repertory.supervisor.live_runs import check_root, read_whole_id

CLEANING: Final = 300.0  # seconds; a content is deleted within five minutes of its expiry


class Retention:
    """Deletes stored contents when they expire, and their source references in the payloads of their tree.

    Nothing acknowledged is lost. A body is deleted only if whoever stored it set a time, or if the ledger of its run
    holds all of it verbatim, from where it is read afterwards. Pinned contents stay.

    Attributes:
        payloads: A lock to hold from reading a run's payload back until the run is in ``known``.
        known: The runs whose payloads this process holds, including those that have ended.
    """

    def __init__(self, journal: Journal, *, seconds: float | None, clock: Callable[[], float]) -> None:
        """Clean up a journal; contents without a time of their own expire ``seconds`` after their run; None: never."""
        self._journal = journal
        self._seconds = seconds
        self._clock = clock
        self._checked_until = -math.inf  # trees that ended before this have been looked at
        self.payloads = anyio.Lock()
        self.known: WeakValueDictionary[str, LiveRun] = WeakValueDictionary()

    async def clean(self, *, root: str | None = None) -> None:
        """Delete expired contents of one tree of runs or, with None, of all.

        They are not pinned, and were stored with a time of their own or are in the ledger.
        """
        now = self._clock()
        ended_by = -math.inf if self._seconds is None else now - self._seconds
        if ended_by < self._checked_until:  # the clock was set back, and trees have ended before what was looked at
            self._checked_until = -math.inf
        found = await self._journal.read_due_bodies(now, ended_after=self._checked_until, ended_by=ended_by, root=root)
        gone, lost = list[int](), dict[str, set[str]]()
        for run_id, own in groupby(sorted(found, key=_owner), key=_owner):
            due = await self._unpinned(run_id, own)
            if not due:
                continue
            holding = await self._journal.read_holding(run_id, [content.content_id for content in due.values()])
            for number, content in due.items():
                if await self._is_held(content, holding.get(content.content_id, [])):
                    gone.append(number)
                elif content.expires_at is not None or content.retention is not None:
                    gone.append(number)
                    lost.setdefault(root_of(run_id), set()).add(content.content_id)
        await self._delete(gone, lost)
        if root is None:
            self._checked_until = ended_by

    async def clean_run(self, run_id: str) -> int:
        """Delete all stored contents of a run that has ended and of the runs below it; returns how many.

        Raises:
            RunNotFound: There is no such run.
            RunError: The run has not ended, or is below another run.
        """
        row = await read_whole_id(self._journal, run_id)
        check_root(row.started, "clean")
        if row.state not in FINAL_STATES:
            raise RunError(f"run {run_id} has not ended, it is {row.state}; stop it before you clean it")
        bodies = await self._journal.read_bodies(run_id)
        await self._delete([number for number, _ in bodies], {run_id: None})
        return len(bodies)

    async def _delete(self, bodies: Sequence[int], lost: Mapping[str, set[str] | None]) -> None:
        """Delete bodies and, in the same transaction, the source references to contents that can no longer be read.

        Args:
            bodies: The numbers of their contents.
            lost: The citation ids of contents that can no longer be read, by root; None for all of a tree.
        """
        async with self.payloads, AsyncExitStack() as stack:
            histories: list[tuple[set[str] | None, Sequence[PayloadChanged]]] = []
            for root, content_ids in lost.items():
                numbered = await self._journal.read_records(PayloadChanged, root, below=True)
                found = sorted((record for _, record in numbered), key=lambda record: record.run_id)
                histories += [(content_ids, [*own]) for _, own in groupby(found, key=lambda record: record.run_id)]
            runs = [self.known.get(own[0].run_id) for _, own in histories]
            for live in filter(None, runs):
                await stack.enter_async_context(live.changing_payload())
            records = [record for ids, own in histories if (record := self._cleaned(own, ids)) is not None]
            if bodies or records:
                await self._journal.write(records, emptied=bodies)

    def _cleaned(self, history: Sequence[PayloadChanged], content_ids: set[str] | None) -> PayloadChanged | None:
        """The next version of a payload, without references to deleted contents; None if it has no such references."""
        run_id, version, document = history[-1].run_id, history[-1].version, document_of(history)
        live = self.known.get(run_id)
        state = None if live is None else live.payload
        if state is not None:
            version, document = state.version, state.document
        changes = tuple(without_sources(document, content_ids))
        if not changes:
            return None
        record = PayloadChanged(
            run_id=run_id, version=version + 1, author="cleaning", base=version, changes=changes, at=self._clock()
        )
        if state is not None:
            state.adopt(record)
        return record

    async def _unpinned(self, run_id: str, due: Iterable[tuple[int, ContentStored]]) -> dict[int, ContentStored]:
        pins = _pinned_for_good(await self._journal.read_decisions(run_id))
        entries = await self._journal.read_entries(run_id) if pins else []
        pinned = {entry.content_id for entry in entries if entry.position in pins}
        return {number: content for number, content in due if content.content_id not in pinned}

    async def _is_held(self, content: ContentStored, entries: Iterable[Entry]) -> bool:
        held = put_together(content, entries)
        stored = await self._journal.read_content(content.content_id, root=content.run_id) if held else None
        return stored is not None and stored.body == held

    async def clean_for_ever(self, scope: anyio.CancelScope) -> None:
        """Clean up regularly, until the scope is cancelled."""
        with scope:
            while True:
                await anyio.sleep(CLEANING)
                try:
                    await self.clean()
                except JournalError as error:  # runs that write get the error themselves
                    log(logging.WARNING, "contents.cleaning.failed", exc_info=error)


def _pinned_for_good(decisions: Iterable[DecisionMade]) -> set[int]:
    """The pinned positions, without those that are only kept for a while after they were expanded."""
    pins: set[int] = set()
    for made in decisions:
        for edit in decode_decision(made.body).edits:
            if isinstance(edit, PinEntry) and not edit.until:
                pins.add(edit.position)
            elif isinstance(edit, UnpinEntry):
                pins.discard(edit.position)
    return pins


def _owner(numbered: tuple[int, ContentStored]) -> str:
    return numbered[1].run_id
