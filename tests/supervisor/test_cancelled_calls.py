"""What is asked of runs, cancelled at each checkpoint: nothing of it has happened, or all of it, on record as well."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from repertory.errors import ModelRefused, QueueFull
from repertory.llm.messages import ToolResult
from repertory.llm.model import ModelRequest
from repertory.supervisor import Quota, Quotas
from repertory.testing import FunctionModel, call
from storms import cancelled_after, disagreements

CHECKPOINTS = (*range(0, 40, 3), 81, 160, 321, 640)  # after which a call is cancelled, also bare tasks of asyncio
CLERK = rp.Agent("clerk", context=None)


class Desk:
    """A model whose runs go on until it is opened, and fail while it is broken."""

    def __init__(self) -> None:
        self.model = FunctionModel(self.answer)
        self.open = anyio.Event()
        self.is_broken = False

    async def answer(self, request: ModelRequest) -> str:
        """One answer."""
        if self.is_broken:
            raise ModelRefused("the desk is closed")
        await self.open.wait()
        return "Done."


def test_a_spawn_into_a_full_queue_that_is_cancelled_takes_one_place_or_none(run_async: RunAsync) -> None:
    """What is queued is on record and begins in its turn; a place that nobody has is free for the next one."""

    async def main() -> None:
        desk, most = Desk(), len(CHECKPOINTS) + 3
        quotas = Quotas(clients={"ann": Quota(queued=most)})
        async with rp.open_supervisor(model=desk.model, max_runs=1, quotas=quotas) as supervisor:
            await supervisor.spawn(CLERK, "Go.", client="ann")
            for steps in CHECKPOINTS:
                spawn = partial(supervisor.spawn, CLERK, "Go.", run_id=f"run-{steps}", client="ann")
                await cancelled_after(steps, spawn, bare=steps % 2 == 1)
            on_record = {row.started.run_id for row in await supervisor.runs(states=["queued"])}
            assert {each.run_id for each in await supervisor.queue()} == on_record
            assert len(on_record) > 3
            for _ in range(most - len(on_record)):
                await supervisor.spawn(CLERK, "Go.", client="ann")

            async def spawn_too_many() -> None:
                with pytest.raises(QueueFull):
                    await supervisor.spawn(CLERK, "Go.", client="ann")

            for steps in CHECKPOINTS:
                await cancelled_after(steps, spawn_too_many, bare=steps % 2 == 1)
            assert len(await supervisor.queue()) == most
            desk.open.set()
            assert await disagreements(supervisor) == []

    run_async(main)


def test_a_retry_that_is_cancelled_goes_on_or_has_not_begun(run_async: RunAsync) -> None:
    """Where there is room, and where it has to wait for its turn."""

    async def main(*, full: bool) -> None:
        desk = Desk()
        async with rp.open_supervisor(model=desk.model, max_runs=1 if full else None) as supervisor:
            desk.is_broken = True
            for steps in CHECKPOINTS:
                await (await supervisor.spawn(CLERK, "Go.", run_id=f"run-{steps}")).wait_ended()
            desk.is_broken = False
            if full:
                await supervisor.spawn(CLERK, "Go.")
            for steps in CHECKPOINTS:
                retry = partial(supervisor.retry, f"run-{steps}", agent=CLERK)
                await cancelled_after(steps, retry, bare=steps % 2 == 1)
            await supervisor.journal.write(())
            again = "queued" if full else "running"
            for row in await supervisor.runs(states=[again]):
                assert supervisor.run(row.started.run_id).state == again
            failed = {row.started.run_id for row in await supervisor.runs(states=["failed"])}
            assert failed
            assert len(failed) < len(CHECKPOINTS)
            for run_id in failed:
                await supervisor.retry(run_id, agent=CLERK)
            desk.open.set()
            assert await disagreements(supervisor) == []

    run_async(partial(main, full=False))
    run_async(partial(main, full=True))


@rp.tool(approval="always", effect="unsafe")
async def pay(to: int) -> str:
    """Pay somebody."""
    return f"paid {to}"


@rp.tool
async def order(what: int) -> rp.ResultLater:
    """Order something."""
    return rp.ResultLater("the shop")


BUYER = rp.Agent("buyer", tools=[pay, order], context=None)


def answers_in(request: ModelRequest) -> dict[str, Any]:
    """What the calls of the last turn led to."""
    blocks = request.messages[-1].content
    return {block.tool_use_id: block.content for block in blocks if isinstance(block, ToolResult)}


def test_a_decision_and_a_result_that_are_cancelled_have_come_or_have_not(run_async: RunAsync) -> None:
    """What came is on record when the call that brought it has gone, and what did not come is still waited for."""

    async def main() -> None:
        seen: list[dict[str, Any]] = []

        def play(request: ModelRequest) -> Any:
            if len(request.messages) > 1:
                seen.append(answers_in(request))
                return "Done."
            calls = [call("pay", call_id=f"{verb}-{n}", to=n) for verb in ("approve", "deny") for n in CHECKPOINTS]
            return [*calls, *(call("order", call_id=f"give-{n}", what=n) for n in CHECKPOINTS)]

        async with rp.open_supervisor(model=FunctionModel(play), drain_timeout=0) as supervisor:
            run = await supervisor.spawn(BUYER, "Buy.")
            verbs = {
                "approve": run.approve,
                "deny": partial(run.deny, reason="No."),
                "give": partial(run.give_result, result="ink"),
            }
            with anyio.fail_after(PATIENCE):
                while len(run.waiting()) < 3 * len(CHECKPOINTS):
                    await anyio.sleep(0.005)
            came = set[tuple[str, bool]]()
            for steps in CHECKPOINTS:
                for verb, do in verbs.items():
                    call_id = f"{verb}-{steps}"
                    returned = not await cancelled_after(steps, partial(do, call_id), bare=steps % 2 == 1)
                    waits = call_id in {each.call_id for each in run.waiting()}
                    assert not (returned and waits)
                    await supervisor.journal.write(())
                    events = await supervisor.journal.read_events(run.id, types=["ApprovalDecided", "ResultGiven"])
                    assert waits == (call_id not in {event.body["call_id"] for _, event in events})
                    came.add((verb, not waits))
            assert came == {(verb, happened) for verb in verbs for happened in (False, True)}
            for each in run.waiting():
                await verbs[each.call_id.partition("-")[0]](each.call_id)
            with anyio.fail_after(PATIENCE):
                assert await run.wait_result() == "Done."
            (found,) = seen
            for steps in CHECKPOINTS:
                assert found[f"approve-{steps}"] == f"paid {steps}"
                assert "No." in str(found[f"deny-{steps}"])
                assert found[f"give-{steps}"] == "ink"

    run_async(main)
