"""Limits on time and on tool calls: counted over restarts, and what is under way ends with an honest record."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import trio

import repertory as rp
from repertory.errors import LimitExceeded, RunFailed
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest
from repertory.runs.events import Alert, StateChanged
from repertory.testing import FunctionModel, ScriptedModel, call


def model_that_takes(seconds: float, answer: Callable[[ModelRequest], Any]) -> FunctionModel:
    """A model that takes so long for each answer."""

    async def complete(request: ModelRequest) -> Any:
        await trio.sleep(seconds)
        return answer(request)

    return FunctionModel(complete)


def results_in(request: ModelRequest) -> list[str]:
    """The tool results that a request shows."""
    return [text_of(b) for message in request.messages for b in message.content if isinstance(b, ToolResult)]


@rp.tool(effect="pure")
async def wait(seconds: float) -> str:
    """Wait."""
    await trio.sleep(seconds)
    return "waited"


async def test_a_model_call_is_cancelled_when_the_time_is_over(autojump_clock: Any) -> None:
    """To the second; the run has failed, its record says why and what the call can have cost."""
    model = model_that_takes(30, lambda request: call("wait", seconds=5))
    agent = rp.Agent("a", tools=[wait], limits=rp.Limits(seconds=50))
    async with rp.open_supervisor(model=model, clock=trio.current_time) as supervisor:
        begun = trio.current_time()
        run = await supervisor.spawn(agent, "Go.")
        with pytest.raises(RunFailed, match=r"going for 50 s, the limit of agent a \(limits\.seconds\)") as caught:
            await run.wait_result()
        assert trio.current_time() - begun == 50
        assert isinstance(caught.value.__cause__, LimitExceeded)
        last = [event async for event in run.events()][-1]
        calls = await supervisor.journal.read_model_calls(run.id)
    assert isinstance(last, StateChanged)
    assert (run.state, last.state, last.elapsed) == ("failed", "failed", 50)
    assert [row.replied is None for row in calls] == [False, True]


async def test_what_rounding_leaves_of_the_time_is_not_waited_for(autojump_clock: Any) -> None:
    """On a clock that stands still while anything is done, waiting for it went on for ever."""
    await trio.sleep(100.1)
    most = 0.3
    over = trio.current_time() + most
    assert 0 < most - (over - trio.current_time()) < 1e-12  # else nothing would be proved
    agent = rp.Agent("a", limits=rp.Limits(seconds=most))
    async with rp.open_supervisor(model=model_that_takes(50, lambda _: "Done."), clock=trio.current_time) as supervisor:
        with pytest.raises(RunFailed, match=r"limits\.seconds"):
            await (await supervisor.spawn(agent, "Go.")).wait_result()
        assert trio.current_time() == over


async def test_a_tool_is_cancelled_and_goes_on_when_the_run_has_more_time(autojump_clock: Any) -> None:
    """Its call is open on record; a resumption with a wider limit makes it again, and counts on."""
    steps = [call("wait", seconds=60), "Done."]
    async with rp.open_supervisor(model=ScriptedModel(steps), clock=trio.current_time) as supervisor:
        run = await supervisor.spawn(rp.Agent("a", tools=[wait], limits=rp.Limits(seconds=50)), "Go.")
        with pytest.raises(RunFailed):
            await run.wait_result()
        await trio.sleep(1_000)
        with pytest.raises(RunFailed, match="going for 80 s"):
            again = rp.Agent("a", tools=[wait], limits=rp.Limits(seconds=80))
            await (await supervisor.resume(run.id, agent=again)).wait_result()
        begun = trio.current_time()
        wide = rp.Agent("a", tools=[wait], limits=rp.Limits(seconds=150))
        assert await (await supervisor.resume(run.id, agent=wide)).wait_result() == "Done."
        assert trio.current_time() - begun == 60


async def test_time_of_earlier_processes_counts_and_the_time_between_them_does_not(autojump_clock: Any) -> None:
    """The journal's events say how long the tree had been going."""
    model = model_that_takes(10, lambda request: call("wait", seconds=1))
    agent = rp.Agent("a", tools=[wait], limits=rp.Limits(seconds=100))
    async with rp.open_journal() as journal:
        run_id, took = "", 0.0
        for _ in range(3):
            async with rp.open_supervisor(journal=journal, model=model, drain_timeout=0) as supervisor:
                begun = trio.current_time()
                run = await (supervisor.resume(run_id, agent=agent) if run_id else supervisor.spawn(agent, "Go."))
                run_id = run.id
                await trio.sleep(24)  # two iterations and a piece of a third, which nobody knows of after a crash
                took += trio.current_time() - begun
            await trio.sleep(1_000)
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            begun = trio.current_time()
            run = await supervisor.resume(run_id, agent=agent)
            with pytest.raises(RunFailed, match=r"limits\.seconds"):
                await run.wait_result()
            took += trio.current_time() - begun
    assert 100 <= took <= 100 + 3 * 10


async def test_time_stands_still_while_the_tree_is_paused(autojump_clock: Any) -> None:
    """Also for a lead that waits for a sub-agent, and is at no boundary of its own."""

    def answer(request: ModelRequest) -> Any:
        if text_of(request.system).startswith("You work"):
            return call("wait", seconds=1)
        return call("delegate", agent="worker", task="Work.")

    worker = rp.Agent("worker", instructions="You work.", tools=[wait])
    lead = rp.Agent("lead", team=[worker], limits=rp.Limits(seconds=100))
    async with rp.open_supervisor(model=model_that_takes(9, answer)) as supervisor:
        begun = trio.current_time()
        run = await supervisor.spawn(lead, "Go.")
        await trio.sleep(40)
        run.pause()
        await trio.sleep(500)
        run.resume()
        with pytest.raises(RunFailed, match=r"agent lead \(limits\.seconds\)"):
            await run.wait_result()
        assert trio.current_time() - begun == 600
        states = {row.started.agent: row.state for row in await supervisor.runs()}
    assert states == {"lead": "failed", "worker": "stopped"}


async def test_a_sub_agent_whose_time_is_over_reports_that_and_its_lead_goes_on(autojump_clock: Any) -> None:
    """Its record is whole: every call has a result."""

    def answer(request: ModelRequest) -> Any:
        if text_of(request.system).startswith("You work"):
            return call("wait", seconds=1_000)
        return results_in(request)[0] if results_in(request) else call("delegate", agent="worker", task="Work.")

    worker = rp.Agent("worker", instructions="You work.", tools=[wait], limits=rp.Limits(seconds=20))
    lead = rp.Agent("lead", team=[worker], limits=rp.Limits(seconds=1_000))
    async with rp.open_supervisor(model=model_that_takes(5, answer)) as supervisor:
        begun = trio.current_time()
        run = await supervisor.spawn(lead, "Go.")
        result = await run.wait_result()
        assert trio.current_time() - begun == 5 + 20 + 5
        entries = await supervisor.journal.read_entries(run.children[0].id)
    assert "worker failed" in result
    assert "limits.seconds" in result
    assert entries[-1].tool_call_id
    assert "effect unknown" in text_of(entries[-1].content)


@rp.tool(effect="pure")
def look(place: int) -> str:
    """Look."""
    looked.append(place)
    return f"nothing at {place}"


looked: list[int] = []


def looker(**limits: Any) -> rp.Agent:
    """An agent that may look so often."""
    looked.clear()
    return rp.Agent("a", tools=[look], limits=rp.Limits(**limits))


async def test_a_tool_call_beyond_the_limit_is_not_made_and_the_model_is_told() -> None:
    """Of three side by side two are made; what is answered from an earlier result is free."""

    def answer(request: ModelRequest) -> Any:
        seen = len(results_in(request))
        if seen < 4:
            return [call("look", place=n) for n in (1, 2, 3)] if seen == 0 else call("look", place=looked[0])
        return "Nothing."

    model = FunctionModel(answer)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(looker(tool_calls=2), "Look.")
        assert await run.wait_result() == "Nothing."
    shown = results_in(model.requests[-1])
    assert len(looked) == 2
    (told,) = [text for text in shown if text.startswith("look was not run: run")]
    assert "have made 2 tool calls, the limit of agent a (limits.tool_calls)" in told
    assert f"nothing at {looked[0]}" in shown[3]


async def test_a_model_that_goes_on_calling_ends_its_run() -> None:
    """It has been told three times."""
    model = FunctionModel(lambda request: call("look", place=len(request.messages)))
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(looker(tool_calls=2), "Look.")
        with pytest.raises(RunFailed, match=r"limits\.tool_calls"):
            await run.wait_result()
    assert (len(looked), len(model.requests)) == (2, 6)


async def test_tool_calls_of_earlier_processes_count_and_one_that_is_made_again_counts_once() -> None:
    """The intent is the reservation: a call that a crash cut off has its room."""
    hang = True

    @rp.tool(effect="pure")
    async def reach(place: int) -> str:
        """Reach."""
        looked.append(place)
        if hang and place == 2:
            reached.set()
            await trio.sleep_forever()
        return "reached"

    looked.clear()
    reached = trio.Event()
    steps = [call("reach", place=1), call("reach", place=2), call("reach", place=3), call("reach", place=4), "Done."]
    model, agent = ScriptedModel(steps), rp.Agent("a", tools=[reach], limits=rp.Limits(tool_calls=3))
    async with rp.open_journal() as journal:
        async with rp.open_supervisor(journal=journal, model=model, drain_timeout=0) as supervisor:
            run = await supervisor.spawn(agent, "Go.")
            await reached.wait()
        hang = False
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            assert await (await supervisor.resume(run.id, agent=agent)).wait_result() == "Done."
    assert looked == [1, 2, 2, 3]


async def test_a_limit_that_is_near_is_told_once_by_the_run_whose_limit_it_is(autojump_clock: Any) -> None:
    """Also where runs below it use it up; from four fifths on, by default."""

    def answer(request: ModelRequest) -> Any:
        if text_of(request.system).startswith("You work"):
            waits = len(results_in(request))
            return call("wait", seconds=1 + waits / 1_000) if waits < 9 else "Done."
        return "Done." if results_in(request) else call("delegate", agent="worker", task="Work.")

    worker = rp.Agent("worker", instructions="You work.", tools=[wait])
    limits = rp.Limits(seconds=130, tool_calls=10, tokens=1_000_000)
    async with rp.open_supervisor(model=model_that_takes(9, answer)) as supervisor:
        run = await supervisor.spawn(rp.Agent("lead", team=[worker], limits=limits), "Go.")
        assert await run.wait_result() == "Done."
        alerts = [event async for event in run.events(tree=True) if isinstance(event, Alert)]
    assert {alert.agent for alert in alerts} == {"lead"}
    assert [alert.metric for alert in alerts] == ["limits.tool_calls", "limits.seconds"]
    assert alerts[0].reason == "8 of 10 are used, 80% (limits.tool_calls)"
    assert alerts[1].reason == "108 s of 130 s are used, 83% (limits.seconds)"
    assert math.isclose(alerts[0].value, 0.8)
