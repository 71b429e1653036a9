"""The journal: the durable store of all records.

This module holds the methods that write. Those that read are in ``RunReads``, ``ListReads`` and ``ItemReads``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from repertory.record.items import ItemReads
from repertory.record.records import Record
from repertory.record.redaction import Redactor
from repertory.record.removal import remove_slice
from repertory.record.rows import encode_records
from repertory.record.run_lists import ListReads
from repertory.record.waiting import Ticket
from repertory.record.writing import Batch

T = TypeVar("T")

Durability: TypeAlias = Literal["memory", "process", "power"]
"""What an acknowledged write survives: nothing, the death of the process, or a power failure."""


class Journal(ListReads, ItemReads):
    """The durable store of all records: ``SqliteJournal`` in a file, ``MemoryJournal`` in this process.

    A read shows everything that any task or thread submitted before it: it first waits until that is durable. So a
    restarted actor never makes a decision again that its predecessor has made. A journal that was opened read-only
    shows what its owner has made durable.

    Attributes:
        durability: What an acknowledged write survives.
    """

    def __init__(self, durability: Durability, redactor: Redactor | None) -> None:
        self.durability: Durability = durability
        self._redactor = redactor
        # Replaced, never changed in place: the writer's thread may be iterating over it.
        self._observers: tuple[Callable[[Sequence[Record]], None], ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it too."""
        return False

    @property
    def queued(self) -> int:
        """About how many batches wait for the disk; 0 in a journal that writes at once."""
        return 0

    # --- defined by each engine ---------------------------------------------------------------------------

    def _insert(self, batch: Batch) -> Ticket:
        """Queue a batch."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Write what is queued, then close. Safe to call twice."""
        raise NotImplementedError

    # --- writing ------------------------------------------------------------------------------------------

    def submit(
        self,
        records: Sequence[Record],
        *,
        on_commit: Callable[[], None] | None = None,
        after: Ticket | None = None,
        emptied: Sequence[int] = (),
    ) -> Ticket:
        """Queue a batch; an empty one is a barrier. Callable from any task and any OS thread; never blocks.

        Batches become durable in the order of their ``submit`` calls, each wholly or not at all.

        Args:
            records: The batch, which becomes one transaction.
            on_commit: Called when the batch is durable, before any waiter of the ticket wakes. The calls are made on
                the writer's thread, in the order of the batches. It must be quick and must not raise.
            after: An earlier batch that this one builds on. If that was refused, this one is refused too.
            emptied: The numbers of stored contents whose bodies to delete in the same transaction. Their citations
                stay listed.

        Raises:
            RecordRefused: A record cannot be kept exactly. Nothing of the batch was queued; other batches are not
                affected.
            JournalReadOnly: The journal was opened read-only.
            JournalClosed: After ``aclose``.
            JournalWriteFailed: An earlier batch could not be written.
        """
        records = tuple(records if self._redactor is None else self._redactor(records))
        callbacks: list[Callable[[], object]] = []
        for observer in self._observers if records else ():
            callbacks.append(partial(observer, records))
        if on_commit is not None:
            callbacks.append(on_commit)
        return self._insert(Batch(encode_records(records), callbacks, after, emptied))

    def redact(self, value: T) -> T:
        """The value as it would be recorded: with the journal's secrets replaced, or the same object if it has none."""
        return value if self._redactor is None else self._redactor(value)

    @property
    def place(self) -> object:
        """The path of its file, or the address of its database; "" if it is in this process."""
        return ""

    @property
    def redaction_reach(self) -> int:
        """Characters of the longest text that ``redact`` replaces; 0 if it replaces none."""
        return 0 if self._redactor is None else self._redactor.reach

    def observe(self, committed: Callable[[Sequence[Record]], None]) -> Callable[[], None]:
        """Register a function to be called with every batch once it is durable, in the order of the batches.

        It is called on the writer's thread before any waiter of the batch wakes, so it must be quick and must not
        raise.

        Returns:
            A function that unregisters it.
        """
        self._observers = (*self._observers, committed)

        def end() -> None:
            self._observers = tuple(other for other in self._observers if other is not committed)

        return end

    async def write(self, records: Sequence[Record], *, emptied: Sequence[int] = ()) -> None:
        """Queue a batch and wait until it is durable; see ``submit``."""
        await self.submit(records, emptied=emptied).wait()

    async def remove_run(self, run_id: str, *, at: float) -> None:
        """Delete a root run and all runs below it from the journal for good. Nobody may write to them any more.

        Its memory is deleted too, except what another tree sees through a snapshot. Copies of its contents in other
        trees stay. A call that is cancelled or killed may have begun the deletion: calling it again continues it, and
        so does the next process that opens the journal. The id cannot be used again.

        Args:
            run_id: The whole id of the root run.
            at: The current time, in seconds since 1970.

        Raises:
            RunError: Another machine is continuing the run.
        """
        while not await self.remove_some(run_id, at=at):
            pass

    async def remove_some(self, run_id: str, *, at: float) -> bool:
        """Begin what ``remove_run`` does, or continue it for a moment; returns whether it is done."""
        return await self._change("remove", partial(remove_slice, run_id=run_id, at=at))

    async def read_removals(self) -> list[str]:
        """The ids of the roots whose removal was begun and is not finished."""
        return await self._ids("removals", "SELECT run_id FROM removals WHERE finished = 0")
