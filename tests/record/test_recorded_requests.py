"""Requests on record: what the ledger holds is named, and read back as it was sent."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import journal_kit as kit
from repertory.errors import JournalDamaged, JournalUnreadable
from repertory.llm import Usage
from repertory.llm.messages import Block, Json, RawBlock, Text, Thinking, ToolResult, ToolUse, encode_block
from repertory.record import open_journal
from repertory.record.records import ModelCalled, ModelReplied
from repertory.record.requests import EntryBlocks, RecordedRequest, entry_reference, request_digest

# Also blocks that look like what the record writes.
_look_alike = st.sampled_from(
    [
        {"type": "entry"},
        {"type": "entry", "position": 0, "block": 0},
        {"type": "entry", "literal": {"type": "text", "text": "x"}},
        {"type": "entry", "literal": 1, "more": 2},
        {"type": ["entry"]},
    ]
)
_blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, kit.texts),
    st.builds(Thinking, kit.texts, kit.texts),
    st.builds(ToolUse, kit.texts, kit.texts, kit.json_objects),
    st.builds(ToolResult, kit.texts, kit.texts, st.booleans()),
    st.builds(RawBlock, st.one_of(_look_alike, kit.json_objects.map(lambda raw: {**raw, "type": "new"}))),
)
_contents = st.lists(_blocks, min_size=1, max_size=3).map(tuple)


def request_of(*messages: list[Json]) -> Json:
    """A request of these contents."""
    return {"model": "m", "messages": [{"role": "user", "content": content} for content in messages]}


def recorded(body: Json, sent: Json, call: int = 1, **fields: Any) -> ModelCalled:
    """A call whose record is ``body``."""
    return kit.called(call, body, digest=request_digest(sent), **fields)


@given(st.lists(_contents, max_size=4), st.lists(_contents, max_size=3), st.data())
def test_whatever_was_sent_is_read_back(ledger: list[Any], others: list[Any], data: st.DataObject) -> None:
    """Blocks of the ledger in any order and company, through rows and back, give the very request."""
    entries = [kit.entry(position, content=content) for position, content in enumerate(ledger)]
    known = [block for entry in entries for block in entry.content]
    new = [block for content in others for block in content]
    sent = data.draw(st.lists(st.lists(st.sampled_from(known + new), max_size=4), max_size=4)) if known + new else []
    blocks = EntryBlocks()
    blocks.add(entries)
    whole = request_of(*([encode_block(block) for block in content] for content in sent))
    call = recorded(request_of(*map(blocks.encode, sent)), whole)

    async def main() -> None:
        async with open_journal() as journal:
            await journal.write([kit.started("run-1"), call])
            await journal.write([kit.appended("run-1", entry.position, content=entry.content) for entry in entries])
            assert await journal.read_request("run-1", 1) == whole

    anyio.run(main)


def test_a_block_of_the_ledger_is_named_and_no_other() -> None:
    """A reference stands for the same block; an equal one is written, as is one that could pass for a reference."""
    held, equal, raw = Text("held"), Text("held"), {"type": "entry", "position": 0, "block": 0}
    blocks = EntryBlocks()
    blocks.add([kit.entry(3, content=(Text("first"), held))])
    assert blocks.encode([held, equal, RawBlock(raw)]) == [
        entry_reference(3, 1),
        {"type": "text", "text": "held"},
        {"type": "entry", "literal": raw},
    ]


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
async def test_a_request_builds_on_messages_that_name_entries(kind: str, tmp_path: Path) -> None:
    """What a call shares with the one before it is shared as it is recorded, to the block."""
    texts = [{"type": "text", "text": f"hello {position}"} for position in range(4)]
    named = [entry_reference(position, 0) for position in range(4)]
    async with kit.opened(kind, tmp_path) as journal:
        await journal.write([kit.appended("run-1", n, f"hello {n}") for n in range(4)])
        first, second = request_of(texts[:1], texts[1:3]), request_of(texts[:1], [*texts[1:2], texts[3], *texts[:1]])
        shared = {"base_call": 1, "shared_messages": 1, "shared_blocks": 1}
        await journal.write([recorded(request_of(named[:1], named[1:3]), first)])
        await journal.write([recorded(request_of([named[3], named[0]]), second, 2, **shared)])
        assert await journal.read_request("run-1", 1) == first
        assert await journal.read_request("run-1", 2) == second


async def test_only_the_calls_that_a_request_has_something_of_are_read(tmp_path: Path) -> None:
    """Not the whole run: of one between them, and of a later one, even a damaged body does no harm."""
    texts = [{"type": "text", "text": f"hello {number}"} for number in range(5)]
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.write([recorded(request_of(texts[:1], texts[1:2]), request_of(texts[:1], texts[1:2]))])
        for call in (2, 3, 4):
            sent = request_of(texts[:1], texts[call : call + 1])
            own, shared = request_of(texts[call : call + 1]), {"base_call": call - 1, "shared_messages": 1}
            await journal.write([recorded(own, sent, call, **shared)])
    with closing(sqlite3.connect(tmp_path / "j.db")) as database, database:
        database.execute("UPDATE request_bodies SET body = '?' WHERE body LIKE '%hello 2%' OR body LIKE '%hello 4%'")
    database.close()
    async with open_journal(tmp_path / "j.db") as journal:
        assert await journal.read_request("run-1", 3) == request_of(texts[:1], texts[3:4])
        for damaged in (2, 4):
            with pytest.raises(JournalDamaged, match=f"call {damaged}"):
                await journal.read_request("run-1", damaged)


async def test_the_view_of_model_calls_shows_the_messages_that_were_sent(tmp_path: Path) -> None:
    """Whole, at every call, whatever it shares with others, names or repeats; with the columns that users know."""
    texts = [{"type": "text", "text": f"hello {position} \ud800"} for position in range(6)]
    named = [entry_reference(position, 0) for position in range(6)]
    odd = {"type": "entry", "position": 0, "block": 0}
    steps: list[tuple[Json, Json, dict[str, int]]] = [  # what is recorded, what was sent, what it shares
        (request_of(named[:1], named[1:3]), request_of(texts[:1], texts[1:3]), {}),
        (request_of(named[3:4]), request_of(texts[:1], texts[1:3], texts[3:4]), {"base_call": 1, "shared_messages": 2}),
        (
            request_of([texts[5], {"type": "entry", "literal": odd}], [named[4]]),
            request_of(texts[:1], [texts[1], texts[5], odd], [texts[4]]),
            {"base_call": 2, "shared_messages": 1, "shared_blocks": 1},
        ),
        (
            request_of(named[:2]),
            request_of(texts[:1], [texts[1], texts[5], odd], texts[:2]),
            {"base_call": 3, "shared_messages": 2},
        ),
        (request_of(texts[4:]), request_of(texts[4:]), {"base_call": 4}),
    ]
    async with open_journal(tmp_path / "j.db") as journal:
        await journal.write([kit.started("run-1", at=0.5)])
        await journal.write([kit.appended("run-1", n, f"hello {n} \ud800") for n in range(6)])
        await journal.write([kit.called(2, request_of([named[0]]), run_id="run-2")])
        for call, (body, sent, shared) in enumerate(steps, 1):
            await journal.write([recorded(body, sent, call, **shared)])
        await journal.write([ModelReplied(run_id="run-1", call=5, at=9.0, usage=Usage(1, 2, 4, 8, 16))])
        for call, (_, sent, _) in enumerate(steps, 1):
            assert await journal.read_request("run-1", call) == sent
    with closing(sqlite3.connect(tmp_path / "j.db")) as database, database:
        found = database.execute(
            "SELECT request_messages, prompt_tokens, completion_tokens, created_at FROM llm_calls "
            "WHERE run_id = 'run-1' ORDER BY id"
        ).fetchall()
    database.close()
    assert [json.loads(messages) for messages, *_ in found] == [sent["messages"] for _, sent, _ in steps]
    assert [facts for _, *facts in found[3:]] == [[0, 0, "1970-01-01 00:00:04.000"], [29, 2, "1970-01-01 00:00:05.000"]]


@pytest.mark.parametrize("kind", kit.KINDS, indirect=True)
@pytest.mark.parametrize(("position", "block"), [(7, 0), (0, 1), (0, -2), ("0", 0), (0, "0"), ([], 0)])
async def test_a_block_that_is_not_there_is_an_error(kind: str, tmp_path: Path, position: Any, block: Any) -> None:
    """An entry of another run does not count, and nothing is guessed."""
    async with kit.opened(kind, tmp_path) as journal:
        await journal.write([kit.appended("run-1", 0), kit.appended("run-2", 7)])
        await journal.write([kit.called(1, request_of([entry_reference(position, block)]))])
        with pytest.raises(JournalUnreadable, match="model call 1 of run-1"):
            await journal.read_request("run-1", 1)


def test_another_block_than_the_one_that_was_sent_is_noticed() -> None:
    """The digest covers what is named, too."""
    sent = request_of([{"type": "text", "text": "sent"}])
    request = RecordedRequest([recorded(request_of([entry_reference(0, 0)]), sent)])
    assert request.positions == {0}
    with pytest.raises(JournalUnreadable, match="gives digest"):
        request.whole([kit.entry(0, "another")])
    assert request.whole([kit.entry(0, "sent")]) == sent


def test_entries_whose_blocks_are_known_stay_known() -> None:
    """An id is that of a living block, so a name never comes to stand for a later one."""
    blocks = EntryBlocks()
    for position in range(100):
        blocks.add([kit.entry(position, f"text {position}")])
    assert blocks.encode([Text("text 3")] * 2) == [{"type": "text", "text": "text 3"}] * 2
