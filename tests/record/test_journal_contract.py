"""What every journal promises: one suite over every kind and both backends."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest

import journal_kit as kit
from backends import RunAsync
from repertory.errors import JournalClosed, JournalUnreadable, RecordRefused, RunNotFound
from repertory.llm import Text, ToolResult, ToolUse
from repertory.llm.messages import Json
from repertory.llm.model import Usage
from repertory.record import EventLogged, Journal, ToolCallRow
from repertory.record.entries import Part, Retrieved
from repertory.record.items import ItemQuery
from repertory.record.memory_records import ScopeOpened
from repertory.record.records import (
    DecisionMade,
    EntryAppended,
    ModelCalled,
    ModelReplied,
    RunStarted,
    RunStateChanged,
    SummaryStored,
    ToolFinished,
    ToolIntended,
)
from repertory.record.requests import request_digest
from repertory.record.run_lists import InState, RootFilter

Body = Callable[[Journal], Awaitable[None]]
Check = Callable[[Body], None]
pytestmark = pytest.mark.parametrize("kind", kit.KINDS, indirect=True)


@pytest.fixture
def check(kind: str, run_async: RunAsync, tmp_path: Path) -> Check:
    """Run a test's body with an open journal."""

    async def main(body: Body) -> None:
        async with kit.opened(kind, tmp_path) as journal:
            await body(journal)

    return lambda body: run_async(main, body)


def test_every_record_can_be_read_again(check: Check) -> None:
    """One record of each kind, written in one batch, comes back through the reads made for it."""

    async def body(journal: Journal) -> None:
        records = {type(record).__name__: record for record in kit.one_of_each()}
        await journal.write(kit.one_of_each())
        row = await journal.read_run("run-1")
        assert row.started == records["RunStarted"]
        assert (row.state, row.updated_at, row.iteration, row.result, row.error) == ("failed", 9.0, 4, "r", "e")
        entries = await journal.read_entries("run-1")
        assert [entry.position for entry in entries] == [0, 1]
        assert entries[1] == records["EntryAppended"].entry  # type: ignore[union-attr]
        assert await journal.read_decisions("run-1") == [records["DecisionMade"]]
        assert await journal.read_tool_calls("run-1") == [
            ToolCallRow(intended=records["ToolIntended"], finished=records["ToolFinished"])  # type: ignore[arg-type]
        ]
        (model_call,) = await journal.read_model_calls("run-1")
        assert (model_call.called, model_call.replied) == (records["ModelCalled"], records["ModelReplied"])
        (small,) = await journal.read_model_calls("run-1", contents=False)
        assert small.called == msgspec.structs.replace(model_call.called, body={})
        assert small.replied is not None
        assert small.replied.usage == model_call.replied.usage  # type: ignore[union-attr]
        intended = records["ToolIntended"]
        at = intended.iteration  # type: ignore[union-attr]
        assert await journal.read_intents("run-1", iteration=at) == [intended]
        assert await journal.read_intents("run-1", iteration=at + 1) == []
        assert await journal.read_summaries("run-1") == [records["SummaryStored"]]
        stored = records["ContentStored"]
        assert await journal.read_content("c-1") == stored
        assert await journal.read_contents("run-1") == [msgspec.structs.replace(stored, body="")]
        assert await journal.read_scopes() == [records["ScopeOpened"]]
        scope_id = records["ScopeOpened"].scope_id
        assert [await journal.read_scope_ids(part) for part in ("", scope_id, "none%")] == [[scope_id], [scope_id], []]
        assert await journal.read_items(["s"]) == [records["ItemWritten"]]
        assert await journal.read_merge("s") == records["ScopeMerged"]
        assert await journal.read_settled() == {"s": records["ScheduleSettled"]}
        assert await kit.settled(journal, "s") == [records["ScheduleSettled"]]
        tried = records["WebhookTried"]
        ((number, attempt),) = await journal.read_webhooks()
        assert attempt == tried
        assert await journal.read_webhooks(before=number) == []
        assert await journal.read_failed_webhooks(tried.url) == [tried]  # type: ignore[union-attr]
        assert await journal.read_webhook_position(tried.url) == 2  # type: ignore[union-attr]
        ((sequence, event),) = await journal.read_events("run-1")
        assert event == records["EventLogged"]
        assert await journal.read_events("run-1", types=[event.type, "Other"]) == [(sequence, event)]
        assert await journal.read_events("run-1", types=["Other"]) == []
        assert sequence >= len(kit.one_of_each())

    check(body)


def test_the_queue_is_read_in_the_order_in_which_runs_begin(check: Check) -> None:
    """By priority and age, without those that are left out, and without those that wait no more."""

    async def body(journal: Journal) -> None:
        for name, priority, at, then in (("a", 0, 0.0, "queued"), ("b", 1, 299.0, "queued"), ("c", 1, 301.0, "queued"),
                                         ("d", 0, 5.0, "running"), ("e", 0, 9.0, "stopped")):  # fmt: skip
            started = RunStarted(
                run_id=f"run-{name}", agent=f"agent-{name}", task="t", at=at, priority=priority, client=f"client-{name}"
            )
            queued = RunStateChanged(run_id=f"run-{name}", state="queued", at=at, reason="full")
            now = RunStateChanged(run_id=f"run-{name}", state=then, at=at + 1, reason="full")  # type: ignore[arg-type]
            await journal.write([started, queued, *([] if then == "queued" else [now])])

        async def names(**left_out: Any) -> list[str]:
            return [row.run_id for row in await journal.read_queue(**left_out)]

        assert await names() == ["run-b", "run-a", "run-c"]
        assert await names(limit=1) == ["run-b"]
        assert await names(without_runs=["run-b", "run-x"], without_agents={"agent-c"}) == ["run-a"]
        assert await names(without_clients=["client-a"]) == ["run-b", "run-c"]
        (row, *_) = await journal.read_queue()
        assert (row.agent, row.client, row.priority, row.at) == ("agent-b", "client-b", 1, 299.0)
        assert (await journal.read_run("run-a")).reason == "full"

    check(body)


def test_a_name_that_is_no_unicode_hides_nobody_in_the_queue(check: Check) -> None:
    """Runs whose agent or client has half a character in its name are listed as they were recorded."""

    async def body(journal: Journal) -> None:
        queued = RunStateChanged(run_id="run-1", state="queued", at=2.0)
        await journal.write([kit.started("run-1", agent="caf\udce9", client="\ud800"), queued])
        (waiting,) = await journal.read_queue()
        assert (waiting.agent, waiting.client) == ("caf\udce9", "\ud800")
        assert await journal.read_queue(without_agents=["caf\udce9"]) == []
        await journal.write([ModelReplied(run_id="run-1", call=1, at=3.0, usage=Usage(input_tokens=7))])
        assert [*await journal.read_used(0.0)] == [("caf\udce9", "\ud800")]

    check(body)


@pytest.mark.parametrize("number", [10**30, -(10**30)])
def test_a_number_too_large_for_sql_is_beyond_every_number_there(check: Check, number: int) -> None:
    """A bound or a limit of more than 64 bits is an answer, not an error about the journal."""

    async def body(journal: Journal) -> None:
        await journal.write([*kit.one_of_each(), kit.appended("run-2", 0)])
        is_above = number > 0
        assert len(await journal.read_entries("run-1", start=number)) == (0 if is_above else 2)
        assert len(await journal.read_entries("run-1", stop=number)) == (2 if is_above else 0)
        assert bool(await journal.read_events("run-1", after=number)) is not is_above
        assert bool(await journal.read_webhooks(before=number)) is is_above
        assert bool(await journal.search_entries("run-2", "hello", limit=number)) is is_above

    check(body)


def test_what_was_used_is_summed_by_agent_and_client_of_the_root(check: Check) -> None:
    """Replies since a time, and of calls without a reply the most that they can take."""

    async def body(journal: Journal) -> None:
        call = ModelCalled(
            run_id="run-a.1", call=1, iteration=1, model="m", position=1, digest="", body={}, at=101.0,
            cost_at_most=0.5, tokens_at_most=70,
        )  # fmt: skip
        reply = ModelReplied(
            run_id="run-a", call=1, at=102.0, usage=Usage(input_tokens=10, cache_read_tokens=5, output_tokens=1),
            cost=0.25, cost_lost=0.125, tokens_lost=4,
        )  # fmt: skip
        started = RunStarted(run_id="run-a", agent="clerk", task="t", at=1.0, client="web")
        await journal.write([started, call, reply])
        used = await journal.read_used(100.0)
        assert {who: (amount.cost, amount.tokens) for who, amount in used.items()} == {("clerk", "web"): (0.875, 90)}
        assert await journal.read_used(103.0) == {}

    check(body)


def test_an_unknown_run_has_nothing(check: Check) -> None:
    """Reads of what is not there are empty; only a run itself is missed."""

    async def body(journal: Journal) -> None:
        await journal.write(kit.one_of_each("other"))
        for read in (
            journal.read_entries,
            journal.read_decisions,
            journal.read_tool_calls,
            journal.read_model_calls,
            journal.read_summaries,
            journal.read_contents,
            journal.read_events,
        ):
            assert await read("run-1") == []
        assert await journal.search_entries("run-1", "hello") == []
        assert await journal.read_items([]) == []
        assert await journal.find_items([("nobody", 9)]) == []
        assert await journal.read_merge("nobody") is None
        assert await journal.read_scope("nobody") == []
        assert await journal.read_content("nope") is None
        for name in ("run-1", "", "otherwise"):
            with pytest.raises(RunNotFound, match="no run has the id"):
                await journal.read_run(name)

    check(body)


def test_a_run_is_found_by_the_beginning_of_its_id(check: Check) -> None:
    """As far as it fits one run only, or one and those below it; a whole id wins, and so does one that was chosen."""
    first, second, other = "run-01m80bkepd-rf2p4b", "run-01m80bkepd-rf2p4c", "run-02m80bkepd-rf2p4b"

    async def body(journal: Journal) -> None:
        async def find(part: str) -> str:
            return (await journal.find_run(part)).started.run_id

        await journal.write([kit.started(run_id) for run_id in (first, second, other, "a", "ab", "b%_")])
        assert [await find(part) for part in ("run-02", second, "a", "ab", "b%_")] == [other, second, "a", "ab", "b%_"]
        with pytest.raises(RunNotFound, match=rf"fits several runs \({first}, {second}, {other}\);"):
            await find("run")
        for below in (".x", ".x.y", ".z"):
            await journal.write([kit.started(other + below, parent_id=other)])
        assert [await find(part) for part in ("run-02", f"{other}.x.")] == [other, f"{other}.x.y"]
        with pytest.raises(RunNotFound, match=rf"\({other}.x, {other}.z\);"):
            await find(f"{other}.")
        assert await journal.read_ids("02m8") == [other, *(other + below for below in (".x", ".x.y", ".z"))]
        assert [len(await journal.read_ids(part)) for part in ("", "b%", "half \udc80", "nul \0")] == [9, 1, 0, 0]
        for part in ("b", "b%", "run%", "half \udc80", ""):
            with pytest.raises(RunNotFound, match=re.escape(f"no run has the id {part!r}")):
                await find(part)
        for part in ("run-02", "half \udc80", ""):  # a program names a run by its whole id
            with pytest.raises(RunNotFound, match=re.escape(f"no run has the id {part!r}")):
                await journal.read_run(part)

    check(body)


def test_what_is_nested_deep_can_be_read_wherever_it_was_written(check: Check) -> None:
    """Also by a caller with many frames: Python 3.11 takes one for each level. Or else it is refused."""

    def nested(levels: int) -> Json:
        value: Json = {}
        for _ in range(levels - 1):
            value = {"a": value}
        return value

    async def body(journal: Journal) -> None:
        async def read(frames: int) -> list[tuple[int, EventLogged]]:
            return await (read(frames - 1) if frames else journal.read_events("run-1"))

        await journal.write([EventLogged(run_id="run-1", type="x", body=nested(500), at=1.0)])
        assert [event.body for _, event in await read(150)] == [nested(500)]
        with pytest.raises(RecordRefused, match="more than 500 levels"):
            EventLogged(run_id="run-1", type="x", body=nested(501), at=1.0)

    check(body)


@pytest.mark.parametrize("odd", ["half \udc80", "nul \0", "escape \x1a"])
def test_ids_that_sql_cannot_compare_are_refused(check: Check, odd: str) -> None:
    """No journal keeps them: the tree of such a run, or the newest version of such an item, would not be found."""

    async def body(journal: Journal) -> None:
        for record in (
            kit.started(odd),
            kit.started("run-1.a", parent_id=odd),
            kit.appended(odd, 0),
            ScopeOpened(scope_id=odd, owner="run-1", mode="root", at=1.0),
            ScopeOpened(scope_id="s", owner=odd, mode="root", at=1.0),
            kit.item(1, item_id=odd),
        ):
            with pytest.raises(RecordRefused, match=r"_id|owner"):
                await journal.write([kit.started("run-1"), record])
        assert await journal.read_runs() == []

    check(body)


def test_a_run_is_in_the_iteration_of_its_newest_model_call(check: Check) -> None:
    """Also where no change of state says so: while it runs, and after it was killed. Summaries are no iterations."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.started("r-1", 5.0), kit.started("r-2", 6.0), kit.started("r-3", 7.0)])
        await journal.write([RunStateChanged(run_id="r-1", state="paused", at=8.0, iteration=2)])
        await journal.write([RunStateChanged(run_id="r-3", state="done", at=8.0, iteration=7)])
        await journal.write(
            [
                kit.called(1, {}, "r-1", iteration=3, purpose="agent"),
                kit.called(1, {}, "r-2", iteration=1, purpose="agent"),
                kit.called(2, {}, "r-2", iteration=2, purpose="agent"),
                kit.called(3, {}, "r-2", iteration=9, purpose="summary"),
                kit.called(1, {}, "r-3", iteration=7, purpose="agent"),
                kit.called(1, {}, "r-1", iteration=4, purpose="agent"),  # begun again under its number
            ]
        )
        rows = await journal.read_runs()
        assert [(row.started.run_id, row.iteration) for row in rows] == [("r-1", 4), ("r-2", 2), ("r-3", 7)]
        assert (await journal.read_run("r-2")).iteration == 2

    check(body)


def test_runs_are_listed_in_order_and_by_state(check: Check) -> None:
    """The latest change of state counts; a run without any is running; a change of an unknown run is no run."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.started("r-2", 5.0), kit.started("r-1", 6.0), kit.started("r-3", 7.0)])
        await journal.write([RunStateChanged(run_id="r-1", state="paused", at=8.0)])
        await journal.write([RunStateChanged(run_id="r-1", state="done", at=9.0, result="yes", iteration=2)])
        await journal.write([RunStateChanged(run_id="ghost", state="done", at=9.0)])
        rows = await journal.read_runs()
        assert [(row.started.run_id, row.state, row.updated_at) for row in rows] == [
            ("r-2", "running", 5.0),
            ("r-1", "done", 9.0),
            ("r-3", "running", 7.0),
        ]
        assert [row.started.run_id for row in await journal.read_runs(states=["running"])] == ["r-2", "r-3"]
        assert [row.result for row in await journal.read_runs(states=["done", "paused"])] == ["yes"]
        assert await journal.read_runs(states=[]) == []

    check(body)


def test_entries_are_read_by_position(check: Check) -> None:
    """In order of position, whatever the order of writing, and any part of them."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.appended("r", 1), kit.appended("other", 0)])
        await journal.write([kit.appended("r", 0), kit.appended("r", 2)])
        for start, stop, expected in (
            (0, None, [0, 1, 2]),
            (1, None, [1, 2]),
            (0, 2, [0, 1]),
            (2, 1, []),
            (9, None, []),
        ):
            found = await journal.read_entries("r", start=start, stop=stop)
            assert [entry.position for entry in found] == expected

    check(body)


def test_batches_become_durable_in_the_order_of_their_submits(check: Check) -> None:
    """The hooks run in that order, before any waiter wakes, and what is acknowledged can be read."""

    async def body(journal: Journal) -> None:
        order: list[int] = []
        tickets = [
            journal.submit([kit.appended("r", number)], on_commit=lambda number=number: order.append(number))  # type: ignore[misc]
            for number in range(100)
        ]
        await tickets[-1].wait()
        assert order == list(range(100))
        assert len(await journal.read_entries("r")) == 100
        await tickets[0].wait()  # a wait for what is done returns at once
        tickets[0].wait_sync()
        await journal.write(())  # an empty batch is a barrier

    check(body)


def test_a_batch_larger_than_a_group_is_not_split(check: Check) -> None:
    """Nobody sees a part of it."""

    async def body(journal: Journal) -> None:
        whole = 1300
        ticket = journal.submit([kit.appended("r", number) for number in range(whole)])
        while (seen := len(await journal.read_entries("r"))) == 0:
            await anyio.lowlevel.checkpoint()
        assert seen == whole
        await ticket.wait()

    check(body)


def test_many_tasks_may_wait_for_one_batch_and_some_may_give_up(check: Check) -> None:
    """Every waiter wakes; a cancelled one takes nothing back."""

    async def body(journal: Journal) -> None:
        ticket = journal.submit([kit.appended("r", 0)])
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ticket.wait)
        ticket = journal.submit([kit.appended("r", 1)])
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ticket.wait()
        assert scope.cancelled_caught
        await ticket.wait()
        assert len(await journal.read_entries("r")) == 2

    check(body)


def test_plain_threads_submit_and_wait(check: Check) -> None:
    """The journal is written from OS threads while tasks write too."""

    async def body(journal: Journal) -> None:
        def write(run_id: str) -> None:
            for position in range(20):
                journal.submit([kit.appended(run_id, position)]).wait_sync()

        threads = [threading.Thread(target=write, args=(f"r-{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for position in range(20):
            await journal.write([kit.appended("task", position)])
        await anyio.to_thread.run_sync(lambda: [thread.join() for thread in threads])
        for run_id in ("task", *(f"r-{number}" for number in range(4))):
            assert len(await journal.read_entries(run_id)) == 20

    check(body)


def test_a_read_shows_everything_that_was_submitted_before_it(check: Check) -> None:
    """Also what nobody waits for: a restarted actor must not decide again what its predecessor has decided."""

    async def body(journal: Journal) -> None:
        for number in range(1, 40):
            made = DecisionMade(run_id="r", iteration=number, kind="stub", body={}, at=1.0)
            journal.submit([made, kit.called(number, {}, "r"), kit.appended("r", number - 1)])
            counts = [
                len(await journal.read_decisions("r")),
                len(await journal.read_model_calls("r")),
                len(await journal.read_entries("r")),
            ]
            assert counts == [number] * 3

    check(body)


def test_what_is_refused_stops_nothing(check: Check) -> None:
    """A batch with a bad record is refused whole; the journal goes on."""

    async def body(journal: Journal) -> None:
        hooks: list[str] = []
        with pytest.raises(RecordRefused):
            journal.submit(
                [kit.appended("r", 0), kit.appended("r", 1, metadata={"x": float("inf")})],
                on_commit=lambda: hooks.append("refused"),
            )
        await journal.write([kit.appended("r", 0)])
        assert (len(await journal.read_entries("r")), hooks) == (1, [])

    check(body)


def test_what_was_given_may_change_afterwards(check: Check) -> None:
    """The journal keeps what a record said when it was submitted."""

    async def body(journal: Journal) -> None:
        options = {"a": 1}
        ticket = journal.submit([kit.started("r", options=options)])
        options["a"] = 2
        await ticket.wait()
        assert (await journal.read_run("r")).started.options == {"a": 1}

    check(body)


@pytest.mark.parametrize(
    "text", ["\ud800 alone", "nul \0 inside", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2028", "e\u0301"]
)
def test_strange_text_survives_everywhere(check: Check, text: str) -> None:
    """In names, bodies and JSON alike, and it can be searched around."""

    async def body(journal: Journal) -> None:
        run_id = "run-1"
        await journal.write(
            [
                kit.started(run_id, task=text, options={text: [text]}),
                kit.appended(run_id, 0, f"findable {text}"),
                kit.content(f"c {text}", run_id, text),
                EventLogged(run_id=run_id, type=text, body={text: text}, at=1.0),
            ]
        )
        assert (await journal.read_run(run_id)).started == kit.started(run_id, task=text, options={text: [text]})
        assert (await journal.read_entries(run_id))[0].content == (Text(f"findable {text}"),)
        stored = await journal.read_content(f"c {text}")
        assert stored is not None
        assert stored.body == text
        ((_, event),) = await journal.read_events(run_id)
        assert event.body == {text: text}
        (hit,) = await journal.search_entries(run_id, f"findable {text}")
        hit.excerpt.encode()

    check(body)


def test_positions_cannot_be_written_twice(check: Check) -> None:
    """A second truth for one position is refused, and its whole batch; what was kept is kept."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.appended("r", 0, "first")])
        with pytest.raises(RecordRefused, match=r"batch of 'r' .* entries.position; are there two ledgers for one run"):
            await journal.write([kit.appended("r", 1), kit.appended("r", 0, "second")])
        assert [entry.content for entry in await journal.read_entries("r")] == [(Text("first"),)]

    check(body)


def test_a_position_twice_in_one_batch_is_noticed_too(check: Check) -> None:
    """The same for a batch that contradicts itself."""

    async def body(journal: Journal) -> None:
        with pytest.raises(RecordRefused):
            await journal.write([kit.appended("r", 0), kit.appended("r", 0)])
        assert await journal.read_entries("r") == []

    check(body)


def test_only_the_batch_that_contradicts_what_is_kept_is_refused(check: Check) -> None:
    """A reused id of a run takes nobody with it: what is queued around it is written, in order."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.started("r")])
        told: list[int] = []
        event = EventLogged(run_id="q", type="t", body={}, at=1.0)
        tickets = []
        for number in range(60):
            also = [kit.started("r", 2.0)] if number % 3 == 0 else []
            tickets.append(journal.submit([event, *also], on_commit=lambda number=number: told.append(number)))  # type: ignore[misc]
        for number, ticket in enumerate(tickets):
            if number % 3 == 0:
                with pytest.raises(RecordRefused, match=r"batch of 'q', 'r' .* is there a run of this id already"):
                    ticket.wait_sync()
            else:
                ticket.wait_sync()
        assert told == [number for number in range(60) if number % 3]
        sequences = [sequence for sequence, _ in await journal.read_events("q")]
        assert sequences == sorted(set(sequences))
        assert len(sequences) == 40
        assert [row.started.at for row in await journal.read_runs()] == [1.0]

    check(body)


def test_what_builds_on_a_refused_batch_is_refused_with_it(check: Check) -> None:
    """However long the chain, and whether or not the first of it has been refused already."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.started("r")])
        ticket = journal.submit([kit.started("r")])
        chain = [ticket]
        for position in range(3):
            chain.append(journal.submit([kit.appended("r", position)], after=chain[-1]))
        other = journal.submit([kit.appended("q", 0)])
        for each in chain:
            with pytest.raises(RecordRefused):
                await each.wait()
        await other.wait()
        with pytest.raises(RecordRefused, match="builds on was refused"):
            await journal.submit([], after=chain[-1]).wait()
        assert await journal.read_entries("r") == []
        await journal.submit([kit.appended("r", 0)], after=other).wait()

    check(body)


# --- calls ------------------------------------------------------------------------------------------------


def intent(call_id: str, key: str = "k") -> ToolIntended:
    """The record of an intent."""
    return ToolIntended(
        run_id="run-1",
        call_id=call_id,
        tool="t",
        effect="unsafe",
        arguments={},
        arguments_digest="d",
        idempotency_key=key,
        iteration=1,
        at=1.0,
    )


def test_tool_calls_are_paired_with_their_outcomes(check: Check) -> None:
    """In the order of intent; what never ended has no outcome; a call tried again has a row for each try."""

    async def body(journal: Journal) -> None:
        outcomes = {n: ToolFinished(run_id="run-1", call_id=n, status="ok", at=2.0) for n in ("a", "b", "ghost")}
        await journal.write([intent("a"), intent("b"), outcomes["b"], outcomes["ghost"], intent("c")])
        await journal.write([intent("a", "again"), outcomes["a"]])
        rows = await journal.read_tool_calls("run-1")
        assert [(row.intended.call_id, row.intended.idempotency_key, row.finished) for row in rows] == [
            ("a", "k", None),
            ("b", "k", outcomes["b"]),
            ("c", "k", None),
            ("a", "again", outcomes["a"]),
        ]

    check(body)


def conversation(length: int, first: int = 0) -> dict[str, object]:
    """A request that grows by a message at a time, or the end of it."""
    return {"model": "m", "system": "s", "messages": [said(f"m{n}") for n in range(first, length)]}


def said(*texts: str) -> dict[str, object]:
    """A message of so many blocks."""
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def test_requests_are_put_together_from_their_tails(check: Check) -> None:
    """Each call stores what its base does not hold, an edit of the past included, and reads back whole."""
    edited = conversation(9)
    edited["messages"][4] = said("stub \ud800")  # type: ignore[index]
    longer = {"model": "m", "messages": [said("m0"), said("m1", "more"), said("end")]}
    longest = {"model": "m", "messages": [said("m0"), said("m1", "more", "still more"), said("end"), said("new")]}
    recorded: list[tuple[dict[str, object], dict[str, object], int | None, int, int]] = [
        # the request, what is stored of it, its base, messages and blocks that it takes from there
        (conversation(3), conversation(3), None, 0, 0),
        (conversation(5), conversation(5, 3), 1, 3, 0),
        (conversation(9), conversation(9, 5), 2, 5, 0),
        (edited, {**edited, "messages": edited["messages"][4:]}, 3, 4, 0),  # type: ignore[index]
        (conversation(4), conversation(0), 4, 4, 0),
        (longer, {"model": "m", "messages": [said("more"), said("end")]}, 5, 1, 1),
        (longest, {"model": "m", "messages": [said("still more"), said("end"), said("new")]}, 6, 1, 2),
        (conversation(0), conversation(0), None, 0, 0),
    ]

    async def body(journal: Journal) -> None:
        for number, (request, tail, base, messages, blocks) in enumerate(recorded, 1):
            digest = request_digest(request)
            call = kit.called(
                number, tail, digest=digest, base_call=base, shared_messages=messages, shared_blocks=blocks
            )
            await journal.write([call])
        for number, (request, *_) in enumerate(recorded, 1):
            assert await journal.read_request("run-1", number) == request

    check(body)


def test_a_request_that_does_not_give_its_digest_is_refused(check: Check) -> None:
    """A wrong digest, a missing base, a base that is no earlier call and an unknown call are all told apart."""

    async def body(journal: Journal) -> None:
        await journal.write(
            [
                kit.called(1, conversation(2), digest="wrong"),
                kit.called(2, conversation(2), base_call=9, shared_messages=1),
                kit.called(3, conversation(2), base_call=3, shared_messages=1),
            ]
        )
        for call, reason in ((1, "where wrong was recorded"), (2, "call 9"), (3, "call 3"), (4, "no model call 4")):
            with pytest.raises(JournalUnreadable, match=reason):
                await journal.read_request("run-1", call)

    check(body)


def test_model_calls_are_paired_with_their_replies(check: Check) -> None:
    """A reply belongs to its number; one without a call is nobody's."""

    async def body(journal: Journal) -> None:
        reply = ModelReplied(run_id="run-1", call=2, at=5.0, cost=0.25)
        await journal.write([kit.called(1, {}), kit.called(2, {}), reply, ModelReplied(run_id="run-1", call=7, at=5.0)])
        rows = await journal.read_model_calls("run-1")
        assert [(row.called.call, row.replied) for row in rows] == [(1, None), (2, reply)]

    check(body)


# --- search -----------------------------------------------------------------------------------------------


def test_search_finds_the_best_first(check: Check) -> None:
    """By BM25: more of the words, and rarer ones, in shorter entries; other forms of a word count."""

    async def body(journal: Journal) -> None:
        # BM25 weighs rare words, so there must be entries without them.
        await journal.write([kit.appended("filler", number, f"filler {number}") for number in range(20)])
        await journal.write(
            [
                kit.appended("r", 0, "nothing of interest here"),
                kit.appended("r", 1, "the deadlines were moved " + "and so on " * 50),
                kit.appended("r", 2, "the budget and the deadline"),
                kit.appended("q", 0, "the deadline of another run"),
                kit.appended("r", 3, content=(ToolUse("id", "fetch_budget", {"path": "café"}),)),
            ]
        )
        hits = await journal.search_entries("r", "deadline budget")
        assert [hit.position for hit in hits] == [2, 3, 1]
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert [hit.position for hit in await journal.search_entries("r", "CAFE")] == [3]
        assert [hit.position for hit in await journal.search_entries("r", '"budget and the deadline"')] == [2]
        assert [hit.position for hit in await journal.search_entries("r", "deadline budget", limit=1)] == [2]
        assert await journal.search_entries("r", "deadline", limit=0) == []
        await journal.write([kit.appended("r", 4, "later: deadline")])
        assert 4 in [hit.position for hit in await journal.search_entries("r", "deadline")]

    check(body)


def test_words_are_found_where_no_space_stands_between_them(check: Check) -> None:
    """Of scripts that have none: each word as a whole, not the letters of it anywhere."""

    async def body(journal: Journal) -> None:
        texts = ["漢字かな交じり文を検索する", "索を検する", "그는 한국에서 왔다", "ฉันเรียนภาษาไทย", "このAPIを使う"]
        await journal.write([kit.appended("r", number, text) for number, text in enumerate(texts)])
        for number, words in enumerate(["検索", "索を検", "한국", "ไทย", "API"]):
            assert [hit.position for hit in await journal.search_entries("r", words)] == [number]
        assert [hit.position for hit in await journal.search_entries("r", '"交じり文" kestrel')] == [0]
        assert await journal.search_entries("r", "・ \u0e34") == []

    check(body)


def test_an_item_is_found_by_its_words_behind_a_thousand_matches_that_do_not_fit(check: Check) -> None:
    """Versions that were replaced or deleted, or that another condition leaves out, are not among those ranked."""

    async def body(journal: Journal) -> None:
        often = [kit.item(position, item_id="often", text=f"heron {position}") for position in range(2, 1_003)]
        await journal.write([kit.item(1, item_id="once", text="a heron"), *often])

        async def found(**query: Any) -> list[str]:
            items = await journal.find_items([("s", 9_999)], ItemQuery(text="heron", **query))
            return sorted(item.item_id for item in items)

        assert await found() == ["often", "once"]
        assert await found(until=2.0) == await found(id_prefix="on") == ["once"]
        await journal.write([kit.item(1_003, item_id="often", text="", deleted=True)])
        assert await found() == ["once"]

    check(body)


@pytest.mark.parametrize(
    "query", ['"', "AND", "NEAR(a b)", "a*", "-x", "col:word", "(", "';--", "*", "\0", "\ud800", "", " "]
)
def test_no_query_is_a_syntax_error(check: Check, query: str) -> None:
    """Words are words, whatever FTS5 would make of them."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.appended("r", 0, "a word AND more near col x")])
        for hit in await journal.search_entries("r", query):
            assert hit.position == 0

    check(body)


@pytest.mark.parametrize("mark", ["", '"'])
def test_a_query_of_thousands_of_words_is_one(check: Check, mark: str) -> None:
    """Its first hundred count, each once; also as one phrase."""

    async def body(journal: Journal) -> None:
        words = " ".join(f"word{number}" for number in range(20_000))
        await journal.write([kit.appended("r", 0, words), kit.appended("r", 1, "word19000 alone")])
        query = f"{mark}{words.replace(' ', '  ') if mark else f'word0 {words}'}{mark}"
        assert [hit.position for hit in await journal.search_entries("r", query)] == [0]

    check(body)


def test_an_excerpt_shows_the_words(check: Check) -> None:
    """At most 500 characters around the place where they stand together."""

    async def body(journal: Journal) -> None:
        text = "padding words " * 200 + "the needle was found in this haystack " + "more padding " * 200
        await journal.write([kit.appended("r", 0, text)])
        (hit,) = await journal.search_entries("r", "needles haystacks")
        assert "needle was found in this haystack" in hit.excerpt
        assert len(hit.excerpt) <= 500

    check(body)


# --- contents, items, events ------------------------------------------------------------------------------


def test_contents_expire_after_their_date_or_their_run(check: Check) -> None:
    """Bodies go, citations stay listed; a content without a limit, or of a living run, is kept."""

    async def body(journal: Journal) -> None:
        await journal.write(
            [
                kit.started("ended"),
                kit.started("alive"),
                RunStateChanged(run_id="ended", state="done", at=100.0),
                kit.content("dated", "alive", expires_at=50.0),
                kit.content("dated-later", "alive", expires_at=500.0),
                kit.content("kept", "ended"),
                kit.content("retained", "ended", retention=3600.0),
                kit.content("of-the-living", "alive", retention=1.0),
            ]
        )
        assert await kit.expire(journal, 49.9) == 0
        assert await kit.expire(journal, 50.0) == 1
        assert await kit.expire(journal, 3699.9) == 1
        assert await kit.expire(journal, 3700.0) == 1
        assert await kit.expire(journal, 3700.0) == 0
        left = [
            name
            for name in ("dated", "dated-later", "kept", "retained", "of-the-living")
            if (stored := await journal.read_content(name)) is not None and stored.body
        ]
        assert left == ["kept", "of-the-living"]
        assert [c.content_id for c in await journal.read_contents("ended")] == ["kept", "retained"]
        assert [c.length for c in await journal.read_contents("ended")] == [5, 5]

    check(body)


def test_the_latest_content_of_an_id_counts(check: Check) -> None:
    """A deleted later one does not let an earlier one shine through."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.content("c", body="old"), kit.content("c", body="new", expires_at=5.0)])
        stored = await journal.read_content("c")
        assert stored is not None
        assert stored.body == "new"
        assert await kit.expire(journal, 5.0) == 1
        stored = await journal.read_content("c")
        assert stored is not None
        assert (stored.body, stored.length) == ("", 3)

    check(body)


RUNS = ("owner", "owner.child", "owner.child.grandchild", "owner2", "owner-x", "owner_x", "owne", "Owner", "p.owner")


@pytest.mark.parametrize("reader", RUNS)
def test_a_content_is_looked_up_within_a_tree_of_runs(reader: str, check: Check) -> None:
    """Whoever else has one of that id, and however much the ids of the runs look alike."""

    async def body(journal: Journal) -> None:
        for owner in RUNS:
            await journal.write([kit.content(f"c-{owner}", owner, owner), kit.content("c", owner, owner)])
        theirs = [run for run in RUNS if run == reader or run.startswith(f"{reader}.")]
        for owner in RUNS:
            stored = await journal.read_content(f"c-{owner}", root=reader)
            assert (stored is not None) is (owner in theirs)
        newest = await journal.read_content("c", root=reader)
        assert newest is not None
        assert newest.body == theirs[-1]
        assert {content.run_id for _, content in await journal.read_bodies(reader)} == set(theirs)
        assert await journal.read_content("c", root="nobody") is None

    check(body)


def test_bodies_go_in_one_transaction_with_what_is_written_of_it(check: Check) -> None:
    """Where that is refused nothing goes; what a batch beside it writes is not touched."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.started("r"), kit.content("a", "r"), kit.content("b", "r")])
        emptied = [number for number, _ in await journal.read_bodies("r")]
        with pytest.raises(RecordRefused):
            await journal.write([kit.started("r")], emptied=emptied)
        assert [content.content_id for _, content in await journal.read_bodies("r")] == ["a", "b"]
        beside = journal.submit([kit.content("c", "r")])
        await journal.write([kit.appended("r", 0)], emptied=emptied)
        await beside.wait()
        assert [content.content_id for _, content in await journal.read_bodies("r")] == ["c"]
        assert len(await journal.read_entries("r")) == 1

    check(body)


def test_a_content_is_put_together_of_what_was_shown_and_brought_back(check: Check) -> None:
    """Head, tail and pages, in any order and overlapping; with a piece missing it is not there at all."""
    whole = "".join(chr(ord("a") + n % 26) for n in range(100))

    def piece(position: int, start: int, end: int) -> EntryAppended:
        part = Part("c", start, end, 6)
        content = (ToolResult("x", f"page: {whole[start:end]}\n[end]"),)
        retrieved = Retrieved(content_id="c", parts=(part, Part("other", 0, 5, 0), Part("c", 0, 100)))
        return kit.appended("r", position, content=content, role="user", kind="action-result", retrieved=retrieved)

    async def body(journal: Journal) -> None:
        shown = f"{whole[:10]}[...]{whole[90:]}[note]"
        cut = {"content_id": "c", "original_length": 100, "spans": ((0, 10), (15, 25))}
        entry = kit.appended("r", 0, content=(ToolResult("x", shown),), role="user", kind="action-result", **cut)
        await journal.write([kit.content("c", "r", body="", length=100), entry, piece(1, 50, 80), piece(2, 5, 50)])
        stored = await journal.read_content("c")
        assert stored is not None
        assert stored.body == ""
        await journal.write([piece(3, 75, 92)])
        stored = await journal.read_content("c")
        assert stored is not None
        assert stored.body == whole

    check(body)


def test_a_content_that_the_ledger_holds_is_read_from_there_and_found_once(check: Check) -> None:
    """Not from an entry that was cut, nor from one that repeats another under a note, nor from another run's."""

    async def body(journal: Journal) -> None:
        result = {"role": "user", "kind": "action-result", "content_id": "c"}
        shown = [
            ("run-2", 0, "another run's", {}),
            ("run-1", 0, "the beginning", {"original_length": 90}),
            ("run-1", 1, "a note: the spring tides", {"deduplicated_from": "call-1"}),
            ("run-1", 2, "the neap tides", {}),
        ]
        await journal.write(
            [
                kit.appended(run, position, content=(ToolResult("call", text),), **result, **facts)
                for run, position, text, facts in shown
            ]
        )
        await journal.write([kit.content("c", body="", length=14), kit.content("gone", body="", length=14)])
        stored = await journal.read_content("c")
        assert stored is not None
        assert (stored.body, stored.length) == ("the neap tides", 14)
        assert [hit.position for hit in await journal.search_entries("run-1", "neap")] == [2]
        gone = await journal.read_content("gone")
        assert gone is not None
        assert gone.body == ""
        assert [each.body for each in await journal.read_contents("run-1")] == ["", ""]

    check(body)


def test_items_are_read_by_scope_and_position(check: Check) -> None:
    """All versions of the scopes asked for, in the order of the log."""

    async def body(journal: Journal) -> None:
        await journal.write([kit.item(1, "a"), kit.item(2, "b"), kit.item(3, "a", text="y"), kit.item(4, "c")])
        assert [i.position for i in await journal.read_items(["a", "b"])] == [1, 2, 3]

    check(body)


def test_events_have_sequence_numbers_to_go_on_from(check: Check) -> None:
    """Ascending over the whole journal; ``after`` goes on where a watcher stopped, for one run or for all."""

    async def body(journal: Journal) -> None:
        def event(run_id: str, name: str) -> EventLogged:
            return EventLogged(run_id=run_id, type=name, body={}, at=1.0)

        assert await journal.last_event() == 0
        await journal.write([event("r", "one"), event("q", "else"), event("r", "two")])
        (first, _), (second, two) = await journal.read_events("r")
        assert first < second
        assert await journal.read_events("r", after=first) == [(second, two)]
        everything = await journal.read_events(None)
        assert [e.type for _, e in everything] == ["one", "else", "two"]
        assert await journal.read_events(None, after=first, limit=1) == everything[1:2]
        assert await journal.read_events("r", limit=0) == []
        assert await journal.last_event() == second

    check(body)


def test_decisions_and_summaries_keep_their_order(check: Check) -> None:
    """The order of writing."""

    async def body(journal: Journal) -> None:
        for number in range(3):
            await journal.write(
                [
                    DecisionMade(run_id="r", iteration=9 - number, kind=str(number), body={}, at=9.0 - number),
                    SummaryStored(
                        run_id="r", summary_id=str(number), first=0, last=0, strategy="s", content=(), tokens=0, at=0.0
                    ),
                ]
            )
        assert [decision.kind for decision in await journal.read_decisions("r")] == ["0", "1", "2"]
        assert [summary.summary_id for summary in await journal.read_summaries("r")] == ["0", "1", "2"]

    check(body)


def test_a_summary_is_found_by_what_it_was_made_from(check: Check) -> None:
    """The newest with the key, in the tree of a root and nowhere else; of a stretch or of one result."""

    def stored(run_id: str, name: str, key: str) -> SummaryStored:
        return SummaryStored(
            run_id=run_id, summary_id=name, first=0, last=0, strategy="s", content=(), tokens=0, at=0.0, key=key
        )

    def of_result(run_id: str, text: str, kind: str = "ResultSummarized", **more: Any) -> EventLogged:
        return EventLogged(run_id=run_id, type=kind, body={"text": text, **more}, at=0.0)

    async def body(journal: Journal) -> None:
        await journal.write([stored("r", "1", "k"), stored("r.a", "2", "k"), stored("r-b", "3", "k")])
        await journal.write([stored("r.a", "4", "other"), stored("r", "5", "")])
        await journal.write([of_result("r.a", "one", key="k"), of_result("r2", "two", key="k"), of_result("r", "x")])
        await journal.write([of_result("r", "three", "Another", key="k")])
        found = await journal.find_summary("r", "k")
        assert found is not None
        assert found.summary_id == "2"
        assert await journal.find_summary("r", "none") is None
        assert await journal.find_summary("other", "k") is None
        assert await journal.find_result_summary("r", "k") == "one"
        assert await journal.find_result_summary("r", "none") is None

    check(body)


def test_roots_that_ended_before_a_time_are_found(check: Check) -> None:
    """By their last state; those that go on, ended later, or stand below another run are not."""

    async def body(journal: Journal) -> None:
        for number, states in enumerate(["done", "failed", "stopped", "paused", "done running", "done done"]):
            run_id = f"r{number}"
            await journal.write([kit.started(run_id), kit.started(f"{run_id}.a", parent_id=run_id)])
            for at, state in enumerate(states.split(), 1):
                await journal.write(
                    [RunStateChanged(run_id=each, state=state, at=10.0 * at) for each in (run_id, f"{run_id}.a")]  # type: ignore[arg-type]
                )
        assert await journal.read_ended_roots(15.0) == ["r0", "r1", "r2"]
        assert await journal.read_ended_roots(10.0) == []
        assert await journal.read_ended_roots(99.0) == ["r0", "r1", "r2", "r5"]

    check(body)


def test_runs_are_found_by_their_last_state_in_whatever_order_a_batch_has_it(check: Check) -> None:
    """Also where the batch says first how a run stands and then that it began, and no more of one that was removed."""

    async def body(journal: Journal) -> None:
        paused = [RunStateChanged(run_id=f"r{number}", state="paused", at=2.0) for number in range(3)]
        await journal.write([paused[0], kit.started("r0"), kit.started("r0.a", parent_id="r0"), paused[1], paused[2]])
        await journal.write([kit.started("r1"), RunStateChanged(run_id="r1", state="queued", at=3.0)])
        await journal.write([kit.started("r2")])
        assert [row.started.run_id for row in await journal.read_runs(states=["paused"])] == ["r0", "r2"]
        assert [row.run_id for row in await journal.read_queue()] == ["r1"]
        await journal.remove_run("r0", at=4.0)
        assert await journal.read_roots(RootFilter(in_state=[InState(states=["paused"])]), 9) == (["r2"], 1)
        assert await journal.read_roots(RootFilter(in_state=[InState(states=[])]), 9) == ([], 0)

    check(body)


# --- the end ----------------------------------------------------------------------------------------------


def test_closing_writes_what_is_queued_and_ends_all_use(check: Check) -> None:
    """Everything submitted before is acknowledged; everything after is refused; closing twice is fine."""

    async def body(journal: Journal) -> None:
        await journal.search_entries("r", "opens what reading needs")
        tickets = [journal.submit([kit.appended("r", number)]) for number in range(50)]
        await journal.aclose()
        for ticket in tickets:
            await ticket.wait()
        with pytest.raises(JournalClosed):
            journal.submit([kit.appended("r", 50)])
        with pytest.raises(JournalClosed):
            await journal.read_entries("r")
        await journal.aclose()

    check(body)


def test_a_journal_that_was_never_read_is_closed_too(check: Check) -> None:
    """Readers open lazily, so there may be none to close."""

    async def body(journal: Journal) -> None:
        await journal.aclose()
        with pytest.raises(JournalClosed):
            await journal.read_runs()

    check(body)
