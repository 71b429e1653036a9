"""Sub-agents that work on another machine than their lead."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from placed_team import REF, Script, Shares, delegate_once, last, make, words

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.errors import ConfigurationError, JournalError, RunStopped
from repertory.llm.model import ModelRequest
from repertory.loop.open_calls import open_calls
from repertory.memory import MemoryMode
from repertory.runs.accounting import Spending, Tally
from repertory.supervisor import Supervisor
from repertory.testing import call


@pytest.fixture(autouse=True)
def script() -> Iterator[None]:
    """The models as they are without a test."""
    Script.reset()
    yield
    Script.reset()


@asynccontextmanager
async def machine(uri: str, name: str, *labels: str, **options: Any) -> AsyncGenerator[Supervisor]:
    """A machine that offers labels."""
    async with rp.open_supervisor(uri, name=name, labels=labels, drain_timeout=0.5, **options) as supervisor:
        yield supervisor


async def start(supervisor: Supervisor, **options: Any) -> rp.Run:
    """Start the lead; what it is made with every machine makes it with."""
    return await supervisor.spawn(make(**options), "What is it?", agent_ref=REF, options=options)


async def owners(supervisor: Supervisor, run_id: str) -> list[str]:
    """The machines that owned a run, one after the other."""
    return [record.body["name"] for _, record in await supervisor.journal.read_events(run_id, types=["RunClaimed"])]


async def below(supervisor: Supervisor, run_id: str) -> str:
    """The one run below another."""
    rows = await supervisor.journal.read_runs()
    (found,) = [row.started.run_id for row in rows if row.started.parent_id == run_id]
    return found


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that comes about by itself."""
    while not await condition():
        await anyio.sleep(0.02)


def in_state(supervisor: Supervisor, run_id: str, state: str) -> Callable[[], Any]:
    """Whether a run is in a state on record."""

    async def look() -> bool:
        return (await supervisor.journal.read_run(run_id)).state == state

    return look


class Gate:
    """A worker that answers once it is let to."""

    def __init__(self) -> None:
        self.asked, self.open = anyio.Event(), anyio.Event()
        self.shown: list[str] = []

    async def answer(self, request: ModelRequest) -> str:
        """One answer."""
        self.shown.append(words(request))
        self.asked.set()
        await self.open.wait()
        return "42"


def test_a_placed_sub_agent_works_where_its_label_is_offered(postgres: PostgresServer, run_async: RunAsync) -> None:
    """And its lead, elsewhere, gets its report; the figures of the tree have what it took."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu") as gpu:
            run = await start(plain)
            with anyio.fail_after(PATIENCE):
                assert await run.wait_result() == "It is 42"
            worker = await below(plain, run.id)
            assert (await owners(plain, run.id), await owners(plain, worker)) == (["plain"], ["gpu"])
            assert (await gpu.journal.read_run(worker)).started.labels == ("gpu",)
            assert run.statistics(tree=True).model_calls == 3

    run_async(main)


async def test_that_it_waits_and_has_ended_is_announced(postgres: PostgresServer) -> None:
    """Else its lead would wait for the next look of another machine, and then for its own."""
    uri = postgres.emptied_journal()
    gate = Gate()

    async def lead(request: ModelRequest) -> object:
        await gate.answer(request)
        return delegate_once(request)

    Script.lead = lead
    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await start(plain)
        with anyio.fail_after(PATIENCE):
            await gate.asked.wait()
            machines = plain._runtime.shared.machines  # pyright: ignore[reportPrivateUsage]
            assert machines is not None
            waits, ended = machines.news("queue"), machines.news("end")
            gate.open.set()
            await waits.wait()
            await ended.wait()
            assert await run.wait_result() == "It is 42"


def test_with_one_machine_it_works_beside_its_lead(tmp_path: Path, run_async: RunAsync) -> None:
    """The same definition needs no server."""

    async def main() -> None:
        async with rp.open_supervisor(tmp_path / "a.db") as supervisor:
            run = await start(supervisor)
            assert await run.wait_result() == "It is 42"

    run_async(main)


async def test_a_root_waits_for_the_labels_of_its_agent(postgres: PostgresServer) -> None:
    """As it does for those of its run."""
    uri = postgres.emptied_journal()

    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        worker = make().team[0]
        run = await plain.spawn(worker, "Compute.", agent_ref="placed_team:alone")
        assert run.state == "queued"
        with anyio.fail_after(PATIENCE):
            assert await run.wait_result() == "42"
        assert await owners(plain, run.id) == ["gpu"]


async def test_what_cannot_be_found_elsewhere_is_refused_at_once(postgres: PostgresServer) -> None:
    """With what to say instead; nothing is on record."""
    uri = postgres.emptied_journal()

    async with machine(uri, "plain") as plain:
        with pytest.raises(ConfigurationError, match=r"worker may work on another machine.*agent_ref"):
            await plain.spawn(make(), "What is it?")
        with pytest.raises(ConfigurationError, match=r"context.* cannot go there"):
            await plain.spawn(make(), "What is it?", agent_ref=REF, context={"a": 1})
        assert await plain.journal.read_runs() == []
        with pytest.raises(ConfigurationError, match="placement must be a list"):
            rp.Agent("worker", placement="gpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "seen", "lead_sees"),
    [
        ("shared", "a=of the lead", "a=of the lead, b=of the worker"),
        ("snapshot", "a=of the lead", "a=of the lead"),
        ("isolated", "nothing", "a=of the lead"),
    ],
)
def test_memory_reaches_across(
    mode: MemoryMode, seen: str, lead_sees: str, postgres: PostgresServer, run_async: RunAsync
) -> None:
    """What is shared is one memory; a snapshot and its own writes can be merged; what is isolated is its own."""
    uri = postgres.emptied_journal()
    saw: dict[str, str] = {}

    def lead(request: ModelRequest) -> object:
        turns = [
            call("note", item="a", text="of the lead"),
            call("delegate", agent="worker", task="Compute."),
            call("notes"),
        ]
        step = len(request.messages) // 2
        if step < len(turns):
            return turns[step]
        saw["lead"] = last(request)
        return "done"

    def worker(request: ModelRequest) -> object:
        step = len(request.messages) // 2
        if step == 1:
            saw["worker"] = last(request)
        turns = [call("notes"), call("note", item="b", text="of the worker"), "42"]
        return turns[step]

    Script.lead, Script.worker = lead, worker

    async def main() -> None:
        async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
            run = await start(plain, memory=mode)
            with anyio.fail_after(PATIENCE):
                assert await run.wait_result() == "done"
            assert saw == {"worker": seen, "lead": lead_sees}
            if mode == "snapshot":
                (snapshot,) = await run.memory.snapshots()
                report = await snapshot.merge()
                assert report.written == ("b",)
                assert (await run.memory.retrieve("b")).text == "of the worker"

    run_async(main)


async def test_what_memory_refuses_is_refused_across(postgres: PostgresServer) -> None:
    """With the same words; bytes and values come across as they are."""
    uri = postgres.emptied_journal()
    shown: list[str] = []

    def worker(request: ModelRequest) -> object:
        if len(request.messages) == 1:
            return call("note", item="b", text="of the worker")
        shown.append(last(request))
        return "42"

    Script.worker = worker

    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await start(plain, memory="shared-read-only")
        with anyio.fail_after(PATIENCE):
            await run.wait_result()
        assert re.search(r"ScopeReadOnly|nothing can be written", shown[0])


async def test_a_lead_speaks_to_a_placed_run_and_ends_it(postgres: PostgresServer) -> None:
    """The run hears that it is its lead; what was cancelled brings no report, and never goes on."""
    uri = postgres.emptied_journal()

    gate = Gate()
    told: list[str] = []

    async def worker(request: ModelRequest) -> object:
        if not gate.asked.is_set():
            gate.asked.set()
            await gate.open.wait()
            return call("notes")
        told.append(words(request))
        return await anyio.sleep_forever()

    async def lead(request: ModelRequest) -> object:
        step = len(request.messages) // 2
        if step == 0:
            return call("delegate_start", agent="worker", task="Compute.")
        found = re.search(r"as run (\S+)", words(request))
        assert found is not None
        await gate.asked.wait()
        if step == 1:
            return call("delegate_message", run=found[1], message="Only primes.")
        if step == 2:
            gate.open.set()
            while not told:
                await anyio.sleep(0.01)
            return call("delegate_cancel", run=found[1])
        return last(request)

    Script.lead, Script.worker = lead, worker
    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await start(plain)
        with anyio.fail_after(PATIENCE):
            assert "was cancelled" in await run.wait_result()
        assert "[from lead, the agent that gave you this task" in told[0]
        assert "Only primes." in told[0]
        row = await plain.journal.read_run(await below(plain, run.id))
        assert (row.state, row.cancelled) == ("stopped", True)


async def test_a_run_whose_owner_nobody_knows_waits_again(postgres: PostgresServer) -> None:
    """As in a journal that was moved here: only the record says that it goes on."""
    uri = postgres.emptied_journal()
    async with machine(uri, "plain") as plain:
        run = await start(plain)
        with anyio.fail_after(PATIENCE):
            while not await plain.queue():
                await anyio.sleep(0.02)
            with postgres.connect(uri) as connection:
                connection.execute("DELETE FROM ownership WHERE run_id <> %s", (run.id,))
            async with machine(uri, "gpu", "gpu"):
                assert await run.wait_result() == "It is 42"


async def test_what_worked_below_a_run_that_is_cancelled_ends_with_it(postgres: PostgresServer) -> None:
    """Also where its machine has left meanwhile, so that nobody runs either."""
    uri = postgres.emptied_journal()
    gate, left = Gate(), anyio.Event()

    async def lead(request: ModelRequest) -> object:
        step = len(request.messages) // 2
        if step == 0:
            return call("delegate_start", agent="worker", task="Compute.")
        await left.wait()
        found = re.search(r"as run (\S+)", words(request))
        assert found is not None
        return call("delegate_cancel", run=found[1]) if step == 1 else last(request)

    Script.lead, Script.helper = lead, gate.answer
    Script.worker = lambda _: call("delegate", agent="helper", task="Help.")
    async with machine(uri, "plain") as plain:
        run = await start(plain)
        async with machine(uri, "gpu", "gpu"):
            with anyio.fail_after(PATIENCE):
                await gate.asked.wait()
        left.set()
        with anyio.fail_after(PATIENCE):
            assert "was cancelled" in await run.wait_result()
        worker = await below(plain, run.id)
        states = [(await plain.journal.read_run(each)).state for each in (worker, await below(plain, worker))]
        assert states == ["stopped", "stopped"]


async def test_a_run_that_no_machine_offers_to_take_can_be_cancelled(postgres: PostgresServer) -> None:
    """It waits for a machine, and ends without one."""
    uri = postgres.emptied_journal()

    def lead(request: ModelRequest) -> object:
        step = len(request.messages) // 2
        if step == 0:
            return call("delegate_start", agent="worker", task="Compute.")
        found = re.search(r"as run (\S+)", words(request))
        assert found is not None
        return call("delegate_cancel", run=found[1]) if step == 1 else last(request)

    Script.lead = lead

    async with machine(uri, "plain") as plain:
        run = await start(plain)
        with anyio.fail_after(PATIENCE):
            assert "was cancelled" in await run.wait_result()
        assert await plain.queue() == []


async def test_stopped_paused_and_resumed_together(postgres: PostgresServer) -> None:
    """A tree is one thing, wherever its parts are."""
    uri = postgres.emptied_journal()

    gate = Gate()
    steps = 0

    async def worker(request: ModelRequest) -> object:
        nonlocal steps
        steps += 1
        gate.asked.set()
        await anyio.sleep(0.05)
        return "42" if gate.open.is_set() else call("notes")

    Script.worker = worker
    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await start(plain, memory="isolated")
        with anyio.fail_after(PATIENCE):
            await gate.asked.wait()
            child = await below(plain, run.id)
            run.pause()
            await until(in_state(plain, child, "paused"))
            run.resume()
            await until(in_state(plain, child, "running"))
            run.stop()
            with pytest.raises(RunStopped):
                await run.wait_result()
            await until(in_state(plain, child, "stopped"))
            assert not (await plain.journal.read_run(child)).cancelled
            gate.open.set()
            again = await plain.resume(run.id)
            assert await again.wait_result() == "It is 42"
        assert await owners(plain, child) == ["gpu", "plain", "gpu"]  # its lead put it back into the queue


@pytest.mark.parametrize("how", ["kill", "answer"])
async def test_a_run_ends_once_its_lead_has_ended(how: str, postgres: PostgresServer) -> None:
    """It would work for nobody; one whose lead was killed may go on with that, one that nobody waited for does not.

    Only then its open calls have results.
    """
    uri = postgres.emptied_journal()

    gate = Gate()

    async def lead(request: ModelRequest) -> object:
        if len(request.messages) == 1:
            return call("delegate_start", agent="worker", task="Compute.")
        await gate.asked.wait()
        return "without"

    Script.worker, Script.helper = lambda _: call("delegate", agent="helper", task="Help."), gate.answer
    if how == "answer":
        Script.lead = lead
    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await start(plain)
        with anyio.fail_after(PATIENCE):
            if how == "kill":
                await gate.asked.wait()
                run.kill()
                with pytest.raises(RunStopped):
                    await run.wait_result()
            else:
                assert await run.wait_result() == "without"
            child = await below(plain, run.id)
            await until(in_state(plain, child, "stopped"))
        assert (await plain.journal.read_run(child)).cancelled == (how == "answer")
        entries = await plain.journal.read_entries(child)
        assert bool(open_calls(entries, ())) == (how == "kill")


def test_what_is_left_goes_on_elsewhere(postgres: PostgresServer, run_async: RunAsync) -> None:
    """The machine of the lead ends, and that of the worker: another one goes on with both, and the answer comes."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        gate = Gate()
        Script.worker = gate.answer
        async with machine(uri, "plain") as plain:
            run = await start(plain)
            async with machine(uri, "gpu", "gpu"):
                with anyio.fail_after(PATIENCE):
                    await gate.asked.wait()
            child = await below(plain, run.id)
            assert (await plain.journal.read_run(child)).state == "running"  # for whoever takes it up
        async with machine(uri, "last", "gpu") as last:
            gate.open.set()
            with anyio.fail_after(PATIENCE):
                await until(in_state(last, run.id, "done"))
            assert (await last.journal.read_run(run.id)).result == "It is 42"
            assert await owners(last, run.id) == ["plain", "last"]
            assert await owners(last, child) == ["gpu", "last"]

    run_async(main)


async def test_what_was_changed_of_the_payload_comes_back(postgres: PostgresServer) -> None:
    """Of what the worker may change; it begins with its lead's."""
    uri = postgres.emptied_journal()

    def worker(request: ModelRequest) -> object:
        return call("find", number=7) if len(request.messages) == 1 else "42"

    Script.worker = worker

    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await plain.spawn(make(), "What is it?", agent_ref=REF, payload=Shares(found=[3]))
        with anyio.fail_after(PATIENCE):
            await run.wait_result()
        assert run.payload == Shares(found=[3, 7])


async def test_rules_of_those_above_bind_it(postgres: PostgresServer) -> None:
    """What its lead wants a person to allow waits where it works, and can be allowed from anywhere."""
    uri = postgres.emptied_journal()

    def worker(request: ModelRequest) -> object:
        return call("pay", amount=5) if len(request.messages) == 1 else last(request)

    Script.worker = worker

    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu") as gpu:
        run = await start(plain, approvals=True)
        with anyio.fail_after(PATIENCE):
            while not gpu.waiting():
                await anyio.sleep(0.02)
            (waiting,) = gpu.waiting()
            there = await plain.remote(waiting.run_id)
            assert there is not None
            await there.approve(waiting.call_id, by="ann")
            assert await run.wait_result() == "It is paid 5"


async def test_limits_above_bind_it(postgres: PostgresServer) -> None:
    """Half of what is left is kept for a run without limits of its own; what it leaves over comes back."""
    uri = postgres.emptied_journal()

    def worker(request: ModelRequest) -> object:
        return call("find", number=len(request.messages))

    def lead(request: ModelRequest) -> object:
        again = call("delegate", agent="worker", task=f"Compute {len(request.messages)}.")
        return again if len(request.messages) < 4 else words(request)

    Script.lead, Script.worker = lead, worker

    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await start(plain, limits={"tool_calls": 11, "runs": 2, "depth": 1})
        with anyio.fail_after(PATIENCE):
            said = await run.wait_result()
        assert "the limit of agent worker (limits.tool_calls)" in said
        assert "lead allows 2 runs in its tree" in said
        row = await plain.journal.read_run(await below(plain, run.id))
        assert row.started.placed is not None
        assert row.started.placed.limits == {"tool_calls": 5, "runs": 1, "depth": 0}
        figures = run.statistics(tree=True)
        assert figures.tool_calls - figures.tool_errors == 5


async def test_half_is_half_of_the_tightest_limit() -> None:
    """Also where the limits of the run right above leave more."""
    tally = Tally()
    above = Spending("run", rp.Agent("lead", limits=rp.Limits(tokens=1_000, tool_calls=9)), tally)
    middle = rp.Agent("middle", limits=rp.Limits(tokens=10_000, tool_calls=100))
    spending = Spending("run.a", middle, tally, above=above)
    assert spending.promise("run.a.@b", rp.Agent("worker")) == {"tokens": 500, "tool_calls": 5}


def ask_for_help(request: ModelRequest) -> object:
    """What a worker answers that hands its task on, and says what came."""
    if len(request.messages) == 1:
        return call("delegate", agent="helper", task="Help.")
    return last(request)


async def test_what_was_used_is_counted_once(tmp_path: Path) -> None:
    """Of a tree that was read from the record, too, which has the tool calls further below."""
    Script.worker = ask_for_help
    Script.helper = lambda request: call("notes") if len(request.messages) == 1 else "helped"
    async with rp.open_supervisor(tmp_path / "a.db") as supervisor:
        run = await start(supervisor)
        assert await run.wait_result() == "It is helped"
        journal = supervisor.journal
        tally = Tally(tools_run=await journal.count_tools_run(run.id))
        assert tally.tools(run.id) == 3
        await tally.settle_promise(await below(supervisor, run.id), journal)
        assert tally.tools(run.id) == 3


async def test_a_value_that_memory_cannot_keep_is_refused_across(postgres: PostgresServer) -> None:
    """At once, and for good: to ask again would not help."""
    uri = postgres.emptied_journal()

    def worker(request: ModelRequest) -> object:
        return call("note", item="x" * 2_000, text="long") if len(request.messages) == 1 else last(request)

    Script.worker = worker
    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await start(plain)
        with anyio.fail_after(PATIENCE):
            assert "item_id must be at most" in await run.wait_result()


async def test_what_was_delegated_further_goes_on_with_the_tree(postgres: PostgresServer) -> None:
    """One that was stopped below a placed run has not failed."""
    uri = postgres.emptied_journal()
    gate = Gate()

    async def helper(_: ModelRequest) -> object:
        gate.asked.set()
        await anyio.sleep(0.05)
        return "helped" if gate.open.is_set() else call("notes")

    Script.worker, Script.helper = ask_for_help, helper
    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await start(plain, memory="isolated")
        with anyio.fail_after(PATIENCE):
            await gate.asked.wait()
            run.stop()
            with pytest.raises(RunStopped):
                await run.wait_result()
            gate.open.set()
            again = await plain.resume(run.id)
            assert await again.wait_result() == "It is helped"


async def test_what_was_paused_goes_on_with_a_lead_that_moved(postgres: PostgresServer) -> None:
    """The machine that has the lead now never asked it to pause."""
    uri = postgres.emptied_journal()
    gate = Gate()

    async def worker(_: ModelRequest) -> object:
        gate.asked.set()
        await anyio.sleep(0.05)
        return "42" if gate.open.is_set() else call("notes")

    Script.worker = worker
    async with machine(uri, "gpu", "gpu") as gpu:
        async with machine(uri, "plain") as plain:
            run = await start(plain, memory="isolated")
            with anyio.fail_after(PATIENCE):
                await gate.asked.wait()
                child = await below(plain, run.id)
                run.pause()
                await until(in_state(plain, child, "paused"))
        gate.open.set()
        with anyio.fail_after(PATIENCE):
            assert await in_state(gpu, run.id, "paused")()  # the lead itself, which waited for its worker
            await (await gpu.resume(run.id)).wait_result()


@pytest.mark.parametrize("begins", ["before", "meanwhile"])
def test_a_machine_that_closes_does_not_wait_for_what_works_elsewhere(
    begins: str, postgres: PostgresServer, run_async: RunAsync
) -> None:
    """However long it would wait for its own runs, and though a lead delegates as it closes; the worker works on."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        gate, asked, closing = Gate(), anyio.Event(), anyio.Event()

        async def lead(request: ModelRequest) -> object:
            asked.set()
            if begins == "meanwhile":
                await closing.wait()
            return delegate_once(request)

        async def tell(plain: Supervisor) -> None:
            while not plain._runtime.runs.closing:  # pyright: ignore[reportPrivateUsage]
                await anyio.sleep(0.01)
            closing.set()

        Script.lead, Script.worker = lead, gate.answer
        async with machine(uri, "gpu", "gpu") as gpu, anyio.create_task_group() as tasks:
            with anyio.fail_after(PATIENCE):
                async with rp.open_supervisor(uri, name="plain", labels=(), drain_timeout=float("inf")) as plain:
                    run = await start(plain, memory="isolated")
                    tasks.start_soon(tell, plain)
                    await (gate.asked if begins == "before" else asked).wait()
                gate.open.set()
                await until(in_state(gpu, run.id, "done"))
                assert len(gate.shown) == 1

    run_async(main)


async def test_a_stop_is_said_again_to_the_next_owner(postgres: PostgresServer) -> None:
    """It was heard by a machine that went before it came to that."""
    uri = postgres.emptied_journal()
    gate = Gate()

    async def worker(_: ModelRequest) -> object:
        if not gate.asked.is_set():
            gate.asked.set()
            await gate.open.wait()
        await anyio.sleep(0.05)
        return call("notes")

    Script.worker = worker
    async with machine(uri, "plain") as plain:
        async with machine(uri, "first", "gpu"):
            run = await start(plain, memory="isolated")
            with anyio.fail_after(PATIENCE):
                await gate.asked.wait()
                run.stop()
                heard = "SELECT 1 FROM commands WHERE verb = 'steer' AND answered_at IS NOT NULL"
                with postgres.connect(uri) as connection:
                    while connection.execute(heard).fetchone() is None:
                        await anyio.sleep(0.02)
        async with machine(uri, "second", "gpu"):
            with anyio.fail_after(PATIENCE), pytest.raises(RunStopped):
                await run.wait_result()
            await until(in_state(plain, await below(plain, run.id), "stopped"))


async def test_a_report_comes_once_the_record_can_be_read(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was away just as it was to be brought back."""
    uri = postgres.emptied_journal()
    gate = Gate()
    Script.worker = gate.answer
    async with machine(uri, "plain") as plain, machine(uri, "gpu", "gpu"):
        run = await start(plain)
        with anyio.fail_after(PATIENCE):
            await gate.asked.wait()
            read, away = plain.journal.read_payload, [True]

            async def read_payload(run_id: str) -> Any:
                if away:
                    raise JournalError(f"the server is away: {away.pop()}")
                return await read(run_id)

            monkeypatch.setattr(plain.journal, "read_payload", read_payload)
            gate.open.set()
            assert await run.wait_result() == "It is 42"
            assert not away


async def test_a_lead_that_nobody_finds_by_name_cannot_place(postgres: PostgresServer) -> None:
    """It got its team when it was resumed; its sub-agent would wait for ever."""
    uri = postgres.emptied_journal()
    gate = Gate()
    Script.lead = gate.answer
    async with machine(uri, "plain") as plain:
        lead = rp.Agent("lead", model=make().model, context=None)
        run = await plain.spawn(lead, "What is it?")
        with anyio.fail_after(PATIENCE):
            await gate.asked.wait()
            run.kill()
            with pytest.raises(RunStopped):
                await run.wait_result()
            Script.lead = delegate_once
            again = await plain.resume(run.id, agent=make())
            assert "which finds it by agent_ref=" in await again.wait_result()
