"""Stubs: what remains in view of one old result. Pure and deterministic; the plan keeps the text that was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from repertory.context.compactors import beginning, compact, own_compactor
from repertory.context.cutting import first_chars
from repertory.context.policy import ResultRules
from repertory.context.shaping import facts_line, how_to_get
from repertory.llm.messages import Image, ToolResult, text_of
from repertory.record.entries import Entry

Why: TypeAlias = Literal["shortened", "shown once", "superseded", "expired", "cut"]
"""Why a result is not shown as it came: its policy or rhythm says so, it was bulky, the same was called again, its time
was up, or the prompt would not fit."""


def tool_text(entry: Entry) -> str:
    """What a result's tool said, as far as the entry holds it: without what was written around and between it."""
    text = text_of(entry.content)
    return "\n".join(text[start:end] for start, end in entry.spans) if entry.spans else text


def words_asked_for(entry: Entry, rules: ResultRules, summary: str) -> str:
    """What an application wants to remain of a result; "" where it leaves that open.

    That is a model's summary, the first characters, or what a compactor of its own says.
    """
    if summary:
        return summary
    text = tool_text(entry)
    if rules.compact_mode == "first_chars":
        return first_chars(text, rules.compact_length)
    own = own_compactor(text, tool=entry.tool or "", name=rules.compactor)
    return gist_of(entry, msgspec.structs.replace(rules, compactor=own)) if own else ""


def gist_of(entry: Entry, rules: ResultRules) -> str:
    """What a compactor says of the whole result: of one that was cut on arrival, what it said then."""
    text = tool_text(entry)
    if not entry.original_length:
        return compact(text, rules.compact_length, tool=entry.tool or "", name=rules.compactor)
    return first_chars(entry.gist, rules.compact_length) if entry.gist else beginning(text, rules.compact_length)


def stub_of(entry: Entry, rules: ResultRules, why: Why, body: str) -> str:
    """A stub: why and what it stands for and how to get the whole, where that came from, and what remains."""
    head = f"[{why}: {entry.tool or 'result'}, iteration {entry.iteration}, {_size(entry)}{whole_of(entry, rules)}]"
    facts = "" if entry.retrieved is not None else facts_line(entry.url, entry.facts)
    return "\n".join(part for part in (head, facts, body.strip()) if part)


def lines_stub(entry: Entry, rules: ResultRules, why: Why, lines: Sequence[str], of: int) -> str:
    """A stub of chosen lines, which says how many of how many they are."""
    told = f"{len(lines)} of {of} lines:\n" if len(lines) < of else ""
    return stub_of(entry, rules, why, told + "\n".join(lines))


def viewed_stub(entry: Entry, rules: ResultRules) -> str:
    """One line for a result that was seen: what strict rhythm leaves outside its window."""
    gist = " ".join(gist_of(entry, rules).split())
    return f"[previously viewed: {entry.tool or 'result'}, iteration {entry.iteration}] {gist}"


def superseded_stub(entry: Entry, newer: Entry) -> str:
    """What remains of a result whose call was made again: where the newer one is."""
    return (
        f"[superseded: {entry.tool or 'result'}, iteration {entry.iteration}; called again with the same arguments in "
        f"iteration {newer.iteration}]"
    )


def removal_of(entry: Entry, rules: ResultRules) -> str:
    """Make the line that stays when a result is removed."""
    return f"[expired: {entry.tool or 'result'}, iteration {entry.iteration}{whole_of(entry, rules)}]"


def whole_of(entry: Entry, rules: ResultRules) -> str:
    """How the model gets at the whole of a result, to end a note with; nothing where it has no tool for that."""
    if entry.content_id is not None:
        return how_to_get(entry.content_id, retrieval=rules.retrieval)
    return f"; context_retrieve(iteration={entry.iteration}) shows the whole" if rules.retrieval else ""


def pictures_in(entry: Entry) -> str:
    """How many images a result holds, in words; "" for none."""
    count = sum(isinstance(part, Image) for block in entry.content for part in _parts(block))
    return f"{count} image{'s' * (count > 1)}" if count else ""


def failed(entry: Entry) -> bool:
    """Whether a result reports that its call failed."""
    return any(isinstance(block, ToolResult) and block.is_error for block in entry.content)


def _size(entry: Entry) -> str:
    size = f"{entry.original_length or len(text_of(entry.content)):,} characters"
    return f"{size}, {pictures}" if (pictures := pictures_in(entry)) else size


def _parts(block: object) -> tuple[object, ...]:
    if isinstance(block, ToolResult) and isinstance(block.content, tuple):
        return block.content
    return (block,)
