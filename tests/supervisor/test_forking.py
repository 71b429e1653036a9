"""Runs that begin as another did: what they share, what they do not, and what becomes of the other."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import trio

import repertory as rp
from backends import RunAsync
from context_scenes import Reader, clerk
from delegating import Company, collect, company, delegate, last
from patience import PATIENCE
from repertory.errors import (
    ConfigurationError,
    ContextMissing,
    PayloadInvalid,
    RunError,
    RunExists,
    RunFailed,
    RunNotFound,
    RunStopped,
)
from repertory.llm.anthropic import AnthropicModel
from repertory.llm.messages import text_of, tool_uses
from repertory.llm.model import ModelRequest
from repertory.memory import ItemQuery
from repertory.record import MemoryJournal
from repertory.record.records import FINAL_STATES, EntryAppended
from repertory.testing import FunctionModel, ScriptedModel, call, open_messages_server
from storms import cancelled_after

STEPS = 12
CHECKPOINTS = (*range(0, 40, 3), 81, 160, 321, 640)  # after which a call is cancelled, also bare tasks of asyncio


@rp.tool(effect="transactional")
async def look(step: int, context: rp.ToolContext) -> str:
    """Look at a shelf; it is noted in memory and in the payload."""
    await context.memory.store(f"shelf {step}", item_id=f"shelf-{step}")
    if context.payload is not None:
        context.payload.append("shelves", step)
    return f"shelf {step}: " + "jars of honey, " * 400


def steps_done(request: ModelRequest) -> int:
    """How many shelves were looked at, by the last call in view."""
    uses = [use for message in request.messages for use in tool_uses(message.content)]
    return int(uses[-1].id.removeprefix("call-")) + 1 if uses else 0


def answer(request: ModelRequest) -> Any:
    """Look at a shelf at each iteration, then say so; whoever is asked again answers."""
    done = steps_done(request)
    said = text_of(request.messages[-1].content)
    if "Now say" in said:
        return f"I say it after {done}."
    return call("look", call_id=f"call-{done}", step=done) if done < STEPS else "All is counted."


class Shelves(msgspec.Struct):
    """The payload."""

    shelves: list[int] = msgspec.field(default_factory=list[int])


# Old results are taken back and summaries swapped in: the plan of what is shown is part of what is copied.
POLICY = rp.ContextPolicy(rhythm="strict", window=2, strict_chars=0, summarize_every=3)


def counter(**fields: Any) -> rp.Agent[str]:
    """An agent that counts."""
    given: dict[str, Any] = {"tools": [look], "payload": Shelves, "context": POLICY, **fields}
    return rp.Agent("counter", instructions="You count.", **given)


async def test_a_fork_is_asked_what_the_other_was_asked() -> None:
    """Its first request is the other's next one, word for word, whatever was folded, taken back and summarised."""
    model = FunctionModel(answer)
    agent = counter()
    async with rp.open_supervisor(model=model, summaries=()) as supervisor:
        run = await supervisor.spawn(agent, "Count the shelves.")
        await run.wait_result()
        asked = [*model.requests]
        assert len(asked) == STEPS + 1
        decided = [made.iteration for made in await supervisor.journal.read_decisions(run.id)]
        assert len(decided) > 2  # else nothing would be proved
        for iteration in (0, 1, 2, 5, 6, 7, 11):
            model.requests.clear()
            fork = await supervisor.fork(run.id, iteration=iteration, agent=agent)
            assert await fork.wait_result() == "All is counted."
            assert model.requests[0].messages == asked[iteration].messages, iteration
            assert model.requests[0].system == asked[iteration].system
            assert fork.payload.shelves == [*range(STEPS)]
            own = fork.statistics()
            assert (own.iterations, own.tool_calls) == (STEPS + 1 - iteration, STEPS - iteration)
            row = await supervisor.journal.read_run(fork.id)
            assert (row.started.origin, row.started.origin_iteration) == (run.id, iteration)
        assert run.statistics().iterations == STEPS + 1


async def test_a_fork_shows_what_a_caller_has_asked_for_and_keeps_its_reasoning() -> None:
    """What was asked before the next request was lost, and what had been asked earlier cost all reasoning once more."""
    reader = Reader(6, stop_at=4)
    agent = clerk(rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=200)))
    async with (
        open_messages_server(reader.model, thinks=True) as server,
        aclosing(AnthropicModel("claude-sonnet-5-5", base_url=server.url, api_key="none")) as model,
        rp.open_supervisor(model=model) as supervisor,
    ):
        run = await supervisor.spawn(agent, "Read.")
        await reader.arrived.wait()
        await run.expand(2)
        reader.go()
        await run.wait_result()
        asked = [*reader.model.requests]
        for iteration in (3, 4, 5, 6):
            fork = await supervisor.fork(run.id, iteration=iteration, agent=agent)
            await fork.wait_result()
            assert reader.model.requests[-1].messages == asked[iteration].messages, iteration
        assert {exchange.status for exchange in server.exchanges} == {200}


async def test_memory_and_payload_are_as_they_were_then_and_each_ones_own() -> None:
    """The fork sees what the other had written by then, and neither sees what the other writes afterwards."""
    agent = counter()
    async with rp.open_supervisor(model=FunctionModel(answer), summaries=()) as supervisor:
        run = await supervisor.spawn(agent, "Count the shelves.")
        await run.wait_result()
        fork = await supervisor.fork(run.id, iteration=3, text="Now say it.", agent=agent)
        assert await fork.wait_result() == "I say it after 3."
        assert fork.payload.shelves == [0, 1, 2]
        assert run.payload.shelves == [*range(STEPS)]
        names = {item.item_id for item in await fork.memory.query(ItemQuery(limit=50))}
        assert {name for name in names if name.startswith("shelf")} == {"shelf-0", "shelf-1", "shelf-2"}
        await fork.memory.store("mine", item_id="shelf-0")
        await run.memory.store("theirs", item_id="shelf-1")
        assert (await run.memory.retrieve("shelf-0")).text == "shelf 0"
        assert (await fork.memory.retrieve("shelf-1")).text == "shelf 1"
        again = await supervisor.fork(fork.id, agent=agent, text="Now say more.")  # of a fork, with all that it has
        assert await again.wait_result() == "I say it after 3."
        assert (await again.memory.retrieve("shelf-0")).text == "mine"


@pytest.mark.parametrize("removed", [False, True])
async def test_a_fork_of_a_fork_before_that_began_is_as_one_of_the_first(*, removed: bool) -> None:
    """It had no payload, and all that the first fork saw of memory. Once the first run is removed, that is so still."""
    model, agent = FunctionModel(answer), counter()
    async with rp.open_supervisor(model=model, summaries=()) as supervisor:
        run = await supervisor.spawn(agent, "Count the shelves.")
        await run.wait_result()
        asked = [*model.requests]
        fork = await supervisor.fork(run.id, iteration=9, text="Now say it.", agent=agent)
        await fork.wait_result()
        if removed:
            await supervisor.remove(run.id)
        for iteration in (0, 1, 6, 8):
            model.requests.clear()
            again = await supervisor.fork(fork.id, iteration=iteration, agent=agent)
            assert again.payload.shelves == [*range(iteration)]
            assert await again.wait_result() == "All is counted."
            assert model.requests[0].messages == asked[iteration].messages, iteration
            row = await supervisor.journal.read_run(again.id)
            assert (row.started.origin, row.started.origin_iteration) == (fork.id, iteration)
            said = await supervisor.fork(fork.id, iteration=iteration, text="Now say it.", agent=agent)
            assert await said.wait_result() == f"I say it after {iteration}."
            names = {item.item_id for item in await said.memory.query(ItemQuery(limit=50))}
            seen = 9 if removed else iteration
            assert {name for name in names if name.startswith("shelf")} == {f"shelf-{number}" for number in range(seen)}


async def test_a_fork_has_read_the_messages_that_it_copied() -> None:
    """One of them was read for a second time when it was sent again, and its id was free for another text."""
    async with rp.open_supervisor(model=ScriptedModel(["Ready.", "Four.", "Seven."])) as supervisor:
        run = await supervisor.spawn(agent := rp.Agent("clerk"), "Count.")
        await run.wait_result()
        assert await run.ask("Two and two?", message_id="m1") == "Four."
        fork = await supervisor.fork(run.id, agent=agent)
        assert await fork.wait_result() == "Four."
        assert await fork.ask("Two and two?", message_id="m1") == "Four."
        with pytest.raises(RunError, match="with another text or other attachments"):
            await fork.send("Two and three?", message_id="m1")
        assert await fork.ask("Three and four?", message_id="m2") == "Seven."
        entries = await supervisor.journal.read_entries(fork.id)
        assert [entry.message_id for entry in entries if entry.message_id] == ["m1", "m2"]


async def test_what_cannot_be_forked_is_refused() -> None:
    """With the iterations that there are; and nothing has begun."""
    agent = counter()
    async with rp.open_supervisor(model=FunctionModel(answer), summaries=()) as supervisor:
        run = await supervisor.spawn(agent, "Count the shelves.", run_id="one")
        await run.wait_result()
        with pytest.raises(RunError, match=f"no whole iteration 99; it has 0 .its task. to {STEPS + 1}"):
            await supervisor.fork("one", iteration=99, agent=agent)
        with pytest.raises(ConfigurationError, match="fork: iteration"):
            await supervisor.fork("one", iteration=-1, agent=agent)
        with pytest.raises(ConfigurationError, match="some text"):
            await supervisor.fork("one", text=" ", agent=agent)
        for continued in (supervisor.fork("one"), supervisor.rewind("one", 1), supervisor.resume("one")):
            with pytest.raises(ConfigurationError, match="agent 'counter' is defined; hand it in as agent="):
                await continued
        with pytest.raises(RunNotFound):
            await supervisor.fork("none", agent=agent)
        with pytest.raises(RunExists, match="no such fork"):
            await supervisor.fork("one", new_id="one", agent=agent)
        assert len(await supervisor.runs()) == 1
        given = await supervisor.spawn(agent, "Count.", run_id="given", context="mine")
        await given.wait_result()
        with pytest.raises(ContextMissing, match="hand it in again"):
            await supervisor.fork("given", agent=agent)


def test_a_repeated_fork_is_one_run(run_async: RunAsync) -> None:
    """Also where the calls race."""

    async def main() -> None:
        agent = counter()
        model = FunctionModel(answer)
        async with rp.open_supervisor(model=model, summaries=()) as supervisor:
            await (await supervisor.spawn(agent, "Count the shelves.", run_id="one")).wait_result()
            model.requests.clear()
            found: list[str] = []

            async def fork() -> None:
                run = await supervisor.fork("one", iteration=STEPS, new_id="two", agent=agent)
                found.append(await run.wait_result())

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(fork)
            assert found == ["All is counted."] * 5
            assert len(model.requests) == 1
            assert [row.started.run_id for row in await supervisor.runs()] == ["one", "two"]
            with pytest.raises(RunExists, match="no such fork"):
                await supervisor.fork("one", iteration=1, new_id="two", agent=agent)

    run_async(main)


async def test_a_fork_leaves_the_sub_agents_of_the_other_alone() -> None:
    """What they reported is in its record; they are neither taken up nor begun again."""

    def then(request: ModelRequest) -> Any:
        return "Told." if "Now say" in text_of(request.messages[-1].content) else last(request)

    begin = delegate("slow", tool="delegate_start")
    firm = Company(begin, lambda request: call("nothing"), then, call("delegate_collect"), last, collect, last)
    firm.hold("slow")
    async with rp.open_supervisor(model=firm.model) as supervisor:
        run = await supervisor.spawn(company(), "Go.")
        with trio.fail_after(PATIENCE):
            while len(firm.leads) < 3:
                await trio.sleep(0)
        fork = await supervisor.fork(run.id, iteration=1, text="Now say it.", agent=company())
        (worker,) = run.children
        for refused in (supervisor.fork(worker.id), supervisor.rewind(worker.id, 0)):
            with pytest.raises(RunError, match=f"belongs to {run.id}; fork that one"):
                await refused
        assert worker.state == "running"
        await fork.wait_ended()
        for _ in range(2):
            told = await fork.ask("Collect.")
            assert f"run {worker.id} does not go on: it belongs to the run that yours was forked from" in told
        firm.release("slow")
        await run.wait_ended()
        await fork.wait_ended()
        assert fork.children == ()
        assert len(run.children) == 1
        ids = [row.started.run_id for row in await supervisor.runs()]
        assert [each for each in ids if each.startswith(fork.id)] == [fork.id]


class Held:
    """A model whose third answer has to be waited for."""

    def __init__(self) -> None:
        self.model = FunctionModel(self.answer)
        self.asked = anyio.Event()
        self.hold = True

    async def answer(self, request: ModelRequest) -> Any:
        """One answer."""
        if self.hold and steps_done(request) == 3:
            self.asked.set()
            await anyio.sleep_forever()
        return answer(request)


def test_a_fork_that_is_cancelled_goes_on_or_has_not_begun(run_async: RunAsync) -> None:
    """After 0, 1, 2, … steps: no run is on record that nobody runs."""

    async def main() -> None:
        agent = counter()
        async with rp.open_supervisor(model=FunctionModel(answer), summaries=()) as supervisor:
            await (await supervisor.spawn(agent, "Count the shelves.", run_id="one")).wait_result()
            for steps in CHECKPOINTS:
                fork = partial(supervisor.fork, "one", new_id=f"fork-{steps}", agent=agent)
                await cancelled_after(steps, fork, bare=steps % 2 == 1)
            with anyio.fail_after(PATIENCE):
                while any(row.state != "done" for row in await supervisor.runs()):
                    await anyio.sleep(0.005)

    run_async(main)


def test_a_rewind_that_is_cancelled_goes_on_or_has_not_begun(run_async: RunAsync) -> None:
    """Either goes on: the run itself, or the one in its place; never both, and never none."""

    async def main() -> None:
        go = anyio.Event()

        async def wait(request: ModelRequest) -> str:
            await go.wait()
            return "Done."

        clerk = rp.Agent("clerk")
        async with rp.open_supervisor(model=FunctionModel(wait), summaries=()) as supervisor:
            for steps in CHECKPOINTS:
                await supervisor.spawn(clerk, "Go.", run_id=f"run-{steps}")
                rewind = partial(supervisor.rewind, f"run-{steps}", 0, new_id=f"new-{steps}", agent=clerk)
                await cancelled_after(steps, rewind, bare=steps % 2 == 1)
            go.set()
            with anyio.fail_after(PATIENCE):
                while any(row.state not in FINAL_STATES for row in await supervisor.runs()):
                    await anyio.sleep(0.005)
            states = {row.started.run_id: row.state for row in await supervisor.runs()}
            for steps in CHECKPOINTS:
                pair = states[f"run-{steps}"], states.get(f"new-{steps}")
                assert pair in (("done", None), ("stopped", "done"))

    run_async(main)


def test_a_removal_that_is_cancelled_goes_on_or_has_not_begun(run_async: RunAsync) -> None:
    """No run is left in part."""

    async def main() -> None:
        async with rp.open_supervisor(model=FunctionModel(lambda request: "Done.")) as supervisor:
            journal = supervisor.journal
            for steps in CHECKPOINTS:
                run = await supervisor.spawn(rp.Agent("clerk"), "Go.", run_id=f"run-{steps}")
                await run.wait_result()
                await cancelled_after(steps, partial(supervisor.remove, run.id), bare=steps % 2 == 1)
            with anyio.fail_after(PATIENCE):
                while await journal.read_removals():
                    await anyio.sleep(0.005)
            there = {row.started.run_id for row in await supervisor.runs()}
            for steps in CHECKPOINTS:
                assert bool(await journal.read_entries(f"run-{steps}")) == (f"run-{steps}" in there)

    run_async(main)


def test_a_rewound_run_ends_and_another_goes_on_from_earlier(run_async: RunAsync) -> None:
    """What is under way is cancelled, all that came later stays on record, and the record says what took its place."""

    async def main() -> None:
        held = Held()
        agent = counter()
        async with rp.open_supervisor(model=held.model, summaries=()) as supervisor:
            run = await supervisor.spawn(agent, "Count the shelves.")
            await held.asked.wait()
            before = len(await supervisor.journal.read_entries(run.id))
            held.hold = False
            going = await supervisor.rewind(run.id, 1, text="Now say it.", agent=agent)
            assert await going.wait_result() == "I say it after 1."
            assert going.id != run.id
            assert run.state == "stopped"
            with pytest.raises(RunStopped):
                await run.wait_result()
            assert len(await supervisor.journal.read_entries(run.id)) == before
            kept = [record.body for _, record in await supervisor.journal.read_events(run.id) if "fork" in record.body]
            assert kept == [{"fork": going.id, "rewound": True}]

    run_async(main)


async def test_a_rewind_that_is_refused_leaves_the_run_alone() -> None:
    """Also where it is under way: to an iteration that there is not, under an id that is gone."""
    held, agent = Held(), counter()
    async with rp.open_supervisor(model=held.model, summaries=()) as supervisor:
        gone = await supervisor.spawn(rp.Agent("short"), "Now say it.", run_id="gone")
        await gone.wait_result()
        await supervisor.remove("gone")
        run = await supervisor.spawn(agent, "Count the shelves.")
        await held.asked.wait()
        with pytest.raises(RunError, match="no whole iteration 50"):
            await supervisor.rewind(run.id, 50, agent=agent)
        with pytest.raises(RunExists, match="has been removed"):
            await supervisor.rewind(run.id, 1, new_id="gone", agent=agent)
        assert run.state == "running"
        assert (await supervisor.journal.read_run(run.id)).state == "running"


async def test_an_interrupted_run_is_rewound_in_the_next_process(tmp_path: Path) -> None:
    """Its end and the beginning of what takes its place are one transaction."""
    held, agent = Held(), counter()
    path = tmp_path / "a.db"
    async with rp.open_supervisor(path, model=held.model, summaries=(), drain_timeout=0.1) as supervisor:
        run = await supervisor.spawn(agent, "Count the shelves.")
        await held.asked.wait()
    held.hold = False
    async with rp.open_supervisor(path, model=held.model, summaries=()) as supervisor:
        going = await supervisor.rewind(run.id, 2, agent=agent)
        assert await going.wait_result() == "All is counted."
        assert (await supervisor.journal.read_run(run.id)).state == "stopped"


async def test_the_sub_agents_of_an_interrupted_run_end_with_it_when_it_is_rewound() -> None:
    """Nobody runs them any more, so no run below an ended one stays on record as under way."""
    office = Company(delegate("a", "b"), last)
    office.hold("a", "b")
    async with rp.open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=office.model, drain_timeout=0) as supervisor:
            run = await supervisor.spawn(company(), "Go.")
            await office.begun["a"].wait()
            await office.begun["b"].wait()
        assert {row.state for row in await journal.read_runs(below=run.id)} == {"running"}
        office.release()
        async with rp.open_supervisor(journal=journal, model=office.model) as supervisor:
            going = await supervisor.rewind(run.id, 0, agent=company())
            assert await going.wait_result() == "report on b"
        rows = await journal.read_runs(below=run.id)
        assert [(row.state, row.cancelled) for row in rows] == [
            ("stopped", True),
            ("stopped", False),
            ("stopped", False),
        ]


class Interrupting(MemoryJournal):
    """Calls a function before one of the reads of a run's records."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.then = -1, trio.lowlevel.checkpoint

    async def read_records(self, kind: Any, run_id: str, *, below: bool = False) -> Any:
        """As every journal does."""
        self.left -= 1
        if self.left == 0:
            await self.then()
        return await super().read_records(kind, run_id, below=below)


@pytest.mark.parametrize("read", range(1, 6))
async def test_a_run_that_goes_on_while_it_is_forked_is_copied_as_of_one_moment(read: int) -> None:
    """Whichever read it goes on before: entries of one iteration were copied with the payload and memory of another."""
    journal = Interrupting()

    def pausing(request: ModelRequest) -> Any:
        if steps_done(request) == 3:
            supervisor.run("one").pause()
        return answer(request)

    async with rp.open_supervisor(model=FunctionModel(pausing), journal=journal, summaries=()) as supervisor:
        agent = counter()
        run = await supervisor.spawn(agent, "Count the shelves.", run_id="one")
        with trio.fail_after(PATIENCE):
            while run.state != "paused":
                await trio.sleep(0)

        async def go_on() -> None:
            run.resume()
            await run.wait_ended()

        journal.left, journal.then = read, go_on
        fork = await supervisor.fork("one", text="Now say it.", agent=agent)
        assert journal.left <= 0
        done = len(fork.payload.shelves)
        assert done in (4, STEPS)
        await fork.wait_ended()
        whole = [entry for entry in await journal.read_entries(fork.id) if entry.kind == "action-result"]
        names = {item.item_id for item in await fork.memory.query(ItemQuery(limit=50))}
        assert (len(whole), len({name for name in names if name.startswith("shelf")})) == (done, done)


class Rows(msgspec.Struct):
    """The payload as a later definition declares it."""

    shelves: dict[str, int] = msgspec.field(default_factory=dict[str, int])


@pytest.mark.parametrize("verb", ["fork", "rewind"])
async def test_a_definition_that_does_not_fit_the_payload_begins_nothing(verb: str) -> None:
    """Else a fork was on record that no process could run, and a run that was at work had been ended for it."""
    held = Held()
    async with rp.open_supervisor(model=held.model, summaries=()) as supervisor:
        run = await supervisor.spawn(counter(), "Count the shelves.")
        await held.asked.wait()
        begin = partial(getattr(supervisor, verb), run.id, iteration=1)
        with pytest.raises(PayloadInvalid, match="does not fit Rows"):
            await begin(agent=counter(payload=Rows))
        with pytest.raises(ConfigurationError, match="the payload has no 'name'"):
            await begin(agent=rp.Agent("counter", instructions="Count for {payload.name}.", payload=dict))
        assert [(row.started.run_id, row.state) for row in await supervisor.runs()] == [(run.id, "running")]
        run.kill()


class SlowToForget(MemoryJournal):
    """Takes its time to say whether a run was removed, which is asked last before a fork is written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow, self.asked, self.answer = False, anyio.Event(), anyio.Event()

    async def was_removed(self, run_id: str) -> bool:
        """As every journal does, once it may."""
        was_removed = await super().was_removed(run_id)
        if self.is_slow and run_id == "origin":
            self.asked.set()
            await self.answer.wait()
        return was_removed


def test_a_run_is_not_removed_while_its_fork_is_written(run_async: RunAsync) -> None:
    """Its memory went with it, as nobody saw it yet; the fork was told that all was there, and found nothing."""

    async def main() -> None:
        agent, journal = counter(), SlowToForget()
        async with rp.open_supervisor(model=FunctionModel(answer), journal=journal, summaries=()) as supervisor:
            await (await supervisor.spawn(agent, "Count the shelves.", run_id="origin")).wait_result()
            async with anyio.create_task_group() as tasks:
                journal.is_slow = True
                tasks.start_soon(partial(supervisor.fork, "origin", new_id="fork", agent=agent))
                await journal.asked.wait()
                tasks.start_soon(supervisor.remove, "origin")
                await anyio.wait_all_tasks_blocked()
                journal.answer.set()
            fork = await supervisor.resume("fork", agent=agent)
            assert (await fork.memory.retrieve("shelf-0")).text == "shelf 0"
            assert [row.started.run_id for row in await supervisor.runs()] == ["fork"]

    run_async(main)


class SlowToRead(MemoryJournal):
    """Takes its time to read the entries of one run."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id, self.asked, self.answer = run_id, anyio.Event(), anyio.Event()

    async def read_records(self, kind: type[Any], run_id: str, *, below: bool = False) -> Any:
        """As every journal does, once it may."""
        if self.run_id == run_id and kind is EntryAppended:
            self.asked.set()
            await self.answer.wait()
        return await super().read_records(kind, run_id, below=below)


def test_a_run_is_not_removed_while_a_fork_of_its_fork_reads_it(run_async: RunAsync) -> None:
    """What is forked happened there; a part of it was gone already, and the new fork began without it."""

    async def main() -> None:
        agent, journal = counter(), SlowToRead("first")
        async with rp.open_supervisor(model=FunctionModel(answer), journal=journal, summaries=()) as supervisor:
            journal.answer.set()
            await (await supervisor.spawn(agent, "Count the shelves.", run_id="first")).wait_result()
            await (await supervisor.fork("first", iteration=9, new_id="second", agent=agent)).wait_result()
            async with anyio.create_task_group() as tasks:
                journal.asked, journal.answer = anyio.Event(), anyio.Event()
                tasks.start_soon(partial(supervisor.fork, "second", iteration=3, new_id="third", agent=agent))
                await journal.asked.wait()
                tasks.start_soon(supervisor.remove, "first")
                await anyio.wait_all_tasks_blocked()
                journal.answer.set()
            assert [entry.iteration for entry in await journal.read_entries("third")][:7] == [0, 1, 1, 2, 2, 3, 3]
            assert "first" not in [row.started.run_id for row in await supervisor.runs()]

    run_async(main)


def test_a_run_is_not_resumed_while_its_end_is_written_by_a_rewind(run_async: RunAsync) -> None:
    """It goes on afterwards, as a run does that was stopped: what is under way is never on record as stopped."""

    async def wait(_request: ModelRequest) -> str:
        await anyio.sleep_forever()
        return "never"

    async def main() -> None:
        clerk, journal = rp.Agent("clerk", model=FunctionModel(wait)), SlowToForget()
        async with rp.open_supervisor(journal=journal, drain_timeout=0) as supervisor:
            await supervisor.spawn(clerk, "Go.", run_id="origin")
        async with rp.open_supervisor(journal=journal, drain_timeout=0) as supervisor:
            async with anyio.create_task_group() as tasks:
                journal.is_slow = True
                tasks.start_soon(partial(supervisor.rewind, "origin", 0, agent=clerk))
                await journal.asked.wait()
                tasks.start_soon(partial(supervisor.resume, "origin", agent=clerk))
                await anyio.wait_all_tasks_blocked()
                journal.answer.set()
            assert supervisor.run("origin").state == "running"
            assert (await journal.read_run("origin")).state == "running"

    run_async(main)


async def test_a_failed_run_is_tried_again_and_nothing_else_is() -> None:
    """From where it failed: what was done is not done again."""
    failing = True

    def sometimes(request: ModelRequest) -> Any:
        if failing and steps_done(request) == 2:
            raise rp.errors.ModelUnavailable("no model today")
        return answer(request)

    agent = counter()
    async with rp.open_supervisor(model=FunctionModel(sometimes), summaries=()) as supervisor:
        run = await supervisor.spawn(agent, "Count the shelves.", run_id="one")
        with pytest.raises(RunFailed):
            await run.wait_result()
        failing = False
        again = await supervisor.retry("one", agent=agent)
        assert await again.wait_result() == "All is counted."
        assert again.id == "one"
        assert again.statistics().tool_calls == STEPS
        with pytest.raises(RunError, match="is done; fork it"):
            await supervisor.retry("one", agent=agent)
        held = Held()
        async with rp.open_supervisor(model=held.model, summaries=()) as other:
            await other.spawn(agent, "Count the shelves.", run_id="two")
            await held.asked.wait()
            with pytest.raises(RunError, match="has not ended"):
                await other.retry("two", agent=agent)
            other.run("two").kill()
