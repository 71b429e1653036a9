"""Lists the record of a run, entry by entry, as its model sees it, for ``Run.view``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repertory._cutting import clip
from repertory.context import Plan
from repertory.context.plan import RemoveResult, Representation, Shown, StubResult
from repertory.llm.messages import ToolUse, text_of
from repertory.record.entries import Entry, EntryKind

_HINT_CHARS = 160  # two lines of a terminal


class ViewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the record, and how the model sees it.

    Attributes:
        position: The entry's position in the record, as ``Run.expand`` and ``Run.pin`` take it.
        tool: The tool whose result it is; None for anything else.
        representation: ``verbatim``, ``shaped`` (cut on arrival), ``stub``, ``covered`` (a summary replaces it),
            ``removed`` or ``expanded``.
        pinned: Whether it stays in view as it is.
        can_expand: Whether the entry has more than is shown.
        hint: What is in the entry, in one line.
        items: Number of lines of the whole, as ``Run.expand(items=…)`` counts them; None if the entry was cut on
            arrival and its whole is only in the content store.
        original_length: Characters of the whole.
        tokens: Estimated tokens of the entry in the prompt now; 0 if a summary replaces it.
        tokens_saved: Estimated additional tokens of showing the entry as it is in the record.
    """

    position: int
    iteration: int
    role: str
    kind: EntryKind
    representation: Representation
    tool: str | None
    tool_call_id: str | None
    pinned: bool
    can_expand: bool
    hint: str
    items: int | None
    original_length: int
    tokens: int
    tokens_saved: int


def list_view(snapshot: Sequence[Entry], plan: Plan) -> list[ViewEntry]:
    """List how each entry is shown, oldest first."""
    return [_view_entry(entry, plan) for entry in snapshot]


def _view_entry(entry: Entry, plan: Plan) -> ViewEntry:
    representation, text = plan.representation(entry), text_of(entry.content)
    tokens = 0 if representation == "covered" else plan.tokens_of(entry)
    is_short = representation in ("stub", "covered", "removed")
    return ViewEntry(
        position=entry.position,
        iteration=entry.iteration,
        role=entry.role,
        kind=entry.kind,
        representation=representation,
        tool=entry.tool,
        tool_call_id=entry.tool_call_id,
        pinned=entry.position in plan.pins,
        can_expand=is_short or (representation == "shaped" and entry.content_id is not None),
        hint=_hint(entry, plan.shown.get(entry.position), text),
        items=None if entry.original_length and entry.content_id is not None else len(text.splitlines()),
        original_length=entry.original_length or len(text),
        tokens=tokens,
        tokens_saved=max(0, entry.tokens - tokens) if is_short else 0,
    )


def _hint(entry: Entry, shown: Shown | None, text: str) -> str:
    """Return what replaces an entry, without its first line, or else the entry's beginning; calls by tool name."""
    if isinstance(shown, StubResult):
        text = shown.text.partition("\n")[2] or shown.text
    elif isinstance(shown, RemoveResult):
        text = text or shown.text
    elif shown is not None and shown.content is not None:
        text = text_of(shown.content)
    calls = ", ".join(block.name for block in entry.content if isinstance(block, ToolUse))
    return clip(" ".join(part for part in (text.strip(), f"[calls {calls}]" if calls else "") if part), _HINT_CHARS)
