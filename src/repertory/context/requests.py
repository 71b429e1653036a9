"""What a caller or an agent asks of the plan: expand, pin, unpin; and when a summary is due."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repertory.context.decisions import Arithmetic, Decision, apply
from repertory.context.plan import ExpandEntry, PinEntry, Plan, UnpinEntry
from repertory.context.pricing import Prospect, price_of
from repertory.context.tokens import Calibration, covered_tokens, measure, shown_tokens, text_tokens
from repertory.errors import ContextError
from repertory.llm.messages import Block, Text, text_of
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry


def expand(
    snapshot: Sequence[Entry],
    plan: Plan,
    position: int,
    *,
    iteration: int,
    whole: str | None = None,
    items: tuple[int, int] | None = None,
    reason: str = "asked for",
) -> Decision:
    """Show an entry again that was shortened, removed or covered; whole, or some of its lines.

    Args:
        snapshot: The ledger.
        plan: How it is shown.
        position: The entry.
        iteration: The iteration whose request shows it first.
        whole: The whole out of the content store; None for the entry as it stands in the ledger.
        items: The first and last line to show, counted from 1; None for all.
        reason: Why, for the record.

    Raises:
        ContextError: There is no such entry, it is in view already, or it has no such lines.
    """
    entry = _entry(snapshot, position)
    representation = plan.representation(entry)
    if representation in ("verbatim", "expanded") or (representation == "shaped" and whole is None):
        raise ContextError(f"entry {position} is in view already; there is nothing to expand")
    content: tuple[Block, ...] | None = None
    if whole is not None or items is not None:
        text = whole if whole is not None else text_of(entry.content)
        content = (Text(_lines(text, items, position) if items is not None else text),)
    was = 0 if representation == "covered" else shown_tokens(entry, plan)
    tokens = entry.tokens if content is None else text_tokens(text_of(content))
    edit = ExpandEntry(position=position, tokens=tokens, was_tokens=was, content=content)
    return Decision(kind="expand", reason=reason, iteration=iteration, position=len(snapshot), edits=(edit,))


def pin(
    snapshot: Sequence[Entry], position: int, *, iteration: int, on: bool = True, reason: str = "asked for"
) -> Decision:
    """Keep an entry in view verbatim from now on, or (``on=False``) no longer.

    Raises:
        ContextError: There is no such entry.
    """
    _entry(snapshot, position)
    edit = PinEntry(position=position) if on else UnpinEntry(position=position)
    return Decision(kind="pin", reason=reason, iteration=iteration, position=len(snapshot), edits=(edit,))


def priced(
    decision: Decision,
    snapshot: Sequence[Entry],
    plan: Plan,
    *,
    profile: ModelProfile,
    head_tokens: int = 0,
    calibration: Calibration | None = None,
) -> Decision:
    """Write into a decision that somebody asked for what it costs, as the planner does with its own.

    Args:
        decision: What was asked for.
        snapshot: The ledger.
        plan: How it is shown without the decision.
        profile: The model's.
        head_tokens: Estimate of system text and tools.
        calibration: What the provider's counts taught; None before the first call.
    """
    calibration = calibration or Calibration()
    before = head_tokens + measure(snapshot, plan)
    after = head_tokens + measure(snapshot, apply(plan, decision))
    asked = (ExpandEntry, PinEntry, UnpinEntry)
    first = min((edit.position for edit in decision.edits if isinstance(edit, asked)), default=len(snapshot))
    untouched = head_tokens
    if first >= plan.start:
        shown = sum(shown_tokens(entry, plan) for entry in snapshot[plan.start : first])
        untouched += covered_tokens(snapshot, plan) + shown
    prompt, edited = calibration.real_tokens(before), calibration.real_tokens(after)
    price = price_of(
        profile,
        Prospect(before=prompt, after=edited, new=0, untouched=round(untouched * calibration.factor)),
    )
    arithmetic = Arithmetic(
        cleared_tokens=before - after,
        rewritten_tokens=price.rewritten,
        cost_now=price.cost_now,
        saving_per_call=price.saving_per_call,
        prompt_before=prompt,
        prompt_after=edited,
    )
    return msgspec.structs.replace(decision, arithmetic=arithmetic)


def _entry(snapshot: Sequence[Entry], position: int) -> Entry:
    if not 0 <= position < len(snapshot):
        raise ContextError(f"there is no entry {position}; the record has {len(snapshot)} entries, from 0")
    return snapshot[position]


def _lines(text: str, items: tuple[int, int], position: int) -> str:
    lines = text.splitlines(keepends=True)
    first, last = items
    if not 1 <= first <= last or first > len(lines):
        raise ContextError(f"entry {position} has lines 1–{len(lines)}; lines {first}–{last} cannot be shown")
    shown = "".join(lines[first - 1 : last])
    return f"[lines {first}–{min(last, len(lines))} of {len(lines)}]\n{shown}"
