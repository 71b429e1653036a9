"""What is a server's alone: lost connections and commits, other writers beside, settings, addresses and text."""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import psycopg
import pytest

import journal_kit as kit
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory._postgres_address import PostgresAddress, postgres_address
from repertory.errors import (
    ConfigurationError,
    JournalClosed,
    JournalDamaged,
    JournalReadOnly,
    JournalSchemaTooNew,
    JournalUnavailable,
    JournalUnreadable,
    JournalWriteFailed,
    RecordRefused,
)
from repertory.record import EventLogged, Journal, Record, open_journal
from repertory.record.postgres_journal import PostgresJournal
from repertory.record.postgres_schema import check_readable, migrate, schema_version
from repertory.record.postgres_sql import FENCED, TRANSACTION_TIMEOUT, connect, explain, translate
from repertory.record.postgres_writer import Guard, PostgresWriter
from repertory.record.rows import encode_records
from repertory.record.schema import VERSION
from repertory.record.waiting import Ticket
from repertory.record.writing import Batch


def event(number: int, run_id: str = "r") -> EventLogged:
    """An event that has a number."""
    return EventLogged(run_id=run_id, type="t", body={"n": number}, at=1.0)


async def numbers(journal: Journal, run_id: str | None = "r") -> list[int]:
    """The numbers of the events."""
    return [each.body["n"] for _, each in await journal.read_events(run_id)]


def wait_until(found: Callable[[], object]) -> None:
    """Wait for what another process does."""
    until = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)


def writer_of(uri: str, patience: float = 30.0, guard: Guard | None = None) -> PostgresWriter:
    """A writer alone."""
    address = PostgresAddress(uri)
    writer = PostgresWriter(address, connect(address), "power", patience=patience)
    writer.guard = guard
    return writer


def submit(writer: PostgresWriter, *records: Record) -> Any:
    """Queue a batch."""
    return writer.submit(Batch(encode_records(records)))


def test_marks_are_numbered_and_hints_left_out() -> None:
    """But not what stands in a text."""
    sql = "SELECT '?' FROM t INDEXED BY by_x WHERE a = ? AND b = '$.x' AND c = ?"
    assert translate(sql) == "SELECT '?' FROM t  WHERE a = $1 AND b = '$.x' AND c = $2"


def test_numbers_are_kept_exactly(run_async: RunAsync, postgres: PostgresServer) -> None:
    """Whole ones of 64 bits, fractions to the last bit, and what is beyond all of them."""
    fractions = (0.1 + 0.2, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, 1e22, -1 / 3)

    async def main() -> None:
        async with open_journal(postgres.emptied_journal()) as journal:
            for number, at in enumerate(fractions):
                await journal.write([kit.item(2**63 - 1 - number, "s", str(number), at=at)])
            found = await journal.read_items(["s"])
        assert [each.at for each in reversed(found)] == list(fractions)
        assert [each.position for each in reversed(found)] == [2**63 - 1 - number for number in range(len(fractions))]

    run_async(main)


def test_refused_batches_leave_the_next_ones_alone_however_many_there_are(
    run_async: RunAsync, postgres: PostgresServer
) -> None:
    """What the server did not come to prepare, as the transaction was over before, is not taken for prepared."""

    async def main() -> None:
        async with open_journal(postgres.emptied_journal()) as journal:
            entry, written = kit.appended("r", 0), 0
            await journal.write([entry])
            for good in (*range(8), 5, 3):
                with pytest.raises(RecordRefused):
                    await journal.write([kit.appended("r", 0, "another truth"), event(-1)])
                for _ in range(good):
                    await journal.write([event(written)])
                    written += 1
            assert await numbers(journal) == [*range(written)]

    run_async(main)


def test_a_value_that_no_index_takes_is_not_called_one_that_is_there(
    run_async: RunAsync, postgres: PostgresServer
) -> None:
    """The server names the index for both; no other batch is at fault."""

    async def main() -> None:
        async with open_journal(postgres.emptied_journal()) as journal:
            with pytest.raises(RecordRefused, match=r"index row size \d+ exceeds"):
                await journal.write([event(1), kit.appended("".join(map(chr, range(0x4E00, 0x5200))), 0)])
            await journal.write([event(2)])
            assert await numbers(journal) == [2]

    run_async(main)


# --- addresses --------------------------------------------------------------------------------------------

SECRET = "s3cr@t:/pass"


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql://me:{SECRET}@db.example:5432/x?sslmode=require",
        f"postgres://me@db.example/x?password={SECRET}",
        "postgresql://me:s3cr%40t%3A%2Fpass@db.example/x",
        "postgresql://me:s3cr#t@db.example/x",
        "postgresql://me:s3cr?t@db.example/x?sslmode=require",
        "postgresql://me:p/s3cr@db.example/x",
        "postgresql://me:p@s3cr@db.example/x",
        "postgresql://me:s3cr@[::1,db.example/x",
    ],
)
def test_the_password_is_never_shown(uri: str) -> None:
    """Neither by the address nor in what somebody else says about it."""
    address = PostgresAddress(uri)
    for shown in (str(address), repr(address), address.without_secrets(f"failed: {uri}; '{SECRET}'")):
        assert SECRET not in shown
        assert "s3cr" not in shown
        assert "db.example" in shown
    assert address.uri == uri


def test_a_server_that_is_not_there_is_named_without_the_password(run_async: RunAsync) -> None:
    """In the error, and in what caused it."""

    async def main() -> None:
        with pytest.raises(JournalUnavailable, match="is the server running") as caught:
            async with open_journal("postgresql://me:s3cr3t-word@/x?host=/nowhere"):
                pass
        assert str(caught.value).lower().count("is the server running") == 1
        error: BaseException | None = caught.value
        while error is not None:
            assert "s3cr3t" not in str(error)
            error = error.__cause__
        with pytest.raises(ConfigurationError, match="no address of a PostgreSQL server") as caught2:
            async with open_journal("postgresql://me:s3cr3t-word@/x?no_such_option=1"):
                pass
        assert "s3cr3t" not in str(caught2.value)

    run_async(main)


@pytest.mark.parametrize(
    "place",
    [
        f"postgresql+psycopg://me:{SECRET}@db.example/x",
        f"PostgreSQL://me:{SECRET}@db.example/x",
        f" postgresql://me:{SECRET}@db.example/x",
        "sqlite:///runs.db",
        f"password={SECRET} host=db.example dbname = x",
    ],
)
def test_an_address_of_another_form_does_not_become_a_file(
    place: str, run_async: RunAsync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name would show the password, and the record would not be where somebody looks for it."""
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        with pytest.raises(ConfigurationError, match="must be a file's path or postgresql://") as caught:
            async with open_journal(place):
                pass
        assert "s3cr" not in str(caught.value)

    run_async(main)
    assert [*tmp_path.iterdir()] == []


def test_names_that_look_much_like_addresses_are_files() -> None:
    """A folder for each user, say, or a colon in a name."""
    assert [postgres_address(name) for name in ("user=me/runs.db", "a=b c.db", "c:/runs.db", "./x://y")] == [None] * 4


def test_a_lost_connection_is_told_from_a_refused_one(postgres: PostgresServer) -> None:
    """The driver gives no code for either; a service waits for a server only after the first."""
    lost = psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly")
    uri = postgres.uri("postgres")
    assert type(explain(lost, PostgresAddress(uri), "open")) is JournalUnavailable
    assert type(explain(lost, PostgresAddress(postgres.uri("none")), "open")) is JournalUnreadable


def test_to_ask_a_silent_server_holds_up_no_other_thread() -> None:
    """What makes a lost connection an error asks whether the server answers; leases are renewed meanwhile."""
    asked, steps = threading.Event(), 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = PostgresAddress(f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=2")

        def ask() -> None:
            explain(psycopg.OperationalError("consuming input failed"), address, "open")
            asked.set()

        thread = threading.Thread(target=ask)
        thread.start()
        while not asked.wait(0.01):
            steps += 1
        thread.join()
    assert steps > 20


# --- opening ----------------------------------------------------------------------------------------------


def test_a_database_that_is_no_journal_is_left_alone(run_async: RunAsync, postgres: PostgresServer) -> None:
    """One that is empty, somebody else's, of a newer repertory, or that nobody made: each is told apart."""
    uri = postgres.new_database()

    async def refused(error: type[Exception], words: str, where: str = uri, **options: Any) -> None:
        with pytest.raises(error, match=words):
            async with open_journal(where, **options):
                pass

    async def main() -> None:
        await refused(JournalUnreadable, "there is no journal", readonly=True)
        with postgres.connect(uri) as connection:
            connection.execute("CREATE TABLE migrations (x INTEGER)")
        await refused(JournalUnreadable, "not a journal's")
        with postgres.connect(uri) as connection:
            connection.execute("DROP TABLE migrations")
        async with open_journal(uri) as journal:
            await journal.write([event(1)])
        with postgres.connect(uri) as connection:
            connection.execute("INSERT INTO migrations VALUES (99, 1.0, 'x')")
        await refused(JournalSchemaTooNew, "has schema 99")
        await refused(JournalSchemaTooNew, "has schema 99", readonly=True)
        await refused(JournalUnreadable, "does not exist; do its", where=postgres.uri("nobody_made_this"))
        await refused(JournalUnreadable, "does not exist; do its", where=uri.replace("postgres@", "nobody@"))

    run_async(main)


def test_several_processes_may_make_the_tables_at_once(postgres: PostgresServer) -> None:
    """One does, and the others wait for it."""
    address = PostgresAddress(postgres.new_database())
    versions: list[int] = []

    def make() -> None:
        with connect(address) as connection:
            migrate(connection, address)
            versions.append(schema_version(connection, address))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions == [VERSION] * 4


def test_an_older_database_gets_what_it_lacks(run_async: RunAsync, postgres: PostgresServer) -> None:
    """Columns, indexes and views, as in a file."""
    address = PostgresAddress(postgres.new_journal())
    columns = """SELECT c.relname, a.attname FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = current_schema()::regnamespace AND NOT coalesce(a.attisdropped, false) ORDER BY 1, 2"""
    with connect(address) as connection:
        made = connection.execute(columns).fetchall()
        for old in ("VIEW cost_by_purpose", "TABLE payloads CASCADE", "INDEX runs_by_id"):
            connection.execute(f"DROP {old}")
        connection.execute("ALTER TABLE run_states DROP COLUMN reason")
        for open_it in (migrate, check_readable):  # one of an unreleased schema has this one's number
            with pytest.raises(JournalUnreadable, match=r"has schema 1, but differs from it"):
                open_it(connection, address)
        connection.execute("UPDATE migrations SET version = version - 1")
        migrate(connection, address)
        assert schema_version(connection, address) == VERSION
        assert connection.execute(columns).fetchall() == made
        connection.execute("CREATE SCHEMA mine")  # as for a role of that name, of which PostgreSQL looks there first
        connection.execute("SET search_path = mine, public")
        check_readable(connection, address)


def test_indexes_are_built_by_whoever_has_another_search_path(postgres: PostgresServer) -> None:
    """pg_restore has none, and so has every index that PostgreSQL 17 or newer builds."""
    with postgres.connect(postgres.new_journal()) as connection:
        connection.execute("SET search_path = ''")
        found = "SELECT indexname, indexdef FROM pg_indexes WHERE indexdef LIKE '%json_extract%'"
        indexes = connection.execute(found).fetchall()
        assert indexes
        for name, definition in indexes:
            connection.execute(f"DROP INDEX public.{name}")
            connection.execute(definition)
        assert connection.execute(found).fetchall() == indexes


@pytest.fixture
def set_on_server(postgres: PostgresServer) -> Iterator[Callable[[str, str], None]]:
    """Change settings of the server until the end of the test."""
    if not postgres.ours:
        pytest.skip("the server is not ours to change")
    changed: list[str] = []

    def change(name: str, value: str) -> None:
        changed.append(name)
        with postgres.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = {value}")
            connection.execute("SELECT pg_reload_conf()")
            wait_until(lambda: connection.execute(f"SHOW {name}").fetchone() == (value.strip("'"),))

    yield change
    with postgres.connect() as connection:
        for name in changed:
            connection.execute(f"ALTER SYSTEM RESET {name}")
        connection.execute("SELECT pg_reload_conf()")
        wait_until(lambda: connection.execute("SHOW fsync").fetchone() == ("on",))


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_a_server_that_would_lose_what_it_acknowledged_is_refused(
    name: str, run_async: RunAsync, postgres: PostgresServer, set_on_server: Callable[[str, str], None]
) -> None:
    """It says which setting."""
    uri = postgres.emptied_journal()
    set_on_server(name, "off")

    async def main() -> None:
        with pytest.raises(JournalWriteFailed, match=f"{name} = off"):
            async with open_journal(uri):
                pass

    run_async(main)


@pytest.mark.parametrize(
    "default",
    [
        "default_transaction_isolation = 'serializable'",
        "lock_timeout = 1",
        "statement_timeout = 1",
        "transaction_timeout = 1",
        "DateStyle = 'German'",
    ],
)
def test_what_a_database_or_an_address_sets_by_default_fails_nothing(
    default: str, run_async: RunAsync, postgres: PostgresServer
) -> None:
    """A search that had to wait for another process goes on after it."""
    uri = postgres.new_database()
    with postgres.connect(uri) as other:
        if default.startswith("transaction_timeout") and other.info.server_version < TRANSACTION_TIMEOUT:
            pytest.skip("the server has no such setting")
        other.execute(f"ALTER DATABASE {uri.partition('?')[0].rpartition('/')[2]} SET {default}")

        async def main() -> None:
            encoded = f"{uri}&client_encoding=latin1"
            async with open_journal(encoded) as journal, anyio.create_task_group() as group:
                await journal.write([kit.appended("r", 0, "€")])
                other.execute("BEGIN")
                other.execute("UPDATE search_progress SET entries = entries")
                group.start_soon(journal.search_entries, "r", "word")
                waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
                await anyio.to_thread.run_sync(wait_until, lambda: other.execute(waits).fetchone())
                other.execute("COMMIT")

        run_async(main)


@contextlib.contextmanager
def pgbouncer(postgres: PostgresServer, uri: str, folder: Path, pool_mode: str) -> Iterator[str]:
    """The address of a database by way of a pooler."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or not postgres.ours:
        pytest.skip("needs pgbouncer, and a server of the tests' own")
    name = urlsplit(uri).path[1:]
    folder.chmod(0o777)
    (folder / "ini").write_text(
        f"[databases]\n{name} = host={postgres.folder} user=postgres\n[pgbouncer]\npool_mode = {pool_mode}\n"
        f"auth_type = any\nlisten_port = 6432\nunix_socket_dir = {folder}\n"
    )
    as_user: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
    with subprocess.Popen([program, "-q", folder / "ini"], **as_user) as process:
        try:
            wait_until((folder / ".s.PGSQL.6432").exists)
            yield f"postgresql://postgres@/{name}?host={folder}&port=6432"
        finally:
            process.terminate()


def test_a_pooler_must_keep_a_session_for_each_connection(run_async: RunAsync, postgres: PostgresServer) -> None:
    """Settings such as the durability would be those of whoever had the session before."""
    uri = postgres.new_journal()

    async def main(address: str) -> None:
        async with open_journal(address) as journal:
            await journal.write([event(1)])

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short enough for a socket's name
        with pgbouncer(postgres, uri, Path(folder), "session") as address:
            run_async(main, address)
        with (
            pgbouncer(postgres, uri, Path(folder), "transaction") as address,
            pytest.raises(JournalUnreadable, match="pool_mode=session"),
        ):
            run_async(main, address)


def test_a_server_that_takes_nobody_now_is_told_from_a_wrong_password(
    run_async: RunAsync, postgres: PostgresServer
) -> None:
    """One without a free connection, or that may only be read: a service waits for it."""
    uri = postgres.new_journal()
    with postgres.connect(uri) as connection:
        connection.execute("DROP ROLE IF EXISTS crowded")
        connection.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0")
        name = uri.partition("?")[0].rpartition("/")[2]
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")

    async def main() -> None:
        with pytest.raises(JournalUnavailable, match=r"too many connections .*max_connections"):
            async with open_journal(uri.replace("postgres@", "crowded@")):
                pass
        with pytest.raises(JournalUnavailable, match="is it a standby"):
            async with open_journal(uri):
                pass

    run_async(main)


def test_who_looks_changes_nothing(run_async: RunAsync, postgres: PostgresServer) -> None:
    """Everything can be read and searched beside whoever writes, and nothing written."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with open_journal(uri) as journal, open_journal(uri, readonly=True) as looking:
            await journal.write([kit.appended("r", 0, "the needle"), kit.item(1, text="a needle"), event(1)])
            assert len(await looking.read_entries("r")) == 1
            assert [hit.position for hit in await looking.search_entries("r", "needles")] == [0]
            assert await numbers(looking, None) == [1]
            with pytest.raises(JournalReadOnly):
                await looking.write([event(2)])
            with postgres.connect(uri) as connection:
                assert connection.execute("SELECT entries FROM search_progress").fetchone() == (0,)

    run_async(main)


def test_damage_to_what_has_no_checksum_is_a_typed_error(run_async: RunAsync, postgres: PostgresServer) -> None:
    """For a read, and for what is done in a transaction of its own, such as indexing."""
    uri = postgres.new_journal()

    async def main() -> None:
        async with open_journal(uri) as journal:
            await journal.write([kit.appended("r", 0, "the needle"), kit.started("r")])
            with postgres.connect(uri) as connection:
                connection.execute("UPDATE search_progress SET entries = NULL")
                connection.execute("UPDATE runs SET options = '['")
            with pytest.raises(JournalDamaged, match=r"cannot index in postgresql"):
                await journal.search_entries("r", "needle")
            with pytest.raises(JournalDamaged, match=r"record \d+ in runs"):
                await journal.read_run("r")

    run_async(main)


# --- lost connections -------------------------------------------------------------------------------------


def end_connections(connection: psycopg.Connection[Any]) -> int:
    """End every connection to the database but this one; how many there were."""
    return len(
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchall()
    )


def test_lost_connections_lose_and_double_nothing(run_async: RunAsync, postgres: PostgresServer) -> None:
    """They are ended again and again, before, in and behind commits; each batch is there once, and in order."""
    uri = postgres.emptied_journal()
    chance = random.Random(7)
    rounds = 25
    ended: list[int] = []

    def end_soon(connection: psycopg.Connection[Any], seconds: float) -> None:
        time.sleep(seconds)
        ended.append(end_connections(connection))

    async def main() -> None:
        with postgres.connect(uri) as connection:
            async with open_journal(uri) as journal:
                for start in range(0, 10 * rounds, 10):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(anyio.to_thread.run_sync, end_soon, connection, chance.uniform(0, 0.004))
                        batches = [[event(n), kit.appended("r", n)] for n in range(start, start + 10)]
                        tickets = [journal.submit(batch) for batch in batches]
                        for ticket in tickets:
                            await ticket.wait()
                        assert len(await numbers(journal)) == start + 10
                assert await numbers(journal) == list(range(10 * rounds))
                assert [entry.position for entry in await journal.read_entries("r")] == list(range(10 * rounds))

    run_async(main)
    assert sum(ended) >= rounds


def lose_the_answer(
    postgres: PostgresServer, set_on_server: Callable[[str, str], None], uri: str, writer: PostgresWriter
) -> list[int]:
    """End the connection during a COMMIT that is durable already; the events from it on, with it as 0.

    The server makes a commit durable, then waits for a standby that is missing, then tells the client.
    """
    set_on_server("synchronous_standby_names", "nobody")
    lost = 0
    ticket = submit(writer, event(lost))
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
    with postgres.connect(uri) as connection:
        # The checkpointer tells the other processes of the setting, and takes its time.
        while not connection.execute(waiting).fetchall():
            if ticket.done:
                lost += 1
                ticket = submit(writer, event(lost))
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (lost,)
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) w")
        wait_until(lambda: connection.execute("SELECT count(*) FROM events").fetchone() != (lost,))
        assert not ticket.done
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        connection.execute("SELECT pg_reload_conf()")
        ticket.wait_sync()
        submit(writer, event(lost + 1)).wait_sync()
        writer.close(30)
        rows = connection.execute("SELECT json_extract(body, '$.n') FROM events ORDER BY seq").fetchall()
        return [int(number) - lost for (number,) in rows[lost:]]


def test_a_commit_whose_answer_was_lost_is_known_to_be_there(
    postgres: PostgresServer, set_on_server: Callable[[str, str], None]
) -> None:
    """It is not written again, and acknowledged once the server confirms another one behind it."""
    uri = postgres.emptied_journal()
    assert lose_the_answer(postgres, set_on_server, uri, writer_of(uri)) == [0, 1]


def test_a_writer_that_guesses_writes_it_twice(
    postgres: PostgresServer, set_on_server: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what is lost for whoever takes a lost answer for a lost commit."""
    monkeypatch.setattr(PostgresWriter, "_was_written", lambda *_: False)
    uri = postgres.emptied_journal()
    assert lose_the_answer(postgres, set_on_server, uri, writer_of(uri)) == [0, 0, 1]


def test_a_server_may_start_again_while_a_journal_is_open(run_async: RunAsync, postgres: PostgresServer) -> None:
    """Writes and reads wait for it; nothing that was acknowledged is lost, and nothing is there twice."""
    if not postgres.ours:
        pytest.skip("the server is not ours to stop")
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with open_journal(uri) as journal:
            told: list[int] = []

            async def write() -> None:
                for number in range(200):
                    await journal.write([event(number)])
                    told.append(number)
                    if number == 20:
                        tasks.start_soon(anyio.to_thread.run_sync, postgres.restart)
                    if number % 10 == 0:
                        await numbers(journal)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
            assert await numbers(journal) == told == list(range(200))

    run_async(main)


def test_a_journal_is_closed_though_the_server_says_nothing(run_async: RunAsync, postgres: PostgresServer) -> None:
    """Asking it to cancel a query held up all threads, those that renew leases too; one that waited stayed for ever."""
    if not postgres.ours:
        pytest.skip("the server is not ours to stop")
    uri = postgres.emptied_journal()
    postmaster = int((postgres.folder / "data" / "postmaster.pid").read_text().split()[0])
    query = "SELECT pg_sleep(600)"
    backend = f"FROM pg_stat_activity WHERE query = '{query}'"

    def is_asked() -> object:
        return watching.execute(f"SELECT 1 {backend}").fetchall()

    async def main() -> None:
        async def sleep(journal: PostgresJournal) -> None:
            with pytest.raises(JournalClosed):
                await journal.reader.use("sleep in", lambda connection: connection.execute(query))

        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(PATIENCE):
                async with open_journal(uri) as journal:
                    assert isinstance(journal, PostgresJournal)
                    tasks.start_soon(sleep, journal)
                    await anyio.to_thread.run_sync(wait_until, is_asked)
                    os.kill(postmaster, signal.SIGSTOP)

    with postgres.connect(uri) as watching:
        try:
            run_async(main)
        finally:
            os.kill(postmaster, signal.SIGCONT)
            watching.execute(f"SELECT pg_terminate_backend(pid) {backend}")


def test_a_server_that_stays_away_stops_the_journal(postgres: PostgresServer) -> None:
    """It says that it is not known whether the batch is there; nothing after it is taken."""
    if not postgres.ours:
        pytest.skip("the server is not ours to stop")
    writer = writer_of(postgres.emptied_journal(), patience=0.2)
    submit(writer, event(1)).wait_sync()
    postgres.stop()
    try:
        with pytest.raises(JournalWriteFailed, match="whether that batch is there is not known"):
            submit(writer, event(2)).wait_sync()
        with pytest.raises(JournalWriteFailed, match="nothing after it"):
            submit(writer, event(3))
        writer.close(30)
    finally:
        postgres.start()


@contextlib.contextmanager
def at_each_event(postgres: PostgresServer, uri: str, does: str) -> Iterator[None]:
    """Have the server do something whenever an event is written."""
    body = f"LANGUAGE plpgsql AS $$ BEGIN {does}; RETURN NEW; END $$"
    with postgres.connect(uri) as connection:
        connection.execute(f"CREATE FUNCTION at_each() RETURNS trigger {body}")
        connection.execute("CREATE TRIGGER at_each BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION at_each()")
        try:
            yield
        finally:
            connection.execute("DROP FUNCTION at_each CASCADE")


def test_what_takes_longer_than_a_transaction_may_is_written(postgres: PostgresServer) -> None:
    """Over a slow network, say; each time that the server has ended it, it may take longer."""
    uri = postgres.emptied_journal()
    writer = writer_of(uri)
    writer.hold_at_most(0.05)
    with at_each_event(postgres, uri, "PERFORM pg_sleep(0.15)"):
        submit(writer, event(1)).wait_sync()
    writer.close(30)


def test_a_server_that_breaks_over_some_records_stops_the_journal(postgres: PostgresServer) -> None:
    """It would be sent them for ever, though they can be written as little as what comes after them."""
    uri = postgres.emptied_journal()
    writer = writer_of(uri, patience=0.0)
    with (
        at_each_event(postgres, uri, "PERFORM pg_terminate_backend(pg_backend_pid())"),
        pytest.raises(JournalWriteFailed, match="happened 5 times while the same 2 records had to be written"),
    ):
        submit(writer, event(1), event(2)).wait_sync()
    writer.close(30)


class Interrupted(psycopg.Connection[Any]):
    """A connection on which somebody cancels each ROLLBACK, as pg_cancel_backend may at any instant."""

    def execute(self, query: Any, *values: Any, **options: Any) -> Any:
        """Execute a statement, or fail as the server would."""
        if query == "ROLLBACK":
            raise psycopg.errors.QueryCanceled("canceling statement due to user request")
        return super().execute(query, *values, **options)


def test_a_rollback_that_is_cancelled_leaves_the_next_batches_alone(postgres: PostgresServer) -> None:
    """Nothing more could be written over that connection, so another one takes its place."""
    uri = postgres.emptied_journal()
    writer = writer_of(uri)
    submit(writer, kit.started("one")).wait_sync()
    writer._connection.__class__ = Interrupted
    with pytest.raises(RecordRefused, match="UNIQUE"):
        submit(writer, kit.started("one")).wait_sync()
    submit(writer, event(1)).wait_sync()
    writer.close(30)
    with postgres.connect(uri) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (1,)


def test_a_server_that_has_lost_what_it_confirmed_stops_the_journal(postgres: PostgresServer) -> None:
    """What comes after it would leave a gap in the record. A standby that takes over may lack some transactions."""
    uri = postgres.emptied_journal()
    writer = writer_of(uri)
    for number in range(4):
        submit(writer, event(number)).wait_sync()
    with postgres.connect(uri) as connection:
        connection.execute("DELETE FROM events WHERE json_extract(body, '$.n') > '1'")
        connection.execute("UPDATE writers SET batch = 2")
        end_connections(connection)
    with pytest.raises(JournalWriteFailed, match="has lost the last 2 transactions that it confirmed"):
        submit(writer, event(4)).wait_sync()
    writer.close(30)


# --- several writers --------------------------------------------------------------------------------------


async def start_slowly(
    postgres: PostgresServer, uri: str, writer: PostgresWriter, holding: Any, record: Record
) -> Ticket:
    """Have a writer take a number for a record, and then wait for a lock until ``holding`` commits."""
    holding.execute("BEGIN")
    holding.execute("LOCK TABLE run_states IN SHARE MODE")
    state = kit.RunStateChanged(run_id="q", state="done", at=1.0)
    ticket = writer.submit(Batch(encode_records([record, state])))
    blocked = "SELECT 1 FROM pg_locks WHERE NOT granted"
    with postgres.connect(uri) as watching:
        await anyio.to_thread.run_sync(wait_until, lambda: watching.execute(blocked).fetchall())
    return ticket


def test_who_follows_the_whole_journal_waits_for_what_has_a_lower_number(
    run_async: RunAsync, postgres: PostgresServer
) -> None:
    """A transaction that is still open may bring an event before one that is there; else it would be missed."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with open_journal(uri) as journal, open_journal(uri, readonly=True) as looking:
            await journal.write([event(1)])
            slow = writer_of(uri)
            with postgres.connect(uri) as holding:
                ticket = await start_slowly(postgres, uri, slow, holding, event(2, "q"))
                await journal.write([event(3)])
                ((seen, _),) = await looking.read_events(None)
                assert await looking.last_event() == seen
                assert await numbers(looking, "r") == [1, 3]  # a run has one owner
                holding.execute("COMMIT")
            await ticket.wait()
            later = await looking.read_events(None, after=seen)
            assert [each.body["n"] for _, each in later] == [2, 3]
            await anyio.to_thread.run_sync(slow.close, 30)

    run_async(main)


def test_a_search_ends_while_another_writes_a_lower_number(run_async: RunAsync, postgres: PostgresServer) -> None:
    """It finds what is complete below that, and the rest once it is."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with open_journal(uri) as journal, open_journal(uri) as searching:
            await journal.write([kit.appended("r", 0, "one hive")])
            slow = writer_of(uri)
            with postgres.connect(uri) as holding:
                ticket = await start_slowly(postgres, uri, slow, holding, kit.appended("q", 0, "two hives"))
                await journal.write([kit.appended("r", 1, "three hives")])
                with anyio.fail_after(PATIENCE):
                    assert [hit.position for hit in await searching.search_entries("r", "hive")] == [0]
                holding.execute("COMMIT")
            await ticket.wait()
            assert {hit.position for hit in await searching.search_entries("r", "hive")} == {0, 1}
            assert [hit.position for hit in await searching.search_entries("q", "hive")] == [0]
            await anyio.to_thread.run_sync(slow.close, 30)

    run_async(main)


def test_who_follows_sees_what_was_submitted_before(run_async: RunAsync, postgres: PostgresServer) -> None:
    """As in every read, also where nobody waited for it."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with open_journal(uri) as journal:
            for number in range(20):
                journal.submit([event(number)])
                assert await numbers(journal, None) == list(range(number + 1))

    run_async(main)


def test_followers_miss_nothing_of_several_writers(run_async: RunAsync, postgres: PostgresServer) -> None:
    """Four write at once; who goes on from the last number that it saw has seen all in the end, each once."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        writing = 4
        async with contextlib.AsyncExitStack() as stack:
            journals = [await stack.enter_async_context(open_journal(uri)) for _ in range(writing)]
            looking = await stack.enter_async_context(open_journal(uri, readonly=True))
            seen: list[int] = []

            async def write(journal: Journal, run_id: str) -> None:
                nonlocal writing
                for number in range(60):
                    await journal.write([event(number, run_id)] * (1 + number % 3))
                writing -= 1

            async with anyio.create_task_group() as tasks:
                for number, journal in enumerate(journals):
                    tasks.start_soon(write, journal, f"r{number}")
                while True:
                    ended = writing == 0
                    seen += [seq for seq, _ in await looking.read_events(None, after=seen[-1] if seen else 0)]
                    if ended:
                        break
            assert seen == [seq for seq, _ in await looking.read_events(None)]
            assert len(seen) == 4 * 120

    run_async(main)


def test_a_guard_goes_before_every_transaction_and_stops_the_journal(postgres: PostgresServer) -> None:
    """Also when it is sent again; what it forbids is not written, and neither is anything after it."""
    uri = postgres.new_journal()
    with postgres.connect(uri) as connection:
        connection.execute("CREATE TABLE allowed (yes boolean)")
        connection.execute("INSERT INTO allowed VALUES (true)")
        connection.execute(
            f"""CREATE FUNCTION check_allowed() RETURNS void LANGUAGE plpgsql AS $$
                BEGIN PERFORM 1 FROM allowed WHERE yes FOR SHARE;
                IF NOT FOUND THEN RAISE EXCEPTION 'taken over' USING ERRCODE = '{FENCED}'; END IF; END $$"""
        )
        sizes: list[int] = []

        def guard(group: Sequence[Any]) -> Sequence[Any]:
            sizes.append(len(group))
            return [("SELECT check_allowed()", ())]

        writer = writer_of(uri, guard=guard)
        submit(writer, event(1)).wait_sync()
        wait_until(lambda: end_connections(connection) == 0)  # once they are gone for certain
        submit(writer, event(2)).wait_sync()
        assert len(sizes) in (2, 3)  # the lost connection may be noticed before the guard is asked
        connection.execute("UPDATE allowed SET yes = false")
        for number in (3, 4):
            with pytest.raises(JournalWriteFailed, match="taken over"):
                submit(writer, event(number)).wait_sync()
        writer.close(30)
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (2,)


def test_a_lost_network_is_noticed_at_both_ends(postgres: PostgresServer) -> None:
    """The system would wait for hours; an address that says something else keeps it."""
    uri = postgres.new_database()
    with connect(PostgresAddress(uri), notice=1.5) as connection:
        found = connection.info.get_parameters()
        assert (found["tcp_user_timeout"], found["keepalives_idle"], found["connect_timeout"]) == ("1500", "1", "2")
    with connect(PostgresAddress(f"{uri}{'&' if '?' in uri else '?'}tcp_user_timeout=7")) as connection:
        assert connection.info.get_parameters()["tcp_user_timeout"] == "7"


def test_a_process_that_is_stopped_in_a_transaction_holds_nobody_up_for_long(postgres: PostgresServer) -> None:
    """In a search it holds a lock that every other search needs, and which no machine that takes over its runs ends."""
    with connect(PostgresAddress(postgres.new_database())) as connection:
        assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("20s",)


def test_a_read_that_somebody_cancels_is_made_again(run_async: RunAsync, postgres: PostgresServer) -> None:
    """Not for ever, though: somebody may mean it."""
    uri = postgres.emptied_journal()
    waiting = """SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
                 AND NOT pid = ANY(%s)"""

    async def main() -> None:
        async with open_journal(uri) as journal:
            await journal.write([event(1)])
            with postgres.connect(uri) as connection, postgres.connect(uri) as other:
                cancelled: list[int] = []

                def cancel(times: int) -> None:
                    """Cancel what waits for a lock, so many times; each time it comes over another connection."""
                    for _ in range(times):
                        wait_until(lambda: other.execute(waiting, [cancelled]).fetchall())
                        ((pid,),) = other.execute(waiting, [cancelled]).fetchall()
                        cancelled.append(pid)
                        other.execute("SELECT pg_cancel_backend(%s)", [pid])

                async def cancel_and_let_go() -> None:
                    await anyio.to_thread.run_sync(cancel, 2)
                    connection.execute("ROLLBACK")

                connection.execute("BEGIN")
                connection.execute("LOCK TABLE events")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cancel_and_let_go)
                    assert await numbers(journal) == [1]
                connection.execute("BEGIN")
                connection.execute("LOCK TABLE events")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anyio.to_thread.run_sync, cancel, 5)
                    with pytest.raises(JournalUnreadable, match="canceling statement"):
                        await numbers(journal)
                connection.execute("ROLLBACK")

    run_async(main)
