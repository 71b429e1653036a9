"""The commands on a database of a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from cli_support import invoke

import journal_kit as kit
from postgres_server import PostgresServer
from repertory.record import open_journal

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
    "words", [("ps", "-a"), ("stats", "run-1"), ("tree", "run-1"), ("ledger", "run-1"), ("doctor", "--deep")]
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


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """With what to do, and without the password."""
    result = invoke("ps", "--db", f"postgresql://me:{PASSWORD}@/x?host=/nowhere", home=tmp_path)
    assert result.code == 78
    assert "cannot open postgresql://me@/x?host=/nowhere" in result.err
    assert "is the server running" in result.err
    assert PASSWORD not in result.err
