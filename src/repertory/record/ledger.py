"""The ledger: the append-only record of one run, and snapshots of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

import msgspec

from repertory.errors import JournalUnreadable
from repertory.llm.estimate import estimate_tokens
from repertory.record.entries import Draft, Entry
from repertory.record.journal import Journal
from repertory.record.records import EntryAppended, ModelReplied, Record
from repertory.record.waiting import Ticket


class Snapshot(Sequence[Entry]):
    """The first entries of a run's ledger: immutable, and made in constant time.

    It consists of a length and a list that it shares with the ledger. The list only grows, beyond that length. An
    entry's position is its index.
    """

    __slots__ = ("_entries", "_length", "_run_id")

    def __init__(self, run_id: str, entries: list[Entry] | None = None, length: int | None = None) -> None:
        """Make a snapshot of entries.

        Args:
            entries: A list whose first ``length`` elements its owner must never change; None for no entries.
            length: How many of them; None for all that are in the list now.
        """
        self._run_id = run_id
        self._entries = [] if entries is None else entries
        self._length = len(self._entries) if length is None else length

    @property
    def run_id(self) -> str:
        """The id of the run that the entries belong to."""
        return self._run_id

    @property
    def position(self) -> int:
        """The number of entries, which is the position that the next one would get."""
        return self._length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step > 0:
                return self._entries[start:stop:step]
            # With a negative step a bound may be -1, which as an index would mean the end of the shared list.
            return [self._entries[position] for position in range(start, stop, step)]
        if not -self._length <= index < self._length:
            raise IndexError(f"position {index} is not within this snapshot of {self._length} entries")
        return self._entries[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[Entry]:
        return islice(self._entries, self._length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        if (self.run_id, self._length) != (other.run_id, other._length):
            return False
        return self._entries is other._entries or self[:] == other[:]

    def __hash__(self) -> int:
        return hash((self.run_id, self._length))

    def __repr__(self) -> str:
        return f"<Snapshot of {self.run_id} at position {self._length}>"


class Ledger:
    """The append-only record of one run, kept in memory for reading and in the journal for durability.

    Any task and any OS thread may append. A batch is kept wholly or not at all. Positions have no gaps, and their
    order is the order in the file. Only durable entries are ever shown. A run must have only one ledger open: if two
    append, one of them is refused and takes no more.

    Attributes:
        journal: The journal that makes the entries durable.
    """

    def __init__(
        self,
        journal: Journal,
        run_id: str,
        *,
        entries: Iterable[Entry] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start a ledger. For a run that may already have entries, use ``open``.

        Args:
            entries: The entries of this run that the journal holds.
            clock: Returns ``created_at``, in seconds since 1970.
        """
        self.run_id = run_id
        self.journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._entries = list(entries)  # append-only up to _durable; snapshots share it
        self._durable = len(self._entries)
        self._latest: Ticket | None = None  # the batch that the next one builds on

    @classmethod
    async def open(cls, journal: Journal, run_id: str, *, clock: Callable[[], float] = time.time) -> Ledger:
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
        return cls(journal, run_id, entries=entries, clock=clock)

    @property
    def position(self) -> int:
        """How many entries are durable."""
        return self._durable

    def snapshot(self) -> Snapshot:
        """The durable entries as of now, in constant time. Later appends do not show in it."""
        return Snapshot(self.run_id, self._entries, self._durable)

    async def append(self, *drafts: Draft, also: Sequence[Record] = ()) -> tuple[Entry, ...]:
        """Append a batch and wait until it is durable.

        Cancelling the call takes nothing back: the batch will still be written.

        Args:
            drafts: The entries, in order.
            also: Further records to write in the same transaction.

        Returns:
            The entries with their positions.

        Raises:
            RecordRefused: Something in the batch cannot be kept exactly, and nothing of it was appended. Or the batch
                contradicts what the journal holds; then this ledger takes no more entries.
            JournalWriteFailed: The disk refused this batch or an earlier one; this ledger takes no more entries.
            JournalClosed: The journal is closed.
        """
        entries, ticket = self._submit(drafts, also)
        await ticket.wait()
        return entries

    def submit(self, *drafts: Draft, also: Sequence[Record] = ()) -> Ticket:
        """Queue a batch like ``append``, and leave it to the caller to wait for the ticket."""
        return self._submit(drafts, also)[1]

    def append_sync(self, *drafts: Draft, also: Sequence[Record] = ()) -> tuple[Entry, ...]:
        """Like ``append``, but for OS threads: blocks until the batch is durable."""
        entries, ticket = self._submit(drafts, also)
        ticket.wait_sync()
        return entries

    def _submit(self, drafts: Sequence[Draft], also: Sequence[Record]) -> tuple[tuple[Entry, ...], Ticket]:
        originals = drafts
        drafts = self.journal.redact(drafts)  # so that the ledger equals what the journal holds
        counted = [(draft, estimate_tokens(draft.content)) for draft in drafts]
        # Positions and places in the journal's queue are assigned under one lock, so their orders are the same.
        with self._lock:
            if self._latest is not None and self._latest.failure is not None:
                cause = self._latest.failure()
                raise type(cause)(f"the ledger of {self.run_id} takes no more, open it again: {cause}") from cause
            start = len(self._entries)
            now = self._clock()
            entries: list[Entry] = []
            records: list[Record] = []
            for position, (draft, tokens) in enumerate(counted, start):
                entry = Entry(**msgspec.structs.asdict(draft), position=position, created_at=now, tokens=tokens)
                entries.append(entry)
                records.append(EntryAppended(run_id=self.run_id, entry=entry))
            for record in also:
                records.append(_refer_to(record, originals, start) if isinstance(record, ModelReplied) else record)
            self._entries.extend(entries)
            end = start + len(entries)

            def advance() -> None:
                self._durable = end

            try:
                # Positions are already assigned, so if a batch is refused, those queued behind it must be too.
                ticket = self.journal.submit(records, on_commit=advance, after=self._latest)
            except BaseException:
                del self._entries[start:]  # never durable, so no snapshot reaches it
                raise
            self._latest = ticket
        return tuple(entries), ticket


def _refer_to(reply: ModelReplied, originals: Sequence[Draft], start: int) -> ModelReplied:
    """The reply, referring to the entry with the same content if one is appended with it, from ``start`` on."""
    for position, draft in enumerate(originals, start):
        if reply.content and reply.content == draft.content:
            return msgspec.structs.replace(reply, content=(), position=position)
    return reply
