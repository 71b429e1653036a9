"""The journal's file: who may open it, what is refused, and what SQLite is told."""

from __future__ import annotations

import os
import resource
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import journal_kit as kit
from backends import RunAsync
from repertory.errors import (
    ConfigurationError,
    JournalError,
    JournalLocked,
    JournalReadOnly,
    JournalSchemaTooNew,
    JournalUnreadable,
    JournalWriteFailed,
)
from repertory.record import Durability, MemoryJournal, SqliteJournal, open_journal
from repertory.record.backup import back_up, restore, vacuum_file
from repertory.record.moving import move_journal
from repertory.record.records import ModelReplied, RunStateChanged, ToolFinished, ToolIntended
from repertory.record.schema import APPLICATION_ID, VERSION, migrate, schema_version
from repertory.record.sqlite_file import FileLock, announce, explain, open_to_write, owner_of


async def make(path: Path) -> None:
    """Make a journal with something in it."""
    async with open_journal(path) as journal:
        await journal.write(kit.one_of_each())


async def look(path: Path) -> None:
    """Open a journal to read."""
    async with open_journal(path, readonly=True):
        pass


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Ask the file with nothing but the standard library."""
    with closing(sqlite3.connect(path)) as database, database:
        rows = database.execute(sql).fetchall()
    database.close()
    return rows


def mode(path: Path) -> int:
    """Permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


# --- opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, ":memory:"])
def test_without_a_path_the_journal_is_in_memory(path: str | None, run_async: RunAsync) -> None:
    """No file, no thread."""

    async def main() -> None:
        threads = threading.active_count()
        async with open_journal(path) as journal:
            assert isinstance(journal, MemoryJournal)
            assert journal.durability == "memory"
            assert threading.active_count() <= threads  # an idle worker thread of an earlier test may end

    run_async(main)


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path, run_async: RunAsync) -> None:
    """File, log and lock 0600, a folder that had to be made 0700, whatever the umask."""
    path = tmp_path / "new" / "journal.db"

    async def main() -> None:
        async with open_journal(path) as journal:
            await journal.write(kit.one_of_each())
            assert mode(path.parent) == 0o700
            for name in ("journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock"):
                assert mode(path.parent / name) == 0o600

    before = os.umask(0)
    try:
        run_async(main)
    finally:
        os.umask(before)


def test_after_closing_the_file_is_one_file(tmp_path: Path, run_async: RunAsync) -> None:
    """The log is emptied and removed, no thread is left, and the next one may open."""
    path = tmp_path / "journal.db"

    async def main() -> None:
        for _ in range(2):
            async with open_journal(path) as journal:
                await journal.read_runs()
            assert {p.name for p in tmp_path.iterdir()} == {"journal.db", "journal.db.lock"}
        with anyio.CancelScope() as scope:  # closing is shielded
            async with open_journal(path) as journal:
                ticket = journal.submit([kit.appended("r", 0)])
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        await ticket.wait()
        # anyio keeps idle worker threads for a while; ours have names.
        names = {thread.name for thread in threading.enumerate()}
        assert not {name for name in names if "repertory" in name}

    run_async(main)
    assert query(path, "SELECT run_id FROM entries") == [("r",)]


@pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1), ("memory", 0)])
def test_durability_is_what_sqlite_is_told(durability: Durability, synchronous: int, tmp_path: Path) -> None:
    """FULL, NORMAL, OFF, always with a write-ahead log that shrinks again."""
    connection = open_to_write(str(tmp_path / "journal.db"), durability)
    assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA journal_size_limit").fetchone()[0] > 0
    connection.close()


def test_the_level_is_told_to_callers(tmp_path: Path, run_async: RunAsync) -> None:
    """The default is the strongest."""

    async def main() -> None:
        async with open_journal(tmp_path / "a.db") as journal:
            assert journal.durability == "power"
        async with open_journal(tmp_path / "b.db", durability="process") as journal:
            assert journal.durability == "process"

    run_async(main)


async def test_a_durability_that_there_is_none_of_is_refused_with_the_choices(tmp_path: Path) -> None:
    """Before anything is made or locked, and for a journal in memory too."""
    for path in (tmp_path / "a.db", None):
        with pytest.raises(ConfigurationError, match="durability is 'fast'; expected 'memory' or 'process' or 'power'"):
            async with open_journal(path, durability="fast"):  # type: ignore[arg-type]
                pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_one_owner_in_one_process_too(tmp_path: Path, run_async: RunAsync) -> None:
    """Also under another name of the file, and until it is closed."""
    path = tmp_path / "journal.db"
    (tmp_path / "link.db").symlink_to(path)

    async def main() -> None:
        async with open_journal(path):
            for name in (path, tmp_path / "link.db", tmp_path / "." / "journal.db"):
                with pytest.raises(JournalLocked, match="is owned by this process"):
                    async with open_journal(name):
                        raise AssertionError("opened a file that is owned")
        async with open_journal(tmp_path / "link.db"):
            assert not (tmp_path / "link.db.lock").exists()

    run_async(main)


def test_the_owner_of_a_file_leaves_its_latest_words(tmp_path: Path) -> None:
    """Also if they are shorter than those before, of which nothing stays."""
    lock = FileLock(str(tmp_path / "journal.db"))
    try:
        for words in (b"a long line of words", b"short"):
            announce(tmp_path / "journal.db", words)
            assert owner_of(tmp_path / "journal.db") == (os.getpid(), words)
    finally:
        lock.release()


def test_a_lock_is_given_up_once(tmp_path: Path) -> None:
    """Releasing twice is fine, and a failed opening releases."""
    path = str(tmp_path / "journal.db")
    lock = FileLock(path)
    lock.release()
    lock.release()
    Path(path).write_bytes(b"x" * 4096)
    for _ in range(2):
        with pytest.raises(JournalUnreadable):
            anyio.run(make, Path(path))


# --- what is refused --------------------------------------------------------------------------------------


def newer(path: Path) -> None:
    """Make a journal of the future."""
    anyio.run(make, path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 999")
    database.close()


def foreign(path: Path) -> None:
    """Make somebody else's database."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()


def truncated(path: Path) -> None:
    """Make a journal and cut it in half."""
    anyio.run(make, path)
    os.truncate(path, path.stat().st_size // 2)


def folder(path: Path) -> None:
    """Make a folder of that name."""
    path.mkdir()


BAD = [
    (newer, JournalSchemaTooNew, r"has schema 999 .* reads up to \d+; open it with the repertory that wrote it"),
    (foreign, JournalUnreadable, "is an SQLite database but not a journal"),
    (lambda path: path.write_bytes(b"no database at all, but long enough" * 100), JournalUnreadable, "not a database"),
    (truncated, JournalUnreadable, "damaged: restore it from a backup"),
    (folder, JournalUnreadable, "is a folder; name a file in its place"),
]


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize(("spoil", "error", "message"), BAD, ids=["newer", "foreign", "garbage", "truncated", "folder"])
def test_a_file_that_is_no_journal_of_ours_is_refused_and_untouched(
    spoil: object, error: type[JournalError], message: str, readonly: bool, tmp_path: Path, run_async: RunAsync
) -> None:
    """With the reason and what to do; the file stays as it is, byte for byte."""
    path = tmp_path / "journal.db"
    spoil(path)  # type: ignore[operator]
    before = path.read_bytes() if path.is_file() else None

    async def main() -> None:
        with pytest.raises(error, match=message):
            async with open_journal(path, readonly=readonly):
                raise AssertionError("opened what is no journal")

    run_async(main)
    assert before is None or path.read_bytes() == before


def _replace(path: Path) -> None:
    path.rename(f"{path}.old")
    path.write_text("another")


TAKEN_AWAY: list[tuple[str, Callable[[Path], object]]] = [
    *((name, how) for name in ("", "-wal", ".lock") for how in (Path.unlink, _replace)),
    ("", lambda path: os.truncate(path, 0)),
    (".lock", lambda path: os.truncate(path, 0)),
]


@pytest.mark.parametrize(("name", "how"), TAKEN_AWAY)
def test_a_file_that_was_taken_away_is_noticed_at_the_next_commit(
    name: str, how: Callable[[Path], object], tmp_path: Path, run_async: RunAsync
) -> None:
    """The journal's own, its log or its lock, which lets another process in: nothing is acknowledged any more."""
    path = tmp_path / "journal.db"

    async def main() -> None:
        async with open_journal(path) as journal:
            await journal.write([kit.appended("r", 0)])
            how(Path(f"{path}{name}"))
            for position in (1, 2):
                with pytest.raises(JournalWriteFailed, match=rf"journal\.db{name} was deleted, moved, replaced or"):
                    await journal.write([kit.appended("r", position)])

    run_async(main)


def test_a_file_of_two_names_has_no_owner(tmp_path: Path, run_async: RunAsync) -> None:
    """Two processes would own it, each with a log of its own, and what one has written would be lost."""
    path, other = tmp_path / "journal.db", tmp_path / "other.db"

    async def main() -> None:
        async with open_journal(path) as journal:
            await journal.write([kit.appended("r", 0)])
        other.hardlink_to(path)
        for name in (path, other):
            with pytest.raises(JournalUnreadable, match="has 2 names"):
                async with open_journal(name):
                    raise AssertionError("opened a file that has another name")
        path.unlink()
        async with open_journal(other) as journal:
            assert await journal.count_entries("r") == 1

    run_async(main)


def test_a_file_that_may_only_be_read_is_opened_to_read(tmp_path: Path, run_async: RunAsync) -> None:
    """To write it is refused with that reason, and not as if the disk were full."""
    path = tmp_path / "journal.db"

    async def main() -> None:
        async with open_journal(path) as journal:
            await journal.write([kit.appended("r", 0)])
        path.chmod(0o400)
        if os.access(path, os.W_OK):
            pytest.skip("root may write anywhere")
        with pytest.raises(JournalUnreadable, match="read-only; look at it with readonly=True"):
            async with open_journal(path):
                raise AssertionError("opened a file that may only be read")
        async with open_journal(path, readonly=True) as reader:
            assert await reader.count_entries("r") == 1

    run_async(main)


def test_a_file_in_a_folder_that_may_not_be_written_to_can_be_read(tmp_path: Path, run_async: RunAsync) -> None:
    """Alone after it was closed, and beside its log while its owner writes, by one reader."""
    path = tmp_path / "journal.db"

    async def main() -> None:
        async with open_journal(path) as journal:
            await journal.write([kit.appended("r", 0)])
        tmp_path.chmod(0o500)
        if os.access(tmp_path, os.W_OK):
            pytest.skip("root may write anywhere")
        async with open_journal(path, readonly=True) as reader:
            assert await reader.count_entries("r") == 1
            tmp_path.chmod(0o700)
            async with open_journal(path) as journal:
                await journal.write([kit.appended("r", 1)])
                tmp_path.chmod(0o500)
                assert await reader.count_entries("r") == 2
                tmp_path.chmod(0o700)

    try:
        run_async(main)
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, run_async: RunAsync) -> None:
    """Neither the lock nor the file can be made there."""
    (tmp_path / "file").write_text("in the way")

    async def main() -> None:
        with pytest.raises(JournalUnreadable, match=r"cannot make the folder"):
            async with open_journal(tmp_path / "file" / "journal.db"):
                raise AssertionError("opened a journal below a file")
        (tmp_path / "journal.db.lock").mkdir()
        with pytest.raises(JournalUnreadable, match="cannot lock"):
            async with open_journal(tmp_path / "journal.db"):
                raise AssertionError("opened a journal without a lock")
        with pytest.raises(JournalUnreadable, match="cannot make"):
            open_to_write(str(tmp_path / "nowhere" / "journal.db"), "power")

    run_async(main)


@contextmanager
def room_for(many: int) -> Iterator[None]:
    """No file takes more bytes until the end of the block, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (many, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_lock_that_cannot_be_written_is_told_and_given_up(tmp_path: Path) -> None:
    """A full disk has no room for the owner's number: one typed error, and who comes next may own the file."""
    path = str(tmp_path / "journal.db")
    for _ in range(2):  # not "is owned by this process"
        with pytest.raises(JournalWriteFailed, match=r"cannot lock .*journal\.db: .*; make room"), room_for(0):
            FileLock(path)
    FileLock(path).release()


async def test_a_full_disk_is_no_damaged_file(tmp_path: Path) -> None:
    """By the exit code for damage systemd would not start a service again that ended because its disk was full."""
    path = tmp_path / "journal.db"
    await make(path)
    for readonly in (False, True):
        with pytest.raises(JournalWriteFailed, match="make room or repair the disk"), room_for(4096):
            async with open_journal(path, readonly=readonly):
                raise AssertionError("opened a journal without room for the index of its log")
    await look(path)


async def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """What it points to would be emptied."""
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / "journal.db.lock").symlink_to(other)
    with pytest.raises(JournalUnreadable, match="cannot lock"):
        async with open_journal(tmp_path / "journal.db"):
            raise AssertionError("opened a journal by the lock of another file")
    assert other.read_text() == "kept"


async def test_a_file_that_is_missing_beside_its_log_is_not_made_anew(tmp_path: Path) -> None:
    """Somebody has moved it alone. SQLite would remove the log, and with it what only the log has."""
    path, log = tmp_path / "journal.db", tmp_path / "journal.db-wal"
    async with open_journal(path) as journal:
        await journal.write(kit.one_of_each())
        content, logged = path.read_bytes(), log.read_bytes()
    path.unlink()
    log.write_bytes(logged)
    with pytest.raises(JournalUnreadable, match="put the file back beside its log"):
        async with open_journal(path):
            raise AssertionError("made a journal beside the log of another one")
    assert not path.exists()
    path.write_bytes(content)
    async with open_journal(path) as journal:
        assert await journal.read_runs()


def test_a_foreign_program_that_holds_the_file_is_named_as_the_cause(tmp_path: Path) -> None:
    """The error of a busy file, and of everything else that SQLite may say."""
    path = tmp_path / "busy.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    other = sqlite3.connect(path, timeout=0)
    with pytest.raises(sqlite3.OperationalError) as caught:
        other.execute("SELECT * FROM t")
    assert isinstance(explain(caught.value, "p", "read"), JournalLocked)
    holder.close()
    with pytest.raises(sqlite3.OperationalError) as caught:
        other.execute("SELECT * FROM nothing")
    assert type(explain(caught.value, "p", "read")) is JournalUnreadable
    other.execute("PRAGMA max_page_count = 2")
    with pytest.raises(sqlite3.OperationalError) as caught:
        other.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert isinstance(explain(caught.value, "p", "write"), JournalWriteFailed)
    other.close()


# --- looking ----------------------------------------------------------------------------------------------


def test_looking_changes_nothing(tmp_path: Path, run_async: RunAsync) -> None:
    """A read-only journal reads and searches, beside a writer or alone, and refuses every write."""
    path = tmp_path / "journal.db"

    async def main() -> None:
        async with open_journal(path) as owner:
            await owner.write(kit.one_of_each())
            async with open_journal(path, readonly=True) as journal:
                assert await journal.read_entries("run-1") == await owner.read_entries("run-1")
                await owner.write([kit.appended("run-1", 2, "a later word")])
                assert len(await journal.read_entries("run-1")) == 3
                assert [hit.position for hit in await journal.search_entries("run-1", "later")] == [2]
        before = path.read_bytes()
        async with open_journal(path, readonly=True) as journal, open_journal(path, readonly=True):
            assert isinstance(journal, SqliteJournal)
            assert [hit.position for hit in await journal.search_entries("run-1", "later")] == [2]
            with pytest.raises(JournalReadOnly, match="readonly=True"):
                await journal.write([])
        assert path.read_bytes() == before

    run_async(main)


def test_looking_at_nothing_is_told(tmp_path: Path, run_async: RunAsync) -> None:
    """No file, and none is made; an empty file; one of an older schema."""

    async def main() -> None:
        with pytest.raises(JournalUnreadable, match="there is no journal at"):
            async with open_journal(tmp_path / "none.db", readonly=True):
                raise AssertionError("opened nothing")
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "empty.db").touch()
        with pytest.raises(JournalUnreadable, match="has schema none and 1 is expected"):
            async with open_journal(tmp_path / "empty.db", readonly=True):
                raise AssertionError("opened an empty file")

    run_async(main)


# --- the schema -------------------------------------------------------------------------------------------


def test_an_interrupted_creation_is_finished(tmp_path: Path, run_async: RunAsync) -> None:
    """An empty file is what a process leaves that dies between making and filling it."""
    path = tmp_path / "journal.db"
    path.touch()
    run_async(make, path)
    assert query(path, "SELECT version FROM migrations") == [(VERSION,)]
    assert query(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert query(path, "PRAGMA user_version") == [(VERSION,)]


def test_an_older_file_gets_what_it_lacks(tmp_path: Path, run_async: RunAsync) -> None:
    """Tables, columns, indexes and views: all of them or none, and what is on record stays as it was."""
    path = tmp_path / "journal.db"
    run_async(make, path)
    columns = "SELECT m.name, c.name FROM sqlite_master m LEFT JOIN pragma_table_info(m.name) c ORDER BY 1, 2"
    made, records = query(path, columns), query(path, "SELECT * FROM entries")
    connection = sqlite3.connect(path, isolation_level=None)
    for old in ("VIEW cost_by_purpose", "VIEW tokens_by_iteration", "VIEW context_growth", "TABLE webhook_attempts"):
        connection.execute(f"DROP {old}")
    connection.execute("ALTER TABLE run_states DROP COLUMN reason")
    connection.execute("DROP INDEX runs_by_id")
    connection.execute("CREATE TABLE kept AS SELECT * FROM runs")
    connection.execute("INSERT INTO runs (run_id) SELECT run_id FROM runs")
    connection.execute(f"PRAGMA user_version = {VERSION - 1}")
    connection.execute("UPDATE migrations SET version = version - 1")
    before = query(path, columns)
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        migrate(connection, "p")
    assert query(path, columns) == before
    assert schema_version(connection, "p") == VERSION - 1
    connection.execute("DELETE FROM runs WHERE checksum IS NULL")
    connection.execute("DROP TABLE kept")
    migrate(connection, "p")
    assert schema_version(connection, "p") == VERSION
    assert query(path, columns) == made
    assert query(path, "SELECT * FROM entries") == records
    connection.close()


DOORS: list[Callable[[Path], object]] = [
    lambda path: anyio.run(make, path),
    lambda path: anyio.run(look, path),
    lambda path: back_up(path, path.with_name("copy.db")),
    lambda path: restore(path, path.with_name("copy.db")),
    vacuum_file,
    lambda path: move_journal(path, path.with_name("copy.db")),
    lambda path: move_journal(path.with_name("empty.db"), path),
]


@pytest.mark.parametrize("change", ["TABLE run_states DROP COLUMN reason", "TABLE removals RENAME COLUMN newest TO n"])
def test_a_file_of_an_unreleased_schema_is_refused_at_every_door(change: str, tmp_path: Path) -> None:
    """It has the number of this one, so what it has tells: a read would say that there is no such column."""
    path = tmp_path / "journal.db"
    for made in (path, tmp_path / "empty.db"):
        anyio.run(make, made)
    with closing(sqlite3.connect(path)) as database, database:
        for (view,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall():
            database.execute(f"DROP VIEW {view}")  # as they name the column
        database.execute(f"ALTER {change}")
    database.close()
    before = path.read_bytes()
    for door in DOORS:
        with pytest.raises(JournalUnreadable, match=r"has schema 1, but differs from it \('ALTER TABLE"):
            door(path)
        assert not (tmp_path / "copy.db").exists()
    assert path.read_bytes() == before


def test_the_views_answer_what_users_ask(tmp_path: Path, run_async: RunAsync) -> None:
    """Context growth, cost, state and tool calls, with plain SQL."""
    path = tmp_path / "journal.db"

    async def main() -> None:
        async with open_journal(path) as journal:
            await journal.write(kit.one_of_each())
            await journal.write([kit.called(2, {}), kit.started("run-2", client="ann")])
            await journal.write([kit.started("run-2.b", parent_id="run-2"), kit.called(3, {}, purpose="summary")])
            await journal.write([ModelReplied(run_id="run-1", call=3, at=9.0, cost=0.5)])
            await journal.write([RunStateChanged(run_id="run-1", state="done", at=10.0, result="yes")])
            intent = ToolIntended(
                run_id="run-1", call_id="call-2", tool="t", effect="pure", arguments={}, arguments_digest="",
                idempotency_key="", iteration=1, at=1.0,
            )  # fmt: skip
            done = ToolFinished(run_id="run-1", call_id="call-2", status="error", at=2.0)
            await journal.write([intent, done, kit.appended("run-1", 9)])

    run_async(main)
    growth = query(
        path,
        "SELECT call, iteration, purpose, prompt_tokens, cache_read_tokens, cache_write_tokens, cost "
        "FROM context_growth",
    )
    assert growth == [
        (1, 1, "agent", 13, 3, 9, 0.1 + 0.2),
        (2, 2, "agent", None, None, None, None),
        (3, 3, "summary", 0, 0, 0, 0.5),
    ]
    costs = query(
        path,
        "SELECT run_id, client, model_calls, tokens_seen, output_tokens, largest_prompt, cost_seen FROM run_statistics",
    )
    assert costs == [
        ("run-1", "", 3, 0, 0, 0, 0.1 + 0.2 + 0.5),
        ("run-2", "ann", 0, 0, 0, 0, 0.0),
        ("run-2.b", "ann", 0, 0, 0, 0, 0.0),
    ]
    assert query(path, "SELECT run_id, client, state, result FROM run_status") == [
        ("run-1", "", "done", "yes"),
        ("run-2", "ann", "running", None),
        ("run-2.b", "ann", "running", None),
    ]
    assert query(path, "SELECT call_id, status FROM tool_calls ORDER BY call_id") == [
        ("call-1", "ok"),
        ("call-2", "error"),
    ]


def test_a_check_finds_damage(tmp_path: Path, run_async: RunAsync) -> None:
    """Nothing in a sound file; something in one whose pages were overwritten, or an error that says so."""
    path = tmp_path / "journal.db"

    async def fill() -> None:
        async with open_journal(path) as journal:
            assert isinstance(journal, SqliteJournal)
            await journal.write([kit.appended("r", n, "text " * 100) for n in range(500)])
            assert await journal.check() == []
            assert await journal.check(deep=True) == []

    async def look() -> None:
        async with open_journal(path, readonly=True) as journal:
            assert isinstance(journal, SqliteJournal)
            assert await journal.check(deep=True) != []

    run_async(fill)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 4096)
    run_async(look)
