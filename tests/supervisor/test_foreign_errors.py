"""What an application's code raises is its run's trouble at most, whatever kind of error it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import anyio
import pytest

import repertory as rp
from backends import RunAsync
from repertory.errors import RunFailed
from repertory.llm import text_of
from repertory.runs.events import ApprovalRequested
from repertory.testing import FunctionModel, ScriptedModel, call
from repertory.tools.tool_sets import Lifetime


class Panic(BaseException):
    """What an extension in Rust raises."""


def panic(*_: object) -> NoReturn:
    """Panic."""
    raise Panic("no such column")


def give_up(*_: object) -> NoReturn:
    """Raise what a future of asyncio does that somebody has cancelled; as grpc.aio does if the peer cancels."""
    raise asyncio.CancelledError


class Opened:
    """A tool set that fails when it is opened."""

    def __init__(self, lifetime: Lifetime, fail: Callable[[], object]) -> None:
        self.name = "opened"
        self.lifetime: Lifetime = lifetime
        self._fail = fail

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Sequence[rp.Tool]]:
        """Fail."""
        self._fail()
        yield []


FAILING: dict[str, Callable[[Callable[..., Any]], rp.Agent]] = {
    "a model": lambda fail: rp.Agent("clerk", model=FunctionModel(fail)),
    "a tool set of a run": lambda fail: rp.Agent("clerk", tools=[Opened("run", fail)]),
    "a tool set of all runs": lambda fail: rp.Agent("clerk", tools=[Opened("supervisor", fail)]),
}


@pytest.mark.parametrize("whose", FAILING)
@pytest.mark.parametrize("fail", [panic, give_up])
def test_an_error_that_is_no_exception_ends_one_run(whose: str, fail: Callable[..., Any], run_async: RunAsync) -> None:
    """It cancelled every run of the process; what was cancelled elsewhere even ended the block without an error."""

    async def main() -> str:
        async with rp.open_supervisor(model=ScriptedModel(["here"])) as supervisor:
            failing = await supervisor.spawn(FAILING[whose](fail), "t")
            words = "it raised Panic: no such column" if fail is panic else "it waited for something that was cancelled"
            with pytest.raises(RunFailed, match=words):
                await failing.wait_result()
            other = await supervisor.spawn(rp.Agent("other"), "t")
            return await other.wait_result()

    assert run_async(main) == "here"


@pytest.mark.parametrize("fail", [panic, give_up])
def test_a_call_that_cannot_be_judged_waits_for_a_person(fail: Callable[..., Any], run_async: RunAsync) -> None:
    """A panic ended the process; what was cancelled elsewhere left the call without a result, which no server takes."""

    @rp.tool(approval=fail)
    def mail() -> str:
        """Send a mail."""
        return "sent"

    async def main() -> None:
        async with rp.open_supervisor(model=ScriptedModel([call("mail"), "done"])) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[mail]), "t")
            async for event in run.events():
                if isinstance(event, ApprovalRequested):
                    await run.approve(event.call_id)
            assert await run.wait_result() == "done"

    run_async(main)


@pytest.mark.parametrize("fail", [panic, give_up])
def test_a_listener_cannot_break_its_run(fail: Callable[..., Any], run_async: RunAsync) -> None:
    """Its errors are counted, whatever they are."""

    async def main() -> None:
        async with rp.open_supervisor(model=ScriptedModel(["done"])) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", on_lifecycle=fail), "t")
            assert await run.wait_result() == "done"
            assert run.listener_errors == 2

    run_async(main)


def test_a_tool_that_cancels_its_own_task_is_interrupted() -> None:
    """The run went on without a result for the call, and failed because no server takes that."""

    async def stumble() -> str:
        """Cancel the wrong task."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.lowlevel.checkpoint()
        return "never"

    async def main() -> None:
        model = ScriptedModel([call("stumble"), lambda request: text_of(request.messages[-1].content)])
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[stumble]), "t")
            assert "interrupted; effect unknown" in await run.wait_result()

    anyio.run(main, backend="asyncio")
