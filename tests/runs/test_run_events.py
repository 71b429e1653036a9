"""What a run's events say when it is resumed, stopped, or one of very many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

import repertory as rp
from failing_journals import SlowJournal
from patience import PATIENCE
from repertory.errors import ModelUnavailable, RunStopped
from repertory.llm.model import ModelRequest
from repertory.record.records import Record, RunStateChanged
from repertory.record.waiting import Ticket
from repertory.runs.events import AnyEvent, EventsMissed, RunResumed, StateChanged
from repertory.testing import FunctionModel, ScriptedModel, call


def states_of(events: list[AnyEvent]) -> list[str]:
    """The states that a run went through."""
    return [event.state for event in events if isinstance(event, StateChanged)]


async def test_the_events_of_a_run_resumed_in_the_same_process_begin_with_its_resumption() -> None:
    """A handle follows its run, so the one of the run that failed shows the same."""
    model = ScriptedModel([ModelUnavailable("down"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        failed = await supervisor.spawn(rp.Agent("a"), "Go.")
        with pytest.raises(rp.errors.RunFailed):
            await failed.wait_result()
        again = await supervisor.resume(failed.id, agent=rp.Agent("a"))
        with trio.fail_after(PATIENCE):
            events = [event async for event in again.events()]
            assert [event async for event in failed.events()] == events
    assert states_of(events) == ["running", "done"]
    assert any(isinstance(event, RunResumed) for event in events)


@rp.tool(effect="pure")
async def chatter(context: rp.ToolContext) -> str:
    """Say so much that nothing from before is in memory any more."""
    for _ in range(20_000):
        context.progress("on and on")
    return "said"


def busy() -> rp.Agent:
    """An agent whose events fill the memory of events."""
    return rp.Agent("busy", tools=[chatter], model=ScriptedModel([call("chatter"), "Busy."]))


async def test_a_reader_sees_the_answer_that_a_run_gives_while_its_supervisor_closes() -> None:
    """It ended as the closing began, and the rest was only on record."""
    go, told = trio.Event(), list[AnyEvent]()

    async def answer(_: ModelRequest) -> str:
        await go.wait()
        return "Done."

    async def follow(run: rp.Run) -> None:
        told.extend([event async for event in run.events()])

    async def let_go() -> None:
        await trio.testing.wait_all_tasks_blocked()
        go.set()

    async with trio.open_nursery() as nursery, rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        nursery.start_soon(follow, await supervisor.spawn(rp.Agent("a"), "Go."))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(let_go)  # once the block is being left
    assert states_of(told) == ["done"]


async def test_a_fresh_reader_is_not_told_of_what_others_did() -> None:
    """The memory of events has long wrapped, with another run's; nothing of this run was missed."""
    async with rp.open_supervisor() as supervisor:
        await (await supervisor.spawn(busy(), "Go.")).wait_result()
        run = await supervisor.spawn(rp.Agent("a", model=ScriptedModel(["Done."])), "Go.")
        events = [event async for event in run.events()]
    assert not any(isinstance(event, EventsMissed) for event in events)
    assert states_of(events) == ["done"]


async def test_the_events_of_a_run_end_even_if_its_end_is_no_longer_in_memory() -> None:
    """Whoever comes far too late waits for nothing."""
    async with rp.open_supervisor() as supervisor:
        run = await supervisor.spawn(rp.Agent("a", model=ScriptedModel(["Done."])), "Go.")
        await run.wait_result()
        await (await supervisor.spawn(busy(), "Go.")).wait_result()
        with trio.fail_after(PATIENCE):
            assert [event async for event in run.events()] == []


@pytest.mark.parametrize("end", ["stop", "close"])
async def test_an_answer_that_is_there_when_the_run_is_stopped_is_kept(end: str) -> None:
    """The last call is under way when somebody stops it: its answer is the run's, not thrown away."""
    asked, go = trio.Event(), trio.Event()

    async def answer(request: ModelRequest) -> str:
        asked.set()
        await go.wait()
        return "The answer."

    async with rp.open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(rp.Agent("a"), "Go.")
            await asked.wait()
            if end == "stop":
                run.stop()
                await trio.testing.wait_all_tasks_blocked()
            go.set()
        assert await run.wait_result() == "The answer."
        assert (await journal.read_run(run.id)).result == "The answer."


class HoldsTheEnd(SlowJournal):
    """A journal whose disk takes its time with the end of a run."""

    def submit(self, records: Sequence[Record], **options: Any) -> Ticket:
        """Hold from the end of a run on."""
        if any(isinstance(record, RunStateChanged) and record.state == "done" for record in records):
            self.hold()
        return super().submit(records, **options)


async def test_a_kill_does_not_undo_an_end_that_is_on_its_way_to_the_disk() -> None:
    """The run is done, for its caller and on record, though it was killed before that was durable."""
    journal = HoldsTheEnd()
    async with rp.open_supervisor(journal=journal, model=ScriptedModel(["The answer."])) as supervisor:
        run = await supervisor.spawn(rp.Agent("a"), "Go.")
        while not journal.waiting:
            await trio.lowlevel.checkpoint()
        run.kill()
        await trio.testing.wait_all_tasks_blocked()
        journal.release()
        assert await run.wait_result() == "The answer."
        assert [row.state for row in await supervisor.runs()] == ["done"]


async def test_a_message_that_came_with_the_last_answer_keeps_a_stopped_run_open() -> None:
    """What was said is not lost: the run is stopped, and hears it when it is resumed."""
    asked, go = trio.Event(), trio.Event()

    async def answer(request: ModelRequest) -> str:
        asked.set()
        await go.wait()
        return f"{sum(message.role == 'user' for message in request.messages)} texts"

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(rp.Agent("a"), "Go.")
        await asked.wait()
        await run.send("And this?")
        run.stop()
        await trio.testing.wait_all_tasks_blocked()
        go.set()
        with pytest.raises(RunStopped):
            await run.wait_result()
        again = await supervisor.resume(run.id, agent=rp.Agent("a"))
        assert await again.wait_result() == "2 texts"


async def test_a_run_resumed_under_another_definition_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """As an event, which is journalled, and in the log; under the same definition there is nothing to say."""
    model = ScriptedModel([ModelUnavailable("down"), ModelUnavailable("down"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("a"), "Go.")
        for instructions in ("", "Be brief."):
            with pytest.raises(rp.errors.RunFailed):
                await run.wait_result()
            run = await supervisor.resume(run.id, agent=rp.Agent("a", instructions=instructions))
        await run.wait_result()
        journalled = [record for _, record in await supervisor.journal.read_events(run.id)]
    assert [record.body["agent_changed"] for record in journalled if record.type == "RunResumed"] == [False, True]
    assert [vars(record).get("event") for record in caplog.records].count("agent.changed") == 1
