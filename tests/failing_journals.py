"""Journals that misbehave on command, for tests of what stands on a journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio

from repertory.errors import JournalWriteFailed
from repertory.record.records import FINAL_STATES, Record, RunStateChanged
from repertory.record.sqlite_journal import MemoryJournal
from repertory.record.waiting import Ticket, wake_all


class FailingJournal(MemoryJournal):
    """A journal whose disk refuses a batch, and with it everything after, as a full disk would.

    As with the real one, the batch is taken and its ticket raises; later batches are refused at once.
    """

    def __init__(self, *, fail_after: int | None = None) -> None:
        """Make a journal in memory.

        Args:
            fail_after: How many batches are written before one fails; None for none until ``fail`` is called.
        """
        super().__init__()
        self._left = fail_after
        self._broken = False

    def fail(self) -> None:
        """Refuse the next batch."""
        self._left = 0

    def submit(self, records: Sequence[Record], **options: Any) -> Ticket:
        """Keep a batch, or fail as told."""
        if self._broken:
            raise _refused()
        if self._left == 0:
            self._broken = True
            ticket = Ticket()
            ticket.finish(_refused)
            return ticket
        if self._left is not None:
            self._left -= 1
        return super().submit(records, **options)


def _refused() -> JournalWriteFailed:
    return JournalWriteFailed("the journal could not be written: the test said so")


class SlowJournal(MemoryJournal):
    """A journal whose disk takes its time: while it is held, batches are queued and nothing is acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[tuple[Ticket, Callable[[], Ticket]]] | None = None

    @property
    def waiting(self) -> int:
        """How many batches are queued."""
        return len(self._held or ())

    def hold(self) -> None:
        """Acknowledge nothing until ``release``."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Write what is queued, in order, and acknowledge it."""
        held, self._held = self._held or [], None
        for ticket, submit in held:
            written = submit()
            wake_all(ticket.finish(written.failure))

    def submit(self, records: Sequence[Record], **options: Any) -> Ticket:
        """Keep a batch, or queue it."""
        if self._held is None:
            return super().submit(records, **options)
        ticket = Ticket()
        self._held.append((ticket, partial(super().submit, records, **options)))
        return ticket

    async def _settle(self) -> None:
        if self._held:
            await self._held[-1][0].wait_done()
        await super()._settle()

    async def aclose(self) -> None:
        """Write what is queued, then close."""
        self.release()
        await super().aclose()


class LateJournal(MemoryJournal):
    """A journal that is slow to acknowledge the end of a run, which others can read meanwhile.

    Attributes:
        ended: Set once the end of a run is on record.
        acknowledge: Set it to have the journal acknowledge that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ended, self.acknowledge = anyio.Event(), anyio.Event()

    async def write(self, records: Sequence[Record]) -> None:
        """Keep a batch."""
        await super().write(records)
        if self.ended.is_set():
            await self.acknowledge.wait()

    def submit(self, records: Sequence[Record], **options: Any) -> Ticket:
        """Keep a batch."""
        ticket = super().submit(records, **options)
        if any(isinstance(record, RunStateChanged) and record.state in FINAL_STATES for record in records):
            self.ended.set()
        return ticket
