"""Histories of a journal's file that a power cut ends, each drawn by hand because it was once a fault."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from repertory.record import Durability
from repertory.torture import Case, shim
from repertory.torture.power_cuts import Account, Plan, look_at_team, play
from repertory.torture.scenarios import SCENARIOS
from repertory.torture.team import expected_answer
from repertory.torture.workloads import Life, run_effects

pytestmark = pytest.mark.skipif(shim.missing() is not None, reason=str(shim.missing()))


def life(number: int, durability: Durability = "power", *rules: shim.Rule, reader: bool = False) -> Life:
    """A process in which some writers append."""
    return Life(
        kind="writers", life=number, seed=number + 3, durability=durability, rules=list(rules), reader=reader, batches=4
    )


def failures(tmp_path: Path, *lives: Life, cuts: tuple[bool, ...] = ()) -> list[str]:
    """What is wrong with what two hundred cuts leave of a history in a new folder."""
    plan = Plan(lives, cuts or (False,) * (len(lives) - 1), 200)
    outcome = play(Case(1, tmp_path), plan)
    assert outcome.counts["images"] > 40
    return outcome.failures


def test_a_new_folder_and_a_new_file_keep_their_names(tmp_path: Path) -> None:
    """Everything above the file is synced before the first append is acknowledged."""
    assert failures(tmp_path, life(0)) == []


def test_what_a_failed_sync_left_is_written_again(tmp_path: Path) -> None:
    """The next process reads it from the system's memory, builds on it, and a cut shows that the disk has it.

    The one whose sync failed is killed: at its end it would have removed the log.
    """
    fails = shim.Rule(on="sync", suffix="-wal", first=7, last=7, action="fail", error=errno.EIO)
    killed = shim.Rule(on="sync", suffix="-wal", first=8, last=8, action="die before")
    assert failures(tmp_path, life(0, "power", fails, killed), life(1), life(2)) == []


def test_what_was_written_without_syncs_is_durable_once_it_was_opened_with_them(tmp_path: Path) -> None:
    """The file, and the names of the folders above it, which the process without syncs made."""
    assert failures(tmp_path, life(0, "memory"), life(1)) == []


def test_a_reader_keeps_nothing_from_becoming_durable(tmp_path: Path) -> None:
    """The checkpoint that syncs the file cannot move anything while somebody reads it as it was."""
    assert failures(tmp_path, life(0, "memory"), life(1, reader=True)) == []


def test_the_histories_can_fail(tmp_path: Path) -> None:
    """Negative control: cuts in lives without syncs lose what they acknowledged, if one believes it."""
    writers, team, controls = tmp_path / "writers", tmp_path / "team", SCENARIOS[0].controls
    writers.mkdir()
    team.mkdir()
    assert any("lost" in problem for problem in controls["without syncs"](Case(1, writers)).failures)
    assert any("there is no run" in problem for problem in controls["in memory"](Case(1, team)).failures)


async def test_the_checker_of_teams_sees_what_is_not_on_record(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Negative control: a call without its intent, another answer, a run that is not there."""
    database, effects = tmp_path / "journal.db", tmp_path / "effects.txt"
    run = partial(
        run_effects,
        database=str(database),
        account=str(effects),
        durability="process",
        backend="trio",
        steps=2,
        pause=0.0,
        reuse=True,
        unsafe="unsafe",
    )
    await anyio.to_thread.run_sync(run)
    lines, answer = effects.read_text().splitlines(), expected_answer(2)
    assert await look_at_team(database, Account(effects=lines, spawned=True, answer=answer)) == []
    other = next(line for line in lines if line.startswith("unsafe")).replace("call_", "call_x")
    for account, words in [
        (Account(effects=[*lines, other]), "its intent is not on record"),
        (Account(answer="no answer"), "the answer was given, and the run is done"),
    ]:
        assert words in (await look_at_team(database, account))[0]
    assert await look_at_team(tmp_path / "new.db", Account(spawned=True)) == ["spawn returned, and there is no run"]
