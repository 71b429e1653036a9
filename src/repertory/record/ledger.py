"""The ledger: the append-only record of one run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from repertory.errors import JournalUnreadable, JournalWriteFailed, RecordRefused
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Block
from repertory.record.entries import Draft, Entry
from repertory.record.journal import Journal, Ticket
from repertory.record.records import EntryAppended, Record
from repertory.record.snapshot import Snapshot

Estimate: TypeAlias = Callable[[Sequence[Block]], int]


def estimate_entry(content: Sequence[Block]) -> int:
    """Guess what an entry's content costs in a prompt: a token for every four characters."""
    return estimate_tokens(content)


class Ledger:
    """The append-only record of one run, in memory for reading and in the journal for good.

    Appends come from any task and any OS thread. A batch is kept wholly or not at all; positions have no gaps,
    and their order is the order in the file. Only what is durable is ever shown. There must be one living
    ledger for a run: of two that append, one is refused and takes no more.
    """

    def __init__(
        self,
        journal: Journal,
        run_id: str,
        *,
        entries: Iterable[Entry] = (),
        clock: Callable[[], float] = time.time,
        estimate: Estimate = estimate_entry,
    ) -> None:
        """Start a ledger; for a run that may have entries already, use ``open``.

        Args:
            journal: Where the entries become durable.
            run_id: The run.
            entries: What the journal holds of this run.
            clock: Gives ``created_at``, in seconds since 1970.
            estimate: Guesses an entry's tokens.
        """
        self.run_id = run_id
        self._journal = journal
        self._clock = clock
        self._estimate = estimate
        self._lock = threading.Lock()
        self._entries = list(entries)  # append-only up to _durable; snapshots share it
        self._durable = len(self._entries)
        self._latest: Ticket | None = None  # of the batch that the next one builds on
        self._failure: JournalWriteFailed | RecordRefused | None = None

    @classmethod
    async def open(
        cls,
        journal: Journal,
        run_id: str,
        *,
        clock: Callable[[], float] = time.time,
        estimate: Estimate = estimate_entry,
    ) -> Ledger:
        """Read a run's ledger back from the journal; an unknown run has an empty one.

        Raises:
            JournalUnreadable: The entries have gaps, so the file was damaged or changed from outside.
        """
        entries = await journal.read_entries(run_id)
        for expected, entry in enumerate(entries):
            if entry.position != expected:
                raise JournalUnreadable(
                    f"the ledger of {run_id} has position {entry.position} where {expected} was expected; "
                    "restore the journal from a backup"
                )
        return cls(journal, run_id, entries=entries, clock=clock, estimate=estimate)

    @property
    def journal(self) -> Journal:
        """Where the entries become durable."""
        return self._journal

    @property
    def position(self) -> int:
        """How many entries are durable."""
        return self._durable

    def snapshot(self) -> Snapshot:
        """The ledger as it is now, in constant time. Shows what is durable, and never what comes later."""
        return Snapshot.view(self.run_id, self._entries, self._durable)

    async def append(self, *drafts: Draft, also: Sequence[Record] = ()) -> tuple[Entry, ...]:
        """Append a batch and wait until it is durable.

        A cancelled call takes nothing back: the batch will still be written.

        Args:
            drafts: The entries, in order.
            also: Further records that become durable in the same instant, or not at all.

        Returns:
            The entries with their positions.

        Raises:
            RecordRefused: Something in the batch cannot be kept exactly, and nothing of it was appended; or it
                contradicts what the journal holds, and then this ledger takes no more.
            JournalWriteFailed: The disk refused this batch or an earlier one; this ledger takes no more.
            JournalClosed: The journal is closed.
        """
        entries, ticket = self._submit(drafts, also)
        try:
            await ticket.wait()
        except (JournalWriteFailed, RecordRefused) as error:
            self._failure = error
            raise
        return entries

    def submit(self, *drafts: Draft, also: Sequence[Record] = ()) -> Ticket:
        """Queue a batch like ``append``, and leave it to the caller to wait for the ticket."""
        return self._submit(drafts, also)[1]

    def append_sync(self, *drafts: Draft, also: Sequence[Record] = ()) -> tuple[Entry, ...]:
        """The same for OS threads: blocks until the batch is durable."""
        entries, ticket = self._submit(drafts, also)
        try:
            ticket.wait_sync()
        except (JournalWriteFailed, RecordRefused) as error:
            self._failure = error
            raise
        return entries

    def _submit(self, drafts: Sequence[Draft], also: Sequence[Record]) -> tuple[tuple[Entry, ...], Ticket]:
        drafts = self._journal.redact(drafts)  # so that the ledger is what the journal holds
        tokens = [self._estimate(draft.content) for draft in drafts]
        # Positions and the place in the journal's queue are given under one lock, so both orders are the same.
        with self._lock:
            if self._failure is not None:
                raise type(self._failure)(
                    f"the ledger of {self.run_id} takes no more, open it again: {self._failure}"
                ) from self._failure
            start = len(self._entries)
            now = self._clock()
            entries = tuple(
                _entry(draft, start + index, now, count)
                for index, (draft, count) in enumerate(zip(drafts, tokens, strict=True))
            )
            self._entries.extend(entries)
            end = start + len(entries)

            def advance() -> None:
                self._durable = end

            records: list[Record] = [EntryAppended(run_id=self.run_id, entry=entry) for entry in entries]
            try:
                # Positions are given already, so a batch that is refused takes with it those that are queued behind.
                ticket = self._journal.submit([*records, *also], on_commit=advance, after=self._latest)
            except BaseException:
                del self._entries[start:]  # never durable, so no snapshot reaches it
                raise
            self._latest = ticket
        return entries, ticket


def _entry(draft: Draft, position: int, now: float, tokens: int) -> Entry:
    return Entry(**msgspec.structs.asdict(draft), position=position, created_at=now, tokens=tokens)
