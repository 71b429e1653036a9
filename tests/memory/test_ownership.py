"""Who owns the file: not a fork, and not who holds another file of that name."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import journal_kit as kit
import pytest

from backends import RunAsync
from repertory.errors import JournalWriteFailed
from repertory.memory import Ledger, open_journal

CHILD = Path(__file__).with_name("fork_child.py")


def delete_folder(path: Path) -> None:
    """Delete the folder and all that is in it."""
    shutil.rmtree(path.parent)


def move_folder(path: Path) -> None:
    """Give the folder another name."""
    path.parent.rename(path.parent.parent / "elsewhere")


def delete_file(path: Path) -> None:
    """Delete the file alone."""
    path.unlink()


def delete_log(path: Path) -> None:
    """Delete the log alone."""
    path.with_name("journal.db-wal").unlink()


def replace_file(path: Path) -> None:
    """Put another file in its place, as who restores a backup."""
    other = path.with_name("backup.db")
    other.touch()
    other.rename(path)


@pytest.mark.parametrize("spoil", [delete_folder, move_folder, delete_file, delete_log, replace_file])
def test_what_is_written_to_a_file_that_is_gone_is_not_acknowledged(
    spoil: Callable[[Path], None], tmp_path: Path, run_async: RunAsync
) -> None:
    """Deleted, moved or replaced while it is open: the next append fails and says so, and so do all after it."""
    folder = tmp_path / f"folder {len(list(tmp_path.iterdir()))}"

    async def main() -> None:
        async with open_journal(folder / "journal.db") as journal:
            ledger = await Ledger.open(journal, "r")
            await ledger.append(kit.draft("kept"))
            spoil(folder / "journal.db")
            for _ in range(2):
                with pytest.raises(JournalWriteFailed, match=r"(deleted or moved|replaced).* while it was open"):
                    await ledger.append(kit.draft("lost"))
            with pytest.raises(JournalWriteFailed, match="while it was open"):
                await journal.write([kit.appended("other", 0)])
            assert ledger.position == 1

    run_async(main)
    for moved in tmp_path.glob("elsewhere*"):
        with sqlite3.connect(moved / "journal.db") as database:
            assert database.execute("SELECT min(position) FROM entries").fetchone() == (0,)
        database.close()
        shutil.rmtree(moved)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_forked_child_neither_uses_the_journal_nor_keeps_it_from_others(
    backend: str, tmp_path: Path, run_async: RunAsync
) -> None:
    """The lock is free once the owner is dead, though a child of it lives on; in the child every use is refused."""
    path = tmp_path / "journal.db"
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(path), backend], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        lines = [parent.stdout.readline() for _ in range(5)]
        for name, line in zip(("submit", "append", "read"), lines, strict=False):
            assert line.startswith(f"{name}: {path} belongs to the process that this one was forked from")
        assert lines[3:4] == ["close: None\n"]
        child = int(lines[4].removeprefix("pid "))
        try:
            parent.stdin.write("go on\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "goes on\n"
            assert parent.wait(30) == -signal.SIGKILL
            os.kill(child, 0)

            async def main() -> None:
                async with open_journal(path) as journal:
                    assert (await Ledger.open(journal, "r")).position == 2

            run_async(main)
        finally:
            os.kill(child, signal.SIGKILL)
