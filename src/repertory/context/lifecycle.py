"""Events that tell callers what happens to single messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from repertory._counting import counted
from repertory.context.decisions import Decision
from repertory.context.plan import CoverRange, ExpandEntry, RemoveResult, Shown, StubResult
from repertory.record.entries import Entry

LifecycleKind: TypeAlias = Literal["added", "compacted", "expired", "removed", "covered", "expanded"]


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One message was added, or is shown differently than before.

    Attributes:
        kind: What happened to the message. A result that is compacted or removed because it expired has two events:
            ``expired``, then the other. ``expanded`` also covers what the agent itself retrieved with a tool.
        turn: The first iteration whose request shows the change.
        position: Position of the entry; for ``covered`` the first of the range.
        last: Position of the last entry of the range; the same as ``position`` for a single entry.
        reason: The reason, for a person to read.
        tool: The tool whose result the message is; None for anything else, and for a range.
        tool_call_id: The call that the message answers; None for anything else, and for a range.
        tokens_saved: Tokens saved in each later prompt; negative if the message was added or expanded. 0 for what the
            agent retrieved: the answer to its call is a separate entry.
        cost_now: US dollars that the whole decision costs once.
        saving_per_call: US dollars that the whole decision saves at each later call.
        run_id: The run, for listeners to several runs; "" if it was not given.
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
    """Return the events of appended entries."""
    return [_entry_event(entry, kind="added", turn=entry.iteration, tokens_saved=-entry.tokens) for entry in entries]


def retrieved(entries: Iterable[Entry], iteration: int) -> list[MessageEvent]:
    """Return the events of entries that the agent retrieved with a tool; the request of ``iteration`` shows them."""
    return [_entry_event(entry, kind="expanded", turn=iteration, reason="the agent retrieved it") for entry in entries]


def _entry_event(entry: Entry, **fields: Any) -> MessageEvent:
    at, call = entry.position, entry.tool_call_id
    return MessageEvent(position=at, last=at, tool=entry.tool, tool_call_id=call, **fields)


_KINDS: dict[type[object], LifecycleKind] = {
    StubResult: "compacted",
    RemoveResult: "removed",
    CoverRange: "covered",
    ExpandEntry: "expanded",
}
_STUB_REASONS = {
    "superseded": "the same was called again since",
    "shown once": "it is long and was shown whole",
    "cut": "the prompt would not fit",
}


def events_of(decision: Decision, snapshot: Sequence[Entry]) -> list[MessageEvent]:
    """Return the events of a decision, in the order of its edits; ``snapshot`` is the ledger that it was made for."""
    out: list[MessageEvent] = []
    for edit in decision.edits:
        if not isinstance(edit, StubResult | RemoveResult | CoverRange | ExpandEntry):
            continue
        fields: dict[str, Any] = {
            "kind": _KINDS[type(edit)],
            "turn": decision.iteration,
            "reason": _reason(decision, edit, snapshot),
            "tokens_saved": edit.was_tokens - edit.tokens,
            "cost_now": decision.arithmetic.cost_now,
            "saving_per_call": decision.arithmetic.saving_per_call,
        }
        if isinstance(edit, CoverRange):
            out.append(MessageEvent(position=edit.first, last=edit.last, **fields))
            continue
        event = _entry_event(snapshot[edit.position], **fields)
        if _is_expired(edit):
            out.append(msgspec.structs.replace(event, kind="expired", tokens_saved=0))
        out.append(event)
    return out


def _is_expired(edit: StubResult | RemoveResult | ExpandEntry) -> bool:
    return isinstance(edit, RemoveResult) or (isinstance(edit, StubResult) and edit.why == "expired")


def _reason(decision: Decision, edit: Shown | CoverRange, snapshot: Sequence[Entry]) -> str:
    """Say why this message is shown differently; the decision's own reason is about all of its edits together."""
    strict, why = decision.kind == "strict", ""
    if isinstance(edit, CoverRange):
        first, last = edit.iterations
        why = f"a {'summary' if edit.summary_id else 'log'} stands for iterations {max(1, first)} to {last}"
    elif _is_expired(edit):
        turns = decision.iteration - snapshot[edit.position].iteration - 1  # requests that have shown it
        why = f"expired after {counted(turns, 'iteration')}"
    elif isinstance(edit, StubResult):
        why = _STUB_REASONS.get(edit.why, "older than the window, or than the newest results" if strict else "")
    return why if strict else "; ".join(part for part in (why, decision.reason) if part)
