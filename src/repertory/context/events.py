"""Lifecycle events: what became of single messages, derived from decisions and appended entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from repertory.context.decisions import CoverRange, Decision, ExpandEntry, RemoveResult, StubResult
from repertory.context.policy import ContextPolicy
from repertory.memory.entries import Entry

LifecycleKind: TypeAlias = Literal["added", "compacted", "expired", "removed", "covered", "expanded"]


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One message was added, or is shown in another way than before.

    Attributes:
        kind: What became of it. A result that expires and is compacted or removed for that is both, in order.
        turn: The iteration whose request shows it first.
        position: The entry; for ``covered`` the first of the range.
        last: The last entry of the range; the same as ``position`` for a single one.
        reason: Why.
        tokens_saved: What it costs less in each later prompt; negative for what is added or expanded.
        cost_now: US dollars that the whole decision costs once.
        saving_per_call: US dollars that the whole decision saves at each later call.
        run_id: The run, for listeners that hear several; "" where nobody said.
    """

    kind: LifecycleKind
    turn: int
    position: int
    last: int
    reason: str = ""
    tokens_saved: int = 0
    cost_now: float = 0.0
    saving_per_call: float = 0.0
    run_id: str = ""


def added(entries: Iterable[Entry]) -> list[MessageEvent]:
    """The events of entries that were appended."""
    return [
        MessageEvent(
            kind="added", turn=entry.iteration, position=entry.position, last=entry.position, tokens_saved=-entry.tokens
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
        if (
            policy is not None
            and kinds[0] in ("compacted", "removed")
            and _expired(decision, snapshot[position], policy)
        ):
            kinds.insert(0, "expired")
        for kind in kinds:
            out.append(
                MessageEvent(
                    kind=kind,
                    turn=decision.iteration,
                    position=position,
                    last=edit.last if isinstance(edit, CoverRange) else position,
                    reason=decision.reason,
                    tokens_saved=0 if kind == "expired" else edit.was_tokens - edit.tokens,
                    cost_now=decision.arithmetic.cost_now,
                    saving_per_call=decision.arithmetic.saving_per_call,
                )
            )
    return out


def _expired(decision: Decision, entry: Entry, policy: ContextPolicy) -> bool:
    rules = policy.rules(entry.tool)
    return rules.expiration_mode != "none" and decision.iteration - entry.iteration > rules.expiration_turns


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
