"""Lifecycle events: what became of single messages, derived from decisions and appended entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from repertory.context.decisions import Decision
from repertory.context.plan import CoverRange, ExpandEntry, RemoveResult, StubResult
from repertory.context.policy import ContextPolicy, ResultRules, most_aggressive
from repertory.record.entries import Entry

LifecycleKind: TypeAlias = Literal["added", "compacted", "expired", "removed", "covered", "expanded"]


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
    return [
        MessageEvent(
            kind="added",
            turn=entry.iteration,
            position=entry.position,
            last=entry.position,
            tool=entry.tool,
            tool_call_id=entry.tool_call_id,
            tokens_saved=-entry.tokens,
        )
        for entry in entries
    ]


def retrieved(entries: Iterable[Entry], iteration: int) -> list[MessageEvent]:
    """The events of entries that the agent got back with a tool; ``iteration`` is that of the request to show it."""
    return [
        MessageEvent(
            kind="expanded",
            turn=iteration,
            position=entry.position,
            last=entry.position,
            reason="the agent retrieved it",
            tool=entry.tool,
            tool_call_id=entry.tool_call_id,
        )
        for entry in entries
    ]


def events_of(
    decision: Decision, snapshot: Sequence[Entry] = (), policy: ContextPolicy | None = None
) -> list[MessageEvent]:
    """The events of a decision, in the order of its edits.

    Args:
        decision: What the planner decided.
        snapshot: The ledger; with it and the policy, expirations are told apart.
        policy: The one that was planned with.
    """
    out: list[MessageEvent] = []
    for edit in decision.edits:
        match edit:
            case StubResult(position=position):
                kinds: list[LifecycleKind] = ["compacted"]
            case RemoveResult(position=position):
                kinds = ["removed"]
            case CoverRange(first=position):
                kinds = ["covered"]
            case ExpandEntry(position=position):
                kinds = ["expanded"]
            case _:
                continue
        entry = None if isinstance(edit, CoverRange) or position >= len(snapshot) else snapshot[position]
        rules = None
        if policy is not None and entry is not None and kinds[0] in ("compacted", "removed"):
            rules = _expired(decision, entry, snapshot, policy)
        if rules is not None:
            kinds.insert(0, "expired")
        reason = _reason(decision, edit, snapshot, policy, rules)
        for kind in kinds:
            out.append(
                MessageEvent(
                    kind=kind,
                    turn=decision.iteration,
                    position=position,
                    last=edit.last if isinstance(edit, CoverRange) else position,
                    reason=reason,
                    tool=None if entry is None else entry.tool,
                    tool_call_id=None if entry is None else entry.tool_call_id,
                    tokens_saved=0 if kind == "expired" else edit.was_tokens - edit.tokens,
                    cost_now=decision.arithmetic.cost_now,
                    saving_per_call=decision.arithmetic.saving_per_call,
                )
            )
    return out


def _expired(decision: Decision, entry: Entry, snapshot: Sequence[Entry], policy: ContextPolicy) -> ResultRules | None:
    """The rules by which a result expired, those of its turn's results together; None where it did not."""
    first = last = entry.position
    while first and snapshot[first - 1].iteration == entry.iteration:
        first -= 1
    while last + 1 < len(snapshot) and snapshot[last + 1].iteration == entry.iteration:
        last += 1
    turn = [policy.rules(other.tool) for other in snapshot[first : last + 1] if other.tool_call_id is not None]
    rules = most_aggressive([each for each in turn if not each.pin] or [policy.rules(entry.tool)])
    age = decision.iteration - entry.iteration
    return rules if rules.expiration_mode != "none" and age > rules.expiration_turns else None


def _reason(
    decision: Decision,
    edit: StubResult | RemoveResult | CoverRange | ExpandEntry,
    snapshot: Sequence[Entry],
    policy: ContextPolicy | None,
    expired: ResultRules | None,
) -> str:
    """Why this message is shown otherwise; the decision's own reason is about all of its edits together."""
    position = edit.first if isinstance(edit, CoverRange) else edit.position
    strict = decision.kind == "strict" and policy is not None and position < len(snapshot)
    why = ""
    if expired is not None:
        turns = max(1, expired.expiration_turns)
        why = f"expired after {turns} iteration{'s' * (turns != 1)}"
    elif isinstance(edit, StubResult) and edit.why == "superseded":
        why = "the same was called again since"
    elif strict and isinstance(edit, CoverRange):
        first, until = max(1, snapshot[position].iteration), snapshot[edit.last].iteration
        why = f"a {'summary' if edit.summary_id else 'log'} stands for iterations {first} to {until}"
    elif strict and policy is not None:
        window = policy.window * policy.rules(snapshot[position].tool).importance
        why = f"older than the window of {window:g} iteration{'s' * (window != 1)}"
    return why if strict else "; ".join(part for part in (why, decision.reason) if part)


def notify(
    listener: Callable[[MessageEvent], object], events: Iterable[MessageEvent]
) -> list[tuple[MessageEvent, Exception]]:
    """Call an application's listener with each event. It can never break the run.

    Returns:
        The events at which it raised, with what it raised, for the caller to log.
    """
    failed: list[tuple[MessageEvent, Exception]] = []
    for event in events:
        try:
            listener(event)
        except Exception as error:  # noqa: BLE001 - an application's callback; the caller logs it
            failed.append((event, error))
    return failed
