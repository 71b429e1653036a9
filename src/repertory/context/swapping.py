"""Swapping a provider's signed summary in: the one edit of the past that leaves the thinking behind it valid."""

from __future__ import annotations

from collections.abc import Sequence

from repertory.context.decisions import Arithmetic, CoverRange, Decision
from repertory.context.plan import Plan, apply
from repertory.context.policy import ContextPolicy
from repertory.context.pricing import Prospect, price_of
from repertory.context.tokens import Calibration, measure
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored


def swap_in(
    snapshot: Sequence[Entry],
    plan: Plan,
    summary: SummaryStored,
    *,
    policy: ContextPolicy,
    profile: ModelProfile,
    iteration: int,
    head_tokens: int = 0,
    calibration: Calibration | None = None,
    cold: bool = False,
) -> Decision | None:
    """Let a provider's summary stand for everything up to its last entry.

    The block takes the place of exactly the messages of one request. What must stay in view verbatim (the task, what
    users said, what is pinned) cannot stand before the block or right behind it, so it is said again behind the last
    entry of the snapshot, which the model has not answered yet.

    Args:
        snapshot: The ledger.
        plan: How it was shown so far.
        summary: What the provider wrote.
        policy: What the application asks for.
        profile: The model's.
        iteration: The iteration whose request shows the summary first.
        head_tokens: Estimate of system text and tools.
        calibration: What the provider's counts taught; None for nothing.
        cold: Whether the prompt cache has expired.

    Returns:
        The decision; None where the summary does not fit this moment: the assistant's turn does not follow it, the
        last entry is not the user's, or the view would not become smaller.
    """
    upto, last = summary.last + 1, len(snapshot) - 1
    follows = plan.start <= summary.last < last and snapshot[upto].role == "assistant"
    if summary.first or not follows or snapshot[last].role != "user":
        return None
    calibration = calibration or Calibration()
    kept = _kept(snapshot, plan, policy, upto)
    cover = CoverRange(
        first=0,
        last=summary.last,
        content=summary.content,
        tokens=summary.tokens,
        was_tokens=sum(entry.tokens for entry in snapshot[plan.start : upto])
        + sum(cover.tokens for cover in plan.covers),
        kept=kept,
        summary_id=summary.summary_id,
        strategy=summary.strategy,
        replaced_tokens=sum(entry.tokens for entry in snapshot[:upto]),
        restated_at=last,
    )
    bare = Decision(kind="provider", reason="", iteration=iteration, position=len(snapshot), edits=(cover,))
    before, after = measure(snapshot, plan), measure(snapshot, apply(plan, bare))
    if after >= before:
        return None
    new = sum(entry.tokens for entry in snapshot[upto:])
    price = price_of(
        profile,
        Prospect(
            before=calibration.real_tokens(head_tokens + before),
            after=calibration.real_tokens(head_tokens + after),
            new=round(new * calibration.factor),
            untouched=round(head_tokens * calibration.factor),
            cold=cold,
        ),
    )
    return Decision(
        kind="provider",
        reason="the provider's summary is ready",
        iteration=iteration,
        position=len(snapshot),
        edits=(cover,),
        edge=upto,
        arithmetic=Arithmetic(
            cleared_tokens=before - after,
            rewritten_tokens=price.rewritten,
            cost_now=price.cost_now,
            saving_per_call=price.saving_per_call,
            expected_calls=float(iteration),
            prompt_before=calibration.real_tokens(head_tokens + before),
            prompt_after=calibration.real_tokens(head_tokens + after),
        ),
    )


def _kept(snapshot: Sequence[Entry], plan: Plan, policy: ContextPolicy, upto: int) -> tuple[int, ...]:
    """What stays in view verbatim, of everything up to a position."""
    before = {position for cover in plan.covers for position in cover.kept}
    found = [
        position
        for position in sorted({*before, *(p for p in plan.pins if p < upto), *range(plan.start, upto)})
        if (entry := snapshot[position]).kind == "task"
        or (entry.kind == "user-input" and policy.keep_user_input)
        or position in plan.pins
        or policy.rules(entry.tool).pin
    ]
    return tuple(found)
