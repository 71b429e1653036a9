"""Tools whose result comes later, and from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import repertory as rp
from backends import RunAsync
from repertory.agents.events import ResultAwaited
from repertory.errors import ConfigurationError, RunError
from repertory.llm import text_of
from repertory.llm.messages import ToolResult
from repertory.llm.model import ModelRequest
from repertory.testing import ScriptedModel, call


def told(request: ModelRequest) -> str:
    """Answer with what the last call gave."""
    (result,) = (block for block in request.messages[-1].content if isinstance(block, ToolResult))
    words = result.content if isinstance(result.content, str) else text_of(result.content)
    return f"failed: {words}" if result.is_error else words


class Lab:
    """A tool that sends samples away, and what it sent."""

    def __init__(self, **options: Any) -> None:
        self.sent: list[str] = []

        @rp.tool
        async def analyse(sample: str, context: rp.ToolContext) -> rp.ResultLater:
            """Have a sample analysed."""
            self.sent.append(f"{sample} {context.call_id}")
            return rp.ResultLater("the laboratory", **options)

        self.agent = rp.Agent("clerk", tools=[analyse])


async def sent(run: rp.Run[Any]) -> None:
    """Wait until the call waits for its result."""
    async for event in run.events():
        if isinstance(event, ResultAwaited):
            return


def open_with(*script: Any, **options: Any) -> Any:
    """A supervisor with a scripted model."""
    return rp.open_supervisor(model=ScriptedModel([*script]), **options)


def test_the_result_comes_when_somebody_brings_it(run_async: RunAsync) -> None:
    """Once: the same again changes nothing, another one is refused; and it is shaped like any result."""
    lab = Lab()

    async def main() -> str:
        async with open_with(call("analyse", call_id="c1", sample="s"), told) as supervisor:
            run = await supervisor.spawn(lab.agent, "analyse")
            await sent(run)
            (waits,) = run.waiting()
            assert (waits.kind, waits.reason, run.state) == ("result", "the laboratory", "waiting")
            with pytest.raises(RunError, match="no call 'c2'"):
                await run.give_result("c2", "clean")
            with pytest.raises(RunError, match="waits for an approval"):
                await run.approve("c1")
            with pytest.raises(ConfigurationError, match="text or JSON"):
                await run.give_result("c1", object())
            await run.give_result("c1", {"lead": 3})
            await run.give_result("c1", {"lead": 3})
            with pytest.raises(RunError, match="another result"):
                await run.give_result("c1", {"lead": 4})
            answer = await run.wait_result()
            (row,) = await supervisor.journal.read_tool_calls(run.id)
            assert row.finished is not None
            assert (row.finished.status, run.waiting()) == ("ok", [])
            await run.give_result("c1", {"lead": 3})  # a sender who did not hear that it came may say it again
        return answer

    assert run_async(main) == '{"lead":3}'
    assert lab.sent == ["s c1"]


def test_a_result_can_be_an_error(run_async: RunAsync) -> None:
    """The model is told so."""

    async def main() -> str:
        async with open_with(call("analyse", call_id="c1", sample="s"), told) as supervisor:
            run = await supervisor.spawn(Lab().agent, "analyse")
            await sent(run)
            await run.give_result("c1", "the sample was lost", is_error=True)
            return await run.wait_result()

    assert run_async(main) == "failed: the sample was lost"


def test_it_comes_in_another_process_and_the_body_is_not_run_again(run_async: RunAsync, tmp_path: Path) -> None:
    """Though the tool is unsafe: what its call waits for is on record."""
    lab = Lab()
    path = tmp_path / "journal.db"

    async def main() -> str:
        async with open_with(call("analyse", call_id="c1", sample="s"), path=path) as supervisor:
            run = await supervisor.spawn(lab.agent, "analyse")
            await sent(run)
        with pytest.raises(RunError, match="has ended"):
            await run.give_result("c1", "clean")
        async with open_with(told, path=path) as supervisor:
            run = await supervisor.resume(run.id, agent=lab.agent)
            assert [each.call_id for each in run.waiting()] == ["c1"]
            await run.give_result("c1", "clean")
            return await run.wait_result()

    assert run_async(main) == "clean"
    assert lab.sent == ["s c1"]


def test_a_result_that_is_quicker_than_the_tool_waits_for_it(run_async: RunAsync) -> None:
    """A webhook may come before the function that caused it has returned."""
    runs: list[rp.Run[Any]] = []

    @rp.tool
    async def analyse(context: rp.ToolContext) -> rp.ResultLater:
        """Have it analysed."""
        await runs[0].give_result(context.call_id, "clean")
        return rp.ResultLater()

    async def main() -> str:
        async with open_with(call("analyse", call_id="c1"), told) as supervisor:
            runs[:] = [await supervisor.spawn(rp.Agent("clerk", tools=[analyse]), "analyse")]
            return await runs[0].wait_result()

    assert run_async(main) == "clean"


def test_no_result_in_time_is_said(run_async: RunAsync) -> None:
    """As an error; what comes later is refused."""

    async def main() -> str:
        async with open_with(call("analyse", call_id="c1", sample="s"), told) as supervisor:
            run = await supervisor.spawn(Lab(timeout=0.02).agent, "analyse")
            answer = await run.wait_result()
            with pytest.raises(RunError, match="another result"):
                await run.give_result("c1", "clean")
            return answer

    assert run_async(main) == "failed: no result came within 0.02 seconds"


def test_a_run_that_is_killed_takes_no_result(run_async: RunAsync) -> None:
    """It is cancelled with the run; one that goes on waits for it again."""
    lab = Lab()

    async def main() -> str:
        async with open_with(call("analyse", call_id="c1", sample="s"), told) as supervisor:
            run = await supervisor.spawn(lab.agent, "analyse")
            await sent(run)
            run.kill()
            with pytest.raises(RunError, match="has ended"):
                await run.give_result("c1", "clean")
            with pytest.raises(rp.RepertoryError):
                await run.wait_result()
            run = await supervisor.resume(run.id, agent=lab.agent)
            await run.give_result("c1", "clean")
            return await run.wait_result()

    assert run_async(main) == "clean"
    assert lab.sent == ["s c1"]
