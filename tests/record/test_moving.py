"""A journal moved from one engine to the other, and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import journal_kit as kit
import repertory as rp
from backends import RunAsync
from postgres_server import PostgresServer
from repertory.errors import ConfigurationError, JournalDamaged, JournalLocked, JournalUnavailable, JournalUnreadable
from repertory.record import open_journal
from repertory.record.moving import Moved, move_journal
from repertory.record.sqlite_journal import SqliteJournal
from repertory.testing import ScriptedModel

Filled = Callable[[Any], None]
STRANGE = "nul \0, half \udc80, escape \x1a0, \U0001f600"


@pytest.fixture
def filled(run_async: RunAsync) -> Filled:
    """Writes a journal with something of every kind, and strange text."""

    async def write(place: Any) -> None:
        async with open_journal(place) as journal:
            await journal.write(kit.one_of_each())
            await journal.write([kit.appended("run-2", n, f"needle {n} {STRANGE}") for n in range(30)])
            await journal.write([kit.content(STRANGE, "run-9", STRANGE), kit.started("run-9", task=STRANGE)])

    return lambda place: run_async(write, place)


async def everything(place: Any) -> list[Any]:
    """What can be read of all that, with the numbers that followers know."""
    async with open_journal(place) as journal:
        run = await journal.read_run("run-9")
        found = [
            await journal.read_runs(),
            await journal.read_entries("run-1"),
            await journal.read_entries("run-2"),
            await journal.read_model_calls("run-1"),
            await journal.read_content(STRANGE),
            await journal.read_events(None),
            await journal.read_statistics(),
            await journal.read_items(["s"]),
            len(await journal.search_entries("run-2", "needles", limit=99)),
            run,
        ]
        if isinstance(journal, SqliteJournal):
            assert await journal.check(deep=True) == []
        return found


def test_a_journal_goes_to_a_server_and_back(
    filled: Filled, run_async: RunAsync, tmp_path: Path, postgres: PostgresServer
) -> None:
    """Nothing is different but where it is: not even a number; and it goes on there."""
    file, back, uri = tmp_path / "a.db", tmp_path / "b.db", postgres.new_database()
    filled(file)
    before = run_async(everything, file)
    told: list[tuple[str, int, int]] = []
    moved = move_journal(file, uri, progress=lambda *now: told.append(now))
    assert moved.rows == sum(moved.tables.values()) == told[-1][2]
    assert moved.tables["entries"] == 32
    assert {doing.split()[0] for doing, _, _ in told} == {"moving", "checking", "done"}
    assert run_async(everything, uri) == before

    async def go_on(place: Any) -> None:
        async with open_journal(place) as journal:
            await journal.write([kit.appended("run-2", 30), kit.EventLogged(run_id="run-1", type="t", body={}, at=1.0)])
            numbers = [number for number, _ in await journal.read_events(None)]
            assert numbers == sorted(set(numbers))
            assert numbers[-1] > moved.newest

    run_async(go_on, uri)
    later = run_async(everything, uri)
    assert move_journal(uri, back).rows == moved.rows + 2
    assert run_async(everything, back) == later
    with closing(sqlite3.connect(back)) as connection:
        connection.execute("DELETE FROM events WHERE seq = (SELECT min(seq) FROM events)")
        connection.commit()

    async def damage() -> list[str]:
        async with open_journal(back) as journal:
            assert isinstance(journal, SqliteJournal)
            return await journal.check(deep=True)

    assert any("that were written are there" in each for each in run_async(damage))


def test_files_can_be_moved_too(filled: Filled, run_async: RunAsync, tmp_path: Path) -> None:
    """From one to another; it is done when everything is there."""
    filled(tmp_path / "a.db")
    there: dict[str, int] = {}

    def look(doing: str, *_: int) -> None:
        if doing == "done":
            with closing(sqlite3.connect(tmp_path / "b.db")) as connection:
                (there["entries"],) = connection.execute("SELECT count(*) FROM entries").fetchone()

    moved = move_journal(tmp_path / "a.db", tmp_path / "b.db", progress=look)
    assert isinstance(moved, Moved)
    assert there["entries"] == moved.tables["entries"]
    assert run_async(everything, tmp_path / "b.db") == run_async(everything, tmp_path / "a.db")


@pytest.mark.parametrize("to_server", [True, False])
def test_a_damaged_row_moves_nothing(filled: Filled, tmp_path: Path, to_server: bool, postgres: PostgresServer) -> None:
    """It is named, and the target stays empty, so that it can be moved once it is mended."""
    file, uri = tmp_path / "a.db", postgres.new_database()
    filled(file)
    target: Any = tmp_path / "b.db"
    if to_server:
        target = uri
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("UPDATE content_bodies SET body = 'other' WHERE body = 'whole'")
            connection.commit()
    else:
        move_journal(file, uri)
        with postgres.connect(uri) as server:
            server.execute("UPDATE content_bodies SET body = 'other' WHERE body = 'whole'")
    source = file if to_server else uri
    with pytest.raises(JournalDamaged, match=r"in content_bodies of .* is not what was written"):
        move_journal(source, target)
    if to_server:
        with postgres.connect(uri) as server:
            server.execute("DELETE FROM moved")
            assert server.execute("SELECT count(*) FROM entries").fetchone() == (0,)
    else:
        with closing(sqlite3.connect(target)) as connection:
            assert connection.execute("SELECT count(*) FROM entries").fetchone() == (0,)


def test_what_holds_records_or_is_in_use_is_refused(
    filled: Filled, run_async: RunAsync, tmp_path: Path, postgres: PostgresServer
) -> None:
    """Neither is written over, and nothing is left behind that was written meanwhile."""
    file, uri = tmp_path / "a.db", postgres.new_database()
    filled(file)
    move_journal(file, uri)
    with pytest.raises(ConfigurationError, match="holds records already"):
        move_journal(file, uri)
    with pytest.raises(JournalUnreadable, match="there is no journal"):
        move_journal(tmp_path / "none.db", tmp_path / "c.db")

    async def while_open(place: Any, source: Any, target: Any) -> None:
        async with open_journal(place):
            with pytest.raises(JournalLocked):
                move_journal(source, target)

    for place, again in ((file, tmp_path / "." / "a.db"), (uri, uri)):
        with pytest.raises(ConfigurationError, match="moved into itself"):
            move_journal(place, again)
    run_async(while_open, file, file, tmp_path / "c.db")
    run_async(while_open, uri, uri, tmp_path / "c.db")


def test_a_journal_in_another_schema_may_be_open_meanwhile(
    filled: Filled, run_async: RunAsync, tmp_path: Path, postgres: PostgresServer
) -> None:
    """It is another journal, though the database is the same."""
    uri = postgres.new_database()
    with postgres.connect(uri) as connection:
        connection.execute("CREATE SCHEMA beside")
    filled(tmp_path / "a.db")

    async def main() -> None:
        async with open_journal(uri):
            assert move_journal(tmp_path / "a.db", f"{uri}&options=-csearch_path%3Dbeside").rows > 0

    run_async(main)


def test_a_database_that_somebody_else_moves_is_not_waited_for(postgres: PostgresServer) -> None:
    """Also where that is this very move, by another name of the database."""
    uri = postgres.emptied_journal()
    with pytest.raises(JournalLocked, match="somebody else moves"):
        move_journal(uri, uri + ("&" if "?" in uri else "?") + "application_name=other")


@pytest.mark.parametrize("to_server", [True, False])
def test_a_server_that_goes_away_meanwhile(
    to_server: bool, filled: Filled, run_async: RunAsync, tmp_path: Path, postgres: PostgresServer
) -> None:
    """It is named, with what to look at; nothing was moved, and the next attempt moves everything."""
    file, uri = tmp_path / "a.db", postgres.new_database()
    source, target = (file, uri) if to_server else (uri, file)
    filled(source)

    def end(doing: str, *_: int) -> None:
        if doing.startswith("checking"):
            with postgres.connect(uri) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )

    with pytest.raises(JournalUnavailable, match=r"cannot move (to|from) postgres.* is the server running"):
        move_journal(source, target, progress=end)
    before = run_async(everything, source)
    move_journal(source, target)
    assert run_async(everything, target) == before


def test_what_was_written_wrongly_is_noticed(
    filled: Filled, tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a writer that drops a row, or changes one, commits nothing."""
    from repertory.record.postgres_search import PostgresTables

    file = tmp_path / "a.db"
    filled(file)
    real = PostgresTables.fill

    def dropping(self: Any, table: str, columns: Any, rows: Any) -> None:
        kept = list(rows)
        real(self, table, columns, kept[:-1] if table == "entries" else kept)

    monkeypatch.setattr(PostgresTables, "fill", dropping)
    uri = postgres.new_database()
    with pytest.raises(JournalDamaged, match=r"entries in .* is not what .* holds; nothing was moved"):
        move_journal(file, uri)
    with postgres.connect(uri) as server:
        assert server.execute("SELECT count(*) FROM runs").fetchone() == (0,)


def test_memory_that_several_machines_wrote_is_moved_with_its_order(
    run_async: RunAsync, tmp_path: Path, postgres: PostgresServer
) -> None:
    """Each numbered its items from a block of its own; the newest item may have a lower position than others."""
    uri, file, again = postgres.new_database(), tmp_path / "a.db", postgres.new_database()
    model, clerk = ScriptedModel(["Done."] * 9), rp.Agent("clerk")

    async def store(supervisor: rp.Supervisor, run_id: str, text: str) -> None:
        run = await supervisor.spawn(clerk, "Keep.", run_id=run_id)
        await run.wait_result()
        await run.memory.store(text, item_id="fact")
        assert (await run.memory.retrieve("fact")).text == text

    async def fill() -> None:
        async with rp.open_supervisor(uri, model=model) as one, rp.open_supervisor(uri, model=model) as other:
            await store(other, "run-other", "first")
            await store(one, "run-one", "first")

    async def go_on(place: Any, text: str) -> None:
        async with rp.open_supervisor(place, model=model) as supervisor:
            for run_id in ("run-other", "run-one"):
                run = await supervisor.spawn(clerk, "Keep.", run_id=run_id)
                assert (await run.memory.retrieve("fact")).text == ("first" if text == "second" else "second")
                await store(supervisor, run_id, text)

    run_async(fill)
    move_journal(uri, file)
    run_async(go_on, file, "second")
    move_journal(file, again)
    run_async(go_on, again, "third")
