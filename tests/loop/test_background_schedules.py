"""Sub-agents in the background under random timing and restarts, on a virtual clock: nothing lost, nothing twice."""

from __future__ import annotations

import random
from contextlib import suppress

import anyio
import pytest
import trio
import trio.testing

import repertory as rp
from delegating import company, delegate, results_in, task_of
from repertory.errors import ModelUnavailable, RunStopped
from repertory.llm.messages import ToolResult, ToolUse, text_of
from repertory.llm.model import ModelRequest
from repertory.record.journal import Journal
from repertory.record.records import FINAL_STATES
from repertory.testing import FunctionModel, call

PARTS = 7
PARALLEL = 3


class Chance:
    """Plays a company: every call takes its time, some fail, and the lead collects one report after the other."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.busy = self.most = 0
        self.failing = {f"part {number}" for number in range(PARTS) if self.draw.random() < 0.3}
        self.model = FunctionModel(self._answer)

    async def _answer(self, request: ModelRequest) -> object:
        if text_of(request.system).startswith("You lead."):
            await anyio.sleep(self.draw.uniform(0, 2))
            return self._lead(request)
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await anyio.sleep(self.draw.uniform(0, 5))
        finally:
            self.busy -= 1
        steps = len(results_in(request))
        again = "An earlier attempt" in text_of(request.messages[0].content)
        if task_of(request) in self.failing and not again and steps == 1:
            raise ModelUnavailable("down")
        return f"report on {task_of(request)}" if steps >= 2 else call("nothing", step=steps)

    def _lead(self, request: ModelRequest) -> object:
        results = results_in(request)
        if not results:
            return delegate(*(f"part {number}" for number in range(PARTS)), tool="delegate_start")
        if "you have every report" in results[-1]:
            return "\n".join(results)
        return call("delegate_collect", wait=self.draw.choice(["any", "all"]))


async def open_ends(journal: Journal) -> list[str]:
    """Runs on record that go on, and calls that have not exactly one result."""
    found = [row.started.run_id for row in await journal.read_runs() if row.state not in FINAL_STATES]
    for row in await journal.read_runs():
        blocks = [block for entry in await journal.read_entries(row.started.run_id) for block in entry.content]
        asked = sorted(block.id for block in blocks if isinstance(block, ToolUse))
        if asked != sorted(block.tool_use_id for block in blocks if isinstance(block, ToolResult)):
            found.append(f"calls of {row.started.run_id}")
    return found


@pytest.mark.parametrize("seed", range(12))
async def test_every_part_is_reported_whatever_the_timing(autojump_clock: trio.testing.MockClock, *, seed: int) -> None:
    """Closed or stopped at random and resumed: the same runs go on, never more at once than the lead's agent says."""
    chance = Chance(seed)
    agent = company(
        rp.Delegation(background=True, parallel=PARALLEL, on_failure="retry", retries=3),
        context=None,
        limits=rp.Limits(iterations=60, runs=40),
    )
    run_id, text = f"run-{seed}", ""
    async with rp.open_journal() as journal:
        while not text:
            async with rp.open_supervisor(journal=journal, model=chance.model, drain_timeout=0) as supervisor:
                known = [row.started.run_id for row in await journal.read_runs()]
                if known:
                    run = await supervisor.resume(run_id, agent=agent)
                else:
                    run = await supervisor.spawn(agent, "Go.", run_id=run_id)
                with trio.move_on_after(chance.draw.uniform(0.5, 15)):
                    text = await run.wait_result()
                if not text and chance.draw.random() < 0.3:
                    run.stop()
                    with suppress(RunStopped):
                        text = await run.wait_result()
        rows = await journal.read_runs()
        assert await open_ends(journal) == []
    assert chance.most <= PARALLEL
    assert all(f"report on part {number}" in text for number in range(PARTS))
    done = [row.started.task for row in rows if row.state == "done" and row.started.parent_id]
    assert sorted(done) == [f"part {number}" for number in range(PARTS)]
    failed = [row.started.task for row in rows if row.state == "failed"]
    assert {*failed} == chance.failing
