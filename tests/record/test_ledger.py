"""The ledger's promises: atomic batches, no gaps, nothing shown before it is durable, nothing taken back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
import trio.testing

import journal_kit as kit
from backends import RunAsync
from failing_journals import FailingJournal, SlowJournal
from repertory.errors import JournalUnreadable, JournalWriteFailed, RecordRefused
from repertory.llm import Text
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import text_of
from repertory.record import Ledger, MemoryJournal
from repertory.record.records import ModelReplied, Record, ToolFinished

DONE = ToolFinished(run_id="run-1", call_id="call-1", status="ok", at=1.0)


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_a_batch_becomes_entries_with_positions(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """Drafts get positions in order, the clock's time and an estimate; other records ride in the same batch."""

    async def main() -> None:
        async with kit.opened(kind, tmp_path) as journal:
            ledger = await Ledger.open(journal, "run-1", clock=lambda: 42.5)
            first, second = await ledger.append(
                kit.draft("a", iteration=1, metadata={"k": 1}), kit.draft("b"), also=[DONE]
            )
            assert (first.position, second.position) == (0, 1)
            assert (first.created_at, first.tokens, first.iteration, first.metadata) == (
                42.5,
                estimate_tokens(first.content),
                1,
                {"k": 1},
            )
            assert await ledger.append(also=[DONE]) == ()
            (third,) = await ledger.append(kit.draft("c"))
            assert ledger.position == 3
            assert list(ledger.snapshot()) == [first, second, third]
            assert await journal.read_entries("run-1") == [first, second, third]
            again = await Ledger.open(journal, "run-1")
            assert again.snapshot() == ledger.snapshot()
            assert again.journal is journal

    run_async(main)


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_an_answer_is_written_once(
    kind: str, tmp_path: Path, run_async: RunAsync, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that the ledger holds as a turn names its entry, and reads back whole; another one is kept whole."""
    monkeypatch.setenv("LEDGER_SECRET", "open-sesame")

    def reply(call: int, *texts: str) -> ModelReplied:
        return ModelReplied(run_id="run-1", call=call, at=1.0, content=tuple(map(Text, texts)))

    async def main() -> None:
        seen: list[Record] = []
        async with kit.opened(kind, tmp_path, redact=["LEDGER_SECRET"]) as journal:
            journal.observe(seen.extend)
            ledger = await Ledger.open(journal, "run-1")
            for call, text in enumerate(["said", "elsewhere", "open-sesame"], 1):
                await journal.write([kit.called(call, {})])
                also = [reply(call, text if call != 2 else "changed")]
                await ledger.append(kit.draft("before"), kit.draft(text, role="assistant"), also=also)
            rows = await journal.read_model_calls("run-1")
        written = [record for record in seen if isinstance(record, ModelReplied)]
        assert [(each.position, len(each.content)) for each in written] == [(1, 0), (None, 1), (5, 0)]
        read = [text_of(row.replied.content) for row in rows if row.replied is not None]
        assert read == ["said", "changed", "[redacted: LEDGER_SECRET]"]

    run_async(main)


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_an_answer_whose_entry_is_missing_is_not_an_empty_one(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """A reply that names an entry that is not there cannot be read."""

    async def main() -> None:
        async with kit.opened(kind, tmp_path) as journal:
            reply = ModelReplied(run_id="run-1", call=1, at=1.0, position=7)
            await journal.write([kit.called(1, {}), reply])
            with pytest.raises(JournalUnreadable, match="model call 1 of run-1 is entry 7, which is not recorded"):
                await journal.read_model_calls("run-1")

    run_async(main)


async def test_only_what_is_durable_is_shown() -> None:
    """A snapshot taken while the disk works does not hold the batch; one taken by a woken waiter does."""
    journal = SlowJournal()
    ledger = Ledger(journal, "run-1")
    journal.hold()
    seen: list[int] = []

    async def append() -> None:
        await ledger.append(kit.draft())
        seen.append(len(ledger.snapshot()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        nursery.start_soon(append)
        await trio.testing.wait_all_tasks_blocked()
        assert (journal.waiting, ledger.position, seen) == (2, 0, [])
        journal.release()
    assert seen == [2, 2]
    await journal.aclose()


def test_a_cancelled_append_is_written_all_the_same(run_async: RunAsync) -> None:
    """Cancelling the wait takes nothing back, and the next positions follow without a gap."""

    async def main() -> None:
        journal = SlowJournal()
        ledger = Ledger(journal, "run-1")
        journal.hold()
        async with anyio.create_task_group() as group:
            group.start_soon(ledger.append, kit.draft("cancelled"))
            while not journal.waiting:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        journal.release()
        (entry,) = await ledger.append(kit.draft("next"))
        assert entry.position == 1
        assert [e.content for e in await journal.read_entries("run-1")] == [(Text("cancelled"),), (Text("next"),)]

    run_async(main)


async def test_opening_waits_for_what_is_still_on_its_way() -> None:
    """A restarted owner must see the batch its predecessor had queued, or both would use one position."""
    journal = SlowJournal()
    journal.hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Ledger(journal, "run-1").append, kit.draft())
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:

        async def reopen() -> None:
            assert (await Ledger.open(journal, "run-1")).position == 1

        nursery.start_soon(reopen)
        await trio.testing.wait_all_tasks_blocked()
        journal.release()


def test_after_a_failed_write_the_ledger_refuses(run_async: RunAsync) -> None:
    """The failure reaches the waiter and every later append, with its cause, and nothing undurable is shown."""

    async def main() -> None:
        journal = FailingJournal(fail_after=1)
        ledger = Ledger(journal, "run-1")
        await ledger.append(kit.draft("kept"))
        with pytest.raises(JournalWriteFailed, match="the test said so"):
            await ledger.append(kit.draft("lost"))
        with pytest.raises(JournalWriteFailed, match="takes no more") as caught:
            await ledger.append(kit.draft("refused"))
        assert isinstance(caught.value.__cause__, JournalWriteFailed)
        with pytest.raises(JournalWriteFailed):
            await anyio.to_thread.run_sync(ledger.append_sync, kit.draft("refused"))
        assert [entry.content for entry in ledger.snapshot()] == [(Text("kept"),)]

    run_async(main)


def test_a_thread_hears_of_a_failed_write() -> None:
    """``append_sync`` raises what ``append`` would."""
    journal = FailingJournal()
    ledger = Ledger(journal, "run-1")
    journal.fail()
    with pytest.raises(JournalWriteFailed, match="the test said so"):
        ledger.append_sync(kit.draft())
    with pytest.raises(JournalWriteFailed, match="takes no more"):
        ledger.append_sync(kit.draft())


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_a_refused_batch_leaves_no_trace(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """One bad record refuses the whole batch; the ledger and the journal go on."""

    async def main() -> None:
        async with kit.opened(kind, tmp_path) as journal:
            ledger = Ledger(journal, "run-1")
            with pytest.raises(RecordRefused):
                await ledger.append(kit.draft("good"), kit.draft("bad", metadata={"x": float("nan")}))
            (entry,) = await ledger.append(kit.draft("next"))
            assert entry.position == 0
            assert await journal.read_entries("run-1") == [entry]

    run_async(main)


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_appends_from_tasks_and_threads_have_no_gaps(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """Batches stay together, positions are dense, and the order in the journal is the order of positions."""

    async def main() -> None:
        async with kit.opened(kind, tmp_path) as journal:
            ledger = await Ledger.open(journal, "run-1")
            told: list[tuple[int, ...]] = []

            async def task(name: int) -> None:
                for number in range(10):
                    batch = await ledger.append(*[kit.draft(f"t{name}.{number}.{part}") for part in range(3)])
                    told.append(tuple(entry.position for entry in batch))

            def thread(name: int) -> None:
                for number in range(10):
                    batch = ledger.append_sync(*[kit.draft(f"h{name}.{number}.{part}") for part in range(3)])
                    told.append(tuple(entry.position for entry in batch))

            async with anyio.create_task_group() as group:
                for name in range(50):
                    group.start_soon(task, name)
                for name in range(4):
                    group.start_soon(anyio.to_thread.run_sync, thread, name)
            assert sorted(told) == [(3 * n, 3 * n + 1, 3 * n + 2) for n in range(540)]
            assert await journal.read_entries("run-1") == list(ledger.snapshot())

    run_async(main)


async def test_five_thousand_appenders_at_once() -> None:
    """Snapshots taken among 5,000 concurrent appends are beginnings of the final record."""
    ledger = Ledger(MemoryJournal(), "run-1")
    snapshots: list[tuple[Any, list[Any]]] = []

    async def append(number: int) -> None:
        await ledger.append(kit.draft(str(number)))
        if number % 100 == 0:
            snapshot = ledger.snapshot()
            snapshots.append((snapshot, list(snapshot)))

    async with trio.open_nursery() as nursery:
        for number in range(5000):
            nursery.start_soon(append, number)
    final = list(ledger.snapshot())
    assert len({entry.content for entry in final}) == 5000
    for snapshot, then in snapshots:
        assert list(snapshot) == then == final[: len(then)]


async def test_a_damaged_ledger_is_not_opened() -> None:
    """A gap in the positions means that the file was changed from outside."""
    journal = MemoryJournal()
    await journal.write([kit.appended("run-1", 0), kit.appended("run-1", 2)])
    with pytest.raises(JournalUnreadable, match="position 2 where 1 was expected"):
        await Ledger.open(journal, "run-1")


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_of_two_ledgers_of_one_run_one_takes_no_more(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """With all that is queued behind its refused batch, so that no gap is left; another one goes on, as do others."""

    async def main() -> None:
        async with kit.opened(kind, tmp_path) as journal:
            one, two = await Ledger.open(journal, "run-1"), await Ledger.open(journal, "run-1")
            other = await Ledger.open(journal, "run-2")
            await one.append(kit.draft("one"))
            refused: list[str] = []

            async def append() -> None:
                try:
                    await two.append(kit.draft("two"))
                except RecordRefused as error:
                    refused.append(str(error))

            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(append)
                    group.start_soon(other.append, kit.draft("other"))
            assert len(refused) == 5
            assert any("two ledgers" in each for each in refused)
            with pytest.raises(RecordRefused, match=r"run-1 takes no more, open it again: .*'run-1'"):
                two.append_sync(kit.draft("two"))
            assert (two.position, other.position) == (0, 5)
            again = await Ledger.open(journal, "run-1")
            await again.append(kit.draft("again"))
            assert [entry.content for entry in await journal.read_entries("run-1")] == [
                (Text("one"),),
                (Text("again"),),
            ]

    run_async(main)


async def test_an_estimate_of_text_that_has_no_bytes() -> None:
    """A lone surrogate is counted too instead of failing the append."""
    ledger = Ledger(MemoryJournal(), "run-1")
    (entry,) = await ledger.append(kit.draft("\ud800" * 4))
    assert entry.tokens > 0


def test_many_threads_and_no_event_loop() -> None:
    """The ledger needs no event loop where the journal needs none."""
    ledger = Ledger(MemoryJournal(), "run-1")
    threads = [threading.Thread(target=lambda: ledger.append_sync(kit.draft(), kit.draft())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.position for entry in ledger.snapshot()] == list(range(16))
