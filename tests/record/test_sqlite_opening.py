"""Opening to write: what the file shows is made durable before anything is built on it."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from repertory.record import Durability
from repertory.record.sqlite_file import open_to_write

OPEN = """
import resource, sys
from repertory.errors import JournalWriteFailed
from repertory.record.sqlite_file import make_folder, open_to_write

make_folder(sys.argv[1])
if "limited" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**15, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    open_to_write(sys.argv[1], "power")
except JournalWriteFailed as error:
    print(error)
"""


KILLED = """
import os, signal, sys, anyio
sys.path.insert(0, sys.argv[2])
import journal_kit as kit
from repertory.record import open_journal

async def main():
    async with open_journal(sys.argv[1]) as journal:
        for position in range(30):
            await journal.write([kit.appended("r", position, "x" * 2000)])
        os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main)
"""
SHOWN = 30


def left_by_a_killed_owner(folder: Path) -> Path:
    """A journal whose owner was killed, with all its entries in the log."""
    path = folder / "journal.db"
    subprocess.run([sys.executable, "-c", KILLED, str(path), str(Path(__file__).parents[1])], check=False)
    assert (folder / "journal.db-wal").stat().st_size > 2**15
    assert entries_without_the_log(path) == 0
    return path


def entries_without_the_log(path: Path) -> int:
    """What is in the file by itself. Another process copies it: this one would drop its own locks on it."""
    alone = path.parent / "alone.db"
    subprocess.run(["cp", str(path), str(alone)], check=True)
    return entries(alone)


def entries(path: Path) -> int:
    """How many entries there are, by plain SQLite."""
    with closing(sqlite3.connect(path)) as database, database:
        ((count,),) = database.execute("SELECT count(*) FROM entries").fetchall()
    database.close()
    return int(count)


@pytest.mark.parametrize("durability", ["power", "process"])
def test_what_a_killed_owner_left_is_in_the_file_before_anything_is_added(
    durability: Durability, tmp_path: Path
) -> None:
    """The log may hold what no sync covers; after opening everything is in the file, and the log is empty."""
    path = left_by_a_killed_owner(tmp_path)
    connection = open_to_write(str(path), durability)
    assert (tmp_path / "journal.db-wal").stat().st_size == 0
    assert entries_without_the_log(path) == SHOWN
    connection.close()


def test_somebody_who_reads_does_not_keep_the_log_from_becoming_durable(tmp_path: Path) -> None:
    """It cannot be emptied then, so it is written again as it is; opening goes on and so does the reader."""
    path = left_by_a_killed_owner(tmp_path)
    log = tmp_path / "journal.db-wal"
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM entries").fetchone() == (SHOWN,)
    before = log.read_bytes()
    os.utime(log, (1, 1))  # some file systems keep no more than the second
    connection = open_to_write(str(path), "power")
    assert log.read_bytes().startswith(before)
    assert log.stat().st_mtime > 1
    assert connection.execute("SELECT count(*) FROM entries").fetchone() == (SHOWN,)
    assert reader.execute("SELECT count(*) FROM entries").fetchone() == (SHOWN,)
    reader.close()
    connection.close()


def test_a_disk_that_refuses_at_opening_is_told_and_nothing_is_moved(tmp_path: Path) -> None:
    """File and log stay as they are, for the next try, which shows everything."""
    path = left_by_a_killed_owner(tmp_path)
    before = [(tmp_path / name).read_bytes() for name in ("journal.db", "journal.db-wal")]
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(path), "limited"], capture_output=True, text=True, check=False
    )
    assert "cannot make durable what is in" in done.stdout, done.stderr
    assert "make room or repair the disk" in done.stdout
    assert [(tmp_path / name).read_bytes() for name in ("journal.db", "journal.db-wal")] == before
    open_to_write(str(path), "power").close()
    assert entries(path) == SHOWN


# --- what the system is asked to do -----------------------------------------------------------------------

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows the order of syncs")


def traced(folder: Path, path: Path, *options: str) -> tuple[list[str], str]:
    """Open a journal and list the writes, cuts and syncs as ``call name``; and what it printed."""
    trace = folder / "trace"
    calls = "trace=fsync,fdatasync,pwrite64,ftruncate"
    done = subprocess.run(
        ["strace", "-f", "-y", "-o", str(trace), "-e", calls, *options, sys.executable, "-c", OPEN, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"(pwrite64|ftruncate|fsync|fdatasync)\(\d+<([^>]*)>", trace.read_text())
    prefix = str(folder)
    return [
        f"{call.removesuffix('64')} {name.removeprefix(prefix) or '/'}"
        for call, name in found
        if name.startswith(prefix) and not name.endswith(("-shm", ".lock"))
    ], done.stdout


@needs_strace
def test_the_log_is_written_over_and_synced_before_a_checkpoint_moves_it(tmp_path: Path) -> None:
    """A page whose sync failed is clean for the system: a sync alone would do nothing, a checkpoint half of it."""
    path = left_by_a_killed_owner(tmp_path)
    calls, _ = traced(tmp_path, path)
    assert calls[:3] == ["pwrite /journal.db-wal", "fsync /journal.db-wal", "fsync /"]
    first = calls.index("pwrite /journal.db")
    assert "ftruncate /journal.db-wal" not in calls[:first]
    assert "fdatasync /journal.db" in calls[first : calls.index("ftruncate /journal.db-wal")]


@needs_strace
def test_new_folders_are_synced_before_the_journal_is_one(tmp_path: Path) -> None:
    """The name of a folder that had to be made could be lost with everything in it."""
    calls, _ = traced(tmp_path, tmp_path / "new" / "er" / "journal.db")
    synced = [calls.index(f"fsync {folder}") for folder in ("/new/er", "/new", "/")]
    tables = next(n for n, call in enumerate(calls) if call == "pwrite /new/er/journal.db-wal")
    assert max(synced) < tables


@needs_strace
def test_a_sync_that_fails_at_opening_is_tried_again_on_new_writes(tmp_path: Path) -> None:
    """The next opening writes the log over once more, since a sync that failed once says nothing when repeated."""
    path = left_by_a_killed_owner(tmp_path)
    calls, printed = traced(tmp_path, path, "-e", "inject=fsync:error=EIO:when=1")
    assert "Input/output error" in printed
    assert calls == ["pwrite /journal.db-wal", "fsync /journal.db-wal"]
    calls, _ = traced(tmp_path, path)
    assert calls[:2] == ["pwrite /journal.db-wal", "fsync /journal.db-wal"]
    assert entries(path) == SHOWN
