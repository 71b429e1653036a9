"""By policy results become items of memory, in one transaction with the outcome of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import repertory as rp
from failing_journals import FailingJournal
from repertory.errors import JournalWriteFailed
from repertory.llm.messages import text_of
from repertory.memory import ItemInfo
from repertory.record import Record
from repertory.record.memory_records import ItemWritten
from repertory.record.waiting import Ticket
from repertory.testing import ScriptedModel, call
from repertory.tools import context_tools, memory_tools

ALL = rp.ContextPolicy(results=rp.ResultPolicy(remember=True))
TIDES = "High tide at noon, low tide at six. " * 100


@rp.tool(effect="pure")
async def fetch(page: int) -> rp.ToolOutput:
    """Fetch a page."""
    if page == 404:
        raise rp.ToolFailed("there is no such page")
    return rp.ToolOutput(f"Page {page}. {TIDES}", source_type="web", url=f"https://sea.example/{page}")


@rp.tool(effect="pure", policy=rp.ResultPolicy(remember=False))
async def look_at_the_clock() -> str:
    """Say what time it is."""
    return "noon"


def agent(context: rp.ContextPolicy | None = ALL, **options: Any) -> rp.Agent:
    """An agent that fetches pages and can look into its memory."""
    tools = [fetch, look_at_the_clock, *memory_tools(), *context_tools()]
    return rp.Agent("reader", tools=tools, context=context, **options)


async def items_of(supervisor: rp.Supervisor, run: rp.Run) -> list[ItemInfo]:
    """What a run's memory holds, oldest first."""
    return (await run.memory.query())[::-1]


async def test_a_result_becomes_an_item_that_says_where_it_came_from() -> None:
    """Its whole, whatever the model was shown; by one id in memory and in the content store."""
    model = ScriptedModel([call("fetch", page=7, call_id="seven"), "Done."])
    cut = rp.ContextPolicy(results=rp.ResultPolicy(remember=True, cap_chars=500))
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(cut), "Read.")
        await run.wait_result()
        (info,) = await items_of(supervisor, run)
        item = await run.memory.retrieve(info.item_id)
        (stored,) = await supervisor.journal.read_contents(run.id)
    assert item.content == f"Page 7. {TIDES}"
    assert (item.type, item.source, item.tags) == ("action_result", "https://sea.example/7", ("fetch",))
    assert (item.item_id, item.related_to) == (stored.content_id, ("seven",))
    length = len(item.content)
    assert dict(item.metadata) == {"run": run.id, "agent": "reader", "iteration": 1, "size": length}


async def test_every_result_is_remembered_but_for_what_memory_and_the_record_said_themselves() -> None:
    """Nor what failed, nor what its tool says need not be."""
    steps = [
        call("fetch", page=1),
        call("fetch", page=404),
        call("look_at_the_clock"),
        call("memory_query", text="tide"),
        call("context_retrieve", tool_name="fetch"),
        call("memory_store", content="The tide is high at noon."),
        call("fetch", page=2),
        "Done.",
    ]
    model = ScriptedModel(steps)
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(agent(), "Read.")
        await run.wait_result()
        items = await items_of(supervisor, run)
    told = [(item.type, item.source) for item in items]
    assert told == [
        ("action_result", "https://sea.example/1"),
        ("custom", ""),
        ("action_result", "https://sea.example/2"),
    ]
    assert "https://sea.example/1" in text_of(model.requests[4].messages[-1].content)


@pytest.mark.parametrize("context", [rp.ContextPolicy(), None])
async def test_nothing_is_remembered_unless_a_policy_says_so(context: rp.ContextPolicy | None) -> None:
    """And a plain loop has no policies."""
    async with rp.open_supervisor(model=ScriptedModel([call("fetch", page=1), "Done."])) as supervisor:
        run = await supervisor.spawn(agent(context), "Read.")
        await run.wait_result()
        assert await items_of(supervisor, run) == []


async def test_agents_that_share_memory_find_each_others_results() -> None:
    """What a sub-agent fetched is a query away for its lead."""
    steps = [
        call("delegate", agent="reader", task="Read page 3."),
        call("fetch", page=3),
        "Read.",
        call("memory_query", text="tide", type="action_result", source="https://sea.example/3"),
        "Done.",
    ]
    model = ScriptedModel(steps)
    lead = rp.Agent("lead", tools=memory_tools(), team=[agent()])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(lead, "Lead.")
        await run.wait_result()
    assert text_of(model.requests[-1].messages[-1].content).startswith("1 item")


async def test_of_a_very_long_result_the_item_names_the_citation() -> None:
    """It is not copied, and the same id reads it whole."""

    @rp.tool(effect="pure", output_cap=None)
    async def dump() -> str:
        """Give two megabytes."""
        return TIDES * 600

    model = ScriptedModel([call("dump"), "Done."])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(rp.Agent("dumper", tools=[dump, *context_tools()], context=ALL), "Dump.")
        await run.wait_result()
        (info,) = await items_of(supervisor, run)
        item = await run.memory.retrieve(info.item_id)
        stored = await supervisor.journal.read_content(info.item_id)
    assert stored is not None
    assert stored.length == len(TIDES * 600) == item.metadata["size"]
    assert len(item.content) < 200_000
    assert f'retrieve_content(content_id="{info.item_id}")' in item.content


async def test_a_result_that_memory_does_not_take_is_kept_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Its tool has done its work, and the model is told; the log says why there is no item."""
    steps = [call("delegate", agent="reader", task="Read page 3."), call("fetch", page=3), "Read.", "Done."]
    model = ScriptedModel(steps)
    lead = rp.Agent("lead", team=[agent(memory="shared-read-only")])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(lead, "Lead.")
        await run.wait_result()
        assert await items_of(supervisor, run) == []
        (outcome,) = await supervisor.journal.read_outcomes(run.children[0].id)
    assert outcome.status == "ok"
    assert TIDES in text_of(model.requests[2].messages[-1].content)
    assert any("result.not.remembered" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_the_item_is_there_exactly_when_the_outcome_is(where: str, tmp_path: Path) -> None:
    """They are one transaction, with the entry, the content and the rest of the outcome."""
    batches: list[list[str]] = []

    def committed(records: Sequence[Record]) -> None:
        batches.append([type(record).__name__ for record in records])

    model = ScriptedModel([[call("fetch", page=1), call("fetch", page=2)], "Done."])
    async with rp.open_journal(tmp_path / "runs.db" if where == "file" else None) as journal:
        journal.observe(committed)
        async with rp.open_supervisor(journal=journal, model=model) as supervisor:
            run = await supervisor.spawn(agent(), "Read.")
            await run.wait_result()
    written = [batch for batch in batches if "ItemWritten" in batch]
    assert len(written) == 2
    for batch in written:
        assert sorted(batch) == ["ContentStored", "EntryAppended", "EventLogged", "ItemWritten", "ToolFinished"]


async def test_a_result_that_cannot_be_recorded_leaves_no_item() -> None:
    """As when the disk gives up with just that batch: no item without its outcome."""

    class Journal(FailingJournal):
        def submit(self, records: Sequence[Record], **options: Any) -> Ticket:
            if any(isinstance(record, ItemWritten) for record in records):
                self.fail()
            return super().submit(records, **options)

    journal = Journal()
    with pytest.raises(JournalWriteFailed):
        async with rp.open_supervisor(
            journal=journal, model=ScriptedModel([call("fetch", page=1), "Done."])
        ) as supervisor:
            run = await supervisor.spawn(agent(), "Read.", run_id="r")
            await run.wait_result()
    assert await journal.read_outcomes("r") == []
    assert await journal.read_items(["scope-r"]) == []
