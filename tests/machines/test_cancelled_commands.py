"""What is asked of runs where machines share them, cancelled at many points: it has happened whole, or not at all."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import anyio
import pytest

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from postgres_server import PostgresServer
from repertory.errors import MachineSilent, ModelRefused, QueueFull, RunError
from repertory.llm.messages import ToolResult
from repertory.llm.model import ModelRequest
from repertory.supervisor import Quota, Quotas
from repertory.testing import FunctionModel, call
from storms import cancelled_after

# After which a call is cancelled, also bare tasks of asyncio. There are fewer, but it waits for the server in threads.
CHECKPOINTS = (0, 1, 4, 9, 20, 45, 80, 160, 233, 501, 999, 2001)
CLERK = "test_cancelled_commands:make_clerk"


def make_clerk() -> rp.Agent:
    """An agent that every machine finds."""
    return rp.Agent("clerk", context=None)


class Desk:
    """The model of all machines: its runs go on until it is opened, and fail while it is closed."""

    def __init__(self) -> None:
        self.model = FunctionModel(self.answer)
        self.open = anyio.Event()
        self.is_closed = False
        self.asked = 0

    async def answer(self, request: ModelRequest) -> str:
        """One answer."""
        if self.is_closed:
            raise ModelRefused("the desk is closed")
        self.asked += 1
        await self.open.wait()
        return "Done."

    async def machines(self, stack: AsyncExitStack, uri: str, count: int, **options: Any) -> list[rp.Supervisor]:
        """Supervisors on one journal."""
        options = {"labels": (), "model": self.model, **options}
        return [await stack.enter_async_context(rp.open_supervisor(uri, **options)) for _ in range(count)]


async def all_done(supervisor: rp.Supervisor) -> None:
    """Wait until every run on record has its answer."""
    with anyio.fail_after(PATIENCE):
        while {row.state for row in await supervisor.runs()} != {"done"}:
            await anyio.sleep(0.01)


def test_a_spawn_into_the_queue_of_all_machines_that_is_cancelled_takes_one_place_or_none(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """A place that was kept for a run which never came is free for the next one, at every machine."""
    uri = postgres.emptied_journal()
    most = len(CHECKPOINTS) + 3
    quotas = Quotas(clients={"ann": Quota(queued=most)})

    async def main() -> None:
        desk = Desk()
        async with AsyncExitStack() as stack:
            one, two = await desk.machines(stack, uri, 2, max_runs=1, quotas=quotas)
            for machine in (one, two):
                await machine.spawn(make_clerk(), "Go.", agent_ref=CLERK, client="ann")
            with anyio.fail_after(PATIENCE):
                while desk.asked < 2:
                    await anyio.sleep(0.01)
            spawn = partial(one.spawn, make_clerk(), "Go.", agent_ref=CLERK, client="ann")
            for steps in CHECKPOINTS:
                await cancelled_after(steps, partial(spawn, run_id=f"run-{steps}"), bare=steps % 2 == 1)
            await one.journal.write(())
            queued = await one.runs(states=["queued"])
            assert {each.run_id for each in await two.queue()} == {row.started.run_id for row in queued}
            free = most - len(queued)
            with anyio.fail_after(PATIENCE):
                while free:
                    try:
                        await two.spawn(make_clerk(), "Go.", agent_ref=CLERK, client="ann")
                        free -= 1
                    except QueueFull:  # until what was abandoned has been given back
                        await anyio.sleep(0.01)
            with pytest.raises(QueueFull):
                await spawn()
            desk.open.set()
            await all_done(one)

    run_async(main)


def test_a_retry_at_any_machine_that_is_cancelled_goes_on_or_has_not_begun(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """Of what another machine ran; what it did not take up anybody can."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        desk = Desk()
        async with AsyncExitStack() as stack:
            one, two = await desk.machines(stack, uri, 2)
            desk.is_closed = True
            for steps in CHECKPOINTS:
                run = await one.spawn(make_clerk(), "Go.", agent_ref=CLERK, run_id=f"run-{steps}")
                await run.wait_ended()
            desk.is_closed = False
            for steps in CHECKPOINTS:
                await cancelled_after(steps, partial(two.retry, f"run-{steps}"), bare=steps % 2 == 1)
            with anyio.fail_after(PATIENCE):
                for row in await one.runs(states=["failed"]):
                    while True:
                        try:
                            await one.retry(row.started.run_id)
                            break
                        except RunError:  # it goes on there, or will until that machine sees that nobody waits for it
                            if (await one.journal.read_run(row.started.run_id)).state != "failed":
                                break
                            await anyio.sleep(0.01)
            desk.open.set()
            await all_done(one)

    run_async(main)


@rp.tool(approval="always", effect="unsafe")
async def pay(to: int) -> str:
    """Pay somebody."""
    return f"paid {to}"


@rp.tool
async def order(what: int) -> rp.ResultLater:
    """Order something."""
    return rp.ResultLater("the shop")


BUYER = rp.Agent("buyer", tools=[pay, order], context=None)


def test_what_is_asked_of_a_run_elsewhere_is_carried_out_or_was_never_asked(
    postgres: PostgresServer, run_async: RunAsync
) -> None:
    """Decisions and results: whatever was written down before the caller went has come to the run."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        seen: list[dict[str, Any]] = []

        def play(request: ModelRequest) -> Any:
            if len(request.messages) > 1:
                blocks = request.messages[-1].content
                seen.append({block.tool_use_id: block.content for block in blocks if isinstance(block, ToolResult)})
                return "Done."
            calls = [call("pay", call_id=f"{verb}-{n}", to=n) for verb in ("approve", "deny") for n in CHECKPOINTS]
            return [*calls, *(call("order", call_id=f"give-{n}", what=n) for n in CHECKPOINTS)]

        model = FunctionModel(play)
        async with rp.open_supervisor(uri, model=model) as owner, rp.open_supervisor(uri, model=model) as other:
            run = await owner.spawn(BUYER, "Buy.")
            with anyio.fail_after(PATIENCE):
                while len(run.waiting()) < 3 * len(CHECKPOINTS):
                    await anyio.sleep(0.005)
            there = await other.remote(run.id)
            assert there is not None
            verbs = {
                "approve": there.approve,
                "deny": partial(there.deny, reason="No."),
                "give": partial(there.give_result, result="ink"),
            }
            returned = 0  # how many of them depends on how long the server takes
            for steps in CHECKPOINTS:
                for verb, do in verbs.items():
                    returned += not await cancelled_after(steps, partial(do, f"{verb}-{steps}"), bare=steps % 2 == 1)
            with anyio.fail_after(PATIENCE), postgres.connect(uri) as connection:
                unanswered = "SELECT count(*) FROM commands WHERE answered_at IS NULL"
                while connection.execute(unanswered).fetchone() != (0,):
                    await anyio.sleep(0.01)
                answered = "SELECT count(DISTINCT body) FROM commands WHERE answered_at IS NOT NULL"
                (asked,) = connection.execute(answered).fetchone()
            assert 3 * len(CHECKPOINTS) - len(run.waiting()) >= asked >= returned
            for each in run.waiting():
                with suppress(RunError, MachineSilent):  # one that was abandoned came after all; it is looked at below
                    await verbs[each.call_id.partition("-")[0]](each.call_id)
            with anyio.fail_after(PATIENCE):
                assert await run.wait_result() == "Done."
            (found,) = seen
            for steps in CHECKPOINTS:
                assert found[f"approve-{steps}"] == f"paid {steps}"
                assert "No." in str(found[f"deny-{steps}"])
                assert found[f"give-{steps}"] == "ink"

    run_async(main)
