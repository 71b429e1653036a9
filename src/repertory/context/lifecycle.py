"""What callers are told of single messages: how each is shown now, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from repertory._cutting import clip
from repertory.context.decisions import Decision
from repertory.context.plan import CoverRange, ExpandEntry, Plan, RemoveResult, Representation, Shown, StubResult
from repertory.context.tokens import shown_tokens
from repertory.llm.messages import ToolUse, text_of
from repertory.record.entries import Entry, EntryKind

LifecycleKind: TypeAlias = Literal["added", "compacted", "expired", "removed", "covered", "expanded"]

_HINT_CHARS = 160  # two lines of a terminal


# --- how each is shown ------------------------------------------------------------------------------------


class ViewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the record, and how the model sees it.

    Attributes:
        position: Its place in the record; what ``Run.expand`` and ``Run.pin`` take.
        tool: The tool whose result it is; None for anything else.
        representation: ``verbatim``, ``shaped`` (cut on arrival), ``stub``, ``covered`` (a summary stands for it),
            ``removed`` or ``expanded``.
        pinned: Whether it stays in view as it is.
        can_expand: Whether there is more to it than is shown.
        hint: What is in it, in one line.
        items: Lines of the whole, which ``Run.expand(items=…)`` counts; None where the record has only what was left
            when it was cut on arrival: its whole is in the content store.
        original_length: Characters of the whole.
        tokens: Estimate of what it costs in the prompt now; 0 where a summary stands for it.
        tokens_saved: Estimate of what showing it as it stands in the record would cost more.
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
    """Say how each entry is shown, oldest first."""
    return [_listed(entry, plan) for entry in snapshot]


def _listed(entry: Entry, plan: Plan) -> ViewEntry:
    how, text = plan.representation(entry), text_of(entry.content)
    tokens = 0 if how == "covered" else shown_tokens(entry, plan)
    short = how in ("stub", "covered", "removed")
    return ViewEntry(
        position=entry.position,
        iteration=entry.iteration,
        role=entry.role,
        kind=entry.kind,
        representation=how,
        tool=entry.tool,
        tool_call_id=entry.tool_call_id,
        pinned=entry.position in plan.pins,
        can_expand=short or (how == "shaped" and entry.content_id is not None),
        hint=_hint(entry, plan.shown.get(entry.position), text),
        items=None if entry.original_length and entry.content_id is not None else len(text.splitlines()),
        original_length=entry.original_length or len(text),
        tokens=tokens,
        tokens_saved=max(0, entry.tokens - tokens) if short else 0,
    )


def _hint(entry: Entry, shown: Shown | None, text: str) -> str:
    """What stands for the entry without its head line, or else how it begins; calls by their tools' names."""
    if isinstance(shown, StubResult):
        text = shown.text.partition("\n")[2] or shown.text
    elif isinstance(shown, RemoveResult):
        text = text or shown.text
    elif shown is not None and shown.content is not None:
        text = text_of(shown.content)
    calls = ", ".join(block.name for block in entry.content if isinstance(block, ToolUse))
    return clip(" ".join(part for part in (text.strip(), f"[calls {calls}]" if calls else "") if part), _HINT_CHARS)


# --- what became of it ------------------------------------------------------------------------------------


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One message was added, or is shown in another way than before.

    Attributes:
        kind: What became of it. A result that expires and is compacted or removed for that is both, in order.
            ``expanded`` is also said of what the agent itself got back with a tool.
        turn: The iteration whose request shows it first.
        position: The entry; for ``covered`` the first of the range.
        last: The last entry of the range; the same as ``position`` for a single one.
        reason: Why.
        tool: The tool whose result it is; None for anything else, and for a range.
        tool_call_id: The call that it answers; None likewise.
        tokens_saved: What it costs less in each later prompt; negative for what is added or expanded. 0 for what the
            agent got back: the answer to its call is an entry of its own.
        cost_now: US dollars that the whole decision costs once.
        saving_per_call: US dollars that the whole decision saves at each later call.
        run_id: The run, for listeners that hear several; "" where nobody said.
    """

    kind: LifecycleKind
    turn: int
    position: int
    last: int
    reason: str = ""
    tool: str | None = None
    tool_call_id: str | None = None
    tokens_saved: int = 0
    cost_now: float = 0.0
    saving_per_call: float = 0.0
    run_id: str = ""


def added(entries: Iterable[Entry]) -> list[MessageEvent]:
    """The events of entries that were appended."""
    return [_of(entry, kind="added", turn=entry.iteration, tokens_saved=-entry.tokens) for entry in entries]


def retrieved(entries: Iterable[Entry], iteration: int) -> list[MessageEvent]:
    """The events of entries that the agent got back with a tool; ``iteration`` is that of the request to show it."""
    return [_of(entry, kind="expanded", turn=iteration, reason="the agent retrieved it") for entry in entries]


def _of(entry: Entry, **fields: Any) -> MessageEvent:
    at, call = entry.position, entry.tool_call_id
    return MessageEvent(position=at, last=at, tool=entry.tool, tool_call_id=call, **fields)


_KINDS: dict[type[object], LifecycleKind] = {
    StubResult: "compacted",
    RemoveResult: "removed",
    CoverRange: "covered",
    ExpandEntry: "expanded",
}
_WHY = {
    "superseded": "the same was called again since",
    "shown once": "it is long and was shown whole",
    "cut": "the prompt would not fit",
}


def events_of(decision: Decision, snapshot: Sequence[Entry]) -> list[MessageEvent]:
    """The events of a decision, in the order of its edits; ``snapshot`` is the ledger that it was made for."""
    out: list[MessageEvent] = []
    for edit in decision.edits:
        if not isinstance(edit, StubResult | RemoveResult | CoverRange | ExpandEntry):
            continue
        about: dict[str, Any] = {
            "kind": _KINDS[type(edit)],
            "turn": decision.iteration,
            "reason": _reason(decision, edit, snapshot),
            "tokens_saved": edit.was_tokens - edit.tokens,
            "cost_now": decision.arithmetic.cost_now,
            "saving_per_call": decision.arithmetic.saving_per_call,
        }
        if isinstance(edit, CoverRange):
            out.append(MessageEvent(position=edit.first, last=edit.last, **about))
            continue
        event = _of(snapshot[edit.position], **about)
        if _is_expired(edit):
            out.append(msgspec.structs.replace(event, kind="expired", tokens_saved=0))
        out.append(event)
    return out


def _is_expired(edit: StubResult | RemoveResult | ExpandEntry) -> bool:
    return isinstance(edit, RemoveResult) or (isinstance(edit, StubResult) and edit.why == "expired")


def _reason(decision: Decision, edit: Shown | CoverRange, snapshot: Sequence[Entry]) -> str:
    """Why this message is shown otherwise; the decision's own reason is about all of its edits together."""
    strict, why = decision.kind == "strict", ""
    if isinstance(edit, CoverRange):
        first, last = edit.iterations
        why = f"a {'summary' if edit.summary_id else 'log'} stands for iterations {max(1, first)} to {last}"
    elif _is_expired(edit):
        turns = decision.iteration - snapshot[edit.position].iteration - 1  # requests that have shown it
        why = f"expired after {turns} iteration{'s' * (turns != 1)}"
    elif isinstance(edit, StubResult):
        why = _WHY.get(edit.why, "older than the window, or than the newest results" if strict else "")
    return why if strict else "; ".join(part for part in (why, decision.reason) if part)
