"""The same kills, with the record on a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torture_cases

from postgres_server import PostgresServer
from repertory.errors import JournalUnavailable
from repertory.torture import Case, Scenario, run_torture
from repertory.torture.kills import kill_appends, kill_effects
from repertory.torture.scenarios import SCENARIOS

(EARLY_WORDS,) = (each.controls["early words"] for each in SCENARIOS if "early words" in each.controls)


def left_on(postgres: PostgresServer) -> list[str]:
    """The databases of torture that are there."""
    with postgres.connect() as connection:
        rows = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE '%torture%'").fetchall()
    return [name for (name,) in rows]


def test_killed_processes_lose_nothing_on_a_server(tmp_path: Path, postgres: PostgresServer) -> None:
    """Effects keep their promises, and what was acknowledged is there, in order and whole."""
    effects, appends = tmp_path / "effects", tmp_path / "appends"
    effects.mkdir()
    appends.mkdir()
    outcome = kill_effects(Case(3, effects, server=postgres.uri("postgres"), database="torture_1"), most=4)
    assert outcome.failures == []
    assert outcome.counts["SIGKILLs"] > 0
    outcome = kill_appends(Case(1, appends, server=postgres.uri("postgres"), database="torture_2"), most=4)
    assert outcome.failures == []
    assert outcome.counts["appends"] > 0
    assert left_on(postgres) == []


def test_what_is_said_too_early_is_caught_on_a_server(tmp_path: Path, postgres: PostgresServer) -> None:
    """Negative control."""
    case = Case(1, tmp_path, server=postgres.uri("postgres"), database="torture_3")
    found = EARLY_WORDS(case).failures
    assert any(problem.startswith("lost") for problem in found)


def test_no_database_stays_whatever_ends_the_cases(postgres: PostgresServer) -> None:
    """A case that dies cannot drop its own; control: while it is played, it is there."""
    dying = Scenario(name="dying", play=torture_cases.die_on_a_server, cases={"short": 3, "full": 3}, on_servers=True)
    (found,) = run_torture([dying], server=postgres.uri("postgres")).scenarios
    assert [failure.what for failure in found.failures] == ["its process ended with -9"] * 3
    assert left_on(postgres) == []


def test_a_server_that_cannot_be_used_is_no_broken_promise() -> None:
    """One error, with what to do and without the password, before anything is played."""
    with pytest.raises(JournalUnavailable, match="is the address right") as refused:
        run_torture(SCENARIOS, server="postgresql://somebody:a-password@127.0.0.1:1/x")
    assert "a-password" not in str(refused.value)


@pytest.mark.nightly
def test_the_kills_of_the_torture_on_a_server(postgres: PostgresServer) -> None:
    """All scenarios of kills with their negative controls."""
    report = run_torture([each for each in SCENARIOS if each.on_servers], seed=1, server=postgres.uri("postgres"))
    assert report.clean, report
