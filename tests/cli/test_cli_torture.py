"""``repertory torture``: what it prints, and what its exit code says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import in_a_process, invoke, settings

from patience import PATIENCE
from postgres_server import PostgresServer
from repertory._postgres_address import PostgresAddress
from repertory.cli.commands import write_answer
from repertory.cli.torture import finish
from repertory.errors import RepertoryError
from repertory.record.postgres_sql import connect
from repertory.torture import Report, ScenarioReport
from repertory.torture.frame import Failure


def made(**fields: object) -> Report:
    """A report of one scenario."""
    scenario = ScenarioReport(name="kills", planned=3, cases=3, counts={"SIGKILLs": 1234}, controls={"lie": 2})
    for name, value in fields.items():
        setattr(scenario, name, value)
    return Report(seed=7, profile="short", scenarios=[scenario])


def test_one_case_can_be_played_alone(tmp_path: Path) -> None:
    """The command that a failure prints plays that case and no controls."""
    words = ["torture", "--seed", "5", "--only", "kills", "--case", "1"]
    done = in_a_process(*words, home=tmp_path)
    assert done.code == 0, done.out
    head, row, seed, tried = done.out.splitlines()
    assert head.split() == ["SCENARIO", "CASES", "FAILURES", "CONTROLS", "TIME"]
    assert row.split()[:3] == ["kills", "1", "0"]
    assert seed == "seed 5, profile short"
    assert tried.startswith("kills: ")
    assert "SIGKILLs" in tried


def test_a_clean_report_is_a_table_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure of what was tried is whole, and the controls were caught."""
    write_answer(finish(made()), as_json=False)
    shown = capsys.readouterr().out
    assert "1 of 1 caught" in shown
    assert "1,234 SIGKILLs" in shown
    assert "again:" not in shown


def test_a_failure_comes_with_the_command_that_plays_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Twice: as it would go now, and as it went then."""
    failures = [Failure("kills", 45, "lost w1\x1b[2J", "/tmp/kept"), Failure("kills", 45, "lost w2", "/tmp/kept")]
    with pytest.raises(RepertoryError, match="not every promise was kept"):
        write_answer(finish(made(failed=3, failures=failures)), as_json=False)
    shown = capsys.readouterr().out
    assert shown.count("repertory torture --seed 7 --only kills --case 45\n") == 1
    assert shown.count("repertory torture --seed 7 --only kills --case 45 --traces /tmp/kept\n") == 1
    assert "lost w1\\x1b[2J" in shown
    assert "kills: 1 more failures" in shown


def test_on_a_server_the_command_names_it_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure on a server is not found again in a file."""
    address = PostgresAddress("postgresql://me:hunter22@db.example/agents")
    with pytest.raises(RepertoryError):
        failed = made(failed=1, failures=[Failure("kills", 45, "lost w1")])
        write_answer(finish(failed, address=address), as_json=False)
    assert "--case 45 --db postgresql://me@db.example/agents\n" in capsys.readouterr().out


def test_who_may_not_make_databases_is_told_so(postgres: PostgresServer, tmp_path: Path) -> None:
    """Before the first case, which would otherwise fail as if a promise had been broken."""
    with connect(PostgresAddress(postgres.new_database())) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody_special")
        connection.execute("CREATE ROLE nobody_special LOGIN")
    address = postgres.new_database().replace("postgres@", "nobody_special@")
    result = invoke("torture", "--only", "kills", "--db", address, home=tmp_path)
    assert result.code == 78
    assert "permission denied to create database; may this user do that there?" in result.err


def test_a_control_that_was_not_caught_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """And the command fails."""
    with pytest.raises(RepertoryError):
        write_answer(finish(made(controls={"lie": 0})), as_json=False)
    shown = capsys.readouterr().out
    assert "0 of 1 caught" in shown
    assert "kills: the control 'lie' did not fail" in shown


def test_what_is_left_out_says_why_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A machine without a compiler is no failure."""
    write_answer(
        finish(made(cases=0, counts={}, controls={}, left_out="needs a C compiler: cc, gcc or clang")), as_json=False
    )
    assert "kills: left out: needs a C compiler: cc, gcc or clang\n" in capsys.readouterr().out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for the workers in /proc")
def test_ctrl_c_shows_what_was_done_so_far(tmp_path: Path) -> None:
    """A table, one exit code, and no process left behind."""
    command = [sys.executable, "-m", "repertory", "torture", "--only", "kills", "--profile", "full", "--seed", "1"]
    with subprocess.Popen(
        command, env=settings(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(workers.read_text().split()) < 3:  # two, and one that Python keeps beside them
            with pytest.raises(subprocess.TimeoutExpired):
                process.communicate(timeout=0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody
        out, err = process.communicate(timeout=PATIENCE)  # until the last one that could write has ended
    assert process.returncode in (1, 130)
    assert b"profile full, ended early" in out
    assert err == b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "floods"], "there is no scenario 'floods'; choose from power-cuts"),
        (["--case", "3"], "a case belongs to one scenario: name it with --only"),
        (["--only", "kills", "--traces", "."], "expected a case and the folder with its traces, got case None and '.'"),
        (["--only", "kills", "--case", "3", "--traces", "x"], "its traces, got case 3 and 'x'"),
    ],
)
def test_a_wrong_word_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    """Before anything is played."""
    result = invoke("torture", *words, home=tmp_path)
    assert result.code == 2
    assert said in result.err
