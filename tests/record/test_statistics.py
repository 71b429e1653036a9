"""Adding up: what runs cost, by the journal and by the views for users."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import journal_kit as kit
from backends import RunAsync
from repertory.llm import Usage
from repertory.llm.profiles import Amount
from repertory.record import EventLogged, Record, RunStatistics, open_journal
from repertory.record.records import DecisionMade, ModelReplied, OutcomeStatus, RunStateChanged, ToolFinished
from repertory.record.statistics import count_in

PAID = Usage(1, 2, cache_read_tokens=4, cache_write_tokens=8, cache_write_1h_tokens=16)


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Ask the file directly."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def ended(tool: str, status: OutcomeStatus = "ok", *, run_id: str = "run-1", **facts: Any) -> ToolFinished:
    """How a tool call ended."""
    usual: dict[str, Any] = {"at": 1.0, "duration": 0.5, "characters": 100, "shown": 10}
    return ToolFinished(run_id=run_id, call_id="t", tool=tool, status=status, **usual | facts)


def event(kind: str, **body: Any) -> EventLogged:
    """An event of the run's."""
    return EventLogged(run_id="run-1", type=kind, at=1.0, body=body)


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_figures_are_sums_over_the_records_of_a_run(kind: str, tmp_path: Path, run_async: RunAsync) -> None:
    """Refused calls and the summarizer's are paid, the loop's answers alone are iterations; by both journals."""

    async def main() -> None:
        async with kit.opened(kind, tmp_path) as journal:
            assert await journal.read_statistics() == {}
            again = kit.called(1, {}, purpose="summary")  # begun again under the same number after a crash
            await journal.write([kit.started("run-1"), kit.started("run-2"), kit.started("run-1.a")])
            await journal.write([kit.called(2, {}), kit.called(3, {}, iteration=2), again, again])
            await journal.write([kit.called(7, {}, run_id="run-2")])
            await journal.write(
                [
                    ModelReplied(run_id="run-1", call=2, at=5.0, error="down", cost_lost=0.5, tokens_lost=9),
                    ModelReplied(run_id="run-1", call=3, at=9.0, usage=PAID, cost=0.5, plain_tokens=60, plain_cost=2.0),
                    ModelReplied(run_id="run-1", call=1, at=7.0, usage=Usage(100), cost=0.25, purpose="summary"),
                    ended("read"),
                    ended("read", "error", deduplicated_from="t0"),
                    ended("find", retrieval=True, covered=True),
                    ended("find", run_id="run-1.a"),
                    DecisionMade(run_id="run-1", iteration=2, kind="pays", body={}, at=4.0, covers=2),
                    event("SummaryTaken", failure=""),
                    event("SummaryTaken", failure="down"),
                    event("SummaryRefused", reason="late"),
                ]
            )
            figures = await journal.read_statistics()
            tree = await journal.read_statistics("run-1")
            await journal.write([kit.called(8, {}, run_id="run-1.a", cost_at_most=2.0, tokens_at_most=20)])
            assert await journal.read_open_calls("run-1") == {("run-1.a", 8): Amount(2.0, 20)}
            assert await journal.read_open_calls("run-2") == {("run-2", 7): Amount()}
        assert figures["run-1"] == RunStatistics(
            iterations=1,
            model_calls=4,
            tokens_seen=29,
            tokens_plain=60,
            cache_read_tokens=4,
            cache_write_tokens=24,
            output_tokens=2,
            tokens_billed=131,
            cost_seen=0.75,
            cost_lost=0.5,
            tokens_lost=9,
            cost_plain=2.0,
            view_tokens=29,
            record_tokens=60,
            largest_prompt=29,
            summaries=2,
            summaries_written=2,
            summaries_refused=1,
            summaries_fallback=1,
            tool_calls=3,
            tool_errors=1,
            retrievals=1,
            retrievals_covered=1,
            dedup_hits=1,
            replied_at=9.0,
        )
        assert figures["run-2"] == RunStatistics(model_calls=1)
        assert list(figures) == ["run-1", "run-2", "run-1.a"]
        assert tree == {name: figures[name] for name in ("run-1", "run-1.a")}

    run_async(main)


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
def test_totals_are_the_figures_of_all_runs_however_they_are_read(
    kind: str, tmp_path: Path, run_async: RunAsync
) -> None:
    """Read stretch by stretch they add up to what one reading gives; what was removed is none of them."""

    def moved(run_id: str, state: Any) -> RunStateChanged:
        return RunStateChanged(run_id=run_id, state=state, at=2.0)

    def replied(run_id: str, call: int, purpose: str = "agent") -> ModelReplied:
        return ModelReplied(run_id=run_id, call=call, at=9.0, usage=PAID, cost=0.5, purpose=purpose, plain_tokens=40)

    stretches: list[list[Record]] = [
        [kit.started("run-1", agent="a"), kit.started("run-2", agent='b "x"')],
        [moved("run-1", "running"), kit.called(1, {}), replied("run-1", 1), ended("read", "error", retrieval=True)],
        [],
        [moved("run-1", "done"), replied("run-2", 1), event("SummaryTaken", failure="x"), event("Alert")],
        [moved("run-1", "running"), replied("run-1", 2, "summary"), kit.started("run-1.c", agent="a")],
        [moved("run-1", "done"), moved("run-1.c", "stopped"), moved("run-2", "failed")],
    ]

    async def main() -> None:
        async with kit.opened(kind, tmp_path) as journal:
            upto, figures, states = 0, dict[str, RunStatistics](), Counter[Any]()
            for records in stretches:
                await journal.write(records)
                new = await journal.read_totals(after=upto)
                upto, removals = new.upto, new.removals
                states.update(new.states)
                for agent, more in new.figures.items():
                    figures[agent] = figures.get(agent, RunStatistics(runs=0)) + more
            whole = await journal.read_totals()
            assert (whole.figures, whole.upto, removals) == (figures, upto, 0)
            assert (await journal.read_totals(upto=upto)).states == whole.states
            there = {key: count for key, count in states.items() if count}
            assert there == {("a", "done"): 1, ("a", "stopped"): 1, ('b "x"', "failed"): 1}
            assert there == {key: count for key, count in whole.states.items() if count}
            by_run = await journal.read_statistics()
            assert figures["a"].cost_seen == by_run["run-1"].cost_seen == 1.0
            for name in ("tokens_seen", "tokens_billed", "model_calls", "iterations", "tool_errors", "retrievals"):
                assert getattr(figures["a"], name) == getattr(by_run["run-1"], name) > 0
            await journal.remove_run("run-1", at=9.0)
            assert (await journal.read_totals(after=upto)).removals == 1
            assert set((await journal.read_totals()).figures) == {'b "x"'}

    run_async(main)


SMALL = st.integers(0, 1_000)
MONEY = SMALL.map(lambda cents: cents / 64)  # exact in binary, so that sums do not depend on their order


def records_of(run_id: str) -> st.SearchStrategy[Record]:
    """Any record of a run that figures are made of, and some that they are not."""
    own: dict[str, Any] = {"run_id": st.just(run_id), "at": MONEY}
    return st.one_of(
        st.builds(
            ModelReplied,
            **own,
            call=SMALL,
            usage=st.builds(Usage, SMALL, SMALL, SMALL, SMALL, SMALL),
            cost=MONEY,
            cost_lost=MONEY,
            tokens_lost=SMALL,
            plain_tokens=SMALL,
            plain_cost=MONEY,
            purpose=st.sampled_from(["agent", "summary"]),
            error=st.none() | st.just("no"),
        ),
        st.builds(
            ToolFinished,
            **own,
            call_id=st.just("t"),
            tool=st.just("read"),
            status=st.sampled_from(["ok", "error", "interrupted"]),
            retrieval=st.booleans(),
            covered=st.booleans(),
            deduplicated_from=st.none() | st.just("t0"),
        ),
        st.builds(DecisionMade, **own, iteration=SMALL, kind=st.just("k"), body=st.just({}), covers=st.integers(0, 3)),
        st.builds(
            EventLogged,
            **own,
            type=st.sampled_from(["SummaryTaken", "SummaryRefused", "Alert"]),
            body=st.sampled_from([{}, {"failure": ""}, {"failure": "x"}]),
        ),
        st.builds(kit.called, SMALL, st.just({}), run_id=st.just(run_id)),
    )


@given(st.lists(st.one_of(records_of("run-1"), records_of("run-1.a"), records_of("run-1x")), max_size=40))
def test_sql_and_python_count_alike(records: list[Record]) -> None:
    """Whatever the records hold: the sums in the file, in memory, record by record, and in the view for users."""
    kept: dict[str, RunStatistics] = {}

    def observe(batch: Sequence[Record]) -> None:
        for record in batch:
            count_in(kept, record)

    async def main() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder, "journal.db")
            async with open_journal(path) as journal, open_journal(None) as twin:
                stop = journal.observe(observe)
                for target in (journal, twin):
                    await target.write([kit.started(name) for name in ("run-1", "run-1.a", "run-1x")])
                    for record in records:
                        target.submit([record])
                    await target.write([])
                figures = await journal.read_statistics()
                assert figures == await twin.read_statistics() == kept
                assert list(await journal.read_statistics("run-1")) == ["run-1", "run-1.a"]
                stop()
                await journal.write([ended("read")])
                assert kept == figures
            names = ", ".join(RunStatistics.__struct_fields__)
            rows = query(path, f"SELECT {names} FROM run_statistics WHERE run_id = 'run-1.a'")
        assert rows == [msgspec.structs.astuple(figures["run-1.a"])]

    anyio.run(main, backend="trio")


def test_the_views_for_accounting_add_up(tmp_path: Path, run_async: RunAsync) -> None:
    """Tokens of an iteration beside the plain loop's, tools, decisions, and what was paid for what."""
    path = tmp_path / "journal.db"
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
            await journal.write(
                [
                    kit.called(1, {}, iteration=1, expected_tokens=7),
                    kit.called(2, {}, iteration=2, expected_tokens=900),
                    kit.called(3, {}, iteration=2, expected_tokens=30),
                    kit.called(4, {}, iteration=2, purpose="summary"),
                ]
            )
            await journal.write(
                [
                    ModelReplied(run_id="run-1", call=call, at=1.0, usage=PAID, cost=0.5, plain_tokens=plain)
                    for call, plain in ((1, 50), (3, 70), (4, 0))
                ]
            )
            await journal.write([ModelReplied(run_id="run-1", call=2, at=1.0, error="too long")])
            await journal.write([ended("read"), ended("read", "error", deduplicated_from="t0")])
            await journal.write([ended("find", retrieval=True)])
            await journal.write([DecisionMade(run_id="run-1", iteration=2, kind="pays", body=body, at=4.0)])

    run_async(main)
    assert query(path, "SELECT * FROM tokens_by_iteration") == [
        ("run-1", 1, 1, 29, 7, 50, 4, 24, 2, 0.5),
        ("run-1", 2, 2, 29, 30, 70, 4, 24, 2, 0.5),
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
