"""Concurrent appends under observation: the engine of ``repertory stress``.

Many writers, both tasks and OS threads, append to one real ledger over a real journal, while others take snapshots of
it. Afterwards the journal is reopened and read, and the record is compared with what was acknowledged.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from repertory._ids import new_id
from repertory.errors import ConfigurationError
from repertory.llm.messages import Text, text_of
from repertory.record.entries import Draft, Entry
from repertory.record.journal import Durability
from repertory.record.ledger import Ledger, Snapshot
from repertory.record.opening import open_journal

_MOST_SNAPSHOTS: Final = 200  # kept to the end, each compared with the whole record
_PROGRESS_EVERY: Final = 0.25  # seconds
_MARK = re.compile(r"\bw(\d+)n(\d+)\b")

Mark = tuple[int, int]  # (writer, number): identifies one append
End = tuple[int, Mark | None]
Summarize = Callable[[Snapshot], Awaitable[str]]


class AppendsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a stress of appends found. Everything from ``lost`` to ``summary_violations`` must be 0.

    Attributes:
        acknowledged: Appends that returned.
        lost: Acknowledged appends that were not in the record when the journal was read again.
        duplicated: Appends that are in the record more than once.
        reordered: Appends that are not at the acknowledged position, or not in the order of their writer.
        snapshots_checked: Snapshots that were compared with the final record.
        snapshot_violations: Snapshots that changed after they were taken, or are not a beginning of the record.
        summaries_checked: Summaries that were made of snapshots while appends continued.
        summary_violations: Summaries that name an entry which is not in their snapshot.
        seconds: From the first append to the last acknowledgement.
        threads: Writers that were OS threads; the others were tasks.
        durability: The journal's durability.
    """

    writers: int
    threads: int
    durability: Durability
    acknowledged: int
    lost: int
    duplicated: int
    reordered: int
    snapshots_checked: int
    snapshot_violations: int
    summaries_checked: int
    summary_violations: int
    seconds: float
    appends_per_second: float

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost + self.duplicated + self.reordered + self.snapshot_violations + self.summary_violations)


async def run_appends(
    *,
    writers: int,
    appends: int,
    threads: int = 8,
    path: str | os.PathLike[str] | None = None,
    durability: Durability = "power",
    summarize: Summarize | None = None,
    on_progress: Callable[[int, float], None] | None = None,
) -> AppendsReport:
    """Stress a ledger with concurrent appends, and check everything that is promised about them.

    Args:
        threads: How many of the writers are OS threads; at most ``writers``.
        path: A journal file, new or with other runs in it; None for a journal in memory.
        summarize: Makes a text of a snapshot while the appends continue. Every entry carries a mark such as ``w3n17``;
            the text may only contain marks that are in the snapshot.
        on_progress: Called a few times a second, and at the end, in the caller's event loop: with the number of
            acknowledged appends, and the seconds since the first one.

    Raises:
        ConfigurationError: Fewer than one writer or append.
        JournalError: The journal cannot be opened or written.
    """
    if writers < 1 or appends < 1:
        raise ConfigurationError(f"writers and appends must be at least 1, got {writers} and {appends}")
    threads = max(0, min(threads, writers))
    run_id = new_id("stress")
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(open_journal(path, durability=durability))
        stress = _Stress(await Ledger.open(journal, run_id), writers * appends, summarize)
        await stress.run(writers, appends, threads, on_progress)
        if path is not None:
            await stack.aclose()  # so that the record is read back only from the file
            journal = await stack.enter_async_context(open_journal(path, readonly=True))
        final = await journal.read_entries(run_id)
    lost, duplicated, reordered = compare_appends(stress.acknowledged, final)
    violations = sum(not is_beginning(snapshot, seen, final) for snapshot, seen in stress.snapshots)
    return AppendsReport(
        writers=writers,
        threads=threads,
        durability="memory" if path is None else durability,
        acknowledged=len(stress.acknowledged),
        lost=lost,
        duplicated=duplicated,
        reordered=reordered,
        snapshots_checked=stress.snapshots_taken,
        snapshot_violations=violations + stress.violations_seen,
        summaries_checked=stress.summaries_checked,
        summary_violations=stress.summary_violations,
        seconds=stress.seconds,
        appends_per_second=len(stress.acknowledged) / stress.seconds,
    )


# --- checks -----------------------------------------------------------------------------------------------


def marks_in(text: str) -> list[Mark]:
    """The marks of appends in a text."""
    return [(int(writer), int(number)) for writer, number in _MARK.findall(text)]


def mark_of(entry: Entry) -> Mark:
    """The mark that an entry carries."""
    return marks_in(text_of(entry.content))[0]


def compare_appends(acknowledged: Iterable[tuple[Mark, int]], final: Sequence[Entry]) -> tuple[int, int, int]:
    """Compare the marks with the positions that the writers were told with the final record.

    Returns:
        How many appends are lost, duplicated and reordered.
    """
    places: dict[Mark, list[int]] = {}
    for index, entry in enumerate(final):
        places.setdefault(mark_of(entry), []).append(index)
    lost = reordered = 0
    for mark, position in acknowledged:
        found = places.get(mark)
        if found is None:
            lost += 1
        elif found[0] != position or final[found[0]].position != position:
            reordered += 1
    latest: dict[int, int] = {}
    for entry in final:
        writer, number = mark_of(entry)
        reordered += number < latest.get(writer, -1)
        latest[writer] = number
    duplicated = sum(len(found) - 1 for found in places.values())
    return lost, duplicated, reordered


def end_of(snapshot: Snapshot) -> End:
    """The length of a snapshot and the mark of its last entry, which is None if there is none."""
    return len(snapshot), mark_of(snapshot[-1]) if len(snapshot) else None


def is_beginning(snapshot: Snapshot, seen: End, final: Sequence[Entry]) -> bool:
    """Whether a snapshot still has the end that was seen when it was taken, and is a beginning of the final record."""
    return end_of(snapshot) == seen and list(snapshot) == list(final[: len(snapshot)])


def names_the_future(summary: str, position_of: Mapping[Mark, int], length: int) -> bool:
    """Whether a summary names an entry that is not in its snapshot of this length, whose positions are all given."""
    return any(position_of.get(mark, length) >= length for mark in marks_in(summary))


# --- the run ----------------------------------------------------------------------------------------------


class _Stress:
    def __init__(self, ledger: Ledger, total: int, summarize: Summarize | None) -> None:
        self._ledger = ledger
        self._total = total
        self._summarize = summarize
        self._started = 0.0
        self.acknowledged: list[tuple[Mark, int]] = []
        self.snapshots: list[tuple[Snapshot, End]] = []
        self.snapshots_taken = 0
        self.violations_seen = 0
        self.summaries_checked = 0
        self.summary_violations = 0
        self.seconds = 0.0

    async def run(
        self, writers: int, appends: int, threads: int, on_progress: Callable[[int, float], None] | None
    ) -> None:
        limiter = anyio.CapacityLimiter(max(1, threads))
        self._started = time.perf_counter()
        async with anyio.create_task_group() as observers:
            observers.start_soon(self._take_snapshots)
            if self._summarize is not None:
                observers.start_soon(self._make_summaries, self._summarize)
            if on_progress is not None:
                observers.start_soon(self._report, on_progress)
            async with anyio.create_task_group() as group:
                for writer in range(writers):
                    if writer < threads:
                        in_thread = partial(anyio.to_thread.run_sync, limiter=limiter)
                        group.start_soon(in_thread, self._append_in_thread, writer, appends)
                    else:
                        group.start_soon(self._append, writer, appends)
            self.seconds = time.perf_counter() - self._started
            observers.cancel_scope.cancel()
        if on_progress is not None:
            on_progress(len(self.acknowledged), self.seconds)
        self._look(self._ledger.snapshot())

    async def _append(self, writer: int, appends: int) -> None:
        for number in range(appends):
            (entry,) = await self._ledger.append(_draft(writer, number))
            self.acknowledged.append(((writer, number), entry.position))

    def _append_in_thread(self, writer: int, appends: int) -> None:
        for number in range(appends):
            (entry,) = self._ledger.append_sync(_draft(writer, number))
            self.acknowledged.append(((writer, number), entry.position))

    async def _take_snapshots(self) -> None:
        before = self._ledger.snapshot()
        every, taken = max(1, self._total // _MOST_SNAPSHOTS), -1
        while True:
            snapshot = self._ledger.snapshot()
            # The quick check, for every snapshot: it grows, and the previous one is still its beginning.
            self.snapshots_taken += 1
            if len(snapshot) < len(before) or (len(before) and snapshot[len(before) - 1] is not before[-1]):
                self.violations_seen += 1
            if len(snapshot) // every != taken:  # the thorough check, at the end, for some snapshots
                taken = len(snapshot) // every
                self._look(snapshot)
            before = snapshot
            await anyio.sleep(0.001)  # often, but without starving the appends

    def _look(self, snapshot: Snapshot) -> None:
        self.snapshots.append((snapshot, end_of(snapshot)))

    async def _make_summaries(self, summarize: Summarize) -> None:
        position_of: dict[Mark, int] = {}
        while True:
            snapshot = self._ledger.snapshot()
            position_of.update((mark_of(entry), entry.position) for entry in snapshot[len(position_of) :])
            summary = await summarize(snapshot)
            self.summary_violations += names_the_future(summary, position_of, len(snapshot))
            self.summaries_checked += 1
            await anyio.sleep(0.01)

    async def _report(self, on_progress: Callable[[int, float], None]) -> None:
        while True:
            await anyio.sleep(_PROGRESS_EVERY)
            on_progress(len(self.acknowledged), time.perf_counter() - self._started)


def _draft(writer: int, number: int) -> Draft:
    return Draft(
        role="user",
        kind="user-input",
        content=(Text(f"w{writer}n{number} an entry of the usual size, written by one of many who write at once"),),
        iteration=number,
    )
