"""What the journal's tests have in common: one record of each kind, and ways to make more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from hypothesis import strategies as st

from repertory.errors import JournalWriteFailed
from repertory.llm import Text, ToolResult, ToolUse, Usage
from repertory.record import ContentStored, Draft, Entry, EventLogged, Journal, Ledger, Record, RunStarted, open_journal
from repertory.record.entries import Part, Retrieved
from repertory.record.memory_records import (
    ItemWritten,
    PayloadChange,
    PayloadChanged,
    PayloadConflict,
    ScopeMerged,
    ScopeOpened,
)
from repertory.record.records import (
    DecisionMade,
    EntryAppended,
    ModelCalled,
    ModelReplied,
    RunStateChanged,
    ScheduleSettled,
    SummaryStored,
    ToolFinished,
    ToolIntended,
    WebhookTried,
)
from repertory.record.requests import request_digest

KINDS = ("memory", "sqlite", "postgres")


@asynccontextmanager
async def opened(kind: str, folder: Path, name: str = "journal.db", **options: Any) -> AsyncIterator[Journal]:
    """Open a journal of one kind; of a server, kind is the address of a database."""
    async with open_journal(place_of(kind, folder, name), **options) as journal:
        yield journal


def place_of(kind: str, folder: Path, name: str = "journal.db") -> str | Path | None:
    """Where a journal of a kind is."""
    return {"memory": None, "sqlite": folder / name}.get(kind, kind)


def draft(text: str = "hello", **fields: Any) -> Draft:
    """A user's entry."""
    return Draft(**{"role": "user", "kind": "user-input", "content": (Text(text),), **fields})


def entry(position: int, text: str = "hello", **fields: Any) -> Entry:
    """An entry with a position."""
    values = {"role": "user", "kind": "user-input", "content": (Text(text),), "created_at": 1.5, "tokens": 3}
    return Entry(**{**values, **fields}, position=position)


def appended(run_id: str, position: int, text: str = "hello", **fields: Any) -> EntryAppended:
    """The record of an entry."""
    return EntryAppended(run_id=run_id, entry=entry(position, text, **fields))


def started(run_id: str, at: float = 1.0, **fields: Any) -> RunStarted:
    """The record of a run."""
    return RunStarted(**{"run_id": run_id, "agent": "a", "task": "t", "at": at, **fields})


def content(content_id: str = "c-1", run_id: str = "run-1", body: str = "whole", **fields: Any) -> ContentStored:
    """The record of a content."""
    values = {"source_type": "web", "source": "fetch", "at": 2.0, "length": len(body)}
    return ContentStored(**{**values, **fields}, content_id=content_id, run_id=run_id, body=body)


async def expire(journal: Journal, now: float) -> int:
    """Delete the bodies of contents whose own time is over; how many."""
    due = await journal.read_due_bodies(now)
    await journal.write([], emptied=[number for number, _ in due])
    return len(due)


async def settled(journal: Journal, schedule: str) -> list[ScheduleSettled]:
    """Everything that was settled of a schedule, in order."""
    return await journal._records(ScheduleSettled, "WHERE t.schedule = ? ORDER BY t.seq", schedule)


def item(position: int, scope_id: str = "s", item_id: str = "i", text: str = "x", **fields: Any) -> ItemWritten:
    """The record of an item's version."""
    values = {"type": "custom", "at": float(position)}
    return ItemWritten(**{**values, **fields}, scope_id=scope_id, item_id=item_id, position=position, content=text)


def called(call: int, request: dict[str, Any], run_id: str = "run-1", **fields: Any) -> ModelCalled:
    """The record of a model call whose ``body`` is already its tail."""
    values = {"iteration": call, "model": "m", "position": 1, "body": request, "at": float(call)}
    return ModelCalled(**{"digest": request_digest(request), **values, **fields}, run_id=run_id, call=call)


def one_of_each(run_id: str = "run-1") -> list[Record]:
    """A record of every kind, with every field away from its default."""
    return [
        started(
            run_id,
            model="m",
            agent_digest="d",
            agent_ref="mod:name",
            parent_id="run-0",
            parent_call_id="call-0",
            depth=2,
            scope_id="s",
            options={"deep": {"x": [1, None, 0.1]}},
            has_context=True,
        ),
        RunStateChanged(run_id=run_id, state="failed", at=9.0, iteration=4, result="r", error="e"),
        appended(
            run_id,
            0,
            role="assistant",
            kind="assistant",
            content=(Text("a", {"citations": [1]}), ToolUse("call-1", "fetch", {"url": "u"})),
            iteration=3,
            model_call=3,
            stop_reason="tool_use",
            message_id="msg-1",
            metadata={"k": "v"},
        ),
        appended(
            run_id,
            1,
            kind="action-result",
            content=(ToolResult("call-1", "out", is_error=True),),
            tool="fetch",
            tool_call_id="call-1",
            content_id="c-1",
            original_length=7,
            gist="o",
            url="http://x",
            facts={"status": 200},
            deduplicated_from="call-0",
            retrieved=Retrieved(positions=(0,), content_id="c-0", parts=(Part("c-0", 1, 3),), hint=True),
            covered=True,
        ),
        DecisionMade(run_id=run_id, iteration=3, kind="stub", body={"edits": [1]}, at=3.0, covers=1),
        ToolIntended(
            run_id=run_id,
            call_id="call-1",
            tool="fetch",
            effect="pure",
            arguments={"url": "u"},
            arguments_digest="ad",
            idempotency_key="ik",
            iteration=3,
            at=3.1,
        ),
        ToolFinished(
            run_id=run_id,
            call_id="call-1",
            tool="fetch",
            status="ok",
            at=3.2,
            duration=0.1,
            deduplicated_from="call-0",
            retrieval=True,
            covered=True,
            characters=70,
            shown=7,
        ),
        called(
            1,
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
            run_id,
            prompt_estimate=5,
            expected_tokens=6,
            cost_at_most=0.6,
            tokens_at_most=8,
        ),
        ModelReplied(
            run_id=run_id,
            call=1,
            at=3.3,
            content=(Text("hello"),),
            usage=Usage(1, 2, 3, 4, 5),
            cost=0.1 + 0.2,
            cost_lost=0.2,
            tokens_lost=8,
            purpose="summary",
            plain_tokens=7,
            plain_cost=0.7,
            stop_reason="end_turn",
            error="none",
            duration=0.25,
        ),
        content("c-1", run_id, url="http://x", format="html", expires_at=99.0, retention=60.0, metadata={"a": 1}),
        SummaryStored(
            run_id=run_id,
            summary_id="sum-1",
            first=0,
            last=1,
            strategy="model",
            content=(Text("short"),),
            tokens=2,
            at=4.0,
            replaced_tokens=50,
            model="small",
        ),
        ScopeOpened(scope_id="s", owner=run_id, mode="snapshot", at=0.5, parent_id="p", position=3),
        ScopeMerged(scope_id="s", at=0.7, position=9, open={"i": 3}),
        item(1, source="fetch", tags=("t", "u"), related_to=("j",), metadata={"m": None}, deleted=True),
        PayloadChanged(
            run_id=run_id,
            version=2,
            author="tool",
            base=1,
            changes=(
                PayloadChange(path=("notes", 0), value={"a": [1]}),
                PayloadChange(path=("seen",), op="append", value=["x"]),
            ),
            conflicts=(
                PayloadConflict(
                    change=PayloadChange(path=("topic",), op="remove"), version=1, reason="it does not fit"
                ),
            ),
            call_id="c1",
            source="note",
            at=0.55,
        ),
        ScheduleSettled(
            schedule="s", due=60.0, outcome="skipped", at=0.7, run_id=run_id, rule="* * * * *", reason="r", count=2
        ),
        WebhookTried(
            url="https://example.org/hook",
            run_id=run_id,
            change=2,
            outcome="failed",
            at=0.8,
            attempt=1,
            status=503,
            error="busy",
            next_at=5.8,
        ),
        EventLogged(run_id=run_id, type="started", body={"b": True}, at=0.6, iteration=1),
    ]


async def fill(journal: Journal, told: list[int]) -> None:
    """Append until the disk is full, from tasks that all hear of it."""
    ledger = await Ledger.open(journal, "run-1")
    failed: list[JournalWriteFailed] = []

    async def append() -> None:
        try:
            while True:
                (entry,) = await ledger.append(draft("x" * 2000))
                told.append(entry.position)
        except JournalWriteFailed as error:
            failed.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(append)
    assert len(failed) == 20
    assert any("everything acknowledged before is kept, nothing after it" in str(error) for error in failed)
    assert {entry.position for entry in ledger.snapshot()} >= set(told)
    for _ in range(2):
        try:
            await journal.write([appended("other", 0)])
        except JournalWriteFailed as error:
            failed.append(error)
    assert len(failed) == 22
    assert len(await journal.read_entries("run-1")) == len(ledger.snapshot())  # reading goes on


# Any text a Python program can hold: NUL, astral characters, lone surrogates.
texts = st.text(st.characters(codec=None), max_size=40)
floats = st.floats(allow_nan=False)
int64 = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
