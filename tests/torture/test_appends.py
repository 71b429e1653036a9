"""The stress of appends: a clean record passes, and every check can fail."""

from __future__ import annotations

from pathlib import Path

import anyio.lowlevel
import pytest

import journal_kit as kit
from backends import RunAsync
from repertory.errors import ConfigurationError
from repertory.llm import text_of
from repertory.record import Entry, Snapshot, open_journal
from repertory.torture.appends import compare_appends, is_beginning, marks_in, names_the_future, run_appends


async def tell_all(snapshot: Snapshot) -> str:
    """A summary that holds everything, and waits so that later appends could slip in."""
    text = " ".join(text_of(entry.content) for entry in snapshot)
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    return text


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_concurrent_appends_keep_every_promise(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """50 writers, four of them OS threads, snapshots and summaries all the while: nothing is wrong."""
    path = kit.place_of(kind, tmp_path)
    progress: list[int] = []

    async def main() -> None:
        report = await run_appends(
            writers=50,
            appends=20,
            threads=4,
            path=path,
            summarize=tell_all,
            on_progress=lambda done, seconds: progress.append(done),
        )
        assert report.clean, report
        assert report.acknowledged == 1000
        assert report.durability == ("power" if path else "memory")
        assert (report.writers, report.threads) == (50, 4)
        assert min(report.snapshots_checked, report.summaries_checked) > 0
        assert report.appends_per_second > 0
        assert progress[-1] == 1000
        if path is not None:
            async with open_journal(path, readonly=True):
                pass  # it is a journal like any other

    run_async(main)


@pytest.mark.parametrize("threads", [0, 99])
def test_writers_may_be_all_tasks_or_all_threads(threads: int, run_async: RunAsync) -> None:
    """More threads than writers means all of them."""

    async def main() -> None:
        report = await run_appends(writers=5, appends=5, threads=threads)
        assert report.clean
        assert report.threads == min(threads, 5)
        assert report.summaries_checked == 0

    run_async(main)


def test_nothing_to_do_is_a_mistake(run_async: RunAsync) -> None:
    """Told instead of divided by."""

    async def main() -> None:
        for writers, appends in ((0, 1), (1, 0)):
            with pytest.raises(ConfigurationError, match="at least 1"):
                await run_appends(writers=writers, appends=appends)

    run_async(main)


def test_a_summary_of_the_future_is_counted(run_async: RunAsync) -> None:
    """Negative control, end to end: a summarizer that looks beyond its snapshot is caught."""

    async def clairvoyant(snapshot: Snapshot) -> str:
        return f"next comes w0n{len(snapshot) + 1000}"

    async def main() -> None:
        report = await run_appends(writers=2, appends=50, threads=0, summarize=clairvoyant)
        assert report.summary_violations == report.summaries_checked > 0
        assert not report.clean

    run_async(main)


def record(*marks: str) -> list[Entry]:
    """A record of entries with these marks."""
    return [kit.entry(position, f"{mark} and words") for position, mark in enumerate(marks)]


ACKNOWLEDGED = [((0, 0), 0), ((1, 0), 1), ((0, 1), 2)]


@pytest.mark.parametrize(
    ("final", "found"),
    [
        (record("w0n0", "w1n0", "w0n1"), (0, 0, 0)),
        (record("w0n0", "w1n0", "w0n1", "w2n0"), (0, 0, 0)),  # written, not yet acknowledged: fine
        (record("w0n0", "w1n0"), (1, 0, 0)),
        (record("w0n0", "w1n0", "w0n1", "w1n0"), (0, 1, 0)),
        (record("w1n0", "w0n0", "w0n1"), (0, 0, 2)),
        (record("w0n1", "w1n0", "w0n0"), (0, 0, 3)),  # two at wrong places, and against their writer's order
        ([kit.entry(1, "w0n0"), *record("w0n0", "w1n0", "w0n1")[1:]], (0, 0, 1)),
    ],
)
def test_the_comparison_sees_loss_duplicates_and_order(final: list[Entry], found: tuple[int, int, int]) -> None:
    """Negative controls for each count."""
    assert compare_appends(ACKNOWLEDGED, final) == found


def test_the_snapshot_check_sees_growth_and_change() -> None:
    """Negative controls: a snapshot that grew, one of another record, one that is as it was."""
    final = record("w0n0", "w1n0", "w0n1")
    assert is_beginning(Snapshot("r", final[:2]), (2, (1, 0)), final)
    assert is_beginning(Snapshot("r"), (0, None), final)
    assert not is_beginning(Snapshot("r", final), (2, (1, 0)), final)
    assert not is_beginning(Snapshot("r", record("w5n5", "w1n0")), (2, (1, 0)), final)
    assert not is_beginning(Snapshot("r", final[1:2]), (1, (1, 0)), final)


def test_the_summary_check_sees_the_future() -> None:
    """Negative control: a mark beyond the length, or one that nobody knows."""
    places = {(0, 0): 0, (0, 1): 1}
    assert not names_the_future("nothing, w0n0", places, 1)
    assert names_the_future("w0n0 w0n1", places, 1)
    assert names_the_future("w7n7", places, 2)
    assert marks_in("w1n2, xw3n4 w5n6!") == [(1, 2), (5, 6)]
