"""What callers ask of the view: expand, pin, unpin, and a list of what is in it."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
import trio

import repertory as rp
from context_scenes import STRICT, Reader, clerk, log_of, read_log
from patience import PATIENCE
from repertory.errors import ConfigurationError, ContextError, RunError
from repertory.llm.anthropic import AnthropicModel
from repertory.llm.messages import Thinking, ToolUse
from repertory.llm.model import ModelRequest
from repertory.record import open_journal
from repertory.runs.events import ContextEdited
from repertory.testing import FunctionModel, ScriptedModel, call, open_messages_server
from repertory.tools import context_tools

FIRST = 2  # position of the first result: after the task and the call


async def test_an_expanded_result_is_whole_in_the_next_request_and_left_alone_for_a_while() -> None:
    """Strict rhythm would shorten it at once; three iterations later it may."""
    reader = Reader(12, stop_at=6)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await reader.arrived.wait()
        before = run.view()[FIRST]
        assert (before.representation, before.can_expand, before.pinned) == ("stub", True, False)
        await run.expand(FIRST, reason="which berth?")
        assert run.view()[FIRST].representation == "expanded"
        reader.go()
        await run.wait_result()
        edits = [event async for event in run.events() if isinstance(event, ContextEdited) and event.kind == "expand"]
    assert log_of(1) not in reader.shown(6)
    whole = [number for number in range(1, 14) if log_of(1) in reader.shown(number)]
    assert whole[-4:] == [7, 8, 9, 10]
    (edit,) = edits
    assert edit.reason.startswith("which berth?")
    assert edit.tokens_saved < 0
    assert edit.cost > 0


async def test_a_range_of_lines_is_expanded() -> None:
    """Only the lines that were asked for come back, and say which they are."""
    reader = Reader(8, stop_at=6)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await reader.arrived.wait()
        assert run.view()[FIRST].items == 60
        await run.expand(FIRST, items=(10, 11))
        reader.go()
        await run.wait_result()
    assert reader.shown(7)[0] == "[lines 10–11 of 60]\n" + "\n".join(log_of(1).splitlines()[9:11]) + "\n"


async def test_the_whole_of_what_was_cut_on_arrival_comes_out_of_the_content_store() -> None:
    """The record holds the cut form only; expanding shows what the tool gave."""
    reader = Reader(6, stop_at=5)
    policy = rp.ContextPolicy(rhythm="strict", window=5, strict_chars=200)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(policy), "Read.")
        await reader.arrived.wait()
        entry = run.view()[FIRST]
        assert (entry.representation, entry.can_expand, entry.original_length) == ("shaped", True, len(log_of(1)))
        assert entry.items is None  # the record has not all the lines that expand counts
        with pytest.raises(ContextError, match="has lines 1–60"):
            await run.expand(FIRST, items=(61, 61))
        await run.expand(FIRST)
        reader.go()
        await run.wait_result()
    assert log_of(1) not in reader.shown(5)
    assert log_of(1) in reader.shown(6)


async def test_a_pinned_entry_stays_until_it_is_unpinned() -> None:
    """A pin outlives the window; without it the entry is like any other."""
    reader = Reader(14, stop_at=2)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await reader.arrived.wait()
        await run.pin(FIRST)
        assert run.view()[FIRST].pinned
        reader.go()
        await run.wait_result()
    assert all(reader.sees(number, log_of(1)) for number in range(2, 16))
    assert not reader.sees(15, log_of(2))

    reader = Reader(6, stop_at=2)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await reader.arrived.wait()
        await run.pin(FIRST)
        await run.unpin(FIRST)
        reader.go()
        await run.wait_result()
    assert not reader.sees(7, log_of(1))


async def test_what_cannot_be_done_is_a_typed_error_and_the_run_goes_on() -> None:
    """No such entry, nothing to expand, no such lines, no number, a plain loop, and a run that has ended."""
    reader = Reader(6, stop_at=6)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await reader.arrived.wait()
        with pytest.raises(ContextError, match="there is no entry 99"):
            await run.expand(99)
        with pytest.raises(ContextError, match="nothing to expand"):
            await run.expand(0)
        with pytest.raises(ContextError, match="has lines 1–60"):
            await run.expand(FIRST, items=(61, 70))
        with pytest.raises(ContextError, match="there is no entry -1"):
            await run.pin(-1)
        with pytest.raises(ConfigurationError, match="Expected `int`, got `null`"):
            await run.pin(cast("int", None))
        with pytest.raises(ConfigurationError, match="Expected `int`, got `str`"):
            await run.expand(FIRST, items=cast("tuple[int, int]", ("1", "2")))
        reader.go()
        assert await run.wait_result() == "Done."
        with pytest.raises(RunError, match="has ended"):
            await run.expand(FIRST)

    plain = Reader(2, stop_at=2)
    async with rp.open_supervisor(model=plain.model) as supervisor:
        run = await supervisor.spawn(clerk(None), "Read.")
        await plain.arrived.wait()
        with pytest.raises(ContextError, match="plain loop"):
            await run.pin(FIRST)
        plain.go()
        await run.wait_result()


async def test_nothing_is_shown_or_said_once_the_supervisor_is_closed() -> None:
    """The run has not ended, and goes on in another process; this one takes nothing more for it."""
    reader = Reader(3, stop_at=3)
    async with rp.open_supervisor(model=reader.model, drain_timeout=0.01) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await reader.arrived.wait()
    for edit in (run.expand(2), run.pin(2), run.unpin(2)):
        with pytest.raises(RunError, match="has ended"):
            await edit
    with pytest.raises(RunError, match="its supervisor is closed"):
        await run.send("Go on.")


async def test_the_view_says_what_is_behind_a_shortened_entry() -> None:
    """A hint, the number of lines, the length and the tokens saved, without expanding; also after a restart."""
    reader = Reader(6, stop_at=99)
    async with open_journal() as journal:
        async with rp.open_supervisor(model=reader.model, journal=journal) as supervisor:
            run = await supervisor.spawn(clerk(), "Read the logs.")
            await run.wait_result()
            listed = run.view()
        async with rp.open_supervisor(model=reader.model, journal=journal) as supervisor:
            again = await supervisor.resume(run.id, agent=clerk())
            assert again.view() == listed
    entry = listed[FIRST]
    assert "day 1" in entry.hint
    assert (entry.items, entry.original_length, entry.tool) == (60, len(log_of(1)), "read_log")
    assert entry.tokens_saved > 400
    assert listed[0].hint == "Read the logs."
    assert listed[1].hint == "[calls read_log]"
    assert sum(each.tokens_saved for each in listed[-3:]) == 0


async def test_an_expansion_outlives_a_restart_and_so_does_its_end(tmp_path: Path) -> None:
    """Its decision is in the journal when ``expand`` returns; the resumed run holds it for as long, no longer."""
    path = tmp_path / "runs.db"
    reader = Reader(12, stop_at=6)
    async with rp.open_supervisor(path, model=reader.model, drain_timeout=0.01, durability="process") as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await reader.arrived.wait()
        await run.expand(FIRST)
    model = ScriptedModel([*(call("read_log", day=day) for day in range(20, 26)), "Done."])
    async with rp.open_supervisor(path, model=model, durability="process") as supervisor:
        again = await supervisor.resume(run.id, agent=clerk())
        await again.wait_result()
        assert again.view()[FIRST].representation == "stub"
    whole = ["day 1, hour 30" in str(request.messages) for request in model.requests]
    assert whole[0]
    assert not whole[-1]


async def test_what_does_not_fit_is_held_no_longer() -> None:
    """A hold is a courtesy: the run goes on where the window is too small for it."""
    reader = Reader(7, stop_at=5)
    policy = rp.ContextPolicy(budget_tokens=1_600, keep_recent=1)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(policy), "Read.")
        await reader.arrived.wait()
        short = [entry.position for entry in run.view() if entry.can_expand]
        for position in short:
            await run.expand(position)
        reader.go()
        with trio.fail_after(PATIENCE):
            assert await run.wait_result() == "Done."
        decisions = await supervisor.journal.read_decisions(run.id)
    assert len(short) > 2
    (over,) = [made for made in decisions if made.body["reason"] == "the hold is over"]
    assert over.iteration == 6
    assert len(over.body["edits"]) == len(short)


async def test_what_was_retrieved_stays_for_a_while_even_where_results_expire_at_once() -> None:
    """Expiring it at once would make the agent ask again and again."""
    expire = rp.ResultPolicy(expiration_turns=0, expiration_mode="remove")
    agent = rp.Agent("clerk", tools=[read_log, *context_tools()], context=STRICT)
    steps = [
        call("read_log", day=1),
        call("read_log", day=2),
        call("context_retrieve", iteration=1, tool_name="read_log"),
        *(call("read_log", day=day) for day in range(3, 10)),
        "Done.",
    ]
    model = ScriptedModel(steps)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent, "Read.", results=expire)
        await run.wait_result()
        assert run.statistics().retrievals == 1
    whole = ["day 1, hour 30" in str(request.messages) for request in model.requests]
    assert whole == [False, True, False, True, True, True, True, False, False, False, False]


async def test_what_was_retrieved_last_stays_for_a_while_after_a_restart(tmp_path: Path) -> None:
    """No request had shown it yet; the next process took it for one of old, and shortened it at once."""
    expire = rp.ResultPolicy(expiration_turns=0, expiration_mode="remove")
    agent = rp.Agent("clerk", tools=[read_log, *context_tools()], context=STRICT)
    steps = [call("read_log", day=1), call("read_log", day=2), call("context_retrieve", position=FIRST)]

    def answer(request: ModelRequest) -> Any:
        step = len(model.requests) - 1
        if step == 2:
            supervisor.run("one").pause()
        return steps[step] if step < 3 else call("read_log", day=step) if step < 10 else "Done."

    model, path = FunctionModel(answer), tmp_path / "runs.db"
    async with rp.open_supervisor(path, model=model, durability="process") as supervisor:
        run = await supervisor.spawn(agent, "Read.", results=expire, run_id="one")
        with trio.fail_after(PATIENCE):
            while run.state != "paused":
                await trio.lowlevel.checkpoint()
    async with rp.open_supervisor(path, model=model, durability="process") as supervisor:
        await (await supervisor.resume("one", agent=agent)).wait_result()
        whole = ["day 1, hour 30" in str(request.messages) for request in model.requests]
        fork = await supervisor.fork("one", iteration=3, agent=agent)  # which has the decision to hold it
        await fork.wait_result()
        assert model.requests[-1].messages == model.requests[3].messages
        made = await supervisor.journal.read_decisions(fork.id)
        assert [each.kind for each in made if each.iteration == 4] == ["pin", "strict"]
    assert whole == [False, True, False, True, True, True, True, False, False, False, False]


async def test_a_binding_model_takes_an_expansion_because_its_reasoning_is_dropped() -> None:
    """A server that checks signatures refuses reasoning behind an edited past; here it accepts every request."""
    reader = Reader(5, stop_at=4)
    policy = rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=200))
    async with (
        open_messages_server(reader.model, thinks=True) as server,
        aclosing(AnthropicModel("claude-sonnet-5-5", base_url=server.url, api_key="none")) as model,
        rp.open_supervisor(model=model) as supervisor,
    ):
        run = await supervisor.spawn(clerk(policy), "Read.")
        await reader.arrived.wait()
        await run.expand(FIRST)
        reader.go()
        assert await run.wait_result() == "Done."
        assert {exchange.status for exchange in server.exchanges} == {200}
    thinks = [
        sum(isinstance(block, Thinking) for message in request.messages for block in message.content)
        for request in reader.model.requests
    ]
    assert thinks == [0, 1, 2, 3, 0, 1]
    assert reader.sees(5, log_of(1))


async def test_a_pin_on_what_is_shown_as_it_is_costs_no_reasoning() -> None:
    """Nothing that was sent changes, so a binding model keeps all of its thinking; also after a restart."""
    reader = Reader(5, stop_at=4)
    async with (
        open_journal() as journal,
        open_messages_server(reader.model, thinks=True) as server,
        aclosing(AnthropicModel("claude-sonnet-5-5", base_url=server.url, api_key="none")) as model,
    ):
        async with rp.open_supervisor(model=model, journal=journal, drain_timeout=0.01) as supervisor:
            run = await supervisor.spawn(clerk(rp.ContextPolicy()), "Read.")
            await reader.arrived.wait()
            await run.pin(FIRST)
            await run.pin(0)
        reader.go()
        async with rp.open_supervisor(model=model, journal=journal) as supervisor:
            again = await supervisor.resume(run.id, agent=clerk(rp.ContextPolicy()))
            assert await again.wait_result() == "Done."
            edits = [decision.kind for decision in await journal.read_decisions(run.id)]
        assert {exchange.status for exchange in server.exchanges} <= {200, 499}
    thinks = [
        sum(isinstance(block, Thinking) for message in request.messages for block in message.content)
        for request in reader.model.requests
    ]
    assert thinks == [0, 1, 2, 3, 3, 4]
    assert edits == ["pin", "pin"]


async def test_pinning_what_is_covered_brings_it_back_and_is_priced() -> None:
    """It edits the past, so it says what it costs; taken off again, the entry is covered as before."""
    reader = Reader(9, stop_at=8)
    async with rp.open_supervisor(model=reader.model) as supervisor:
        run = await supervisor.spawn(clerk(rp.ContextPolicy(window=2)), "Read.")
        await reader.arrived.wait()
        assert run.view()[FIRST].representation == "covered"
        await run.pin(FIRST)
        await run.pin(0)
        await run.unpin(FIRST)
        await run.pin(FIRST)
        reader.go()
        await run.wait_result()
        pins = [event async for event in run.events() if isinstance(event, ContextEdited) and event.kind == "pin"]
    assert [edit.tokens_saved < 0 for edit in pins] == [True, False, False, True]
    assert [edit.cost > 0 for edit in pins] == [True, False, False, True]
    assert pins[1].cost == 0
    assert pins[2].cost < 0
    assert reader.sees(9, log_of(1))


@pytest.mark.parametrize("budget", [2_500, 2_750])
async def test_a_hold_that_ends_under_a_summary_takes_the_reasoning_along(budget: int) -> None:
    """What was retrieved goes out of the view then; the server that checks signatures refuses nothing."""
    policy = rp.ContextPolicy(keep_recent=0, budget_tokens=budget, show_once=False)
    agent = rp.Agent("clerk", tools=[read_log, *context_tools()], context=policy)

    async def answer(request: ModelRequest) -> ToolUse | str:
        count = sum("compaction" not in exchange.body for exchange in server.exchanges)
        if count == 2:
            return call("context_retrieve", position=2, end_line=20)
        return call("read_log", day=count) if count < 16 else "Done."

    async with (
        open_messages_server(answer, thinks=True) as server,
        aclosing(AnthropicModel("claude-sonnet-5-5", base_url=server.url, api_key="none")) as model,
        rp.open_supervisor(model=model) as supervisor,
    ):
        run = await supervisor.spawn(agent, "Read.")
        assert await run.wait_result() == "Done."
        edits = [event.kind async for event in run.events() if isinstance(event, ContextEdited)]
        assert {exchange.status for exchange in server.exchanges} == {200}
    assert set(edits) == {"forced", "expand"}


async def test_what_was_decided_is_in_the_journal_though_no_request_could_be_made() -> None:
    """A hold begins and ends at the boundary at which a prompt that cannot fit ends the run."""
    sent = trio.Event()

    async def answer(request: ModelRequest) -> Any:
        if len(model.requests) == 1:
            return call("read_log", day=1)
        await run.send("urgent " * 6_000)
        sent.set()
        return call("context_retrieve", iteration=1)

    model = FunctionModel(answer)
    policy = rp.ContextPolicy(budget_tokens=6_000)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("clerk", tools=[read_log, *context_tools()], context=policy), "Read.")
        with pytest.raises(RunError, match="6,000"):
            await run.wait_result()
        assert sent.is_set()
        reasons = [made.body["reason"] for made in await supervisor.journal.read_decisions(run.id)]
    assert reasons == ["it was just retrieved", "the hold is over"]
