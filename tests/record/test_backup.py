"""Backups: one instant of a database that is being written to, whole or not there, and never over anything."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from patience import PATIENCE
from repertory.errors import ConfigurationError, JournalDamaged, JournalLocked, JournalUnreadable, JournalWriteFailed
from repertory.record import EventLogged, open_journal
from repertory.record import backup as module
from repertory.record.backup import back_up, restore, vacuum_file
from repertory.record.sqlite_damage import find_damage
from repertory.record.sqlite_journal import SqliteJournal


def event(number: int, size: int = 10) -> EventLogged:
    """A record."""
    return EventLogged(run_id="run-x", type="Numbered", body={"number": number, "text": "x" * size}, at=1.0)


def numbers_in(path: Path) -> list[int]:
    """What a file holds, as a reader of its own reads it."""

    async def read() -> list[int]:
        async with open_journal(path, readonly=True) as journal:
            return [each.body["number"] for _, each in await journal.read_events(None)]

    return anyio.run(read)


async def write(path: Path, count: int, size: int = 10) -> None:
    """So many records."""
    async with open_journal(path, durability="process") as journal:
        await journal.write([event(number, size) for number in range(count)])


def test_a_backup_is_one_instant_of_a_database_in_use(
    tmp_path: Path, run_async: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes go on between its pages: what it has is a beginning of what was written, all acknowledged before it."""
    monkeypatch.setattr(module, "_PAGES", 1)

    async def main() -> None:
        source, target = tmp_path / "a.db", tmp_path / "b.db"
        async with open_journal(source) as journal:
            await journal.write([event(number, 2000) for number in range(100)])
            done, steps = 100, 0

            def write_more(copied: int, whole: int) -> None:
                nonlocal done, steps
                assert 0 < copied <= whole
                steps += 1
                if steps % 10 == 0:
                    journal.submit([event(done)]).wait_sync()
                    done += 1

            copied = await anyio.to_thread.run_sync(lambda: back_up(source, target, progress=write_more))
            assert steps > 50
            assert done > 105
            await journal.write([event(done)])  # the owner's locks are as they were
            with pytest.raises(JournalLocked):
                async with open_journal(source):
                    pass
        assert (copied.path, copied.records, copied.seq) == (str(target), 100, 100)
        assert copied.size == target.stat().st_size

    run_async(main)
    assert numbers_in(tmp_path / "b.db") == list(range(100))
    assert (tmp_path / "b.db").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] in ".b") == ["b.db"]


async def test_a_backup_is_restored_and_goes_on(tmp_path: Path) -> None:
    """What it held is there, and it is a database like any other."""
    await write(tmp_path / "a.db", 5)
    back_up(tmp_path / "a.db", tmp_path / "b.db")
    copied = restore(tmp_path / "b.db", tmp_path / "c.db")
    assert (copied.records, copied.seq) == (5, 5)
    async with open_journal(tmp_path / "c.db") as journal:
        await journal.write([event(5)])
        assert isinstance(journal, SqliteJournal)
        assert await journal.check(deep=True) == []
        assert [each.body["number"] for _, each in await journal.read_events(None)] == [0, 1, 2, 3, 4, 5]


async def test_nothing_is_written_over(tmp_path: Path) -> None:
    """Neither a backup nor a database, nor the log of one that was moved away; nor one that another begins now."""
    await write(tmp_path / "a.db", 2)
    await write(tmp_path / "b.db", 3)
    with pytest.raises(ConfigurationError, match="is there already"):
        back_up(tmp_path / "a.db", tmp_path / "b.db")
    with pytest.raises(ConfigurationError, match="is there already"):
        restore(tmp_path / "a.db", tmp_path / "b.db")
    for log in ("c.db-wal", "e.db-journal"):
        (tmp_path / log).write_bytes(b"of another")
        with pytest.raises(ConfigurationError, match="is there already"):
            restore(tmp_path / "a.db", tmp_path / log.rpartition("-")[0])
    with pytest.raises(ConfigurationError, match="cannot write into"):
        back_up(tmp_path / "a.db", tmp_path / "no" / "c.db")
    with pytest.raises(JournalUnreadable, match="there is no journal"):
        back_up(tmp_path / "z.db", tmp_path / "y.db")
    async with open_journal(tmp_path / "d.db"):
        (tmp_path / "d.db").rename(tmp_path / "gone")
        (tmp_path / "d.db-wal").rename(tmp_path / "gone-wal")
        with pytest.raises(JournalLocked):
            restore(tmp_path / "a.db", tmp_path / "d.db")
        (tmp_path / "gone").rename(tmp_path / "d.db")
        (tmp_path / "gone-wal").rename(tmp_path / "d.db-wal")
    assert len([*tmp_path.glob(".*")]) == 0


async def test_damage_is_no_backup(tmp_path: Path) -> None:
    """A record that is not what was written is found before the copy has a name, and named with the file it is in."""
    await write(tmp_path / "a.db", 20, 500)
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("UPDATE events SET at = 2.0 WHERE seq = 7")
    connection.commit()
    connection.close()
    with pytest.raises(JournalDamaged, match=r"a.db is damaged: record 7 in events"):
        back_up(tmp_path / "a.db", tmp_path / "b.db")
    with pytest.raises(JournalDamaged, match=r"a.db is damaged: record 7 in events"):
        restore(tmp_path / "a.db", tmp_path / "c.db")
    assert not (tmp_path / "b.db").exists()
    assert not (tmp_path / "c.db").exists()
    assert len([*tmp_path.glob(".*")]) == 0


async def test_a_damaged_file_is_not_rewritten(tmp_path: Path) -> None:
    """That would leave less of it: a vacuum lost records that could be read before."""
    path = tmp_path / "a.db"
    await write(path, 3, 500)
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek(page * 4096 - 1000)
        file.write(bytes(1000))
    found = await anyio.to_thread.run_sync(find_damage, str(path), True)
    with pytest.raises(JournalDamaged, match=r"a\.db is damaged: "):
        vacuum_file(path)
    assert await anyio.to_thread.run_sync(find_damage, str(path), True) == found


async def test_a_full_disk_is_seen_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is half written where there is no room for all of it."""
    await write(tmp_path / "a.db", 20, 500)
    full = os.statvfs_result((4096, 4096, 100, 1, 1, 100, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    with pytest.raises(JournalWriteFailed, match="there is no room"):
        back_up(tmp_path / "a.db", tmp_path / "b.db")
    with pytest.raises(JournalWriteFailed, match="there is no room"):
        vacuum_file(tmp_path / "a.db")
    assert not (tmp_path / "b.db").exists()


def test_a_killed_backup_leaves_no_backup(tmp_path: Path) -> None:
    """At whatever page it is killed: the name is free, and the next one succeeds."""
    anyio.run(write, tmp_path / "a.db", 200, 2000)
    code = (
        "import os, sys; from pathlib import Path; from repertory.record import backup\n"
        "backup._PAGES = 1; left = int(sys.argv[3])\n"
        "def step(done, whole):\n    global left; left -= 1\n    if not left: os.kill(os.getpid(), 9)\n"
        "backup.back_up(Path(sys.argv[1]), Path(sys.argv[2]), progress=step)"
    )
    for after in (1, 40):
        words = [sys.executable, "-c", code, str(tmp_path / "a.db"), str(tmp_path / "b.db"), str(after)]
        assert subprocess.run(words, timeout=PATIENCE, check=False).returncode == -9
        assert not (tmp_path / "b.db").exists()
    assert back_up(tmp_path / "a.db", tmp_path / "b.db").records == 200


def test_a_backup_killed_while_the_disk_takes_its_name_can_be_opened(tmp_path: Path) -> None:
    """It has that name alone then: a file with two names is not opened to write."""
    anyio.run(write, tmp_path / "a.db", 3)
    code = (
        "import os, sys; from pathlib import Path; from repertory.record.backup import restore\n"
        "source, target = map(Path, sys.argv[1:]); named = False\n"
        "def see(event, words):\n"
        "    global named; named = named or event == 'os.link'\n"
        "    if named and event == 'open' and str(words[0]) == str(target.parent): os.kill(os.getpid(), 9)\n"
        "sys.addaudithook(see); restore(source, target)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "a.db"), str(tmp_path / "b.db")]
    assert subprocess.run(words, timeout=PATIENCE, check=False).returncode == -9
    anyio.run(write, tmp_path / "b.db", 1)
    assert numbers_in(tmp_path / "b.db") == [0, 1, 2, 0]


async def test_space_is_given_back(tmp_path: Path) -> None:
    """Bit by bit beside the writes of a process, or at once where there is none."""
    path = tmp_path / "a.db"
    await write(path, 400, 4000)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE big AS SELECT zeroblob(4000) AS b FROM events")
    connection.execute("DROP TABLE big")
    connection.commit()
    connection.close()
    async with open_journal(path) as journal:
        assert isinstance(journal, SqliteJournal)
        size, free = await journal.give_back(50)
        assert free > 0
        while free:
            last = size
            size, free = await journal.give_back(50)
            await journal.write([event(1000)])
            assert size < last + 50 * 4096
        assert await journal.check(deep=True) == []
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE big AS SELECT zeroblob(4000) AS b FROM events")
        connection.execute("DROP TABLE big")
    connection.close()
    before, after = vacuum_file(path)
    assert after < before
    assert path.stat().st_size == after
    async with open_journal(path) as journal:
        assert [each.body["number"] for _, each in await journal.read_events(None, limit=400)] == [*range(400)]
        with pytest.raises(JournalLocked):
            vacuum_file(path)
