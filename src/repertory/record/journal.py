"""The journal: where every record becomes durable, and where all of them can be read again.

This is how it is written; its parts that read are ``RunReads``, ``ItemReads`` and ``QueueReads``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from repertory.record.contents import StoredBody
from repertory.record.items import ItemReads
from repertory.record.queue import QueueReads
from repertory.record.reads import ids_of
from repertory.record.records import Record
from repertory.record.redaction import Redactor
from repertory.record.removal import remove_slice
from repertory.record.rows import encode_records
from repertory.record.run_lists import ListReads
from repertory.record.waiting import Ticket
from repertory.record.writing import Batch

T = TypeVar("T")

Durability: TypeAlias = Literal["memory", "process", "power"]
"""What an acknowledged write survives: nothing, the death of the process, or the loss of power."""


class Journal(ListReads, ItemReads, QueueReads):
    """The one durable store. ``SqliteJournal`` keeps it in a file, ``MemoryJournal`` in this process.

    A read shows everything that was submitted before it, by whatever task or thread, whether somebody still waits
    for it or not: it waits until that is durable. So a restarted actor never decides again what its predecessor has
    decided. A journal that was opened to look only shows what its owner has made durable.

    Attributes:
        durability: What an acknowledged write survives.
    """

    def __init__(self, durability: Durability, redactor: Redactor | None) -> None:
        self.durability: Durability = durability
        self._redactor = redactor
        # Replaced and never changed: the writer's thread may be going through them.
        self._observers: tuple[Callable[[Sequence[Record]], None], ...] = ()

    @property
    def queued(self) -> int:
        """How many batches wait for the disk, about; 0 where none ever does."""
        return 0

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it as well."""
        return False

    # --- where the rows are -------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Write what is queued, then close. Safe to call twice."""
        raise NotImplementedError

    def _insert(self, batch: Batch) -> Ticket:
        """Queue a batch."""
        raise NotImplementedError

    # --- writing ------------------------------------------------------------------------------------------

    def submit(
        self, records: Sequence[Record], *, on_commit: Callable[[], None] | None = None, after: Ticket | None = None
    ) -> Ticket:
        """Queue a batch; an empty one is a barrier. Callable from any task and any OS thread; never blocks.

        Batches become durable in the order of their ``submit`` calls, each wholly or not at all.

        Args:
            records: The batch, one transaction.
            on_commit: Called once the batch is durable and before any waiter of the ticket wakes, in the order
                of the batches, on the writer's thread. It must be quick and must not raise.
            after: An earlier batch that this one builds on: if that was refused, so is this one.

        Raises:
            RecordRefused: A record cannot be kept exactly; nothing of the batch was queued, and others go on.
            JournalReadOnly: The journal was opened to look only.
            JournalClosed: After ``aclose``.
            JournalWriteFailed: An earlier batch could not be written.
        """
        return self._insert(self._batch_of(records, on_commit, after))

    def _batch_of(
        self,
        records: Sequence[Record],
        on_commit: Callable[[], None] | None = None,
        after: Ticket | None = None,
        emptied: Sequence[int] = (),
    ) -> Batch:
        """The rows of some records; with them go the bodies of the contents of these numbers."""
        records = tuple(self.redact(records))
        told: list[Callable[[], object]] = []
        for observer in self._observers if records else ():
            told.append(partial(observer, records))
        if on_commit is not None:
            told.append(on_commit)
        return Batch(encode_records(records), told, after, emptied)

    def redact(self, value: T) -> T:
        """The value as it would be recorded: without the secrets that the journal was told of; else the very same."""
        return value if self._redactor is None else self._redactor(value)

    @property
    def redaction_reach(self) -> int:
        """Characters of the longest text that ``redact`` replaces; 0 where it replaces none."""
        return 0 if self._redactor is None else self._redactor.reach

    def observe(self, committed: Callable[[Sequence[Record]], None]) -> Callable[[], None]:
        """Have a function called with every batch once it is durable, in the order of the batches.

        It is called before any waiter of the batch wakes, on the writer's thread: it must be quick and must not raise.

        Returns:
            A function that ends it.
        """
        self._observers = (*self._observers, committed)

        def end() -> None:
            self._observers = tuple(other for other in self._observers if other is not committed)

        return end

    async def write(self, records: Sequence[Record]) -> None:
        """Queue a batch and wait until it is durable."""
        await self.submit(records).wait()

    async def remove_run(self, run_id: str, *, at: float) -> None:
        """Take a root and all below it out of the journal, for good: nobody may write to them any more.

        Its memory goes with it, but for what another tree sees by a snapshot; copies of its contents that other trees
        have stay. A cancelled call, or a kill, has begun it or has not: calling it again goes on, as does the next
        process. Its id cannot be used again.

        Args:
            run_id: The root, by its whole id.
            at: Now, in seconds since 1970.

        Raises:
            RunError: Another machine goes on with it.
        """
        while not await self._change("remove", partial(remove_slice, run_id=run_id, at=at)):
            pass

    async def read_removals(self, *, finished: bool) -> list[str]:
        """The roots that were removed, or whose removal was begun and not finished."""
        sql = "SELECT run_id FROM removals WHERE finished = ?"
        return await self._fetch("removals", sql, (int(finished),), ids_of)

    async def was_removed(self, run_id: str) -> bool:
        """Whether there was a root of this id once."""
        sql = "SELECT 1 FROM removals WHERE run_id = ?"
        return await self._fetch("removals", sql, (run_id,), lambda rows: bool([*rows]))

    async def delete_bodies(self, bodies: Iterable[StoredBody], *, also: Sequence[Record] = ()) -> None:
        """Empty stored contents, and write further records, in one transaction. Their citations stay listed."""
        await self._insert(self._batch_of(also, emptied=[body.number for body in bodies])).wait()
