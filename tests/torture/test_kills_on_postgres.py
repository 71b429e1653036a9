"""The same kills, with the record on a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

import pytest

from postgres_server import PostgresServer
from repertory.torture import Case, run_torture
from repertory.torture.kills import early_words, kill_appends, kill_effects
from repertory.torture.scenarios import SCENARIOS


def test_killed_processes_lose_nothing_on_a_server(tmp_path: Path, postgres: PostgresServer) -> None:
    """Effects keep their promises, and what was acknowledged is there, in order and whole."""
    effects, appends = tmp_path / "effects", tmp_path / "appends"
    effects.mkdir()
    appends.mkdir()
    outcome = kill_effects(Case(3, effects, server=postgres.uri("postgres")), most=4)
    assert outcome.failures == []
    assert outcome.counts["SIGKILLs"] > 0
    outcome = kill_appends(Case(1, appends, server=postgres.uri("postgres")), most=4)
    assert outcome.failures == []
    assert outcome.counts["appends"] > 0
    with postgres.connect() as connection:
        left = "SELECT count(*) FROM pg_database WHERE datname LIKE 'repertory_torture%'"
        assert connection.execute(left).fetchone() == (0,)


def test_what_is_said_too_early_is_caught_on_a_server(tmp_path: Path, postgres: PostgresServer) -> None:
    """Negative control."""
    assert any(
        problem.startswith("lost")
        for problem in early_words(Case(1, tmp_path, server=postgres.uri("postgres"))).failures
    )


@pytest.mark.nightly
def test_the_kills_of_the_torture_on_a_server(postgres: PostgresServer) -> None:
    """All scenarios of kills with their negative controls."""
    report = run_torture([each for each in SCENARIOS if each.on_servers], seed=1, server=postgres.uri("postgres"))
    assert report.clean, report
