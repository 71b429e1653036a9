"""Damaged files: every read gives what was written or a typed error, and the deep check finds what is wrong."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

import journal_kit as kit
from backends import RunAsync
from patience import PATIENCE
from repertory.errors import JournalDamaged, JournalError, JournalUnreadable, RunNotFound
from repertory.record import Journal, ModelCallRow, RunRow, SearchHit, SqliteJournal, ToolCallRow, open_journal
from repertory.record.backup import back_up, vacuum_file
from repertory.record.items import ItemQuery
from repertory.record.records import ContentStored
from repertory.record.rows import TABLES
from repertory.record.sqlite_damage import find_damage

RUNS = ("run-1", "run-2")
SIDES = [(table.side, table.side_column) for table in TABLES.values() if table.side]
COLUMNS = [(table.name, column) for table in TABLES.values() for column in (*table.columns, "checksum")] + [
    (side, column) for side, body in SIDES for column in (body, "checksum")
]

GARBAGE = ("NULL", "'x'", "x'ff00'", "CAST(x'ff41' AS TEXT)", "'{\"a\": ['", "-0.5")  # two by turns for each column

Read = Callable[[Journal], Awaitable[Any]]
READS: dict[str, Read] = {
    "runs": lambda journal: journal.read_runs(),
    "scopes": lambda journal: journal.read_scopes(),
    "items": lambda journal: journal.read_items(["s"]),
    "scope": lambda journal: journal.read_scope("s"),
    "merge": lambda journal: journal.read_merge("s"),
    "items in view": lambda journal: journal.find_items([("s", 9)], bodies=True, ended=True),
    "content": lambda journal: journal.read_content("c-1"),
    "newest content": lambda journal: journal.read_content("c-run-2-4"),
    "schedule": lambda journal: kit.settled(journal, "s"),
    "webhooks": lambda journal: journal.read_webhooks(),
    "events": lambda journal: journal.read_events(None),
}
for _run in RUNS:
    READS |= {
        f"{name} {_run}": lambda journal, name=name, run=_run: getattr(journal, name)(run)  # type: ignore[misc]
        for name in (
            "read_run",
            "read_entries",
            "read_decisions",
            "read_tool_calls",
            "read_model_calls",
            "read_summaries",
            "read_contents",
            "read_payload",
            "read_events",
        )
    }
    READS[f"read_request {_run}"] = lambda journal, run=_run: journal.read_request(run, 1)  # type: ignore[misc]
    READS[f"search {_run}"] = lambda journal, run=_run: journal.search_entries(run, "hello")  # type: ignore[misc]


def make(path: Path) -> dict[str, Any]:
    """A journal of two runs, and what every read of it gives."""

    async def main() -> dict[str, Any]:
        async with open_journal(path) as journal:
            for run in RUNS:
                await journal.write(kit.one_of_each(run))
                await journal.write([kit.appended(run, n, f"hello {n} " + "words " * 300) for n in range(2, 12)])
                await journal.write([kit.content(f"c-{run}-{n}", run, "body " * 2000) for n in range(5)])
            assert isinstance(journal, SqliteJournal)
            assert await journal.check(deep=True) == []
            return {name: await read(journal) for name, read in READS.items()}

    return anyio.run(main)


def pieces(found: Any) -> list[Any]:
    """The records that an answer is made of. Figures that SQL adds up have no checksum."""
    if isinstance(found, list):
        return [piece for each in found for piece in pieces(each)]
    if isinstance(found, RunRow):
        return [found.started]
    if isinstance(found, ToolCallRow):
        return [found.intended, found.finished]
    if isinstance(found, ModelCallRow):
        return [found.called, found.replied]
    if isinstance(found, SearchHit):
        return [(found.run_id, found.position, found.excerpt)]
    if has_expired(found):
        return []
    return [found]


def has_expired(found: Any) -> bool:
    """Whether it is a content without its text: how one reads whose time is over, so a row that rotted away, too."""
    return isinstance(found, ContentStored) and not found.body


def within(found: Any, written: Any) -> bool:
    """Whether nothing was read that was not written; something may be missing."""
    known = [*pieces(written), None]
    return all(piece in known for piece in pieces(found))


async def look(path: Path, written: dict[str, Any]) -> tuple[list[str], int, list[str]]:
    """Read everything: the errors' words, how many reads missed something, and what the deep check says."""
    errors: list[str] = []
    short = 0
    try:
        async with open_journal(path, readonly=True) as journal:
            assert isinstance(journal, SqliteJournal)
            for name, read in READS.items():
                try:
                    found = await read(journal)
                except (JournalUnreadable, RunNotFound) as error:
                    errors.append(str(error))
                else:
                    assert within(found, written[name]), (name, found)
                    short += found != written[name] and not has_expired(found)
            with contextlib.suppress(JournalUnreadable):  # sums of what the journal holds: see the deep check
                await journal.read_statistics()
            return errors, short, await journal.check(deep=True)
    except JournalError as error:
        return [str(error)], 0, [str(error)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One sound journal for all tests."""
    path = tmp_path_factory.mktemp("sound") / "journal.db"
    return path, make(path)


def copy(sound: Path, folder: Path) -> Path:
    """A copy to be damaged."""
    path = folder / f"{len(list(folder.iterdir()))}.db"
    shutil.copy(sound, path)
    return path


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=[f"{table}.{column}" for table, column in COLUMNS])
def test_no_column_can_be_changed_unnoticed(
    table: str, column: str, sound: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Whatever stands in it instead: the deep check names the record, reading it is a typed error, others are read."""
    original, written = sound
    turn = COLUMNS.index((table, column)) % len(GARBAGE)
    for garbage in ("12345", GARBAGE[turn], GARBAGE[turn - 1]):
        path = copy(original, tmp_path)
        with closing(sqlite3.connect(path)) as database, database:
            ((seq, before),) = database.execute(f"SELECT max(seq), {column} FROM {table}").fetchall()
            ((same,),) = database.execute(f"SELECT {garbage} IS ?", (before,)).fetchall()
            try:
                database.execute(f"UPDATE {table} SET {column} = {garbage} WHERE seq = ?", (seq,))
            except sqlite3.IntegrityError:  # a place that is taken
                same = True
        database.close()
        if same:
            continue
        found = find_damage(str(path), deep=True)
        assert any(f"record {seq} in " in each for each in found), (garbage, found)
        if garbage == "12345" and column in ("content", "at", "checksum", "body", "position", "run_id"):
            errors, short, _ = anyio.run(look, path, written)
            assert errors or short
            assert len(errors) < len(READS)


def test_a_damaged_record_is_named_with_its_run_and_position(
    sound: tuple[Path, dict[str, Any]], tmp_path: Path, run_async: RunAsync
) -> None:
    """So that a person knows what is lost; nothing else is refused."""
    path = copy(sound[0], tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE entries SET content = replace(content, 'hello 7', 'hello 8') WHERE position = 7")
        database.execute("UPDATE request_bodies SET body = replace(body, 'hi', 'ho')")
        database.execute("DELETE FROM content_bodies")
    database.close()

    async def main() -> None:
        async with open_journal(path, readonly=True) as journal:
            with pytest.raises(JournalDamaged, match=r"record \d+ in entries \(run_id 'run-1', position 7, .*checksum"):
                await journal.read_entries("run-1")
            assert len(await journal.read_entries("run-1", stop=7)) == 7
            with pytest.raises(JournalDamaged, match=r"record \d+ in model_calls \(run_id 'run-2', call 1"):
                await journal.read_request("run-2", 1)
            stored = await journal.read_content("c-1")  # which is how a content ends whose time is over
            assert stored is not None
            assert stored.body == ""
            assert isinstance(journal, SqliteJournal)
            found = await journal.check(deep=True)
            assert [each.split(" in ")[1].split(" ")[0] for each in found] == ["entries"] * 2 + ["model_calls"] * 2

    run_async(main)


def test_a_record_that_is_gone_is_missed(sound: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Numbers are dense over all tables, so the deep check finds that one is not there."""
    path = copy(sound[0], tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM decisions WHERE run_id = 'run-1'")
    database.close()
    _, short, found = anyio.run(look, path, sound[1])
    assert short == 1
    assert [each for each in found if "that were written are there" in each]


@pytest.mark.parametrize("change", ["DELETE FROM current_states", "UPDATE current_states SET state = 'done'"])
def test_a_list_by_state_that_says_something_else_than_the_records_is_found(
    change: str, sound: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """It has no checksums; the deep check compares it with what it is made of."""
    path = copy(sound[0], tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(change)
    (found,) = find_damage(str(path), deep=True)
    assert "current_states" in found


def test_numbers_that_rotted_into_text_do_not_end_the_check(sound: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """What was removed and moved has no checksums; the deep check adds it up."""
    path = copy(sound[0], tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO removals VALUES ('run-9', 1.0, 1, '2 or so', x'ff', 0)")
        database.execute("INSERT INTO moved VALUES ('rot', 'ten')")
    database.close()
    _, _, found = anyio.run(look, path, sound[1])
    assert [each for each in found if "that were written are there" in each]


async def test_a_check_finds_no_damage_in_what_its_owner_goes_on_writing(tmp_path: Path) -> None:
    """Records are counted at one moment: one that is written meanwhile does not look as if another were missing."""
    async with (
        open_journal(tmp_path / "journal.db", durability="memory") as journal,
        anyio.create_task_group() as tasks,
    ):

        async def write() -> None:
            for number in itertools.count():
                run_id = f"run-{number}"
                await journal.write([kit.started(run_id), kit.appended(run_id, 0), kit.content(f"c-{number}", run_id)])

        tasks.start_soon(write)
        assert isinstance(journal, SqliteJournal)
        for _ in range(10):
            assert await journal.check(deep=True) == []
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("deep", [False, True])
async def test_a_check_of_a_file_that_was_taken_away_is_a_typed_error(deep: bool, tmp_path: Path) -> None:
    """Whoever asks whether a journal is damaged learns that it is gone, by the error of the journal."""
    async with open_journal(tmp_path / "j.db", durability="process") as journal:
        assert isinstance(journal, SqliteJournal)
        os.rename(tmp_path / "j.db", tmp_path / "elsewhere.db")
        with pytest.raises(JournalUnreadable, match="unable to open"):
            await journal.check(deep=deep)
        os.rename(tmp_path / "elsewhere.db", tmp_path / "j.db")
        assert await journal.check(deep=deep) == []


def test_a_search_goes_on_beside_a_damaged_entry(
    sound: tuple[Path, dict[str, Any]], tmp_path: Path, run_async: RunAsync
) -> None:
    """What cannot be read is not indexed; who owns the file can search everything else."""
    path = copy(sound[0], tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE entries SET content = CAST(x'ff' AS TEXT) WHERE run_id = 'run-1' AND position = 5")
        database.execute("UPDATE search_progress SET entries = 0")
        database.execute("INSERT INTO entry_search (entry_search) VALUES ('delete-all')")
    database.close()

    async def main() -> None:
        async with open_journal(path) as journal:
            assert {hit.position for hit in await journal.search_entries("run-2", "words")} == set(range(2, 12))
            with pytest.raises(JournalDamaged, match="'run-1', position 5"):
                await journal.read_entries("run-1")

    run_async(main)


async def use(path: Path) -> list[JournalError]:
    """Own a damaged file: write, search, remove and check; what is refused."""
    uses: list[Callable[[SqliteJournal], Awaitable[object]]] = [
        lambda journal: journal.write([kit.started("run-3"), kit.appended("run-3", 0, "hello")]),
        lambda journal: journal.search_entries("run-3", "hello"),
        lambda journal: journal.find_items([("s", 9)], ItemQuery(text="hello")),
        lambda journal: journal.last_item_position(),
        lambda journal: journal.remove_run("run-2", at=1.0),
        lambda journal: journal.give_back(10),
        lambda journal: journal.check(deep=True),
    ]
    refused: list[JournalError] = []
    try:
        with anyio.fail_after(PATIENCE):
            async with open_journal(path, durability="memory") as journal:
                assert isinstance(journal, SqliteJournal)
                for each in uses:
                    try:
                        await each(journal)
                    except JournalError as error:
                        refused.append(error)
    except JournalError as error:
        refused.append(error)
    return refused


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (
            "UPDATE sqlite_master SET sql = CAST(x'435245415445c8' AS TEXT) WHERE name = 'run_states'",
            "cannot open .* codec can't decode",
        ),
        ("INSERT INTO removals VALUES ('run-9', 1.0, 1, 2, x'ff', 0)", "cannot open .*bytes"),
        ("DROP TABLE search_progress", "says that it has schema 1, but differs from it"),
        ("UPDATE items SET position = 9e999", "cannot read items .*got `float`"),
        ("UPDATE search_progress SET items = 'x', entries = 'y'", "cannot index in "),
    ],
)
def test_damage_to_what_has_no_checksum_is_a_typed_error_too(
    damage: str, fact: str, sound: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The schema, what was removed, places in the log and in the index: for readers, for the owner, for copies."""
    path = copy(sound[0], tmp_path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute(damage)
    anyio.run(look, path, sound[1])
    with contextlib.suppress(JournalError):
        back_up(path, tmp_path / "copy")
    refused = [str(error) for error in anyio.run(use, path)]
    assert any(re.search(fact, each) for each in refused), refused
    with contextlib.suppress(JournalError):
        vacuum_file(path)


def test_an_index_that_names_records_that_are_gone_does_not_hold_up_their_removal(
    sound: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """They would be found, and deleted in vain, for ever."""
    path = copy(sound[0], tmp_path)
    index = "FROM sqlite_master WHERE name = 'entries_by_position'"
    with closing(sqlite3.connect(path)) as database, database:
        (row,) = database.execute(f"SELECT * {index}").fetchall()
        database.execute("PRAGMA writable_schema = ON")
        database.execute(f"DELETE {index}")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM entries WHERE run_id = 'run-2'")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", row)
    assert any("entries names 12 records of which nothing is there" in str(error) for error in anyio.run(use, path))


def damaged(path: Path, chance: random.Random) -> str:
    """Damage some place of the file's bytes."""
    size, page = path.stat().st_size, 4096
    with path.open("r+b") as file:
        kind = chance.choice(["bit", "byte", "zeros", "noise", "swap", "cut"])
        at = chance.randrange(size)
        start = at // page * page
        if kind == "cut":
            file.truncate(at)
        elif kind in ("bit", "byte"):
            file.seek(at)
            (old,) = file.read(1)
            file.seek(at)
            file.write(bytes([old ^ (1 << chance.randrange(8) if kind == "bit" else chance.randrange(1, 256))]))
        elif kind == "swap":
            other = chance.randrange(size // page) * page
            file.seek(other)
            content = file.read(page)
            file.seek(start)
            file.write(content)
        else:
            file.seek(start)
            file.write(bytes(page) if kind == "zeros" else chance.randbytes(page))
    return f"{kind} at {at}"


def fuzz(sound: tuple[Path, dict[str, Any]], folder: Path, seed: int, rounds: int) -> int:
    """Damage copies and read them; returns how often that was noticed."""
    chance, noticed = random.Random(seed), 0
    for _ in range(rounds):
        path = copy(sound[0], folder)
        what = damaged(path, chance)
        errors, short, found = anyio.run(look, path, sound[1])
        noticed += bool(errors or found)
        assert not short or errors or found, f"seed {seed}, {what}: something is missing and nobody says so"
        anyio.run(use, path)
        path.unlink()
        (folder / path.name).touch()
    return noticed


def test_bytes_that_rot_are_never_taken_for_what_was_written(
    sound: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Bits, bytes and pages anywhere in the file: typed errors, or what was written, or less and the check says so."""
    assert fuzz(sound, tmp_path, seed=1, rounds=20) > 5


@pytest.mark.nightly
def test_bytes_that_rot_a_thousand_times(sound: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The same with more places."""
    assert fuzz(sound, tmp_path, seed=2, rounds=1000) > 300


def test_the_columns_are_of_the_kinds_that_the_file_knows(sound: tuple[Path, dict[str, Any]]) -> None:
    """A checksum is over what is read, so nothing may be converted on the way: each kind has its column type."""
    names = {str: "TEXT", int: "INTEGER", float: "REAL"}
    with closing(sqlite3.connect(sound[0])) as database, database:
        for table in TABLES.values():
            declared = {name: kind for _, name, kind, *_ in database.execute(f"PRAGMA table_info({table.name})")}
            assert list(declared) == ["seq", *table.columns, "checksum"]
            assert [declared[name] for name in table.columns] == [
                names[kind] for kind in table.kinds[: len(table.columns)]
            ]
    database.close()
