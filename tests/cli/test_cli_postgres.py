"""The commands on a database of a PostgreSQL server."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from cli_support import Result, invoke

import journal_kit as kit
import repertory as rp
from postgres_server import PostgresServer
from repertory.record import open_journal
from repertory.testing import FunctionModel

PASSWORD = "hunter22"


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The address of one with a run in it; the server asks nobody for the password."""
    uri = postgres.emptied_journal()

    async def write() -> None:
        async with open_journal(uri) as journal:
            await journal.write([kit.started("run-1", 1.7e9), kit.called(1, {"messages": []})])
            await journal.write([kit.appended("run-1", 0, "the needle")])

    anyio.run(write)
    return uri.replace("postgres@", f"postgres:{PASSWORD}@")


@pytest.mark.parametrize(
    "words", [("ps", "-a"), ("stats", "run-1"), ("inspect", "run-1"), ("ledger", "run-1"), ("doctor", "--deep")]
)
def test_what_reads_a_file_reads_a_server(words: tuple[str, ...], database: str, tmp_path: Path) -> None:
    """Named on the command line or in the environment; the password is never shown."""
    named = invoke(*words, "--db", database, home=tmp_path)
    assert named.code == 0, named
    assert "run-1" in named.out or words[0] == "doctor"
    asked = invoke(*words, "--json", home=tmp_path, env={"REPERTORY_DB": database})
    assert asked.code == 0, asked
    for result in (named, asked):
        assert PASSWORD not in result.out + result.err
    assert "postgresql://postgres@/" in asked.out


def test_the_doctor_looks_at_the_server(database: str, tmp_path: Path) -> None:
    """And not at the SQLite of this machine, which has nothing to do with it."""
    checks = invoke("doctor", "--deep", "--json", "--db", database, home=tmp_path).json["checks"]
    (fact,) = (check["fact"] for check in checks if check["name"] == "database")
    assert fact.endswith("holds 1 run; --deep checks files only")
    facts = {check["fact"].split()[0] for check in checks if check["name"] == "postgresql"}
    assert {"version", "fsync"} < facts
    assert "sqlite" not in {check["name"] for check in checks}


def test_a_run_that_a_machine_has_is_neither_forked_nor_rewound(postgres: PostgresServer, tmp_path: Path) -> None:
    """It was on record as stopped, and went on. Once it has ended, it may be."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        begun, gate = anyio.Event(), anyio.Event()

        async def answer(_request: object) -> str:
            begun.set()
            await gate.wait()
            return "Done."

        async def of_one(verb: str) -> Result:
            asked = partial(invoke, verb, "one", "--iteration", "0", "--db", uri, home=tmp_path)
            return await anyio.to_thread.run_sync(asked)

        async with rp.open_supervisor(uri, name="owner", model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk"), "Go.", run_id="one")
            await begun.wait()
            for verb in ("fork", "rewind"):
                refused = await of_one(verb)
                assert (refused.code, refused.out) == (1, "")
                assert "run one is under way on machine owner" in refused.err
            assert [row.state for row in await supervisor.runs()] == ["running"]
            gate.set()
            await run.wait_result()
            assert (await of_one("fork")).code == 0

    anyio.run(main)


def test_a_run_of_a_machine_that_is_dead_may_be_forked_and_rewound(postgres: PostgresServer, tmp_path: Path) -> None:
    """Its place is given to another machine only when one looks, and there may be no other."""
    uri, dead = postgres.emptied_journal(), uuid.uuid4()

    async def main() -> None:
        async with rp.open_supervisor(uri, model=FunctionModel(lambda _request: "Done.")) as supervisor:
            await (await supervisor.spawn(rp.Agent("clerk"), "Go.", run_id="one")).wait_result()

    anyio.run(main)
    with postgres.connect(uri) as connection:
        connection.execute(
            """INSERT INTO machines (machine_id, name, labels, host, pid, kernel, version, lease, started_at, until)
               VALUES (%s, 'dead', '{}', 'host', 1, 'kernel', '1', 3, clock_timestamp(), clock_timestamp())""",
            [dead],
        )
        connection.execute(
            "INSERT INTO ownership VALUES ('one', %s, 1, 'moved', 'clerk', '', '', '', '{}', 0, %s, true)", [dead, dead]
        )
    for verb in ("fork", "rewind"):
        done = invoke(verb, "one", "--iteration", "0", "--db", uri, home=tmp_path)
        assert (done.code, done.err) == (0, ""), done.err


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """With what to do, and without the password."""
    result = invoke("ps", "--db", f"postgresql://me:{PASSWORD}@/x?host=/nowhere", home=tmp_path)
    assert result.code == 1
    assert "cannot open postgresql://me@/x?host=/nowhere" in result.err
    assert "is the server running" in result.err
    assert PASSWORD not in result.err


def test_a_file_is_moved_to_a_server_and_back(postgres: PostgresServer, tmp_path: Path) -> None:
    """All of it; what is there already is not written over, and the password is not shown."""
    file, back, uri = tmp_path / "a.db", tmp_path / "b.db", postgres.new_database()
    address = uri.replace("postgres@", f"postgres:{PASSWORD}@")

    async def write() -> None:
        async with open_journal(file) as journal:
            await journal.write(kit.one_of_each())

    anyio.run(write)
    moved = invoke("migrate", file, address, "--json", home=tmp_path)
    assert moved.code == 0, moved
    assert (moved.json["from"], moved.json["to"], moved.json["verified"]) == (str(file), uri, True)
    assert moved.json["rows"] == sum(moved.json["tables"].values())
    again = invoke("migrate", file, address, home=tmp_path)
    assert again.code != 0
    assert "holds records already" in again.err
    returned = invoke("migrate", address, back, home=tmp_path)
    assert returned.code == 0, returned
    assert "each read back and compared" in returned.err
    assert PASSWORD not in moved.out + moved.err + again.err + returned.err
    assert invoke("doctor", "--deep", "--db", back, home=tmp_path).code == 0
