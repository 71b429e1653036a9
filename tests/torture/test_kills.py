"""Real processes, killed at random points, and checks that can fail."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from repertory.llm.messages import ToolResult, ToolUse
from repertory.torture import Case
from repertory.torture.approvals import approval_problems
from repertory.torture.judging import append_problems, effect_problems, file_problems, run_problems, transcript_problems
from repertory.torture.kills import kill_appends, kill_approvals, kill_effects, kill_research
from repertory.torture.scenarios import SCENARIOS
from repertory.torture.team import expected_answer
from repertory.torture.workloads import run_approvals, run_effects

CONTROLS = {name: play for scenario in SCENARIOS for name, play in scenario.controls.items()}


@pytest.mark.parametrize("seed", [2, 3], ids=["ids that a server uses again", "ids of their own"])
def test_no_unsafe_tool_runs_twice_and_no_transcript_is_poisoned(seed: int, tmp_path: Path) -> None:
    """However often the process dies, each call ends with one result, and each class of effect keeps its promise."""
    outcome = kill_effects(Case(seed, tmp_path), most=8)
    assert outcome.failures == []
    assert outcome.counts["SIGKILLs"] > 0
    assert outcome.counts["effects"] >= 50


def test_no_call_is_made_unasked_none_twice_and_no_decision_is_lost(tmp_path: Path) -> None:
    """Though the process dies while calls wait, are decided, or are made, and another mind decides in the next one."""
    outcome = kill_approvals(Case(1, tmp_path))
    assert outcome.failures == []
    assert outcome.counts["SIGKILLs"] >= 10
    assert outcome.counts["decisions"] > 10


def test_calls_that_nobody_allowed_and_decisions_that_are_lost_are_caught(tmp_path: Path) -> None:
    """Negative controls, over real processes."""
    unasked, early = tmp_path / "unasked", tmp_path / "early"
    unasked.mkdir()
    early.mkdir()
    assert any("was asked 0 times" in problem for problem in CONTROLS["made unasked"](Case(1, unasked)).failures)
    assert CONTROLS["early decisions"](Case(1, early)).failures != []


def test_the_checker_of_approvals_compares_both_sides(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Negative control: an effect more, one less, other decisions, one that is lost, and a message."""
    database, account = tmp_path / "journal.db", tmp_path / "account.txt"
    run_approvals(
        database=str(database),
        account=str(account),
        durability="process",
        backend="trio",
        steps=4,
        pause=0.0,
        lie="",
    )
    assert "DONE 12 calls\n" in capfd.readouterr().out
    lines = account.read_text().splitlines()
    assert approval_problems(database, lines) == []
    done = next(line for line in lines if line.startswith("order"))
    told = next(line for line in lines if line.startswith("told"))
    call_id = told.split(" ")[1]
    for changed, words in [
        ([*lines, done], "was done 2 times"),
        ([line for line in lines if line != done], "was done 0 times"),
        ([*lines, f"{done} ".replace("order0", "order9").strip()], "has no result"),
        ([*lines, f"told {call_id} denied 7"], "it was said 'denied 7'"),
        ([*lines, told], "was decided 2 times"),
        ([*lines, "said word-lost"], "word-lost was said and is read 0 times"),
    ]:
        assert any(words in problem for problem in approval_problems(database, changed))
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM events WHERE type = 'ApprovalDecided' AND body LIKE '%book%'")
    connection.close()
    assert any("decided 0 times" in problem for problem in approval_problems(database, lines))


def test_a_killed_team_comes_to_the_same_answer(tmp_path: Path) -> None:
    """Delegations, memory and context go on where they were: the answer is the one of an unbroken run."""
    outcome = kill_research(Case(2, tmp_path), most=6)
    assert outcome.failures == []
    assert outcome.counts["SIGKILLs"] > 0


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    """25 times over one file: no loss, no duplicate, no gap, no torn batch, a sound file."""
    outcome = kill_appends(Case(1, tmp_path), most=25)
    assert outcome.failures == []
    assert outcome.counts["SIGKILLs"] == 25
    assert outcome.counts["appends"] > 25


def test_an_acknowledgement_that_comes_too_early_is_caught(tmp_path: Path) -> None:
    """Negative control: kills find what was said before it was so."""
    assert any(problem.startswith("lost") for problem in CONTROLS["early words"](Case(1, tmp_path)).failures)


def test_the_checker_of_appends_sees_what_is_wrong() -> None:
    """Negative control: loss, change, duplicate, gap and torn batch are each found."""
    first, second, third, last = rows = [
        (("r", 0), "7.a.0.1.0", 1),
        (("r", 1), "7.a.1.2.0", 2),
        (("r", 2), "7.a.1.2.1", 3),
        (("s", 0), "7.b.0.1.0", 4),
    ]
    told: dict[str, tuple[str, int] | None] = {name: place for place, name, _ in rows[:3]} | {"7.b.0.1.0": None}
    assert append_problems(rows, told) == []
    assert append_problems(rows[:3], told) == ["lost 7.b.0.1.0 at None, which is gone"]
    assert append_problems(rows, {"7.a.0.1.0": ("s", 0)}) == ["lost 7.a.0.1.0 at ('s', 0), which is ('r', 0)"]
    assert append_problems([*rows, (("s", 1), "7.b.0.1.0", 5)], {}) == ["1 duplicates"]
    assert "r[1] stands where 0 is next" in append_problems(rows[1:], {})
    assert append_problems([*rows[:3], (("s", 0), "7.b.0.1.0", 9)], {}) == ["sequence numbers have gaps"]
    assert append_problems([*rows[:3], (("s", 0), "7.b.0.1.0", 9)], {}, gaps=True) == []
    assert append_problems([first, second, (("s", 0), "7.b.0.1.0", 3)], {}) == ["batch 7.a.1.2 is torn: [0]"]
    behind = [(("r", 0), *second[1:]), (("r", 1), *third[1:]), (("r", 2), *first[1:]), last]
    assert "7.a.0.1.0 stands behind a later append of its writer" in append_problems(behind, {}, gaps=True)


def test_the_checker_of_transcripts_sees_a_poisoned_one() -> None:
    """Negative control: a call without a result, two results, a result without a call, and a name used twice."""
    asks, says = ("assistant", [ToolUse("a", "x", {})]), ("user", [ToolResult("a", "y")])
    assert transcript_problems([asks, says]) == []
    assert transcript_problems([asks]) == ["a has 0 results"]
    assert transcript_problems([asks], ended=False) == []
    assert transcript_problems([asks, ("assistant", [])], ended=False) == ["a has 0 results"]
    assert transcript_problems([asks, says, says]) == ["a has 2 results"]
    assert transcript_problems([says]) == ["user entry 0 answers a, which nobody asked"]
    assert transcript_problems([asks, says, asks])[0] == "two calls are named a"


def test_the_checker_of_effects_compares_both_sides(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Negative control: an effect more, an effect less, another key, and one that is not on record are each found."""
    database, account = tmp_path / "journal.db", tmp_path / "effects.txt"
    run_effects(
        database=str(database),
        account=str(account),
        durability="process",
        backend="trio",
        steps=2,
        pause=0.0,
        reuse=True,
        unsafe="unsafe",
    )
    assert f"DONE {expected_answer(2)}\n" in capfd.readouterr().out
    lines = account.read_text().splitlines()
    assert file_problems(database) == effect_problems(database, lines) == []
    fire = next(line for line in lines if line.startswith("unsafe"))
    put = next(line for line in lines if line.startswith("idempotent"))
    look = next(line for line in lines if line.startswith("pure"))
    for changed, words in [
        ([*lines, fire], "ran 2 times"),
        ([line for line in lines if line != fire], "ran 0 times"),
        ([line for line in lines if line != look], "never ran"),
        ([*lines, f"{put}0"], "ran under 2 keys"),
        ([*lines, f"{fire} ".replace("call_", "call_x").strip()], "is not on record"),
    ]:
        assert words in effect_problems(database, changed)[0]
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM events WHERE type = 'torture-effect'")
    connection.close()
    assert "committed 0 times" in effect_problems(database, lines)[0]


def test_a_damaged_file_is_seen(tmp_path: Path) -> None:
    """Negative control: one page of rubbish."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 100)
    connection.close()
    assert file_problems(path) == []
    data = bytearray(path.read_bytes())
    data[8192:12288] = b"\xff" * 4096
    path.write_bytes(data)
    assert file_problems(path)[0].startswith("the file is damaged")
    assert run_problems(path) == file_problems(path)
