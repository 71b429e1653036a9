"""How many sub-agents work at once, and what the failure of one means for the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing

import repertory as rp
from backends import RunAsync
from delegating import Company, collect, company, delegate, last, results_in, said_in
from patience import PATIENCE
from repertory.errors import ModelUnavailable, RunStopped
from repertory.llm.model import ModelRequest
from repertory.record import MemoryJournal, RunRow
from repertory.record.records import Record, RunStateChanged
from repertory.record.waiting import Ticket
from repertory.runs.events import StateChanged
from repertory.runs.fan_out import Line
from repertory.testing import call

DOWN = ModelUnavailable("down")


def together(request: ModelRequest) -> str:
    """Answer with all results."""
    return "\n".join(results_in(request))


@pytest.mark.parametrize("tool", ["delegate", "delegate_start"])
async def test_only_so_many_sub_agents_work_at_once(tool: str) -> None:
    """The others have begun and wait for their turn; each gets it, and the limit on tool calls has no part in it."""
    tasks = [f"part {number}" for number in range(6)]
    turns = [delegate(*tasks, tool=tool), *([collect] if tool != "delegate" else []), together]
    firm = Company(*turns)
    firm.hold(*tasks)
    agent = company(rp.Delegation(background=True, parallel=3), limits=rp.Limits(parallel_tools=1))
    async with rp.open_supervisor(model=firm.model) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        with trio.fail_after(PATIENCE):
            while len(firm.at_work) < 3:
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            assert len(firm.at_work) == 3
            assert sorted(child.state for child in run.children) == ["running"] * 3 + ["waiting"] * 3
            firm.release()
            text = await run.wait_result()
    assert firm.most == 3
    assert text.count("report on") == 6


def test_only_those_who_may_have_a_turn_are_woken() -> None:
    """Of a thousand in line, each would be woken a thousand times if the end of one woke all."""
    woken: list[int] = []
    line = Line(2, clock=lambda: 0.0)
    first, *_ = [line.join(partial(woken.append, number)) for number in range(5)]
    line.leave(first)
    assert woken == [1, 2]


@pytest.mark.parametrize("tool", ["delegate", "delegate_start"])
def test_sub_agents_of_one_turn_begin_in_the_order_of_their_calls(
    run_async: RunAsync, tmp_path: Path, tool: str
) -> None:
    """Which works first, where not all may at once, is the lead's choice; lists of them have the same order."""
    tasks = [f"part {number}" for number in range(8)]
    firm = Company(delegate(*tasks, tool=tool), *([collect] if tool != "delegate" else []), together)

    async def main() -> list[list[str]]:
        async with rp.open_supervisor(tmp_path / "runs.db", model=firm.model) as supervisor:
            run = await supervisor.spawn(company(rp.Delegation(background=True, parallel=1)), "Go.")
            await run.wait_result()
            recorded = [row.started.task for row in await supervisor.runs() if row.started.parent_id]
            return [firm.at_work, [child.task for child in run.children], recorded]

    assert run_async(main) == [tasks, tasks, tasks]


async def test_who_waits_for_its_turn_can_be_stopped() -> None:
    """A stopped tree ends, those in the line too, and all of them go on when it is resumed."""
    firm = Company(delegate("a", "b", "c"), together)
    firm.hold("a", "b", "c")
    agent = company(rp.Delegation(parallel=1))
    async with rp.open_supervisor(model=firm.model) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        with trio.fail_after(PATIENCE):
            while not firm.at_work:
                await trio.testing.wait_all_tasks_blocked()
            run.stop()
            await trio.testing.wait_all_tasks_blocked()
            firm.release()
            with pytest.raises(RunStopped):
                await run.wait_result()
            states = [row.state for row in await supervisor.runs()]
            assert sorted(states) == ["done", "stopped", "stopped", "stopped"]  # what is answered is kept
            again = await supervisor.resume(run.id, agent=agent)
            assert (await again.wait_result()).count("report on") == 3
    assert firm.most == 1


@pytest.mark.parametrize("tool", ["delegate", "delegate_start"])
def test_with_fail_fast_one_failure_cancels_the_others(run_async: RunAsync, *, tool: str) -> None:
    """The lead hears which one failed, and of the others that they were cancelled for that."""

    async def main() -> None:
        turns = [delegate("bad", "good", tool=tool), *([collect] if tool != "delegate" else []), together]
        firm = Company(*turns, work={"bad": [DOWN]})
        firm.hold("bad", "good")
        agent = company(rp.Delegation(background=True, on_failure="fail_fast"))
        async with rp.open_supervisor(model=firm.model) as supervisor:
            run = await supervisor.spawn(agent, "Go.")
            await firm.begun["bad"].wait()
            await firm.begun["good"].wait()
            firm.release("bad")
            text = await run.wait_result()
            assert {child.task: child.state for child in run.children} == {"bad": "failed", "good": "stopped"}
        assert "failed after 1 iteration: ModelUnavailable: down" in text
        assert "was cancelled after 1 iteration: run-" in text
        assert text.count("(worker) failed") == 1

    run_async(main)


async def test_by_default_a_failure_is_told_and_the_others_go_on() -> None:
    """The lead collects what there is."""
    firm = Company(delegate("bad", "good"), together, work={"bad": [DOWN]})
    async with rp.open_supervisor(model=firm.model) as supervisor:
        text = await (await supervisor.spawn(company(), "Go.")).wait_result()
    assert "worker failed after 1 iteration: ModelUnavailable: down" in text
    assert "report on good" in text


@pytest.mark.parametrize("tool", ["delegate", "delegate_start"])
async def test_with_retry_another_run_is_told_what_went_wrong(tool: str) -> None:
    """It gets the task unchanged and the error beside it; the lead gets one report, under the id it knows."""
    turns = [delegate("a", tool=tool), *([collect] if tool != "delegate" else []), last]
    firm = Company(*turns, work={"a": [DOWN, said_in]})
    agent = company(rp.Delegation(background=True, on_failure="retry"))
    async with rp.open_supervisor(model=firm.model) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        with trio.fail_after(PATIENCE):
            text = await run.wait_result()
        first, second = run.children
    assert "An earlier attempt at this task failed: ModelUnavailable: down" in text
    assert (first.state, second.state, second.id) == ("failed", "done", f"{first.id}-2")
    assert second.task == first.task == "a"


async def test_a_delegation_is_retried_only_so_often() -> None:
    """Then the lead hears of the last failure, and in which attempt it came."""
    firm = Company(delegate("a"), last, work={"a": [DOWN, DOWN, ModelUnavailable("gone"), "too late"]})
    agent = company(rp.Delegation(on_failure="retry", retries=2))
    async with rp.open_supervisor(model=firm.model) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        text = await run.wait_result()
        assert len(run.children) == 3
    assert text.startswith("worker failed after 1 iteration in attempt 3: ModelUnavailable: gone")


async def test_a_tree_that_is_full_has_no_room_for_a_retry() -> None:
    """The failure stands as it is."""
    firm = Company(delegate("a"), last, work={"a": [DOWN]})
    agent = company(rp.Delegation(on_failure="retry"), limits=rp.Limits(runs=2))
    async with rp.open_supervisor(model=firm.model) as supervisor:
        text = await (await supervisor.spawn(agent, "Go.")).wait_result()
    assert text.startswith("worker failed after 1 iteration: ModelUnavailable: down")


class BusyJournal(MemoryJournal):
    """A journal that is slow to say whether there was a second attempt, and then with all else once a run is done.

    Attributes:
        asked: Set once it was asked for the second attempt; ``answer`` lets it answer.
        clean: Lets it say what is to be cleaned up after a run that is done; it writes nothing until ``resume``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer, self.clean, self.resume = (anyio.Event() for _ in range(4))
        self._done = self._cleaned = False

    async def run_or_none(self, run_id: str) -> RunRow | None:
        """Wait for ``answer`` before a second attempt is read."""
        if run_id.endswith("-2"):
            self.asked.set()
            await self.answer.wait()
        return await super().run_or_none(run_id)

    def submit(self, records: Sequence[Record], **options: Any) -> Ticket:
        """Notice that a run is done."""
        self._done |= any(isinstance(record, RunStateChanged) and record.state == "done" for record in records)
        return super().submit(records, **options)

    async def write(self, records: Sequence[Record]) -> None:
        """Wait for ``resume`` once the cleaning has begun."""
        if self._cleaned:
            await self.resume.wait()
        await super().write(records)

    async def read_due_bodies(self, *args: Any, **options: Any) -> list[tuple[int, Any]]:
        """Wait for ``clean`` once a run is done."""
        if self._done:
            self._cleaned = True
            await self.clean.wait()
        return await super().read_due_bodies(*args, **options)


async def test_a_retry_that_begins_as_the_lead_ends_ends_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """It joined a team whose end was being written: the lead crashed, and went on after its end."""

    async def while_it_is_retried(_request: ModelRequest) -> str:
        await journal.asked.wait()
        return "Done."

    journal = BusyJournal()
    firm = Company(delegate("a", tool="delegate_start"), "Wait.", while_it_is_retried, work={"a": [DOWN]})
    async with rp.open_supervisor(model=firm.model, journal=journal) as supervisor:
        run = await supervisor.spawn(company(rp.Delegation(background=True, on_failure="retry")), "Go.")
        with trio.fail_after(PATIENCE):
            for event in (journal.answer, journal.clean, journal.resume):
                await trio.testing.wait_all_tasks_blocked()
                event.set()
            assert await run.wait_result() == "Done."
        assert [row.state for row in await supervisor.runs()] == ["done", "failed", "stopped"]
        assert "crashed" not in caplog.text
    await journal.aclose()


def test_a_retry_goes_on_after_a_restart(run_async: RunAsync, tmp_path: Path) -> None:
    """The second attempt is found again, and there is no third."""

    async def main() -> None:
        firm = Company(delegate("a"), last, work={"a": [DOWN, call("nothing"), "at last"]})
        agent = company(rp.Delegation(on_failure="retry"))
        async with rp.open_supervisor(tmp_path / "runs.db", model=firm.model, drain_timeout=0) as supervisor:
            run = await supervisor.spawn(agent, "Go.")
            async for event in run.events(tree=True):
                if event.run_id.endswith("-2") and event.iteration == 1:
                    break
        async with rp.open_supervisor(tmp_path / "runs.db", model=firm.model) as supervisor:
            again = await supervisor.resume(run.id, agent=agent)
            assert await again.wait_result() == "at last"
            assert [row.state for row in await supervisor.runs()] == ["done", "failed", "done"]

    run_async(main)


async def test_a_lead_may_choose_the_mode_of_memory_for_one_delegation() -> None:
    """As far as its agent allows it; a mode that it does not allow is refused as any wrong argument."""
    turns = [
        [*delegate("kept apart", memory="isolated"), *delegate("as ever")],
        delegate("no", memory="shared"),
        together,
    ]
    firm = Company(*turns)
    agent = company(rp.Delegation(memory=["isolated", "snapshot"]))
    async with rp.open_supervisor(model=firm.model) as supervisor:
        run = await supervisor.spawn(agent, "Go.")
        text = await run.wait_result()
        scopes = {child.task: child.memory.scope_id for child in run.children}
        await run.memory.store("known to all", item_id="fact")
        by_task = {child.task: await child.memory.query() for child in run.children}
    assert set(scopes) == {"kept apart", "as ever"}
    assert [len(by_task["kept apart"]), len(by_task["as ever"])] == [0, 1]
    assert "Invalid enum value 'shared'" in text


def test_what_has_not_begun_when_another_fails_does_not_begin() -> None:
    """With fail fast, for the delegations of the same turn."""
    failed = anyio.Event()

    @rp.tool(effect="pure")
    async def hold() -> str:
        """Hold up those that come behind."""
        await failed.wait()
        return "held"

    async def main() -> None:
        started = delegate("bad", "good", tool="delegate_start")
        turns = ["Is it done?", together]  # the first is told of the failed one, which it has not collected
        firm = Company([started[0], call("hold"), started[1]], *turns, work={"bad": [DOWN]})
        policy = rp.Delegation(background=True, on_failure="fail_fast")
        agent = company(policy, limits=rp.Limits(parallel_tools=1), tools=[hold])
        async with rp.open_supervisor(model=firm.model) as supervisor:
            run = await supervisor.spawn(agent, "Go.")
            async for event in run.events(tree=True):
                if event.agent == "worker" and isinstance(event, StateChanged):
                    await anyio.wait_all_tasks_blocked()
                    failed.set()
            text = await run.wait_result()
            assert len(run.children) == 1
        assert "worker was not started: another delegation of this turn has failed" in text

    anyio.run(main, backend="asyncio")  # which begins the calls of a turn in their order
