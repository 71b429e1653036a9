"""What becomes of sub-agents when a tree is stopped or killed, and when it goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
import trio
import trio.testing

import repertory as rp
from backends import RunAsync
from failing_journals import LateJournal
from patience import PATIENCE
from repertory.errors import ModelUnavailable, RunStopped, ToolSetUnavailable
from repertory.llm.messages import ToolResult, ToolUse, text_of
from repertory.llm.model import ModelRequest
from repertory.record import MemoryJournal
from repertory.record.journal import Journal
from repertory.record.records import FINAL_STATES
from repertory.summarizer import SummaryReady
from repertory.testing import FunctionModel, call


@rp.tool(effect="pure")
async def look() -> str:
    """Look."""
    return "looked"


def lead(tools: Sequence[rp.Tool] = (look,)) -> rp.Agent:
    """Three levels: a lead, a worker, a helper."""
    helper = rp.Agent("helper", instructions="helper", tools=tools)
    worker = rp.Agent("worker", instructions="worker", team=[helper])
    return rp.Agent("lead", instructions="lead", team=[worker])


def reports_in(request: ModelRequest) -> list[str]:
    """The tool results that a request shows."""
    return [text_of(b) for message in request.messages for b in message.content if isinstance(b, ToolResult)]


class Tree:
    """A model for the three: each delegates once; the helper looks around until it may report."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.deep = anyio.Event()
        self.go = anyio.Event()
        self.model = FunctionModel(self._answer)

    async def _answer(self, request: ModelRequest) -> object:
        who = text_of(request.system)
        self.asked[who] = self.asked.get(who, 0) + 1
        reports = reports_in(request)
        if who == "helper":
            if len(reports) >= 2 and not self.go.is_set():
                self.deep.set()
                await self.go.wait()
            return f"{len(reports)} looks" if len(reports) >= 3 else call("look")
        below = {"lead": "worker", "worker": "helper"}[who]
        return f"{who}: {reports[0]}" if reports else call("delegate", agent=below, task=f"for {who}")


async def open_ends(journal: Journal) -> list[str]:
    """Runs on record that go on, ends that no event tells, and calls without results."""
    found = []
    for row in await journal.read_runs():
        run_id = row.started.run_id
        if row.state not in FINAL_STATES:
            found.append(f"{run_id} is {row.state}")
        told = [record.body["state"] for _, record in await journal.read_events(run_id, types=["StateChanged"])]
        if row.state not in told[-1:]:
            found.append(f"{run_id} is {row.state}, and was told to be {told}")
        blocks = [block for entry in await journal.read_entries(run_id) for block in entry.content]
        asked = {block.id for block in blocks if isinstance(block, ToolUse)}
        answered = [block.tool_use_id for block in blocks if isinstance(block, ToolResult)]
        if asked != set(answered) or len(answered) != len(asked):
            found.append(f"{run_id} has calls {asked} and results {answered}")
    return found


async def crash(run: rp.Run) -> None:
    """Crash the actor of a run from the side, as a bug in a handler would, until it is given up."""
    for _ in range(4):
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(10)
        ref = run._live.ref
        assert ref is not None
        ref.tell(SummaryReady(summary=None))  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_resumed_tree_takes_along_what_was_ended_with_it(run_async: RunAsync, tmp_path: Path, *, how: str) -> None:
    """Stopped or killed at its root, resumed at its root: the same runs go on, and nobody does anything twice."""

    async def main() -> None:
        tree = Tree()
        async with rp.open_supervisor(tmp_path / "runs.db", model=tree.model) as supervisor:
            run = await supervisor.spawn(lead(), "Go.")
            await tree.deep.wait()
            if how == "stop":
                run.stop()
                tree.go.set()
            else:
                run.kill()
            with pytest.raises(RunStopped):
                await run.wait_result()
            assert {row.state for row in await supervisor.runs()} == {"stopped"}
            tree.go.set()
            again = await supervisor.resume(run.id, agent=lead())
            assert await again.wait_result() == "lead: worker: 3 looks"
            assert await open_ends(supervisor.journal) == []
            assert [row.state for row in await supervisor.runs()] == ["done"] * 3
        assert tree.asked == {"lead": 2, "worker": 2, "helper": 4 if how == "stop" else 5}

    run_async(main)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_branch_that_is_ended_alone_is_reported_and_leaves_whole_records(how: str) -> None:
    """The worker is ended, not the lead: the lead is told, and nothing of the branch is left open."""
    tree = Tree()
    async with rp.open_supervisor(model=tree.model) as supervisor:
        run = await supervisor.spawn(lead(), "Go.")
        await tree.deep.wait()
        worker = run.children[0]
        if how == "stop":
            worker.stop()
            await trio.testing.wait_all_tasks_blocked()
            tree.go.set()
        else:
            worker.kill()
        assert "worker was stopped after" in await run.wait_result()
        assert {row.state for row in await supervisor.runs()} == {"done", "stopped"}
        assert await open_ends(supervisor.journal) == []


async def test_a_branch_that_is_ended_alone_together_with_its_tree_leaves_whole_records() -> None:
    """Nobody had time to give its open calls a result, and nobody continues it."""
    tree, journal = Tree(), MemoryJournal()
    async with rp.open_supervisor(journal=journal, model=tree.model) as supervisor:
        run = await supervisor.spawn(lead(), "Go.")
        await tree.deep.wait()
        run.children[0].kill()
        run.kill()
        assert await run.wait_ended() == "stopped"
        again = await supervisor.resume(run.id, agent=lead())
        assert "worker was stopped after" in await again.wait_result()
        assert await open_ends(journal) == []
    await journal.aclose()


async def test_a_tree_that_is_killed_each_time_it_goes_on_loses_nothing() -> None:
    """The calls that it had open are made when it is resumed, by whom they belong to."""
    tree, journal = Tree(), MemoryJournal()
    async with rp.open_supervisor(journal=journal, model=tree.model) as supervisor:
        run = await supervisor.spawn(lead(), "Go.")
        for _ in range(3):
            with trio.fail_after(PATIENCE):
                await tree.deep.wait()
            tree.deep = anyio.Event()
            run.kill()
            assert await run.wait_ended() == "stopped"
            run = await supervisor.resume(run.id, agent=lead())
        tree.go.set()
        assert await run.wait_result() == "lead: worker: 3 looks"
    await journal.aclose()


async def test_a_sub_agent_that_begins_while_the_tree_is_stopping_ends_with_it() -> None:
    """A delegation asked for in the very turn in which the run is stopped does not keep it open."""
    asked, go = trio.Event(), trio.Event()

    async def answer(request: ModelRequest) -> object:
        if text_of(request.system) == "lead":
            asked.set()
            await go.wait()
            return call("delegate", agent="worker", task="x")
        return call("nothing")

    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(lead(), "Go.")
        await asked.wait()
        run.stop()
        go.set()
        with trio.fail_after(PATIENCE), pytest.raises(RunStopped):
            await run.wait_result()
        assert {row.state for row in await supervisor.runs()} == {"stopped"}


async def test_a_tree_that_is_stopped_as_its_supervisor_closes_or_drains_goes_on_nowhere() -> None:
    """It is at work until its next boundary, and whoever stops it meanwhile was heard."""
    tree = Tree()

    async def stop() -> None:
        await trio.testing.wait_all_tasks_blocked()
        run.stop()
        tree.go.set()

    async with rp.open_journal() as journal, trio.open_nursery() as nursery:
        async with rp.open_supervisor(journal=journal, model=tree.model, drain_timeout=PATIENCE) as supervisor:
            run = await supervisor.spawn(lead(), "Go.")
            await tree.deep.wait()
            nursery.start_soon(stop)  # once the block is being left
        assert {row.state for row in await journal.read_runs()} == {"stopped"}


async def test_a_sub_agent_that_begins_while_the_supervisor_closes_does_no_work_there() -> None:
    """It worked to its end, however long that took; it begins when the tree is resumed."""
    asked, go, workers = trio.Event(), trio.Event(), list[str]()

    async def answer(request: ModelRequest) -> object:
        if text_of(request.system) == "lead":
            asked.set()
            await go.wait()
            return reports_in(request)[0] if reports_in(request) else call("delegate", agent="worker", task="x")
        workers.append("asked")
        return "Done."

    async def let_go() -> None:
        await trio.testing.wait_all_tasks_blocked()
        go.set()

    async with rp.open_journal() as journal, trio.open_nursery() as nursery:
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(lead(), "Go.")
            await asked.wait()
            nursery.start_soon(let_go)  # once the block is being left
        assert [row.started.agent for row in await journal.read_runs()] == ["lead", "worker"]
        assert not workers
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            assert await (await supervisor.resume(run.id, agent=lead())).wait_result() == "Done."


@pytest.mark.parametrize("how", ["closed", "stopped", "stopped late"])
async def test_a_sub_agent_without_which_a_lead_answers_while_it_is_stopped_has_ended_for_good(how: str) -> None:
    """Its calls stayed open on record, and it would have gone on when somebody said something to its lead."""
    go, asked, looking = trio.Event(), list[str](), trio.Event()

    @rp.tool(approval="always")
    async def ask() -> str:
        """Ask first."""
        return "allowed"

    async def answer(request: ModelRequest) -> object:
        asked.append(text_of(request.system))
        if text_of(request.system) == "worker":
            if how == "stopped late":  # it is told to stop while it waits, and stops after its lead has answered
                await looking.wait()
            return call("ask")
        if not reports_in(request):
            return call("delegate_start", agent="worker", task="x")
        await go.wait()
        return "Done without."

    async def let_go() -> None:
        await trio.testing.wait_all_tasks_blocked()
        go.set()

    worker = rp.Agent("worker", instructions="worker", tools=[ask])
    agent = rp.Agent("lead", instructions="lead", team=[worker], delegation=rp.Delegation(background=True))
    async with rp.open_journal() as journal, trio.open_nursery() as nursery:
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(agent, "Go.")
            await trio.testing.wait_all_tasks_blocked()
            if how == "closed":
                nursery.start_soon(let_go)  # once the block is being left
            else:
                run.stop()
                await let_go()
                await trio.testing.wait_all_tasks_blocked()
                looking.set()
                assert await run.wait_result() == "Done without."
        assert [(row.state, row.cancelled) for row in await journal.read_runs()] == [("done", False), ("stopped", True)]
        assert await open_ends(journal) == []
        asked.clear()
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            run = await supervisor.resume(run.id, agent=agent)
            assert await run.ask("And now?") == "Done without."
        assert asked == ["lead"]


@pytest.mark.parametrize("when", ["beside it", "before it was taken up"])
async def test_a_call_that_waited_below_a_lead_that_failed_waits_again_once_that_is_tried_again(when: str) -> None:
    """Its sub-agent continued, and was told that the call had ended: nobody could allow it any more."""
    failing = when == "beside it"

    @rp.tool(approval="always")
    async def ask() -> str:
        """Ask first."""
        return "allowed"

    class Server:
        """A tool set that is not always there."""

        name = "server"
        lifetime = "run"

        @asynccontextmanager
        async def open(self) -> AsyncGenerator[Sequence[rp.Tool]]:
            if failing:
                raise ToolSetUnavailable("the server is away")
            yield [look]

    async def answer(request: ModelRequest) -> object:
        reports = reports_in(request)
        if text_of(request.system) == "worker":
            return reports[0] if reports else call("ask")
        if failing:
            await trio.testing.wait_all_tasks_blocked()
            raise ModelUnavailable("the model is away")
        return reports[-1] if len(reports) > 1 else call("delegate_collect")

    async def begin(request: ModelRequest) -> object:
        is_new = text_of(request.system) == "lead" and not reports_in(request)
        return call("delegate_start", agent="worker", task="x") if is_new else await answer(request)

    worker = rp.Agent("worker", instructions="worker", tools=[ask])
    options = rp.Delegation(background=True)
    agent = rp.Agent("lead", instructions="lead", team=[worker], delegation=options)
    model = FunctionModel(begin)
    async with rp.open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.spawn(agent, "Go.")
            await trio.testing.wait_all_tasks_blocked()
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            if not failing:
                failing, agent = True, msgspec.structs.replace(agent, tools=[Server()])
                assert await (await supervisor.resume(run.id, agent=agent)).wait_ended() == "failed"
            assert [row.state for row in await supervisor.runs()] == ["failed", "stopped"]
            failing = False
            run = await supervisor.retry(run.id, agent=agent)
            await trio.testing.wait_all_tasks_blocked()
            (waiting,) = run.waiting(tree=True)
            await run.approve(waiting.call_id)
            assert "allowed" in await run.wait_result()
            assert await open_ends(journal) == []


@pytest.mark.parametrize("how", ["abort", "crash"])
async def test_a_sub_agent_that_fails_beside_a_call_that_waits_leaves_a_whole_record(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    """It is never continued: a call that waited while the supervisor closed, or the actor crashed, stayed open."""

    @rp.tool(approval="always")
    async def ask() -> str:
        """Ask first."""
        return "allowed"

    @rp.tool
    async def give_up() -> str:
        """End the run."""
        raise rp.ToolAbort("enough")

    async def answer(request: ModelRequest) -> object:
        if text_of(request.system) == "lead":
            return reports_in(request)[0] if reports_in(request) else call("delegate", agent="worker", task="x")
        return [call("ask"), call("give_up")] if how == "abort" else call("ask")

    worker = rp.Agent("worker", instructions="worker", tools=[ask, give_up])
    agent = rp.Agent("lead", instructions="lead", team=[worker])
    async with rp.open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(agent, "Go.")
            await trio.testing.wait_all_tasks_blocked()
            if how == "crash":
                await crash(run.children[0])
                await run.wait_result()
        async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
            run = await supervisor.resume(run.id, agent=agent)
            assert "worker failed after 1 iteration:" in await run.wait_result()
            assert [row.state for row in await supervisor.runs()] == ["done", "failed"]
            assert await open_ends(journal) == []


async def test_a_sub_agent_whose_end_is_being_written_keeps_it_when_its_lead_is_killed() -> None:
    """What was done stood as stopped on record, and the run continued after its end when the tree did."""
    journal = LateJournal()

    async def answer(request: ModelRequest) -> object:
        if text_of(request.system) == "lead":
            return reports_in(request)[0] if reports_in(request) else call("delegate", agent="worker", task="x")
        return "Done."

    async with rp.open_supervisor(journal=journal, model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(lead(), "Go.")
        await journal.ended.wait()
        run.kill()
        await trio.testing.wait_all_tasks_blocked()
        journal.acknowledge.set()
        assert await run.wait_ended() == "stopped"
        (worker,) = run.children
        assert await worker.wait_result() == "Done."
        assert [row.state for row in await supervisor.runs()] == ["stopped", "done"]
    await journal.aclose()


async def test_the_end_of_a_run_and_the_event_that_tells_it_are_on_record_together() -> None:
    """Whoever followed the events of a run whose process died in between waited for ever."""
    journal = LateJournal()
    with anyio.CancelScope() as dying:
        async with rp.open_supervisor(journal=journal, model=FunctionModel(lambda _: "Done.")) as supervisor:
            await supervisor.spawn(rp.Agent("clerk"), "Go.")
            await journal.ended.wait()
            dying.cancel()
            await anyio.sleep_forever()
    assert await open_ends(journal) == []
    await journal.aclose()


async def test_what_a_new_team_does_not_take_up_is_closed_when_the_tree_ends() -> None:
    """The resumed lead has no team any more: its old sub-agents are ended on record, with whole transcripts."""
    tree = Tree()
    async with rp.open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=tree.model, drain_timeout=0) as supervisor:
            run = await supervisor.spawn(lead(), "Go.")
            await tree.deep.wait()
        assert len(await open_ends(journal)) > 3
        async with rp.open_supervisor(journal=journal, model=tree.model) as supervisor:
            alone = rp.Agent("lead", instructions="lead")
            again = await supervisor.resume(run.id, agent=alone)
            assert "no tool named 'delegate'" in await again.wait_result()
        assert await open_ends(journal) == []


async def test_a_lead_that_keeps_crashing_takes_its_sub_agents_along(autojump_clock: trio.testing.MockClock) -> None:
    """Given up beside a sub-agent at work: that one is stopped on record too, and goes on when the lead does."""
    tree = Tree()
    async with rp.open_supervisor(model=tree.model) as supervisor:
        run = await supervisor.spawn(lead(), "Go.")
        await crash(run)
        with pytest.raises(rp.errors.RunFailed):
            await run.wait_result()
        assert [row.state for row in await supervisor.runs()] == ["failed", "stopped", "stopped"]
        tree.go.set()
        again = await supervisor.resume(run.id, agent=lead())
        assert await again.wait_result() == "lead: worker: 3 looks"
        assert await open_ends(supervisor.journal) == []
