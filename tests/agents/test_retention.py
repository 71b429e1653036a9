"""Stored contents go when their time is over, and what the ledger holds is had from there by its citation."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from context_scenes import log_of

import repertory as rp
from repertory.agents.supervisor import CLEANING
from repertory.errors import ModelUnavailable, RunFailed
from repertory.llm.messages import Block, text_of
from repertory.llm.model import ModelRequest
from repertory.record import ContentStored, MemoryJournal
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools


@rp.tool(effect="pure")
async def read_log(day: int) -> str:
    """Read the log of a day."""
    return log_of(day, 150)


def clerk(name: str = "clerk", **options: Any) -> rp.Agent:
    """An agent that can look at its results again."""
    return rp.Agent(name, tools=[read_log, *context_tools()], **options)


async def test_contents_are_cleaned_up_while_the_supervisor_lives(autojump_clock: trio.testing.MockClock) -> None:
    """A process that never restarts, and in which no run ends any more: on a timer, within five minutes."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."]), clock=trio.current_time) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        stored = ContentStored(
            content_id="c", run_id=run.id, source_type="web", source="s", body="whole", at=0.0, retention=3_600
        )
        await supervisor.journal.write([stored])
        await trio.sleep(3_500)
        assert await supervisor.journal.read_content("c") == stored
        await trio.sleep(100 + CLEANING)
        assert await supervisor.journal.read_content("c") == msgspec.structs.replace(stored, body="")
        assert [each.length for each in await supervisor.journal.read_contents(run.id)] == [len("whole")]


async def test_a_supervisor_that_closes_does_not_wait_for_the_next_cleaning(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its timer ends with it."""
    begun = trio.current_time()
    async with rp.open_supervisor(model=ScriptedModel([])):
        pass
    assert trio.current_time() - begun < CLEANING


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_what_the_ledger_holds_whole_is_retrieved_from_there(where: str, tmp_path: Path) -> None:
    """It is kept once, and stubs keep what they promise: whole, by lines, by words; of sub-agents, after a resume."""
    lead = clerk("lead", team=[clerk("helper")], context=rp.ContextPolicy())
    steps = [
        call("read_log", day=1),
        call("delegate", agent="helper", task="Read day 2."),
        call("read_log", day=2),
        "Read.",
        ModelUnavailable("down"),
    ]
    async with rp.open_journal(tmp_path / "runs.db" if where == "file" else None) as journal:
        model = ScriptedModel(steps)
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.spawn(lead, "Lead.", run_id="lead")
            with pytest.raises(RunFailed):
                await run.wait_result()
            (child,) = run.children
            ids = [(await journal.read_contents(name))[0].content_id for name in (run.id, child.id)]
        looks: list[Any] = [
            call("retrieve_content", content_id=ids[0]),
            call("retrieve_content", content_id=ids[0], start_line=150),
            call("retrieve_content", content_id=ids[1], search="hour 77"),
            "Done.",
        ]
        model = ScriptedModel(looks)
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.resume("lead", agent=lead)
            assert await run.wait_result() == "Done."
        stored = await journal.read_content(ids[0])
        assert stored is not None
        assert stored.body == log_of(1, 150)
    if where == "file":
        with sqlite3.connect(tmp_path / "runs.db") as database:
            assert database.execute("SELECT count(*) FROM content_bodies").fetchone() == (0,)
        database.close()
    whole, line, found = (text_of(request.messages[-1].content) for request in model.requests[1:])
    assert whole.endswith(log_of(1, 150))
    assert line.endswith("lines 150-150 of 150\n\nday 1, hour 149: ship 249 at berth 2")
    assert "day 2, hour 77: ship 277 at berth 0" in found


async def test_a_repeated_result_is_told_without_the_note_of_its_repetition() -> None:
    """What the ledger gives back for a citation is the tool's own result."""
    journal = MemoryJournal()
    again = [call("read_log", day=1), *[call("read_log", day=day) for day in (2, 3, 4, 5)], call("read_log", day=1)]
    async with rp.open_supervisor(journal=journal, model=ScriptedModel([*again, "."])) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        assert run.statistics().dedup_hits == 1
        first, *_ = await journal.read_contents(run.id)
        restored = await journal.read_content(first.content_id)
    assert restored is not None
    assert restored.body == log_of(1, 150)


async def test_what_cannot_be_brought_back_says_so() -> None:
    """A content with a date of its own, of which the ledger holds only a part."""
    journal = MemoryJournal()
    cut = rp.ContextPolicy(results=rp.ResultPolicy(cap_chars=500))

    async def look(_: ModelRequest) -> Block:
        (stored,) = await journal.read_contents("r")
        await journal.write([msgspec.structs.replace(stored, body=log_of(1, 150), expires_at=5.0)])
        assert await journal.delete_expired_contents(5.0) == 1
        return call("retrieve_content", content_id=stored.content_id)

    model = ScriptedModel([call("read_log", day=1), look, "Done."])
    async with rp.open_supervisor(journal=journal, model=model) as supervisor:
        run = await supervisor.spawn(clerk(context=cut), "Read.", run_id="r")
        await run.wait_result()
    said = text_of(model.requests[-1].messages[-1].content)
    assert f"({len(log_of(1, 150)):,} characters) was cleaned up and is gone" in said


async def test_the_content_store_knows_how_long_each_result_is() -> None:
    """Also where bodies are left out of the listing."""
    async with rp.open_supervisor(model=ScriptedModel([call("read_log", day=1), "Done."])) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        (stored,) = await supervisor.journal.read_contents(run.id)
    assert (stored.body, stored.length) == ("", len(log_of(1, 150)))
