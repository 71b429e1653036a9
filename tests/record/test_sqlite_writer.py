"""The writer thread: groups, failures, jobs, and the end."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import journal_kit as kit
from backends import RunAsync
from patience import PATIENCE
from repertory.errors import JournalClosed, JournalWriteFailed
from repertory.record import Ledger, SqliteJournal, open_journal
from repertory.record.rows import encode_records
from repertory.record.search import ENTRIES
from repertory.record.sqlite_file import open_to_write
from repertory.record.sqlite_writer import SqliteWriter
from repertory.record.tables import Tables, index_slice
from repertory.record.waiting import Ticket, Waiter, wake_all
from repertory.record.writing import GROUP, Batch


def new_writer(path: Path) -> SqliteWriter:
    """A writer over a new file."""
    return SqliteWriter(open_to_write(str(path), "process"), str(path))


def positions(path: Path, run_id: str) -> list[int]:
    """What is in the file, by plain SQLite."""
    with closing(sqlite3.connect(path)) as database, database:
        rows = database.execute("SELECT position FROM entries WHERE run_id = ? ORDER BY seq", (run_id,)).fetchall()
    database.close()
    return [position for (position,) in rows]


def index_entries(connection: sqlite3.Connection) -> tuple[int, int]:
    """Index the next slice of entries."""
    return index_slice(Tables(connection), ENTRIES)


class Stopped:
    """Keeps a writer busy until it is let go, so that what is queued meanwhile is known."""

    def __init__(self, writer: SqliteWriter) -> None:
        self.go = threading.Event()
        self.job = writer.start_job(lambda _: self.go.wait(PATIENCE))


def test_what_is_queued_meanwhile_is_one_commit(tmp_path: Path) -> None:
    """Group commit: many batches, one transaction; at most 512 records, unless one batch alone has more."""
    writer = new_writer(tmp_path / "j.db")
    stopped = Stopped(writer)
    one = [writer.submit(Batch(encode_records([kit.appended("a", n)]))) for n in range(100)]
    stopped.go.set()
    one[-1].wait_sync()
    assert writer.commits == 2

    stopped = Stopped(writer)
    sizes = [GROUP - 1, 1, 300, 300, GROUP + 100, 1]  # commits: (511+1), (300), (300), (612), (1)
    many = [
        writer.submit(Batch(encode_records([kit.appended(f"b{index}", n) for n in range(size)])))
        for index, size in enumerate(sizes)
    ]
    before = writer.commits
    stopped.go.set()
    many[-1].wait_sync()
    assert writer.commits - before == 1 + 5
    writer.close(10)
    for index, size in enumerate(sizes):
        assert positions(tmp_path / "j.db", f"b{index}") == list(range(size))


def test_a_job_takes_its_turn_among_batches(tmp_path: Path) -> None:
    """It sees what was queued before it and nothing of what was queued behind it."""
    writer = new_writer(tmp_path / "j.db")
    stopped = Stopped(writer)
    writer.submit(Batch(encode_records([kit.appended("a", 0)])))
    job = writer.start_job(lambda connection: connection.execute("SELECT count(*) FROM entries").fetchone()[0])
    writer.submit(Batch(encode_records([kit.appended("a", 1)])))
    stopped.go.set()
    writer.close(10)
    assert anyio.run(job.result) == 1
    assert positions(tmp_path / "j.db", "a") == [0, 1]


def test_a_read_waits_for_what_was_queued_before_it_and_for_nothing_else(tmp_path: Path, run_async: RunAsync) -> None:
    """On a disk that takes its time; what is queued later, or fails, holds no reader."""

    async def main() -> None:
        async with open_journal(tmp_path / f"{len(list(tmp_path.iterdir()))}.db") as journal:
            assert isinstance(journal, SqliteJournal)
            assert journal._writer is not None
            stopped = Stopped(journal._writer)
            journal.submit([kit.appended("a", 0)])
            read: list[int] = []

            async def look() -> None:
                read.append(len(await journal.read_entries("a")))

            async with anyio.create_task_group() as group:
                group.start_soon(look)
                await anyio.wait_all_tasks_blocked()
                later = Stopped(journal._writer)
                assert read == []
                stopped.go.set()
                with anyio.fail_after(PATIENCE):
                    while not read:
                        await anyio.lowlevel.checkpoint()
                later.go.set()
            assert read == [1]
            journal._writer.start_job(lambda connection: connection.execute("SELECT * FROM missing"))
            assert len(await journal.read_entries("a")) == 1

    run_async(main)


def test_a_mistake_in_a_job_is_its_askers_alone(tmp_path: Path) -> None:
    """It is taken back and raised to who asked; the journal goes on."""
    writer = new_writer(tmp_path / "j.db")

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM search_progress")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        anyio.run(writer.start_job(work).result)
    assert anyio.run(writer.start_job(index_entries).result) == (0, 0)
    writer.submit(Batch(encode_records([kit.appended("a", 0)]))).wait_sync()
    writer.close(10)


def test_a_full_disk_in_a_job_stops_the_journal(tmp_path: Path) -> None:
    """The disk may be full for a job as for a batch; a statement that is wrong is its asker's mistake."""
    writer = new_writer(tmp_path / "j.db")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        anyio.run(writer.start_job(lambda connection: connection.execute("SELECT * FROM missing")).result)
    writer.submit(Batch([])).wait_sync()

    def fill(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA max_page_count = 1").fetchall()
        connection.execute("INSERT INTO content_bodies VALUES (1, zeroblob(1000000), 0)")

    with pytest.raises(JournalWriteFailed, match="make room, then start again"):
        anyio.run(writer.start_job(fill).result)
    with pytest.raises(JournalWriteFailed):
        writer.submit(Batch([]))
    writer.close(10)


def held(path: Path) -> sqlite3.Connection:
    """A foreign program in the middle of a transaction."""
    foreign = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    foreign.execute("BEGIN IMMEDIATE")
    return foreign


def test_a_busy_file_is_waited_for_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A foreign program that holds the file delays batches and jobs, and nothing is lost."""
    path = tmp_path / "j.db"
    writer = SqliteWriter(open_to_write(str(path), "process"), str(path), busy_notice=0.0)
    for many in (1, 2):
        foreign = held(path)
        batch = writer.submit(Batch(encode_records([kit.appended("a", n * many) for n in range(many, 2 * many)])))
        job = writer.start_job(index_entries)
        caplog.clear()
        while not caplog.records:
            assert not batch.done
            threading.Event().wait(0.01)
        assert "another program has held it for" in caplog.text
        assert "end its transaction" in caplog.text
        foreign.execute("COMMIT")
        foreign.close()
        batch.wait_sync()
        anyio.run(job.result)
    writer.close(10)
    assert len(positions(path, "a")) == 3


def test_closing_does_not_wait_for_a_foreign_program_for_ever(tmp_path: Path, run_async: RunAsync) -> None:
    """It says who is to blame, and gives the file up only when nothing will be written any more."""
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"

    async def main() -> None:
        with pytest.raises(JournalWriteFailed, match="another program holds the file, and about"):
            async with open_journal(path, close_timeout=0.1) as journal:
                assert isinstance(journal, SqliteJournal)
                assert journal._writer is not None
                await journal.write([kit.appended("a", 0)])
                foreign = held(path)
                journal.submit([kit.appended("a", 1)])
                while not journal._writer._waits_for:
                    await anyio.sleep(0.01)
        foreign.close()
        async with open_journal(path) as journal:
            assert len(await journal.read_entries("a")) == 1

    run_async(main)


def test_a_hook_that_raises_stops_the_journal_and_nobody_hangs(tmp_path: Path) -> None:
    """It must not; if it does, everybody who waits hears of it."""
    writer = new_writer(tmp_path / "j.db")
    stopped = Stopped(writer)

    def hook() -> None:
        raise ZeroDivisionError

    batches = [writer.submit(Batch(encode_records([kit.appended("a", 0)]), [hook])), writer.submit(Batch([]))]
    stopped.go.set()
    for batch in batches:
        with pytest.raises(JournalWriteFailed) as caught:
            batch.wait_sync()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    writer.close(10)


def test_a_disk_that_does_not_answer_does_not_hold_the_end_for_ever(tmp_path: Path) -> None:
    """Closing gives up after its time, and says how much is not written."""
    writer = new_writer(tmp_path / "j.db")
    stopped = Stopped(writer)
    writer.submit(Batch([]))
    with pytest.raises(JournalWriteFailed, match=r"did not finish writing within 0\.01 s: about \d batches"):
        writer.close(0.01)
    with pytest.raises(JournalClosed):
        writer.submit(Batch([]))
    stopped.go.set()
    writer.close(10)


def test_a_full_disk_stops_the_journal_and_loses_nothing_acknowledged(tmp_path: Path, run_async: RunAsync) -> None:
    """Every waiter and every later write hears of it; what was acknowledged is in the file, which is sound."""
    path = tmp_path / "j.db"
    told: list[int] = []

    async def main() -> None:
        async with open_journal(path, durability="process") as journal:
            assert isinstance(journal, SqliteJournal)
            assert journal._writer is not None
            limit = journal._writer.start_job(
                lambda connection: connection.execute("PRAGMA max_page_count = 300").fetchall()
            )
            await limit.wait()
            await kit.fill(journal, told)
        async with open_journal(path) as journal:
            assert isinstance(journal, SqliteJournal)
            assert await journal.check(deep=True) == []
            ledger = await Ledger.open(journal, "run-1")
            assert ledger.position > max(told)
            await ledger.append(kit.draft("there is room again"))

    run_async(main)
    assert len(told) > 20


FILE_LIMIT = """
import resource, sys, trio
sys.path.insert(0, sys.argv[2])
import journal_kit as kit
from repertory.record import open_journal

async def main():
    told = []
    async with open_journal(sys.argv[1]) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        await kit.fill(journal, told)
    print(max(told))

trio.run(main)
"""


def test_a_write_that_the_system_refuses_is_no_different(tmp_path: Path) -> None:
    """A limit on the size of files, in a process of its own, refuses the log's growth with a real I/O error."""
    path = tmp_path / "j.db"
    done = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(path), str(Path(kit.__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < len(positions(path, "run-1"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY  # only the child was limited


def test_the_sequence_goes_on_where_it_was(tmp_path: Path, run_async: RunAsync) -> None:
    """One dense number for all records of all kinds, over re-openings."""
    path = tmp_path / "j.db"

    async def main() -> None:
        for number in range(2):
            async with open_journal(path) as journal:
                await journal.write([kit.content("c"), kit.called(1, {}), kit.started(f"r{number}")])

    run_async(main)
    tables = ("runs", "contents", "content_bodies", "model_calls", "request_bodies")
    found: dict[str, list[Any]] = {}
    with closing(sqlite3.connect(path)) as database, database:
        for table in tables:
            found[table] = [seq for (seq,) in database.execute(f"SELECT seq FROM {table}")]
    database.close()
    assert found["contents"] == found["content_bodies"] == [1, 4]
    assert found["model_calls"] == found["request_bodies"] == [2, 5]
    assert found["runs"] == [3, 6]


def test_the_words_are_indexed_in_slices(tmp_path: Path) -> None:
    """A search over much that is new lets appends in between; long texts make shorter slices."""
    writer = new_writer(tmp_path / "j.db")
    writer.submit(Batch(encode_records([kit.appended("a", n) for n in range(300)])))
    writer.submit(Batch(encode_records([kit.appended("b", n, "long words " * 30_000) for n in range(3)])))
    slices = []
    while not slices or slices[-1][0] < slices[-1][1]:
        slices.append(anyio.run(writer.start_job(index_entries).result))
    assert slices == [(256, 303), (302, 303), (303, 303)]
    writer.close(10)


def test_waiting_outlives_neither_its_loop_nor_its_task(run_async: RunAsync) -> None:
    """A ticket that is finished for tasks that are gone wakes the others and complains about nothing."""
    ticket = Ticket()

    async def gone() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(ticket.wait)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    async def loop_ends() -> None:
        ticket._tasks.append(Waiter())

    async def stays() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(ticket.wait)
            await anyio.lowlevel.checkpoint()
            thread = threading.Thread(target=lambda: wake_all(ticket.finish()))
            thread.start()
        thread.join()
        await ticket.wait()

    run_async(gone)
    run_async(loop_ends)
    run_async(stays)


def test_a_thread_and_a_task_wait_for_the_same(run_async: RunAsync) -> None:
    """Both kinds of waiting on one ticket, and the error is a new one for each."""
    ticket = Ticket()
    errors: list[BaseException] = []

    def thread() -> None:
        try:
            ticket.wait_sync()
        except ZeroDivisionError as error:
            errors.append(error)

    async def task() -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            await ticket.wait()
        errors.append(caught.value)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, thread)
            group.start_soon(task)
            while not (ticket._threads and ticket._tasks):
                await anyio.lowlevel.checkpoint()
            wake_all(ticket.finish(ZeroDivisionError))

    run_async(main)
    assert len({id(error) for error in errors}) == 2
