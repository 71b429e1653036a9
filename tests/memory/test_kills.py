"""Killed processes: what was acknowledged is there, whole and once."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import journal_kit as kit
import pytest
from append_child import RUN
from kill_cycles import CHILD, kill_cycles, read_file, run_and_kill, violations

from backends import RunAsync
from repertory.errors import JournalLocked
from repertory.memory import Ledger, open_journal


def test_nothing_acknowledged_is_lost_when_the_process_is_killed() -> None:
    """25 times over one file: no loss, no duplicate, no gap, no torn batch, a sound file."""
    acknowledged, found = kill_cycles(25, seed=1)
    assert found == []
    assert acknowledged > 25 * 10


@pytest.mark.nightly
def test_nothing_acknowledged_is_lost_in_three_hundred_kills() -> None:
    """The same, 300 times with another seed."""
    _, found = kill_cycles(300, seed=random.randrange(2**32))
    assert found == []


def test_the_checker_sees_what_is_wrong(tmp_path: Path) -> None:
    """Negative control: loss, change, duplicate, gap and torn batch are each found in a file that was damaged so."""
    path = tmp_path / "journal.db"
    acknowledged = run_and_kill(path, 0.03)
    rows = read_file(path)
    assert violations(rows, acknowledged) == []
    last = max(acknowledged)

    assert violations([row for row in rows if row[0] != last], acknowledged)[0].startswith("lost")
    changed = [(p, "1.1.1.0" if p == last else text, seq) for p, text, seq in rows]
    assert violations(changed, acknowledged)[0].startswith("lost")
    assert "1 duplicates" in violations([*rows, (len(rows), rows[-1][1], len(rows) + 1)], {})
    assert "positions have gaps" in violations(rows[1:], {})[0]
    torn = next(n for n, (_, text, _) in enumerate(rows) if text.endswith(".2.2"))
    assert any("torn" in each for each in violations([*rows[:torn], *rows[torn + 1 :]], {}))


def test_a_killed_owner_leaves_no_lock_and_its_ledger_goes_on(tmp_path: Path, run_async: RunAsync) -> None:
    """The next process opens the file at once and appends behind what was there."""
    path = tmp_path / "journal.db"
    acknowledged = run_and_kill(path, 0.01)

    async def main() -> None:
        async with open_journal(path) as journal:
            ledger = await Ledger.open(journal, RUN)
            before = ledger.position
            assert before > max(acknowledged)
            (entry,) = await ledger.append(kit.draft("after"))
            assert entry.position == before

    run_async(main)


def test_a_second_process_is_told_who_owns_the_file(tmp_path: Path, run_async: RunAsync) -> None:
    """It cannot write, but it can look while the owner goes on writing; the file is read through its log."""
    path = tmp_path / "journal.db"

    async def main() -> None:
        with subprocess.Popen([sys.executable, str(CHILD), str(path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            try:
                child.stdout.readline()
                acknowledged = child.stdout.readline().split()
                with pytest.raises(JournalLocked, match=f"is owned by process {child.pid};"):
                    async with open_journal(path):
                        raise AssertionError("opened a file that is owned")
                async with open_journal(path, readonly=True) as journal:
                    entries = await journal.read_entries(RUN)
                    assert len(entries) >= len(acknowledged)
                    for _ in range(3):
                        for _ in range(50):
                            child.stdout.readline()
                        later = await journal.read_entries(RUN)
                        assert later[: len(entries)] == entries
                        assert len(later) > len(entries)
                        entries = later
            finally:
                child.kill()

    run_async(main)


RACE = """
import sys, time, trio
from repertory.errors import JournalLocked
from repertory.memory import open_journal

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
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
