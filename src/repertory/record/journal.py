"""The journal: where every record becomes durable, and where all of them can be read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

from repertory.llm.messages import Json
from repertory.record.entries import Entry
from repertory.record.records import (
    ContentStored,
    DecisionMade,
    EventLogged,
    ItemWritten,
    ModelCalled,
    ModelReplied,
    Record,
    RunStarted,
    RunState,
    ScopeOpened,
    SummaryStored,
    ToolFinished,
    ToolIntended,
)
from repertory.record.statistics import RunStatistics

Durability: TypeAlias = Literal["memory", "process", "power"]
"""What an acknowledged write survives: nothing, the death of the process, or the loss of power."""


T = TypeVar("T")


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands now.

    Attributes:
        iteration: The one that it is in, or ended in; 0 before its first model call. A run that was killed is in
            the iteration that it was killed in.
    """

    started: RunStarted
    state: RunState
    updated_at: float
    iteration: int = 0
    result: str | None = None
    error: str | None = None


class ToolCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call: its intent, and its outcome if it has one."""

    intended: ToolIntended
    finished: ToolFinished | None = None


class ModelCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model call: what was sent, and what came back if anything did."""

    called: ModelCalled
    replied: ModelReplied | None = None


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """One entry that a full-text search found.

    Attributes:
        score: Higher is better; comparable only within one answer.
        excerpt: The words around the best match.
    """

    run_id: str
    position: int
    score: float
    excerpt: str


class Ticket(Protocol):
    """A batch on its way to the disk."""

    async def wait(self) -> None:
        """Wait until the batch is durable.

        A cancelled wait does not take the batch back: it will still be written.

        Raises:
            RecordRefused: It contradicts what is kept already: a run or a position of a ledger that exists. Nothing
                of it was written; other batches go on.
            JournalWriteFailed: It could not be written, and neither can anything after it.
        """
        ...

    def wait_sync(self) -> None:
        """The same, blocking, for plain threads."""
        ...


class Journal(Protocol):
    """The one durable store. ``SqliteJournal`` keeps it in a file, ``MemoryJournal`` in this process.

    A read shows everything that was submitted before it, by whatever task or thread, whether somebody still waits
    for it or not: it waits until that is durable. So a restarted actor never decides again what its predecessor has
    decided. A journal that was opened to look only shows what its owner has made durable.
    """

    @property
    def durability(self) -> Durability:
        """What an acknowledged write survives."""
        ...

    def submit(
        self,
        records: Sequence[Record],
        *,
        on_commit: Callable[[], None] | None = None,
        after: Ticket | None = None,
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
        ...

    def redact(self, value: T) -> T:
        """The value as it would be recorded: without the secrets that the journal was told of; else the very same."""
        ...

    async def write(self, records: Sequence[Record]) -> None:
        """Queue a batch and wait until it is durable."""
        ...

    async def read_run(self, run_id: str) -> RunRow:
        """One run, by its id or an unambiguous beginning of it. Raises ``RunNotFound``."""
        ...

    async def read_runs(self, *, states: Sequence[RunState] | None = None) -> list[RunRow]:
        """Runs in the order they were started; None means all states."""
        ...

    async def read_entries(self, run_id: str, *, start: int = 0, stop: int | None = None) -> list[Entry]:
        """The ledger from position ``start`` up to, not including, ``stop``."""
        ...

    async def search_entries(self, run_id: str, query: str, *, limit: int = 20) -> list[SearchHit]:
        """Full-text search over a run's ledger, best first: entries with any of the words, by BM25.

        Other forms of a word count too, case and accents do not. Words in double quotes are a phrase. No query is
        a syntax error.
        """
        ...

    async def read_decisions(self, run_id: str) -> list[DecisionMade]:
        """Every change of the run's plan, in order."""
        ...

    async def read_tool_calls(self, run_id: str) -> list[ToolCallRow]:
        """Every tool call of the run, in the order of intent."""
        ...

    async def read_outcomes(self, run_id: str) -> list[ToolFinished]:
        """How every tool call of the run ended, in order; also those that never began, so that they had no intent."""
        ...

    async def read_model_calls(self, run_id: str) -> list[ModelCallRow]:
        """Every model call of the run, in order."""
        ...

    async def read_statistics(self, run_id: str | None = None) -> dict[str, RunStatistics]:
        """The figures of a run and of all runs below it, by run id; None means every run, in the order they began.

        Added up where the records are, so it stays quick where ``read_model_calls`` would read every answer.
        """
        ...

    def observe(self, committed: Callable[[Sequence[Record]], None]) -> Callable[[], None]:
        """Have a function called with every batch once it is durable, in the order of the batches.

        It is called before any waiter of the batch wakes, on the writer's thread: it must be quick and must not raise.

        Returns:
            A function that ends it.
        """
        ...

    async def read_request(self, run_id: str, call: int) -> Json:
        """The whole request of one model call, as it was sent, put together from its parts.

        Raises:
            JournalUnreadable: The parts do not give the recorded digest.
        """
        ...

    async def read_summaries(self, run_id: str) -> list[SummaryStored]:
        """Every summary of the run, in the order they were stored."""
        ...

    async def read_content(self, content_id: str) -> ContentStored | None:
        """One stored content, its body from the ledger where that holds it; None where there never was one.

        The body is "", though the length is not 0, where it was cleaned up.
        """
        ...

    async def read_contents(self, run_id: str) -> list[ContentStored]:
        """All stored contents of a run, their bodies left empty."""
        ...

    async def read_scopes(self) -> list[ScopeOpened]:
        """Every memory scope."""
        ...

    async def read_items(self, scope_ids: Sequence[str], *, upto: int | None = None) -> list[ItemWritten]:
        """All versions of the scopes' items up to a position of the item log, in order; None means all."""
        ...

    async def read_events(
        self, run_id: str | None, *, after: int = 0, limit: int | None = None
    ) -> list[tuple[int, EventLogged]]:
        """A run's events with their sequence numbers, those after the given one, in order.

        Args:
            run_id: The run; None means every run.
            after: The sequence number of the last event that is known already.
            limit: How many at most; None means all.
        """
        ...

    async def last_event(self) -> int:
        """The sequence number of the newest event of any run; 0 where there is none."""
        ...

    async def delete_expired_contents(self, now: float) -> int:
        """Empty stored contents that have expired by ``now``; returns how many. Their citations stay listed.

        A content expires at its ``expires_at``, and ``retention`` seconds after its run has reached a final state.
        """
        ...

    async def aclose(self) -> None:
        """Write what is queued, then close. Safe to call twice."""
        ...
