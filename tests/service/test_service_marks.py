"""How the record of a run and what its model saw are put beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.context import Decision
from repertory.context.plan import (
    EMPTY,
    CoverRange,
    DropThinking,
    Edit,
    ExpandEntry,
    PinEntry,
    RemoveResult,
    StubResult,
    UnpinEntry,
)
from repertory.llm.messages import Text, ToolResult, ToolUse, encode_block
from repertory.record.entries import Entry
from repertory.service.marks import Marks, places

RESULT = {"role": "user", "kind": "action-result", "tool": "look"}


def entry(position: int, *content: Any, **fields: Any) -> Entry:
    """An entry of 100 tokens."""
    said: dict[str, Any] = {"role": "assistant", "kind": "assistant", **fields}
    return Entry(position=position, content=content or (Text(f"e{position}"),), created_at=0.0, tokens=100, **said)


def stub(position: int, why: str = "") -> StubResult:
    """An edit that shows a result short."""
    return StubResult(position=position, text="[short]", tokens=5, was_tokens=100, why=why)


def cover(first: int, last: int, strategy: str, kept: tuple[int, ...] = ()) -> CoverRange:
    """An edit that lets a text stand for a stretch."""
    text = (Text("what was"),)
    return CoverRange(first=first, last=last, content=text, tokens=9, was_tokens=200, strategy=strategy, kept=kept)


REMOVED = RemoveResult(position=2, call_id="c2", text="gone", tokens=3, was_tokens=100)
SHOWN_AGAIN = ExpandEntry(position=2, tokens=40, was_tokens=5)

# The edits, one decision each; the entry; and what is said of it.
CASES: list[tuple[list[Edit], int, dict[str, Any]]] = [
    ([], 2, {"mark": "", "decision": None, "pinned": False, "tokens_shown": 100}),
    ([], 3, {"mark": "shaped", "decision": None}),
    ([stub(2)], 2, {"mark": "shortened", "decision": 0, "tokens_shown": 5}),
    ([stub(1), stub(2, "expired")], 2, {"mark": "expired", "decision": 1}),
    ([stub(2), REMOVED], 2, {"mark": "removed", "decision": 1, "tokens_shown": 3}),
    ([stub(2), SHOWN_AGAIN], 2, {"mark": "expanded", "decision": 1, "tokens_shown": 40}),
    ([DropThinking(position=3), PinEntry(position=2)], 2, {"mark": "", "decision": 1, "pinned": True}),
    ([PinEntry(position=2), UnpinEntry(position=2)], 2, {"mark": "", "decision": None, "pinned": False}),
    ([stub(2), PinEntry(position=2)], 2, {"mark": "", "decision": 1, "pinned": True, "tokens_shown": 100}),
    ([cover(0, 2, "trail")], 2, {"mark": "folded", "decision": 0, "stands_for": (0, 2), "tokens_shown": None}),
    ([cover(0, 1, "trail"), cover(2, 3, "model")], 3, {"mark": "summarized", "decision": 1, "stands_for": (2, 3)}),
    ([cover(0, 1, "trail"), cover(0, 3, "extractive")], 0, {"mark": "summarized", "decision": 1}),
    ([cover(0, 3, "trail", kept=(0,))], 0, {"mark": "", "decision": None, "stands_for": None}),
    ([PinEntry(position=1), cover(0, 3, "trail")], 1, {"mark": "", "decision": 0, "pinned": True}),
]


@pytest.mark.parametrize(("edits", "position", "said"), CASES)
def test_an_entry_says_how_it_is_shown_and_which_decision_made_it_so(
    edits: list[Edit], position: int, said: dict[str, Any]
) -> None:
    """Each kind of edit has its word; the decision is the last that the plan still follows."""
    decisions = [Decision(kind="pays", reason="", iteration=1, position=4, edits=(edit,)) for edit in edits]
    plan = EMPTY
    for decision in decisions:
        plan = plan.edited(decision.edits)
    shaped = entry(3, original_length=9000)
    found = Marks(plan, decisions).of(shaped if position == 3 else entry(position))
    assert {name: found[name] for name in said} == said


def test_blocks_of_a_request_find_the_entries_that_they_show() -> None:
    """Results by their call, however short they are shown; words by themselves, of equal ones the next."""
    use = ToolUse("c1", "look", {"at": "it"})
    entries = [
        entry(0, Text("Do it."), role="user", kind="task"),
        entry(1, Text("ok"), use),
        entry(2, ToolResult("c1", "all of it"), **RESULT, tool_call_id="c1"),
        entry(3, Text("ok")),
    ]
    messages = [
        {"role": "user", "content": "Do it."},
        {"role": "assistant", "content": [encode_block(block) for block in entries[1].content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "[short]"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "ok", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": [{"type": "text", "text": "said by nobody"}]},
        {"role": "user", "content": [{"type": "text", "text": "Do it."}]},
    ]
    assert places(messages, entries) == [[0], [1, 1], [2], [3], [None], [0]]
