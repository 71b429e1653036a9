"""What applications hear of single messages, and that hearing badly breaks nothing."""

from __future__ import annotations

import logging
import re

import pytest

import repertory as rp
from context_scenes import STRICT, Reader, clerk, log_of, read_log
from repertory.context import MessageEvent
from repertory.errors import ConfigurationError
from repertory.llm.messages import ToolUse
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, ScriptedModel, call
from repertory.tools import context_tools


async def test_a_listener_hears_what_becomes_of_each_message_in_order() -> None:
    """Every entry is added once; what is shortened later says when, why, and what it saves and costs."""
    heard: list[MessageEvent] = []
    reader = Reader(7, stop_at=6)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.", on_lifecycle=heard.append)
        await reader.arrived.wait()
        await run.expand(2, reason="once more")
        reader.go()
        await run.wait_result()
        entries = await supervisor.journal.read_entries(run.id)
    assert [event.position for event in heard if event.kind == "added"] == list(range(len(entries)))
    assert {event.run_id for event in heard} == {run.id}
    of_first = [event for event in heard if event.position == 2]
    assert [event.kind for event in of_first] == ["added", "compacted", "expanded"]
    added, compacted, expanded = of_first
    assert compacted.tokens_saved > 400
    assert compacted.turn == 4
    assert compacted.reason == "older than the window, or than the newest results"
    assert {(event.tool, event.tool_call_id) for event in of_first} == {("read_log", entries[2].tool_call_id)}
    assert heard[0].tool is None
    assert expanded.tokens_saved == -compacted.tokens_saved
    assert expanded.reason == "once more"
    assert expanded.cost_now > 0
    assert added.tokens_saved == -entries[2].tokens


@pytest.mark.parametrize(("mode", "kinds"), [("remove", {"removed"}), ("compact", {"compacted"})])
async def test_expirations_are_told_apart(mode: str, kinds: set[str]) -> None:
    """A result whose time is up is first expired, then what its policy makes of it."""
    heard: list[MessageEvent] = []
    results = rp.ResultPolicy(expiration_turns=1, expiration_mode=mode)  # type: ignore[arg-type]
    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 5)), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.", results=results, on_lifecycle=heard.append)
        await run.wait_result()
    of_first = [event for event in heard if event.position == 2]
    assert [event.kind for event in of_first] == ["added", "expired", *kinds]
    assert {event.reason for event in of_first[1:]} == {"expired after 1 iteration"}


async def test_in_thrifty_rhythm_an_expiration_says_why_now() -> None:
    """There it waits for a moment that costs nothing or pays, so the reason has both."""
    heard: list[MessageEvent] = []
    results = rp.ResultPolicy(expiration_turns=2, expiration_mode="remove")
    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 6)), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        agent = clerk(rp.ContextPolicy(window=50))
        await (await supervisor.spawn(agent, "Read.", results=results, on_lifecycle=heard.append)).wait_result()
    (expired, removed) = [event for event in heard if event.position == 2][1:]
    assert (expired.kind, removed.kind) == ("expired", "removed")
    assert removed.reason.startswith("expired after 2 iterations; ")


async def test_results_of_one_turn_expire_together_and_the_events_say_so() -> None:
    """One tool's expiration takes along what another tool said in the same turn, although that one never expires."""

    @rp.tool(effect="pure", policy=rp.ResultPolicy(expiration_mode="remove", expiration_turns=1))
    def look(day: int) -> str:
        """Look at a day."""
        return log_of(day)

    heard: list[MessageEvent] = []
    keep = rp.ResultPolicy(expiration_mode="none")
    agent = rp.Agent("a", tools=[look, read_log], context=rp.ContextPolicy(window=50, tools={"read_log": keep}))
    both = [call("look", day=1), call("read_log", day=2)]
    steps = [both, *(call("read_log", day=day) for day in range(3, 6)), "Done."]
    async with rp.open_supervisor(model=ScriptedModel(steps)) as supervisor:
        await (await supervisor.spawn(agent, "Read.", on_lifecycle=heard.append)).wait_result()
    gone = {(event.kind, event.tool) for event in heard if event.kind not in ("added",)}
    assert gone == {("expired", "look"), ("removed", "look"), ("expired", "read_log"), ("removed", "read_log")}
    assert {event.position for event in heard if event.kind == "removed"} == {2, 3}


async def test_a_summary_is_heard_of_as_a_range() -> None:
    """``covered`` names the first and the last entry that the summary stands for."""
    heard: list[MessageEvent] = []
    policy = rp.ContextPolicy(rhythm="strict", window=2, strict_chars=0, summarize_every=3)
    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 12)), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk(policy), "Read.", on_lifecycle=heard.append)
        await run.wait_result()
    covered = [event for event in heard if event.kind == "covered"]
    assert covered
    assert covered[0].position == 0
    assert covered[0].last > 2
    assert re.fullmatch(r"a summary stands for iterations 1 to \d", covered[0].reason)


@pytest.mark.parametrize("by", ["position", "content", "hint"])
async def test_what_the_agent_gets_back_is_heard_of_as_expanded(by: str) -> None:
    """The entry that was short in view, once, with its call; a hint at it brings nothing back."""
    heard: list[MessageEvent] = []
    agent = rp.Agent("clerk", tools=[read_log, *context_tools()], context=STRICT, on_lifecycle=heard.append)

    async def answer(request: ModelRequest) -> ToolUse | str:
        count = len(model.requests)
        if count == 6 and by != "content":
            return call("context_retrieve", position=2, hint=by == "hint")
        if count == 6:
            (content_id, *_) = re.findall(r"content_id=\W*(c-\w+)", str(request.messages))
            return call("retrieve_content", content_id=content_id)
        return call("read_log", day=count) if count < 9 else "Done."

    model = FunctionModel(answer)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Read.")
        await run.wait_result()
        entries = await supervisor.journal.read_entries(run.id)
        covered = run.statistics().retrievals_covered
    expanded = [event for event in heard if event.kind == "expanded"]
    assert covered == 0
    if by == "hint":
        assert expanded == []
        return
    (event,) = expanded
    assert (event.position, event.last, event.turn, event.tokens_saved) == (2, 2, 7, 0)
    assert (event.tool, event.tool_call_id) == ("read_log", entries[2].tool_call_id)
    assert event.reason == "the agent retrieved it"


async def test_an_agents_own_listener_hears_each_of_its_runs() -> None:
    """It is part of the definition, so sub-agents' runs are heard too; the run id tells them apart."""
    heard: list[MessageEvent] = []
    helper = clerk(on_lifecycle=heard.append)
    lead = rp.Agent("lead", team=[helper])
    steps = [call("delegate", agent="clerk", task="Read."), call("read_log", day=1), "Read it.", "Done."]
    async with rp.open_supervisor(model=ScriptedModel(steps)) as supervisor:
        run = await supervisor.spawn(lead, "Delegate.")
        await run.wait_result()
        child = run.children[0].id
    assert {event.run_id for event in heard} == {child}
    assert [event.kind for event in heard] == ["added"] * 4


async def test_a_listener_that_raises_is_counted_and_logged_and_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every event raises; the run ends with its answer, and the second listener hears everything."""
    heard: list[MessageEvent] = []

    def fail(event: MessageEvent) -> None:
        raise ZeroDivisionError(event.kind)

    model = ScriptedModel([*(call("read_log", day=day) for day in range(1, 6)), "Done."])
    with caplog.at_level(logging.WARNING, logger="repertory"):
        async with rp.open_supervisor(model=model) as supervisor:
            run = await supervisor.spawn(clerk(on_lifecycle=fail), "Read.", on_lifecycle=heard.append)
            assert await run.wait_result() == "Done."
            assert run.listener_errors == len(heard) > 10
    assert sum(vars(record).get("event") == "listener.failed" for record in caplog.records) == len(heard)


async def test_a_resumed_run_does_not_repeat_what_was_added_before() -> None:
    """Only what is new in this process is told."""
    heard: list[MessageEvent] = []
    agent = rp.Agent("clerk", tools=[read_log], context=STRICT, on_lifecycle=heard.append)
    model = ScriptedModel([call("read_log", day=1), rp.errors.ModelUnavailable("no"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Read.")
        with pytest.raises(rp.errors.RunFailed):
            await run.wait_result()
        assert [event.position for event in heard] == [0, 1, 2]
        again = await supervisor.resume(run.id, agent=agent)
        await again.wait_result()
    assert [event.position for event in heard] == [0, 1, 2, 3]


async def test_a_run_that_is_tried_again_keeps_its_listeners_and_the_count_of_their_errors() -> None:
    """Those of its spawn too, as it is the same ``Run``; its agent's are those of the definition it continues with."""
    heard: list[MessageEvent] = []

    def fail(event: MessageEvent) -> None:
        heard.append(event)
        raise ValueError(event.position)

    model = ScriptedModel([rp.errors.ModelUnavailable("no"), "Done.", "Again."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(clerk(on_lifecycle=heard.append), "Read.", on_lifecycle=fail)
        await run.wait_ended()
        assert (await supervisor.retry(run.id, agent=clerk())).id == run.id
        assert await run.wait_result() == "Done."
        await run.ask("And now?")
        assert [event.position for event in heard] == [0, 0, 1, 2, 3]
        assert run.listener_errors == 4


async def test_a_listener_that_nobody_would_await_is_refused() -> None:
    """A coroutine function would silently never run."""

    async def listen(event: MessageEvent) -> None:
        """Never called."""

    class Listener:
        __call__ = staticmethod(listen)

    for each in (listen, Listener()):
        with pytest.raises(ConfigurationError, match="plain function"):
            clerk(on_lifecycle=each)
    async with rp.open_supervisor(model=ScriptedModel([])) as supervisor:
        with pytest.raises(ConfigurationError, match="plain function"):
            await supervisor.spawn(clerk(), "Read.", on_lifecycle=listen)
