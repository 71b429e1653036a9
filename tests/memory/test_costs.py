"""Adding up: what runs cost, by the journal and by the views for users."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import journal_kit as kit
import pytest

from backends import RunAsync
from repertory.llm import Usage
from repertory.memory import DecisionMade, EventLogged, ModelReplied, RunCosts, open_journal
from repertory.memory.sqlite_schema import MIGRATIONS, migrate

PAID = Usage(1, 2, cache_read_tokens=4, cache_write_tokens=8, cache_write_1h_tokens=16)


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Ask the file directly."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("kind", kit.KINDS)
def test_costs_are_those_of_all_calls_of_a_run(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """Refused calls and the summarizer's count; an iteration counts once; both journals say the same."""

    async def main() -> None:
        async with kit.opened(kind, tmp_path) as journal:
            assert await journal.read_costs() == {}
            again = kit.called(1, {}, purpose="summary")  # begun again under the same number after a crash
            await journal.write([kit.started("run-1"), kit.started("run-2"), kit.started("run-3")])
            await journal.write([kit.called(2, {}), kit.called(3, {}, iteration=2), again, again])
            await journal.write([kit.called(7, {}, run_id="run-2")])
            await journal.write(
                [
                    ModelReplied(run_id="run-1", call=2, at=5.0, error="too long"),
                    ModelReplied(run_id="run-1", call=3, at=9.0, usage=PAID, cost=0.5),
                    ModelReplied(run_id="run-1", call=1, at=7.0, usage=Usage(100), cost=0.25),
                ]
            )
            costs = await journal.read_costs()
        assert costs["run-1"] == RunCosts(
            run_id="run-1",
            iterations=1,
            model_calls=4,
            prompt_tokens=129,
            cache_read_tokens=4,
            cache_write_tokens=24,
            output_tokens=2,
            cost=0.75,
            replied_at=9.0,
        )
        assert costs["run-2"] == RunCosts(run_id="run-2", iterations=1, model_calls=1)
        assert list(costs) == ["run-1", "run-2"]

    run_async(main)


def ended(tool: str, status: str = "ok", **facts: object) -> EventLogged:
    """The event of a tool call."""
    usual = {"retrieval": False, "deduplicated": False, "duration": 0.5, "characters": 100, "shown": 10}
    return EventLogged(
        run_id="run-1", type="ToolEnded", at=1.0, body={"tool": tool, "status": status, **usual, **facts}
    )


def test_the_views_for_accounting_add_up(tmp_path: Path, run_async: RunAsync) -> None:
    """Tokens of an iteration beside the plain loop's, tools, decisions, and what was paid for what."""
    path = tmp_path / "journal.db"
    expected = [EventLogged(run_id="run-1", type="IterationStarted", iteration=2, at=1.0, body=body) for body in (
        {"view_tokens": 900, "record_tokens": 950}, {"view_tokens": 30, "record_tokens": 970})]  # fmt: skip
    arithmetic = {
        "prompt_before": 90,
        "prompt_after": 60,
        "cleared_tokens": 30,
        "cost_now": 0.5,
        "saving_per_call": 0.1,
    }
    body = {"reason": "it pays", "arithmetic": arithmetic, "edits": [{}, {}]}

    async def main() -> None:
        async with open_journal(path) as journal:
            await journal.write([kit.called(1, {}, iteration=1), kit.called(2, {}, iteration=2)])
            await journal.write([kit.called(3, {}, iteration=2), kit.called(4, {}, iteration=2, purpose="summary")])
            await journal.write(
                [ModelReplied(run_id="run-1", call=call, at=1.0, usage=PAID, cost=0.5) for call in (1, 3, 4)]
            )
            await journal.write([ModelReplied(run_id="run-1", call=2, at=1.0, error="too long"), *expected])
            await journal.write([ended("read"), ended("read", "error", deduplicated=True)])
            await journal.write([ended("find", retrieval=True)])
            await journal.write([DecisionMade(run_id="run-1", iteration=2, kind="pays", body=body, at=4.0)])

    run_async(main)
    assert query(path, "SELECT * FROM tokens_by_iteration") == [
        ("run-1", 1, 1, 29, None, None, 4, 24, 2, 0.5),
        ("run-1", 2, 2, 29, 30, 970, 4, 24, 2, 0.5),
    ]
    assert query(path, "SELECT * FROM tool_usage ORDER BY tool") == [
        ("run-1", "find", 1, 0, 0, 1, 0, 0.5, 100, 10),
        ("run-1", "read", 2, 1, 0, 0, 1, 1.0, 200, 20),
    ]
    columns = "iteration, kind, reason, tokens_before, tokens_after, tokens_saved, cost_now, saving_per_call, edits"
    assert query(path, f"SELECT {columns} FROM decision_log") == [(2, "pays", "it pays", 90, 60, 30, 0.5, 0.1, 2)]
    assert query(path, "SELECT * FROM cost_by_purpose") == [
        ("run-1", "agent", 3, 58, 4, 1.0),
        ("run-1", "summary", 1, 29, 2, 0.5),
    ]


def test_a_file_from_before_the_views_is_read_as_it_is(tmp_path: Path, run_async: RunAsync) -> None:
    """They are for users alone: who looks does not need them, and who writes makes them."""
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    migrate(connection, str(path), migrations=MIGRATIONS[:1])
    connection.close()

    async def main() -> None:
        async with open_journal(path, readonly=True) as journal:
            assert await journal.read_costs() == {}
        assert query(path, "PRAGMA user_version") == [(1,)]
        async with open_journal(path):
            pass

    run_async(main)
    assert query(path, "SELECT count(*) FROM tool_usage") == [(0,)]
