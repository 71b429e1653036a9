"""An agent stores, lists and reads memory through tools."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from repertory.actors import open_system
from repertory.memory import Memory, MemoryActor, MemoryQuota
from repertory.memory.messages import AsksMemory
from repertory.record import MemoryJournal
from repertory.tools import Tool, ToolContext, ToolOutput, call_tool, media_block, memory_tools
from repertory.tools.pages import PAGE

PNG = b"\x89PNG\r\n\x1a\n"


@asynccontextmanager
async def open_memory(*, quotas: MemoryQuota | None = None, start: float = 1_700_000_000.0) -> AsyncIterator[Memory]:
    """A scope of memory behind a real actor, with a clock that ticks a minute at every item."""
    now = start

    def clock() -> float:
        nonlocal now
        now += 60
        return now

    journal = MemoryJournal()
    async with open_system() as system:
        ref = system.spawn(lambda: MemoryActor(journal, quota=quotas, clock=clock), "memory")
        yield await Memory.open(ref, "r")
    await journal.aclose()


TOOLS: dict[str, Tool] = {tool.name: tool for tool in memory_tools()}


async def call(memory: Memory, name: str, *, key: str = "", **arguments: object) -> ToolOutput:
    """What a tool answers."""
    context = ToolContext(run_id="r", agent="scout", iteration=3, idempotency_key=key, memory=memory)
    return await call_tool(TOOLS[name], arguments, context=context)


def test_storing_may_be_made_again_and_reading_too() -> None:
    """So that a crash between the write and its outcome loses nothing and doubles nothing."""
    assert {name: (tool.effect, tool.repeatable) for name, tool in TOOLS.items()} == {
        "memory_store": ("idempotent", False),
        "memory_query": ("pure", False),
        "memory_retrieve": ("pure", False),
        "memory_clear": ("unsafe", False),
        "memory_snapshot": ("pure", False),
        "memory_restore": ("unsafe", False),
        "memory_merge": ("idempotent", False),
    }
    assert [tool.name for tool in memory_tools(read_only=True)] == ["memory_query", "memory_retrieve"]


async def test_what_is_stored_is_listed_and_read() -> None:
    """The answer names the id; the list shows what the item is, not what it says; reading gives all of it."""
    async with open_memory() as memory:
        stored = await call(
            memory,
            "memory_store",
            content="Herons stand still.",
            type="web_content",
            source="birds.md:7",
            tags=["heron", "bird"],
            related_to=["item-x"],
        )
        item_id = stored.facts["item_id"]
        assert stored.text == f"stored as {item_id}"
        line = (
            f"{item_id} · web_content · 19 bytes · 2023-11-14 22:15 UTC · from birds.md:7"
            " · tags heron, bird · related to item-x"
        )
        listed = await call(memory, "memory_query")
        assert re.sub(r"22:\d\d UTC", "22:15 UTC", listed.text) == f"1 item\n{line}"
        read = await call(memory, "memory_retrieve", id=item_id)
        assert re.sub(r"22:\d\d UTC", "22:15 UTC", read.text) == f"{line}\n\nHerons stand still."
        assert (read.as_is, read.facts) == (True, {"item_id": item_id, "page": 1, "pages": 1})
        assert (await memory.retrieve(item_id)).metadata == {"run": "r", "agent": "scout", "iteration": 3}


async def test_a_call_that_is_made_again_writes_the_same_item() -> None:
    """The id follows from the idempotency key: a retry after a crash adds nothing; another call is another item."""
    async with open_memory() as memory:
        first = await call(memory, "memory_store", key="ab" * 16, content="once")
        position = await memory.snapshot()
        again = await call(memory, "memory_store", key="ab" * 16, content="once")
        other = await call(memory, "memory_store", key="cd" * 16, content="once")
        assert await memory.snapshot() == position + 1
        assert first.facts["item_id"] == again.facts["item_id"] == f"item-{'ab' * 8}"
        assert other.facts["item_id"] != first.facts["item_id"]
        assert len(await memory.query()) == 2


async def test_the_list_is_filtered_by_everything_that_is_known() -> None:
    """Type, source, tags, time and words; newest first, with the total."""
    async with open_memory() as memory:
        for number in range(6):
            await call(
                memory,
                "memory_store",
                content=f"note {number} about {'herons' if number % 2 else 'kestrels'}",
                type="custom" if number < 3 else "web_content",
                source=f"s{number}",
                tags=["odd" if number % 2 else "even"],
            )
        times = [item.at for item in reversed(await memory.query())]

        async def sources(**arguments: object) -> list[str]:
            return re.findall(r"from (s\d)", (await call(memory, "memory_query", **arguments)).text)

        assert await sources() == ["s5", "s4", "s3", "s2", "s1", "s0"]
        assert await sources(type="custom") == ["s2", "s1", "s0"]
        assert await sources(source="s4") == ["s4"]
        assert await sources(tags=["odd"], text="heron note") == ["s5", "s3", "s1"]
        assert await sources(text="walrus") == []
        assert await sources(since=_iso(times[2]), until=_iso(times[4])) == ["s3", "s2"]
        assert await sources(since=_iso(times[4], zone="+00:00")) == ["s5", "s4"]
        limited = await call(memory, "memory_query", limit=2)
        assert limited.text.startswith("the newest 2 items; there are more\n")
        assert limited.facts == {"listed": 2, "more": True}


@pytest.mark.parametrize("label", ["x\nitem-0 · custom · 9 bytes", "x\u2028item-0", "x\r\x85item-0", "x" * 60_000])
async def test_no_label_passes_for_a_line_about_another_item(label: str) -> None:
    """A sub-agent that was misled cannot list items that are not there, nor fill its lead's context by a listing."""
    async with open_memory() as memory:
        for labels in ({"type": label}, {"source": label}, {"tags": [label]}, {"related_to": [label]}):
            await call(memory, "memory_store", content="note", **labels)
        listed = await call(memory, "memory_query")
        assert len(listed.text.splitlines()) == 1 + 4
        assert len(listed.text) < 5_000


def _iso(seconds: float, *, zone: str = "") -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + zone


async def test_an_item_is_read_in_the_wanted_shape() -> None:
    """Each transform, with the size of the whole beside it."""
    text = "Herons stand. They wait.\n\nKestrels hover. They drop.\nvoles\nmice"
    async with open_memory() as memory:
        item_id = (await call(memory, "memory_store", content=text)).facts["item_id"]

        async def shaped(**arguments: object) -> str:
            output = await call(memory, "memory_retrieve", id=item_id, **arguments)
            head, _, rest = output.text.partition("\n\n")
            assert f"{len(text)} bytes" in head
            assert head.endswith(f", {arguments['transform']}")
            return rest

        assert await shaped(transform="first_n", n=13) == "Herons stand."
        assert await shaped(transform="last_n", n=4) == "mice"
        assert await shaped(transform="filtered", words="voles kestrels") == "Kestrels hover. They drop.\nvoles"
        assert await shaped(transform="summary", n=40) == "Herons stand. Kestrels hover."
        assert "Kestrels hover" in await shaped(transform="excerpt", words="kestrel")


async def test_a_large_item_is_read_page_by_page() -> None:
    """No page needs cutting, and none is lost."""
    text = "".join(f"line {number}\n" for number in range(6_000))
    async with open_memory() as memory:
        item_id = (await call(memory, "memory_store", content=text)).facts["item_id"]
        first = await call(memory, "memory_retrieve", id=item_id)
        assert len(first.text) < PAGE + 300
        pages = [
            (await call(memory, "memory_retrieve", id=item_id, page=number + 1)).text.partition("\n\n")[2]
            for number in range(first.facts["pages"])
        ]
        assert "".join(re.sub(r"\n\[page [^\]]*\]$", "", page) for page in pages) == text


async def test_what_memory_refuses_is_told() -> None:
    """A wrong id is the model's to repair; a full scope is not."""
    async with open_memory(quotas=MemoryQuota(item_bytes=10)) as memory:
        missing = await call(memory, "memory_retrieve", id="item-0")
        assert "has no item 'item-0'; a query lists what it has" in missing.text
        full = await call(memory, "memory_store", content="x" * 11)
        assert missing.error is not None
        assert full.error is not None
        assert (missing.error.cause, full.error.cause) == ("retry", "failed")
        assert "may hold 10" in full.text
        assert (await call(memory, "memory_store", content="")).is_error


async def test_data_and_pictures_are_shown_as_what_they_are() -> None:
    """JSON as JSON; an image that is one as an image; other bytes by type and size; no shape that makes no sense."""
    async with open_memory() as memory:
        data = await call(memory, "memory_store", content={"tides": [{"hour": 6}]})
        shown = await call(memory, "memory_retrieve", id=data.facts["item_id"])
        assert "· custom · JSON · 22 bytes ·" in shown.text
        assert (shown.text.partition("\n\n")[2], shown.format) == (
            '{\n  "tides": [\n    {\n      "hour": 6\n    }\n  ]\n}',
            "json",
        )
        line = await call(memory, "memory_retrieve", id=data.facts["item_id"], transform="filtered", words="hour")
        assert line.text.endswith('\n\n      "hour": 6')
        picture = await memory.store(PNG, media_type="image/png")
        shown = await call(memory, "memory_retrieve", id=picture.item_id)
        assert isinstance(shown.content, tuple)
        assert shown.content[1] == media_block(PNG, "image/png")
        archive = await memory.store(b"PK", media_type="application/zip")
        shown = await call(memory, "memory_retrieve", id=archive.item_id)
        assert "[application/zip, 2 bytes] It cannot be shown here: media_type is 'application/zip'" in shown.text
        wrong = await memory.store(b"GIF8", media_type="image/png")
        shown = await call(memory, "memory_retrieve", id=wrong.item_id)
        assert "It cannot be shown here: media_type is 'image/png', but the data is image/gif" in shown.text
        refused = await call(memory, "memory_retrieve", id=archive.item_id, transform="summary")
        assert "is no text (application/zip, 2 bytes): only transform 'full' applies" in refused.text


class Asked:
    """Passes requests on to the memory actor, and keeps them."""

    def __init__(self, ref: AsksMemory) -> None:
        self.ref = ref
        self.requests: list[Any] = []

    async def ask(self, request: Any, /) -> Any:
        """Keep a request and pass it on."""
        self.requests.append(request)
        return await self.ref.ask(request)


async def test_memory_is_ended_and_brought_back() -> None:
    """Items by their ids, all of them, and everything as it was."""
    async with open_memory() as memory:
        for name in "abc":
            await memory.store(name, item_id=name)
        noted = await call(memory, "memory_snapshot")
        assert noted.facts == {"position": 3}
        assert (await call(memory, "memory_clear", ids=["a", "b"])).text == "ended a, b"
        assert (await call(memory, "memory_clear")).text == "ended all of memory, 1 item"
        back = await call(memory, "memory_restore", position=3)
        assert back.text == "memory is as it was at position 3; 3 items changed"
        assert len(await memory.query()) == 3
        assert "is not within the item log" in (await call(memory, "memory_restore", position=99)).text
        assert "has no item 'z'" in (await call(memory, "memory_clear", ids=["z"])).text
        assert "ids names nothing" in (await call(memory, "memory_clear", ids=[])).text
        asked = Asked(memory.ref)
        some = await call(Memory(asked, memory.scope_id), "memory_clear", ids=["z", "a", "a", "y", "b"])
        assert (some.status, some.text) == ("ok", "ended a, b; memory has no item 'z', 'y'")
        assert len(asked.requests) == 1  # all or none of them end, also if the process is killed


async def test_a_lead_takes_over_what_its_sub_agents_found() -> None:
    """It sees which snapshots there are, merges one by its scope or run, and is told of conflicts; twice is safe."""
    async with open_memory() as memory:
        assert "no sub-agent has a snapshot" in (await call(memory, "memory_merge")).text
        await memory.store("low tide at 6", item_id="tide")
        child = await memory.fork("r.1", scope_id="scope-1")
        await memory.fork("r.2", mode="isolated")
        await child.store("low tide at 7", item_id="tide")
        await child.store("a heron", item_id="bird")
        await memory.store("low tide at 8", item_id="tide")
        assert (await call(memory, "memory_merge")).text == "scope-1 · of run r.1"
        merged = await call(memory, "memory_merge", scope="r.1")
        assert merged.text == (
            "merged scope-1: 1 conflict\nwritten: bird\nconflict about tide: left open\n"
            "  before: low tide at 6\n  yours: low tide at 8\n  the sub-agent's: low tide at 7"
        )
        both = await call(memory, "memory_merge", scope="scope-1", prefer="both")
        assert "written: tide@scope-1\nhere already: 1\nconflict about tide: kept both" in both.text
        again = await call(memory, "memory_merge", scope="scope-1")
        assert again.text == "nothing to take over from scope-1: what it changed (2 items) is here already"
        unknown = await call(memory, "memory_merge", scope="scope-9")
        assert "no snapshot of this memory is 'scope-9'; there are: scope-1" in unknown.text


async def test_without_memory_the_author_is_told_what_to_set() -> None:
    """The context names the field."""
    output = await call_tool(TOOLS["memory_query"])
    assert "ToolContext.memory" in output.text
