"""Tool calls that wait until a person allows them."""

from __future__ import annotations

import itertools
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, get_args

import anyio
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from backends import RunAsync
from delegating import Company, company, delegate
from repertory.errors import ConfigurationError, RunError
from repertory.llm import text_of
from repertory.llm.messages import ToolResult
from repertory.llm.model import ModelRequest
from repertory.record.records import RunStateChanged
from repertory.runs.events import ApprovalDecided, ApprovalRequested, StateChanged
from repertory.runs.waiting_calls import WaitingCall
from repertory.testing import FunctionModel, ScriptedModel, call
from repertory.tools.approvals import Verdict, strictest


def told(request: ModelRequest) -> str:
    """Answer with what the calls of the last turn gave, in order."""
    results = [block for block in request.messages[-1].content if isinstance(block, ToolResult)]
    texts = [block.content if isinstance(block.content, str) else text_of(block.content) for block in results]
    return " | ".join(texts)


class Till:
    """A tool that pays, and what it paid."""

    def __init__(self, **options: Any) -> None:
        self.paid: list[tuple[str, int]] = []

        @rp.tool(**options)
        async def pay(to: str, amount: int = 1) -> str:
            """Pay somebody."""
            self.paid.append((to, amount))
            return f"paid {to} {amount}"

        self.tool = pay


async def waiting(run: rp.Run[Any], count: int = 1) -> list[WaitingCall]:
    """The calls that wait, once there are so many."""
    async for _ in run.events(tree=True):
        calls = run.waiting(tree=True)
        if len(calls) == count:
            return calls
    raise AssertionError(f"the run ended, and {count} calls never waited")


def open_with(script: Sequence[Any], **options: Any) -> Any:
    """A supervisor with a scripted model."""
    return rp.open_supervisor(model=ScriptedModel([*script]), **options)


def test_a_call_is_made_once_it_is_allowed(run_async: RunAsync) -> None:
    """Not before; the run shows that it waits, and the record has who allowed it."""
    till = Till(approval="always")

    async def main() -> tuple[str, list[Any]]:
        async with open_with([call("pay", call_id="c1", to="ann", amount=5), told]) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[till.tool]), "pay ann")
            (asked,) = await waiting(run)
            assert (asked.call_id, asked.kind, asked.arguments) == ("c1", "approval", {"to": "ann", "amount": 5})
            assert supervisor.waiting() == [asked]
            assert (run.state, till.paid) == ("waiting", [])
            assert (await supervisor.journal.read_run(run.id)).state == "waiting"
            await run.approve("c1", by="eve")
            await run.approve("c1", by="eve")
            answer = await run.wait_result()
            assert run.waiting() == []
            events = [event async for event in run.events()]
            states = [event.state for event in events if isinstance(event, StateChanged)]
            assert states == ["waiting", "running", "done"]
            decided = [event for event in events if isinstance(event, ApprovalRequested | ApprovalDecided)]
        return answer, decided

    answer, (requested, decided) = run_async(main)
    assert (answer, till.paid) == ("paid ann 5", [("ann", 5)])
    assert (decided.by, decided.allowed, decided.digest) == ("eve", True, requested.digest)


def test_calls_of_one_message_begin_and_wait_in_its_order(run_async: RunAsync) -> None:
    """On trio too, which begins tasks that are started together in an order of its own."""
    begun: list[int] = []

    @rp.tool(effect="unsafe", approval=lambda call: call.arguments["number"] >= 80)
    async def step(number: int) -> str:
        """Make a step."""
        begun.append(number)
        return "made"

    async def main() -> list[Any]:
        turns = [[call("step", number=8 * turn + each) for each in range(8)] for turn in range(11)]
        async with open_with(turns) as supervisor:
            agent = rp.Agent("clerk", tools=[step], limits=rp.Limits(parallel_tools=1))
            run = await supervisor.spawn(agent, "take your steps")
            asked = await waiting(run, 8)
            run.kill()
            return [each.arguments["number"] for each in asked]

    assert run_async(main) == [*range(80, 88)]
    assert begun == [*range(80)]


@pytest.mark.parametrize("most", [2, 8])
def test_calls_that_wait_for_the_disk_together_begin_in_their_order(
    run_async: RunAsync, tmp_path: Path, most: int
) -> None:
    """The intents of several calls become durable at once, and trio continues all of these in an order of its own."""
    begun: list[int] = []

    @rp.tool(effect="unsafe")
    async def step(number: int) -> str:
        """Make a step."""
        begun.append(number)
        return "made"

    async def main() -> str:
        turns = [[call("step", number=8 * turn + each) for each in range(8)] for turn in range(10)]
        async with rp.open_supervisor(tmp_path / "runs.db", model=ScriptedModel([*turns, "done"])) as supervisor:
            agent = rp.Agent("clerk", tools=[step], limits=rp.Limits(parallel_tools=most))
            return await (await supervisor.spawn(agent, "take your steps")).wait_result()

    assert run_async(main) == "done"
    assert begun == [*range(80)]


def test_a_denial_is_a_result_that_the_model_reads(run_async: RunAsync) -> None:
    """With its reason, and who said so; what was decided cannot be decided otherwise."""
    till = Till(approval="always")

    async def main() -> str:
        async with open_with([call("pay", call_id="c1", to="ann"), told]) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[till.tool]), "pay ann")
            await waiting(run)
            with pytest.raises(RunError, match="no call 'c2'"):
                await run.approve("c2")
            with pytest.raises(ConfigurationError, match="expected a reason"):
                await run.deny("c1", "")
            await run.deny("c1", "she was paid yesterday", by="eve")
            with pytest.raises(RunError, match="decided already by eve: denied: she was paid yesterday"):
                await run.approve("c1")
            return await run.wait_result()

    assert run_async(main) == "pay was not run; it was denied by eve: she was paid yesterday"
    assert till.paid == []


def test_changed_arguments_are_checked_and_judged_again_and_the_model_is_told(run_async: RunAsync) -> None:
    """What does not fit, or is forbidden, is refused, and the call goes on waiting."""
    till = Till(approval="always")
    rules = rp.Approvals(deny=[rp.CallRule("pay", {"to": "mallory"})])
    endless = list[Any]()
    endless.append(endless)

    async def main() -> str:
        async with open_with([call("pay", call_id="c1", to="ann", amount=500), told]) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[till.tool], approvals=rules), "pay ann")
            await waiting(run)
            with pytest.raises(ConfigurationError, match="invalid arguments"):
                await run.approve("c1", arguments={"to": "ann", "amount": "much"})
            for value in (object(), {1: 2}, endless):
                with pytest.raises(ConfigurationError, match="the arguments of call c1 must be JSON"):
                    await run.approve("c1", arguments={"to": value})
            with pytest.raises(RunError, match="agent clerk forbids it"):
                await run.approve("c1", arguments={"to": "mallory"})
            assert len(run.waiting()) == 1
            await run.approve("c1", arguments={"to": "ann", "amount": 50}, by="eve")
            with pytest.raises(RunError, match="decided already by eve: allowed with other arguments"):
                await run.approve("c1")
            with pytest.raises(RunError, match=r"decided already by eve: allowed$"):
                await run.deny("c1", "no")
            answer = await run.wait_result()
            (row,) = await supervisor.journal.read_tool_calls(run.id)
            assert row.intended.arguments == {"to": "ann", "amount": 50}
        return answer

    note = '[eve changed the arguments of this call; it was made with {"amount":50,"to":"ann"}]'
    assert run_async(main) == f"paid ann 50\n{note}"
    assert till.paid == [("ann", 50)]


def test_its_siblings_go_on_and_what_is_said_meanwhile_decides_nothing(run_async: RunAsync) -> None:
    """A call that waits takes no place among the tools at work either."""
    till, done = Till(approval="always"), list[str]()

    @rp.tool
    async def note(text: str) -> str:
        """Write something down."""
        done.append(text)
        return text

    async def main() -> str:
        calls = [call("pay", call_id="c1", to="ann"), call("note", text="a"), call("note", text="b")]
        async with open_with([calls, told]) as supervisor:
            agent = rp.Agent("clerk", tools=[till.tool, note], limits=rp.Limits(parallel_tools=1))
            run = await supervisor.spawn(agent, "pay ann")
            async for event in run.events():
                if type(event).__name__ == "ToolEnded" and len(done) == 2:
                    break
            await run.send("do pay her")
            assert [each.call_id for each in run.waiting()] == ["c1"]
            await run.deny("c1", "no")
            await run.wait_result()
            return ""

    run_async(main)
    assert (sorted(done), till.paid) == (["a", "b"], [])


def test_a_call_goes_on_waiting_in_another_process(run_async: RunAsync, tmp_path: Path) -> None:
    """It is the same request, asked once; and a decision that came before the end holds."""
    till = Till(approval="always")
    agent = rp.Agent("clerk", tools=[till.tool])
    path = tmp_path / f"{run_async.backend}.db"

    async def first() -> str:
        async with open_with([call("pay", call_id="c1", to="ann")], path=path) as supervisor:
            run = await supervisor.spawn(agent, "pay ann")
            await waiting(run)
            return run.id

    async def second(run_id: str) -> None:
        async with open_with([], path=path) as supervisor:
            run = await supervisor.resume(run_id, agent=agent)
            assert [(each.agent, each.call_id) for each in run.waiting()] == [("clerk", "c1")]
            await waiting(run)

    async def third(run_id: str) -> tuple[str, list[str]]:
        async with open_with([told], path=path) as supervisor:
            run = await supervisor.resume(run_id, agent=agent)
            await run.approve("c1", by="eve")
            answer = await run.wait_result()
            types = [record.type for _, record in await supervisor.journal.read_events(run.id)]
        return answer, [name for name in types if name.startswith("Approval")]

    run_id = run_async(first)
    run_async(second, run_id)
    assert till.paid == []
    assert run_async(third, run_id) == ("paid ann 1", ["ApprovalRequested", "ApprovalDecided"])
    assert till.paid == [("ann", 1)]


def test_changed_arguments_that_a_newer_tool_does_not_take_are_told_as_the_change_they_were(
    run_async: RunAsync, tmp_path: Path
) -> None:
    """The call stands for what a person made of it, and is answered from no earlier one with the model's arguments."""
    till, path = Till(approval="always"), tmp_path / f"{run_async.backend}.db"
    began, newer = anyio.Event(), list[object]()

    @rp.tool
    async def hold() -> str:
        """Take the only place among the tools at work."""
        began.set()
        await anyio.sleep_forever()
        return ""

    @rp.tool(approval="always")
    async def pay(to: str, amount: bool = True) -> str:
        """Pay somebody, or owe it."""
        newer.append(to)
        return "paid"

    def agent(tool: Any) -> rp.Agent[Any]:
        return rp.Agent("clerk", tools=[tool, hold], limits=rp.Limits(parallel_tools=1))

    async def first() -> str:
        calls = [call("pay", call_id="c1", to="ann"), call("hold", call_id="c2")]
        async with open_with([calls, told], path=path, drain_timeout=0) as supervisor:
            run = await supervisor.spawn(agent(till.tool), "pay ann")
            await waiting(run)
            await began.wait()
            await run.approve("c1", arguments={"to": "ann", "amount": 50}, by="eve")
            return run.id

    async def second(run_id: str) -> str:
        async with open_with([told], path=path) as supervisor:
            run = await supervisor.resume(run_id, agent=agent(pay))
            return str(await run.wait_result())

    answer = run_async(second, run_async(first))
    assert "invalid arguments" in answer
    assert '[eve changed the arguments of this call; it was made with {"amount":50,"to":"ann"}]' in answer
    assert (till.paid, newer) == ([], [])


def test_a_run_that_is_stopped_while_it_waits_asks_again_when_it_goes_on(run_async: RunAsync) -> None:
    """Nobody can decide in between."""
    till = Till(approval="always")

    async def main() -> str:
        async with open_with([call("pay", call_id="c1", to="ann"), told]) as supervisor:
            agent = rp.Agent("clerk", tools=[till.tool])
            run = await supervisor.spawn(agent, "pay ann")
            await waiting(run)
            run.stop()
            with pytest.raises(rp.RepertoryError, match="was stopped"):
                await run.wait_result()
            assert run.waiting() == []
            with pytest.raises(RunError, match="has ended"):
                await run.approve("c1")
            run = await supervisor.resume(run.id, agent=agent)
            await waiting(run)
            await run.approve("c1")
            return await run.wait_result()

    assert run_async(main) == "paid ann 1"


def test_a_call_that_nobody_decides_in_time_is_denied(run_async: RunAsync) -> None:
    """The shortest of the times counts, and is told, however slow the machine."""
    till = Till(approval="always")
    times = itertools.count(step=100)

    async def main() -> str:
        rules = rp.Approvals(approval_timeout=20.0)
        script = [call("pay", call_id="c1", to="ann"), told]
        rest = rp.Approvals(approval_timeout=60.0)
        async with open_with(script, approvals=rest, clock=lambda: float(next(times))) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[till.tool], approvals=rules), "pay ann")
            return await run.wait_result()

    assert run_async(main) == "pay was not run; it was denied: nobody decided within 20 seconds"
    assert till.paid == []


def test_arguments_can_be_changed_as_soon_as_a_run_is_resumed(run_async: RunAsync, tmp_path: Path) -> None:
    """Changing them waits until the loop has reached the calls again; of a paused run they cannot be changed."""
    till = Till(approval="always")
    agent = rp.Agent("clerk", tools=[till.tool])
    path = tmp_path / "journal.db"

    async def main() -> str:
        calls = [call("pay", call_id=name, to="ann") for name in ("c1", "c2")]
        async with open_with([calls], path=path) as supervisor:
            run = await supervisor.spawn(agent, "pay ann")
            await waiting(run, 2)
        async with open_with([told], path=path) as supervisor:
            run = await supervisor.resume(run.id, agent=agent)
            run.pause()
            with pytest.raises(
                RunError, match="is paused; the arguments of its calls can be changed once it continues"
            ):
                await run.approve("c1", arguments={"to": "ann", "amount": 2})
            run.resume()
            for amount, name in enumerate(["c1", "c2"], 2):
                await run.approve(name, arguments={"to": "ann", "amount": amount})
            return str(await run.wait_result())

    answer = run_async(main)
    assert sorted(till.paid) == [("ann", 2), ("ann", 3)]
    assert answer.count("changed the arguments of this call") == 2


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("taken_back", [False, True])
def test_a_pause_holds_also_if_the_process_ends_before_the_call_is_decided(
    run_async: RunAsync, tmp_path: Path, *, below: bool, taken_back: bool
) -> None:
    """A run that waits for a person comes to no boundary, so it is on record as soon as it is said, and taken back."""
    till, path = Till(approval="always"), tmp_path / "journal.db"
    worker = rp.Agent("worker", tools=[till.tool])
    agent = rp.Agent("lead", team=[worker]) if below else worker
    script: Sequence[Any] = [call("pay", call_id="c1", to="ann"), told]
    script = [delegate("pay ann"), *script, told] if below else script

    async def on_record(supervisor: rp.Supervisor, run_id: str) -> str:
        await supervisor.journal.write(())
        return (await supervisor.journal.read_run(run_id)).state

    async def main() -> str:
        async with open_with(script, path=path) as supervisor:
            run = await supervisor.spawn(agent, "pay ann")
            await waiting(run)
            shown, state = run.state, await on_record(supervisor, run.id)
            run.pause()
            assert (await on_record(supervisor, run.id), run.state) == ("paused", shown)
            run.resume()
            assert await on_record(supervisor, run.id) == state
            run.pause()
            if taken_back:
                run.resume()
        async with open_with(script[1 + below :], path=path) as supervisor:
            assert await on_record(supervisor, run.id) == (state if taken_back else "paused")
            if not taken_back:  # whoever repeats a request resumes nothing
                run = await supervisor.spawn(agent, "pay ann", run_id=run.id)
                assert await on_record(supervisor, run.id) == "paused"
                run.resume()
            run = await supervisor.resume(run.id, agent=agent)
            await waiting(run)
            assert await on_record(supervisor, run.id) != "paused"
            await run.approve("c1")
            return str(await run.wait_result())

    assert "paid ann 1" in run_async(main)


def test_a_pause_is_on_record_once(run_async: RunAsync) -> None:
    """Whoever is told of changes of state is told once that it is paused: when it is said, not again when it holds."""

    async def main() -> list[str]:
        asked, said = anyio.Event(), anyio.Event()

        async def answer(request: ModelRequest) -> object:
            asked.set()
            await said.wait()
            return "done" if len(request.messages) > 1 else call("pay", call_id="c1", to="ann")

        async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[Till().tool]), "pay ann")
            await asked.wait()
            run.pause()
            run.pause()
            said.set()
            async for event in run.events():
                if isinstance(event, StateChanged) and event.state == "paused":
                    run.resume()
            await run.wait_result()
            changes = await supervisor.journal.read_records(RunStateChanged, run.id)
            return [change.state for _, change in changes]

    assert run_async(main) == ["paused", "running", "done"]


def test_a_decision_about_a_call_that_is_open_waits_until_it_is_asked_for(run_async: RunAsync, tmp_path: Path) -> None:
    """A request may have been seen and then lost with its process; a resumed run asks again, when it gets there."""
    path = tmp_path / "journal.db"
    till, lost = Till(approval="always"), Till()
    begun = list[str]()

    def agent(tools: Till) -> rp.Agent[str]:
        @rp.tool(effect="pure")
        async def look() -> str:
            """Look; the first time, for ever."""
            begun.append("look")
            if len(begun) == 1:
                await anyio.sleep_forever()
            return "seen"

        return rp.Agent("clerk", tools=[look, tools.tool], limits=rp.Limits(parallel_tools=1))

    async def main() -> str:
        calls = [call("look", call_id="c1"), call("pay", call_id="c2", to="ann")]
        async with open_with([calls], path=path, drain_timeout=0) as supervisor:
            run = await supervisor.spawn(agent(lost), "pay ann")
            async for _ in run.events():
                if begun:
                    break
        async with open_with([told], path=path) as supervisor:
            run = await supervisor.resume(run.id, agent=agent(till))
            with pytest.raises(RunError, match="no call 'c1' of run"):
                await run.approve("c1")
            await run.approve("c2")
            return str(await run.wait_result())

    assert run_async(main) == "seen | paid ann 1"
    assert (till.paid, lost.paid) == ([("ann", 1)], [])


def test_the_time_to_decide_goes_on_while_nobody_runs_the_run(run_async: RunAsync, tmp_path: Path) -> None:
    """What was asked long ago is denied when the run is taken up again."""
    till = Till(approval="always")
    agent = rp.Agent("clerk", tools=[till.tool], approvals=rp.Approvals(approval_timeout=60))
    path = tmp_path / "journal.db"

    async def main() -> str:
        script = [call("pay", call_id="c1", to="ann")]
        async with open_with(script, path=path, clock=lambda: 1_000.0) as supervisor:
            run = await supervisor.spawn(agent, "pay ann")
            await waiting(run)
        async with open_with([told], path=path, clock=lambda: 2_000.0) as supervisor:
            return await (await supervisor.resume(run.id, agent=agent)).wait_result()

    assert run_async(main) == "pay was not run; it was denied: nobody decided within 60 seconds"
    assert till.paid == []


def test_the_holder_of_the_root_decides_for_those_below(run_async: RunAsync) -> None:
    """A lead's rules bind its team, and delegating is a call like any other."""
    till = Till()

    async def main() -> tuple[str, list[str]]:
        script = [call("delegate", call_id="d1", agent="clerk", task="pay ann"), call("pay", call_id="c1", to="ann")]
        async with open_with([*script, told, told]) as supervisor:
            clerk = rp.Agent("clerk", instructions="You pay.", tools=[till.tool])
            lead = rp.Agent("lead", team=[clerk], approvals=rp.Approvals(ask=["delegate", "pay"]))
            run = await supervisor.spawn(lead, "pay ann")
            names: list[str] = []
            for call_id in ("d1", "c1"):
                (asked,) = await waiting(run)
                names.append(f"{asked.agent} {asked.tool}")
                assert asked.call_id == call_id
                await run.approve(call_id)
                async for event in run.events(tree=True):
                    if isinstance(event, ApprovalDecided) and event.call_id == call_id:
                        break
            return await run.wait_result(), names

    assert run_async(main) == ("paid ann 1", ["lead delegate", "clerk pay"])


@pytest.mark.parametrize("tool", ["delegate", "delegate_start"])
def test_the_holder_of_a_resumed_root_answers_at_once_for_those_below(
    run_async: RunAsync, tmp_path: Path, tool: str
) -> None:
    """They are taken up a moment later than the root."""
    till = Till(approval="always")

    @rp.tool(effect="idempotent")
    async def order(what: str) -> rp.ResultLater:
        """Order something."""
        return rp.ResultLater(what)

    async def main() -> str:
        calls = [call("pay", call_id="c1", to="ann"), call("order", call_id="c2", what="tea")]
        ends = [call("delegate_collect"), told] if tool == "delegate_start" else [told]
        model = Company(delegate("pay", tool=tool), *ends, work={"pay": [calls, told]}).model
        lead = company(worker={"tools": [till.tool, order]})
        async with rp.open_supervisor(tmp_path / "j.db", model=model) as supervisor:
            run = await supervisor.spawn(lead, "pay ann")
            await waiting(run, 2)
        async with rp.open_supervisor(tmp_path / "j.db", model=model) as supervisor:
            run = await supervisor.resume(run.id, agent=lead)
            assert not run.children
            await run.approve("c1")
            await run.give_result("c2", "a cup of tea")
            return await run.wait_result()

    assert "paid ann 1 | a cup of tea" in run_async(main)
    assert till.paid == [("ann", 1)]


def test_a_decision_is_repeated_when_the_sub_agent_has_ended_in_an_earlier_process(
    run_async: RunAsync, tmp_path: Path
) -> None:
    """The record knows, though the run that was read back has no sub-agents that had ended."""
    till = Till(approval="always")
    lead = rp.Agent("lead", team=[rp.Agent("clerk", tools=[till.tool])])

    async def main() -> None:
        pays = [call("pay", call_id="c1", to="ann"), call("pay", call_id="c2", to="bob")]
        stuck = anyio.Event()

        async def stick(request: ModelRequest) -> str:
            stuck.set()
            await anyio.sleep_forever()
            return ""

        script = [call("delegate", agent="clerk", task="pay"), pays, told, stick]
        async with open_with(script, path=tmp_path / "j.db", drain_timeout=0) as supervisor:
            run = await supervisor.spawn(lead, "pay")
            await waiting(run, 2)
            await run.approve("c1")
            await run.deny("c2", "no", by="eve")
            await stuck.wait()
        async with open_with([told], path=tmp_path / "j.db") as supervisor:
            run = await supervisor.resume(run.id, agent=lead)
            for _ in ("under way", "ended"):
                assert not run.children
                await run.approve("c1")
                await run.deny("c2", "never")
                for arguments, call_id in (({"to": "eve"}, "c1"), (None, "c2")):
                    with pytest.raises(RunError, match="was decided already"):
                        await run.approve(call_id, arguments=arguments)
                with pytest.raises(RunError, match="no call 'c3'"):
                    await run.approve("c3")
                await run.wait_result()

    run_async(main)
    assert till.paid == [("ann", 1)]


def test_a_decision_is_for_the_call_that_waits_though_an_earlier_one_had_its_id(run_async: RunAsync) -> None:
    """Servers of one's own number the calls of each answer: the lead's own call was taken to be meant, and it hung."""
    till = Till(approval="always")

    async def main() -> str:
        pays = [call("pay", call_id="call_0", to=name) for name in ("ann", "bob")]
        script = [pays[0], call("delegate", call_id="call_1", agent="clerk", task="pay bob"), pays[1], told, told]
        async with open_with(script) as supervisor:
            clerk = rp.Agent("clerk", tools=[till.tool])
            run = await supervisor.spawn(rp.Agent("lead", tools=[till.tool], team=[clerk]), "pay both")
            for name in ("lead", "clerk"):
                (asked,) = await waiting(run)
                assert (asked.agent, asked.call_id) == (name, "call_0")
                await run.approve("call_0")
                async for event in run.events(tree=True):
                    if isinstance(event, ApprovalDecided) and event.agent == name:
                        break
            return await run.wait_result()

    assert run_async(main) == "paid bob 1"


@pytest.mark.parametrize(
    ("approval", "amount", "asks"),
    [
        ("never", 500, False),
        ("always", 1, True),
        (lambda call: call.arguments["amount"] > 100, 500, True),
        (lambda call: call.arguments["amount"] > 100, None, False),  # the default is an argument, too
        (lambda call: call.context["strict"], 1, True),
        (lambda call: 1 / 0, 1, True),  # what cannot be judged is asked
        (lambda call: sys.exit("as argparse does"), 1, True),
    ],
)
def test_a_tool_says_which_of_its_calls_are_to_be_allowed(
    run_async: RunAsync, approval: Any, amount: int | None, asks: bool
) -> None:
    """Always, never, or by a function of the call; one that raises is a yes."""
    till = Till(approval=approval)

    async def main() -> bool:
        given = {} if amount is None else {"amount": amount}
        async with open_with([call("pay", call_id="c1", to="ann", **given), told]) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[till.tool]), "pay", context={"strict": True})
            async for event in run.events():
                if isinstance(event, ApprovalRequested):
                    run.kill()
                    return True
            return False

    assert run_async(main) is asks


def test_one_setting_has_all_unsafe_tools_ask(run_async: RunAsync) -> None:
    """What a rule of the same place allows is made nevertheless, and so is what is not unsafe."""
    till, look = Till(), Till(effect="pure", name="look")
    strict = rp.Approvals(unsafe="ask", allow=[rp.CallRule("pay", {"to": "ann"})])

    async def main() -> list[str]:
        calls = [
            call("pay", call_id="c1", to="ann"),
            call("pay", call_id="c2", to="bob"),
            call("look", call_id="c3", to="cyn"),
        ]
        async with open_with([calls, told], approvals=strict) as supervisor:
            agent = rp.Agent("clerk", tools=[till.tool, look.tool], approvals=rp.Approvals(allow=["*"]))
            run = await supervisor.spawn(agent, "pay")
            asked = [each.call_id for each in await waiting(run)]
            await run.approve("c2")
            await run.wait_result()
            return asked

    assert run_async(main) == ["c2"]
    assert sorted(till.paid) == [("ann", 1), ("bob", 1)]


def test_a_forbidden_call_is_never_made(run_async: RunAsync) -> None:
    """Whoever else allows it; the default that a model leaves out counts as said."""
    till = Till()

    async def main() -> str:
        rules = rp.Approvals(deny=[rp.CallRule("pay", {"amount": "1"})], allow=["pay"])
        async with open_with([call("pay", to="ann"), told], approvals=rules) as supervisor:
            agent = rp.Agent("clerk", tools=[till.tool], approvals=rp.Approvals(allow=["pay"]))
            return await (await supervisor.spawn(agent, "pay")).wait_result()

    assert run_async(main) == "pay was not run: the supervisor forbids calls like this one."
    assert till.paid == []


def test_a_rule_sees_data_in_one_order() -> None:
    """Whatever the order in which the model wrote the fields, or in which Python keeps a set."""
    rule = rp.CallRule("send", {"mail": '{"bcc":*,"to":"eve"}', "tags": '?"a","b","c"?', "parts": '{"1":2}'})
    for mail in ({"to": "eve", "bcc": []}, {"bcc": [], "to": "eve"}):
        assert rule.fits("send", {"mail": mail, "tags": {"c", "a", "b"}, "parts": {1: 2}})


@pytest.mark.parametrize("option", ["deny", "ask", "allow"])
def test_a_call_that_no_rule_can_be_compared_with_waits(option: str) -> None:
    """An argument's own code may raise while it is written; this ended the run, and none of its calls was made."""

    class Target(pydantic.BaseModel):
        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def city(self) -> str:
            raise RuntimeError("nowhere")

    rules = rp.Approvals(**{option: [rp.CallRule("fly", {"to": "*"})]})
    assert rules.judge("fly", "pure", {"to": Target()}) == "ask"
    assert rules.judge("walk", "pure", {"to": Target()}) == "allow"


def test_a_rule_sees_a_pydantic_model_and_a_path_as_json() -> None:
    """Otherwise a rule that forbids one value forbids nothing; what only a default can be is seen as its text."""

    class Target(pydantic.BaseModel):
        path: Path

    rule = rp.CallRule("write", {"target": '{"path":"/etc/*"}', "how": "*'object'*"})
    assert rule.fits("write", {"target": Target(path=Path("/etc/passwd")), "how": object})


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"deny": ["pya"]}, "approvals.deny names 'pya', and no tool is called so"),
        ({"ask": [("pay", {"summe": "5"})]}, "names the argument 'summe' of 'pay', which has amount, to"),
    ],
)
def test_a_rule_about_nothing_is_refused_before_a_run_starts(
    run_async: RunAsync, rules: dict[str, Any], words: str
) -> None:
    """It would guard nothing."""
    made = {
        name: [rp.CallRule(*each) if isinstance(each, tuple) else each for each in of] for name, of in rules.items()
    }

    async def main() -> None:
        async with open_with([]) as supervisor:
            agent = rp.Agent("clerk", tools=[Till().tool], approvals=rp.Approvals(**made))
            with pytest.raises(ConfigurationError, match=words):
                await supervisor.spawn(agent, "pay")

    run_async(main)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rp.Approvals(deny="pay"), "deny must be a list"),
        (lambda: rp.Approvals(ask=[3]), "a rule's tool"),  # type: ignore[list-item]
        (lambda: rp.Approvals(unsafe="never"), "approvals: unsafe is 'never'"),  # type: ignore[arg-type]
        (lambda: rp.Approvals(approval_timeout=-1), "approval_timeout must be a number"),
        (lambda: rp.CallRule("pay", {"to": 3}), "patterns by name"),  # type: ignore[dict-item]
        (lambda: Till(approval="sometimes"), "approval must be 'always', 'never' or a plain function"),
        (lambda: rp.Agent("clerk", approvals=["pay"]), "approvals must be Approvals"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_rule_is_refused(make: Callable[[], object], words: str) -> None:
    """Where it is written, and in words that say what it should be."""
    with pytest.raises(ConfigurationError, match=words):
        make()


RULES = st.lists(
    st.builds(
        rp.CallRule,
        st.sampled_from(["pay", "p*", "look", "*", "[!p]*"]),
        st.dictionaries(st.sampled_from(["to", "amount"]), st.sampled_from(["*", "ann", "1", "?", ""]), max_size=2),
    ),
    max_size=3,
)
LAYER = st.builds(rp.Approvals, deny=RULES, ask=RULES, allow=RULES, unsafe=st.sampled_from(["allow", "ask"]))
CALLS = [
    (name, effect, {"to": to, "amount": amount})
    for name, effect in (("pay", "unsafe"), ("look", "pure"))
    for to, amount in itertools.product(("ann", "", "*"), (1, 22))
]


@given(LAYER)
def test_of_the_rules_of_one_place_deny_counts_first_then_ask_then_allow(layer: rp.Approvals) -> None:
    """However precise they are, and in whichever order they stand."""
    for name, effect, arguments in CALLS:
        fitting: list[Verdict] = [
            verdict for verdict in get_args(Verdict) if any(r.fits(name, arguments) for r in layer.rules(verdict))
        ]
        otherwise: Literal["ask", "allow"] = layer.unsafe if effect == "unsafe" else "allow"
        assert layer.judge(name, effect, arguments) == (fitting[0] if fitting else otherwise)  # type: ignore[arg-type]


@given(st.lists(LAYER, max_size=3), LAYER)
def test_further_rules_never_loosen_what_is_there(layers: list[rp.Approvals], more: rp.Approvals) -> None:
    """One ``deny`` anywhere is enough."""
    order = get_args(Verdict)
    for name, effect, arguments in CALLS:
        verdicts = [layer.judge(name, effect, arguments) for layer in layers]  # type: ignore[arg-type]
        with_more = strictest([*verdicts, more.judge(name, effect, arguments)])  # type: ignore[arg-type]
        assert order.index(with_more) <= order.index(strictest(verdicts))
        assert with_more == "deny" or "deny" not in verdicts


def test_the_record_can_be_asked_with_sql(run_async: RunAsync, tmp_path: Path) -> None:
    """Who was asked what, who decided, and what became of it."""
    till = Till(approval="always")
    path = tmp_path / "journal.db"

    async def main() -> None:
        calls = [call("pay", call_id=f"c{n}", to=to) for n, to in enumerate(("ann", "bob", "cyn"))]
        async with open_with([calls], path=path) as supervisor:
            run = await supervisor.spawn(rp.Agent("clerk", tools=[till.tool]), "pay")
            await waiting(run, 3)
            await run.approve("c0", arguments={"to": "ann", "amount": 2}, by="eve")
            await run.deny("c1", "no", by="eve")
            run.stop()
            with pytest.raises(rp.RepertoryError):
                await run.wait_result()

    run_async(main)
    sql = "SELECT call_id, decision, decided_by, reason, changed_arguments, status FROM approvals ORDER BY call_id"
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(sql).fetchall()
    assert rows == [
        ("c0", "allowed", "eve", "", '{"to":"ann","amount":2}', "ok"),
        ("c1", "denied", "eve", "no", None, "error"),
        ("c2", "waiting", None, None, None, None),
    ]
