"""Tools whose result comes later, and from elsewhere."""

from __future__ import annotations

import base64
import datetime
import itertools
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import repertory as rp
from backends import RunAsync
from patience import PATIENCE
from repertory.errors import ConfigurationError, RunError
from repertory.llm import text_of
from repertory.llm.messages import Image, Text, ToolResult
from repertory.llm.model import ModelRequest
from repertory.record.records import Effect
from repertory.runs.events import ResultAwaited
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
            with pytest.raises(RunError, match=r"no call 'c2' .* waits for a result; waiting: c1$"):
                await run.give_result("c2", "clean")
            with pytest.raises(RunError, match=r"waits for an approval; waiting: none$"):
                await run.approve("c1")
            with pytest.raises(ConfigurationError, match="text, JSON or blocks"):
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
            with anyio.fail_after(PATIENCE):
                await sent(run)  # who watches is told again
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
    """As an error, with the time that there was, however slow the machine; what comes later is refused."""
    times = itertools.count(step=100)

    async def main() -> str:
        script = call("analyse", call_id="c1", sample="s"), told
        async with open_with(*script, clock=lambda: float(next(times))) as supervisor:
            run = await supervisor.spawn(Lab(timeout=20).agent, "analyse")
            answer = await run.wait_result()
            with pytest.raises(RunError, match="another result"):
                await run.give_result("c1", "clean")
            return answer

    assert run_async(main) == "failed: no result came within 20 seconds"


def test_a_result_is_read_back_as_it_was_given(run_async: RunAsync, tmp_path: Path) -> None:
    """A repeated call is known by it, in a later process too. What is no number in JSON is null, as in any result."""
    lab = Lab()
    given = {1: float("nan"), "at": datetime.date(2026, 1, 2), "by": ("ann", 10**30)}
    shown = '{"1":null,"at":"2026-01-02","by":["ann",1000000000000000000000000000000]}'

    async def main() -> str:
        async def held(_: ModelRequest) -> str:
            await anyio.sleep_forever()
            return ""

        path, script = tmp_path / "runs.db", [call("analyse", call_id="c1", sample="s"), held]
        async with rp.open_supervisor(path, model=ScriptedModel(script)) as up:
            run = await up.spawn(lab.agent, "analyse", run_id="r")
            await sent(run)
            await run.give_result("c1", given)
            run.kill()
        async with rp.open_supervisor(path, model=ScriptedModel([told])) as up:
            run = await up.resume("r", agent=lab.agent)
            await run.give_result("c1", given)
            return await run.wait_result()

    assert run_async(main) == shown


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


def asking(effect: Effect, calls: list[Any], *, dies: bool = False) -> rp.Agent:
    """An agent whose tool asks twice, and goes on with each answer; ``dies`` in the midst of the last time."""

    @rp.tool(effect=effect)
    async def book(hotel: str, context: rp.ToolContext) -> Any:
        """Book a room."""
        answer = context.answer
        calls.append(None if answer is None else (answer.state, answer.value, answer.is_error, answer.expired))
        if answer is None:
            return rp.ResultLater("which night?", schema=NIGHT, state={"hotel": hotel})
        if "night" not in answer.state:
            return rp.ResultLater("sure?", state={**answer.state, "night": answer.value["night"]})
        if dies:
            await anyio.sleep_forever()
        return f"{answer.state['hotel']} on {answer.state['night']}: {answer.value}"

    return rp.Agent("clerk", tools=[book])


NIGHT = {"type": "object", "properties": {"night": {"type": "integer"}}, "required": ["night"]}


async def asked(run: rp.Run[Any], call_id: str) -> None:
    """Wait until a call waits under an id."""
    while all(each.call_id != call_id for each in run.waiting()):
        await anyio.lowlevel.checkpoint()


def test_a_tool_goes_on_with_what_came(run_async: RunAsync, tmp_path: Path) -> None:
    """As often as it asks, each time under another id, checked by its schema; over restarts at each step."""
    calls: list[Any] = []
    agent, path = asking("unsafe", calls), tmp_path / "journal.db"

    async def main() -> str:
        async with open_with(call("book", call_id="c1", hotel="Ritz"), path=path) as supervisor:
            run = await supervisor.spawn(agent, "book")
            await asked(run, "c1")
            with pytest.raises(ConfigurationError, match=r"'soon' is not of type 'integer' \(at \$\.night\)"):
                await run.give_result("c1", {"night": "soon"})
        async with open_with(path=path) as supervisor:
            run = await supervisor.resume(run.id, agent=agent)
            assert run.waiting()[0].schema == NIGHT
            await run.give_result("c1", {"night": 3})
            await asked(run, "c1.2")
            await run.give_result("c1", {"night": 3})  # said again, which answers nothing that was asked since
            assert [each.call_id for each in run.waiting()] == ["c1.2"]
        async with open_with(told, path=path) as supervisor:
            run = await supervisor.resume(run.id, agent=agent)
            await run.give_result("c1.2", "yes")
            answer = await run.wait_result()
            (*_, row) = await supervisor.journal.read_tool_calls(run.id)
            assert (row.intended.answers, row.finished is not None) == (2, True)
            return answer

    assert run_async(main) == "Ritz on 3: yes"
    assert calls == [
        None,
        ({"hotel": "Ritz"}, {"night": 3}, False, False),
        ({"hotel": "Ritz", "night": 3}, "yes", False, False),
    ]


@pytest.mark.parametrize(("effect", "again"), [("unsafe", False), ("idempotent", True)])
def test_going_on_keeps_to_the_effect(run_async: RunAsync, tmp_path: Path, effect: Effect, again: bool) -> None:
    """What was going on with an answer when the process ended goes on once more only where the tool may be repeated."""
    calls: list[Any] = []
    path = tmp_path / "journal.db"

    async def main() -> str:
        async with open_with(call("book", call_id="c1", hotel="Ritz"), path=path) as supervisor:
            run = await supervisor.spawn(asking(effect, calls, dies=True), "book")
            await asked(run, "c1")
            await run.give_result("c1", {"night": 3})
            await asked(run, "c1.2")
            await run.give_result("c1.2", "yes")
            while len(calls) < 3:
                await anyio.lowlevel.checkpoint()
            run.kill()
        async with open_with(told, path=path) as supervisor:
            run = await supervisor.resume(run.id, agent=asking(effect, calls))
            return await run.wait_result()

    answer = run_async(main)
    assert len(calls) == (4 if again else 3)
    assert answer == "Ritz on 3: yes" if again else answer.startswith("failed: [interrupted; effect unknown]")


@pytest.mark.parametrize("timeout", [None, 0.02])
def test_a_tool_that_goes_on_is_told_that_nothing_came(run_async: RunAsync, timeout: float | None) -> None:
    """Whether somebody said so, or nobody said anything in time."""
    seen: list[tuple[bool, bool]] = []

    @rp.tool
    async def book(context: rp.ToolContext) -> Any:
        """Book a room."""
        if context.answer is None:
            return rp.ResultLater("which night?", timeout=timeout, state={})
        seen.append((context.answer.is_error, context.answer.expired))
        return "none"

    async def main() -> str:
        async with open_with(call("book", call_id="c1"), told) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[book]), "book")
            if timeout is None:
                await asked(run, "c1")
                await run.give_result("c1", "no", is_error=True)
            return await run.wait_result()

    assert run_async(main) == "none"
    assert seen == [(True, timeout is not None)]


PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=")


def test_pictures_come_from_elsewhere_too(run_async: RunAsync, tmp_path: Path) -> None:
    """In another process; the record has them as content, and no event carries them."""
    lab, path, seen = Lab(), tmp_path / "journal.db", list[Any]()
    picture = rp.media_block(PIXEL, "image/png")

    def look(request: ModelRequest) -> str:
        (result,) = (block for block in request.messages[-1].content if isinstance(block, ToolResult))
        seen.append(result.content)
        return "clean"

    async def main() -> str:
        async with open_with(call("analyse", call_id="c1", sample="s"), path=path) as supervisor:
            run = await supervisor.spawn(lab.agent, "analyse")
            await sent(run)
            for refused in (["why", picture], rp.media_block(PIXEL, "image/png")):
                with pytest.raises(ConfigurationError, match="takes text alone"):
                    await run.give_result("c1", refused, is_error=True)
            huge = Image({"type": "base64", "media_type": "image/png", "data": "A" * 7_000_000})
            with pytest.raises(ConfigurationError, match="too large"):
                await run.give_result("c1", huge)
        async with open_with(look, path=path) as supervisor:
            run = await supervisor.resume(run.id, agent=lab.agent)
            await run.give_result("c1", ["under the microscope:", picture])
            answer = await run.wait_result()
            await run.give_result("c1", ["under the microscope:", picture])
            with pytest.raises(RunError, match="another result"):
                await run.give_result("c1", picture)
            events = [record for _, record in await supervisor.journal.read_events(run.id)]
            (given,) = (record.body for record in events if record.type == "ResultGiven")
            stored = await supervisor.journal.read_content(given["content_id"])
            assert (given["result"], stored.source, stored.source_type) == (None, "c1", "given")
            return answer

    assert run_async(main) == "clean"
    assert seen == [(Text("under the microscope:"), picture)]
