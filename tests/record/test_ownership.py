"""Who owns a journal's file, among processes that are killed and that begin at once."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import journal_kit as kit
from backends import RunAsync
from patience import PATIENCE
from repertory.errors import JournalLocked
from repertory.llm.messages import text_of
from repertory.record import Ledger, open_journal
from repertory.torture.children import Child, start
from repertory.torture.kills import acknowledged_in
from repertory.torture.team import RUN_ID
from repertory.torture.workloads import append


def start_appending(path: Path) -> Child:
    """A process that appends for ever, once its first appends are acknowledged."""
    child = start(append, database=str(path), durability="power", backend="trio")
    assert child.read(PATIENCE, until=b"=0\n"), child.output
    return child


def test_a_killed_owner_leaves_no_lock_and_its_ledger_goes_on(tmp_path: Path, run_async: RunAsync) -> None:
    """The next process opens the file at once and appends behind what was there."""
    path = tmp_path / "journal.db"
    with start_appending(path) as child:
        child.signal(signal.SIGKILL)
        child.wait()
        child.read(PATIENCE)
        acknowledged = acknowledged_in(child.output)

    async def main() -> None:
        async with open_journal(path) as journal:
            ledger = await Ledger.open(journal, RUN_ID)
            before = ledger.position
            assert before > max(place[1] for place in acknowledged.values() if place is not None)
            (entry,) = await ledger.append(kit.draft("after"))
            assert entry.position == before

    run_async(main)


def test_a_second_process_is_told_who_owns_the_file(tmp_path: Path, run_async: RunAsync) -> None:
    """It cannot write, but it can look while the owner goes on writing; the file is read through its log."""
    path = tmp_path / "journal.db"

    async def main() -> None:
        with start_appending(path) as child:
            acknowledged = acknowledged_in(child.output)
            with pytest.raises(JournalLocked, match=f"is owned by process {child.pid};"):
                async with open_journal(path):
                    raise AssertionError("opened a file that is owned")
            async with open_journal(path, readonly=True) as journal:
                entries = await journal.read_entries(RUN_ID)
                assert len(entries) >= len(acknowledged)
                for _ in range(3):
                    while len(acknowledged_in(child.output)) < len(entries) + 50:
                        assert not child.read(0.01), child.output  # it goes on for ever
                    later = await journal.read_entries(RUN_ID)
                    assert later[: len(entries)] == entries
                    assert len(later) > len(entries)
                    entries = later

    run_async(main)


def test_a_journal_that_is_left_while_it_closes_gives_the_file_up_then(tmp_path: Path, run_async: RunAsync) -> None:
    """Everything is written, and its log is still being emptied. The file was taken until the process ended."""

    async def main() -> None:
        for number in range(3):
            with anyio.fail_after(PATIENCE):
                while True:
                    try:
                        async with open_journal(tmp_path / "journal.db", close_timeout=0) as journal:
                            await journal.write([kit.appended("r", number, "long" * 2**20)])
                        break
                    except JournalLocked:
                        await anyio.lowlevel.checkpoint()

    run_async(main)


@pytest.mark.parametrize("kind", ["file", "postgres"], indirect=True)
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_forked_child_neither_uses_nor_keeps_the_journal(kind: str, backend: str, tmp_path: Path) -> None:
    """Its parent goes on, also when the child closes; who comes after the parent need not wait for the child."""
    place = str(tmp_path / "journal.db") if kind == "file" else kind
    command = [sys.executable, Path(__file__).with_name("fork_child.py"), place, backend]
    own = {**os.environ, "PYTHONPATH": str(Path(kit.__file__).parent)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for name in ("submit", "append", "read"):
            assert re.match(
                f"{name}: .* belongs to the process that this one was forked from", parent.stdout.readline()
            )
        assert parent.stdout.readline() == "close: None\n"
        child = int(parent.stdout.readline().removeprefix("pid "))
        try:
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "goes on\n"
            assert parent.wait() == -signal.SIGKILL

            async def look() -> list[str]:
                async with open_journal(place) as journal:
                    return [text_of(entry.content) for entry in await journal.read_entries("r")]

            assert anyio.run(look, backend=backend) == ["kept", "after the fork"]
        finally:
            os.kill(child, signal.SIGKILL)


RACE = """
import sys, time, trio
from repertory.errors import JournalLocked
from repertory.record import open_journal

async def main():
    try:
        async with open_journal(sys.argv[1]):
            print("opened", flush=True)
            sys.stdin.readline()
    except JournalLocked as error:
        print(error, flush=True)

time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
trio.run(main)
"""


def test_of_eight_processes_that_make_the_file_one_owns_it(tmp_path: Path) -> None:
    """The race to open a file that does not exist yet: one winner, seven told so, no other error, a sound file."""
    path = tmp_path / "journal.db"
    start = str(time.time() + 1.0)  # so that all are ready; imports take their time
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(path), start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    answers = [child.stdout.readline().strip() for child in children if child.stdout is not None]
    for child in children:
        child.communicate("\n")
    assert [child.returncode for child in children] == [0] * 8
    winners = [child.pid for child, answer in zip(children, answers, strict=True) if answer == "opened"]
    assert len(winners) == 1
    assert sum("is owned by process" in answer for answer in answers) == 7
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
