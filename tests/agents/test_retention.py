"""Stored contents go when their time is over, and what the ledger holds can still be had by its citation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from context_scenes import log_of

import repertory as rp
from repertory.agents.retention import EVERY
from repertory.errors import ModelUnavailable, RunFailed
from repertory.llm.messages import Block, text_of
from repertory.llm.model import ModelRequest
from repertory.memory.contents import read_whole
from repertory.record import MemoryJournal
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools


@rp.tool(effect="pure")
async def read_log(day: int) -> str:
    """Read the log of a day."""
    return log_of(day, 150)


def clerk(name: str = "clerk", **options: Any) -> rp.Agent:
    """An agent that can look at its results again."""
    return rp.Agent(name, tools=[read_log, *context_tools()], **options)


async def bodies(journal: rp.Journal, run_id: str) -> list[int]:
    """The length of each body that the content store has of a run."""
    found = [await journal.read_content(each.content_id) for each in await journal.read_contents(run_id)]
    return [len(each.body) for each in found if each is not None]


async def test_contents_are_cleaned_up_while_the_supervisor_lives(autojump_clock: trio.testing.MockClock) -> None:
    """A process that never restarts, and in which no run ends any more: on a timer, within five minutes."""
    model = ScriptedModel([call("read_log", day=1), "Done."])
    async with rp.open_supervisor(model=model, content_retention=3_600, clock=trio.current_time) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        size = len(log_of(1, 150))
        assert await bodies(supervisor.journal, run.id) == [size]
        await trio.sleep(3_500)
        assert await bodies(supervisor.journal, run.id) == [size]
        await trio.sleep(100 + EVERY)
        assert await bodies(supervisor.journal, run.id) == [0]
        assert [each.length for each in await supervisor.journal.read_contents(run.id)] == [size]


async def test_a_supervisor_that_closes_does_not_wait_for_the_next_cleaning(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its timer ends with it."""
    begun = trio.current_time()
    async with rp.open_supervisor(model=ScriptedModel([])):
        pass
    assert trio.current_time() - begun < EVERY


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_what_was_cleaned_up_is_retrieved_from_the_ledger(where: str, tmp_path: Path) -> None:
    """A run resumed after an hour keeps what its stubs promise: whole, by lines, by words; of sub-agents too."""
    now = 1_000_000.0
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
        async with rp.open_supervisor(journal=journal, model=model, clock=lambda: now) as supervisor:
            run = await supervisor.spawn(lead, "Lead.", run_id="lead")
            with pytest.raises(RunFailed):
                await run.wait_result()
            (child,) = run.children
            ids = [(await journal.read_contents(name))[0].content_id for name in (run.id, child.id)]
        now += 3_700
        looks: list[Any] = [
            call("retrieve_content", content_id=ids[0]),
            call("retrieve_content", content_id=ids[0], start_line=150),
            call("retrieve_content", content_id=ids[1], search="hour 77"),
            "Done.",
        ]
        model = ScriptedModel(looks)
        async with rp.open_supervisor(journal=journal, model=model, clock=lambda: now) as supervisor:
            run = await supervisor.resume("lead", agent=lead)
            assert await run.wait_result() == "Done."
        assert await bodies(journal, run.id) == [0]
    whole, line, found = (text_of(request.messages[-1].content) for request in model.requests[1:])
    assert whole.endswith(log_of(1, 150))
    assert line.endswith("lines 150-150 of 150\n\nday 1, hour 149: ship 249 at berth 2")
    assert "day 2, hour 77: ship 277 at berth 0" in found


async def test_a_repeated_result_is_told_without_the_note_of_its_repetition() -> None:
    """What the ledger gives back for a citation is the tool's own result."""
    journal = MemoryJournal()
    now = 0.0
    again = [call("read_log", day=1), *[call("read_log", day=day) for day in (2, 3, 4, 5)], call("read_log", day=1)]
    async with rp.open_supervisor(journal=journal, model=ScriptedModel([*again, "."]), clock=lambda: now) as supervisor:
        run = await supervisor.spawn(clerk(), "Read.")
        await run.wait_result()
        assert run.statistics().dedup_hits == 1
        first, *_ = await journal.read_contents(run.id)
        now = 4_000.0
        await journal.delete_expired_contents(now)
        restored = await read_whole(journal, first.content_id)
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
