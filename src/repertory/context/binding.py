"""The provider's signed compaction: the only legal edit of the past for a model that binds its reasoning to it.

This decides when to ask for one and how it is swapped in. The log of what it replaces is repeated beside it, in
documents: a summary loses what it does not mention, and its words cost five times what ours do.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repertory.context.account import Account
from repertory.context.edits import HEADROOM
from repertory.context.plan import CoverRange
from repertory.context.view_index import Inputs, ViewIndex
from repertory.llm.estimate import text_tokens
from repertory.llm.messages import Text
from repertory.record.records import SummaryStored

LOG_SHARE = 1 / 3  # of the comfort: the log of what is older is dropped, which the summary covers
_SUMMARY_TOKENS = 1_500  # of a provider's first summary, as in the recorded runs
_INSTRUCTION_TOKENS = 200
_MIN_CLEARED = 25_000  # tokens: many small compactions lose the most, as each loses what it does not mention
_TURNS_AHEAD = 3  # turns before a limit is passed, since a summary takes time
_GROWTH_TURNS = 5  # newest turns from which the growth of the next ones is estimated


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask the provider to compact.

    Attributes:
        upto: Length of the ledger at the last request that was sent: exactly its messages are to be compacted.
        reason: The reason, with the arithmetic.
    """

    upto: int
    reason: str


def signed_tokens(cover: CoverRange) -> int:
    """Count the tokens of a cover that the provider wrote: all but the log beside it."""
    return cover.tokens - sum(text_tokens(block.text) for block in cover.content if isinstance(block, Text))


def _expected_tokens(view: ViewIndex) -> int:
    """Estimate the tokens of the next summary: it includes the one in view, which may be longer than the default."""
    return max([_SUMMARY_TOKENS, *map(signed_tokens, view.plan.covers[:1])])


def compaction_gain(view: ViewIndex, position: int, log: int) -> int:
    """Tokens by which a compaction, with a log of ``log`` tokens beside it, would shorten the view below a position."""
    return max(0, view.tokens_before(position) - _expected_tokens(view) - log - view.restated_tokens(position))


def compaction_cost(account: Account, view: int, tokens: int) -> float:
    """Price the provider's own call, in tokens at the input price: it reads the prompt and writes the summary."""
    rates = account.rates
    return rates.read * (account.head + view) + rates.output * tokens + _INSTRUCTION_TOKENS


def wanted_compaction(now: Inputs, account: Account, *, log: int, limit: int, comfort: int) -> Compaction | None:
    """Decide whether to ask now: the prompt will soon be too long, is longer than a model attends well to, or it pays.

    Args:
        now: The request; the reasoning in its view is bound to the past.
        account: What the run has paid so far.
        log: Tokens of the log that would be repeated.
        limit: Tokens that the prompt should not exceed, because of the window or because every token then costs more.
        comfort: Tokens of a comfortable view. It is kept whatever that costs: nothing is saved before the first
            compaction.
    """
    view, upto, factor = now.view, now.view.last_turn, now.calibration.factor
    gain = compaction_gain(view, upto, log)
    if not gain:
        return None
    expected_growth = round(_TURNS_AHEAD * view.growth(_GROWTH_TURNS) * factor)
    rates, sent, summary = account.rates, view.tokens_before(upto), _expected_tokens(view)
    cost = compaction_cost(account, sent, summary) + rates.write * (summary + log + view.restated_tokens(upto))
    cost -= rates.read * sent  # which the next request does not have to read
    saves = rates.read * gain
    if now.size + expected_growth > limit:
        why = f"the prompt should not pass {limit:,} tokens"
    elif now.size > comfort and gain * factor >= (1 - HEADROOM) * comfort and gain >= summary:
        why = "a longer view costs the model's attention"
    elif gain >= _MIN_CLEARED and account.owed + saves >= cost and account.pays_for(cost):
        why = "reading the past has cost as much as this edit, and earlier savings pay for it"
    else:
        return None
    return Compaction(
        upto=upto,
        reason=f"{why}: clears about {gain:,} tokens, costs what {cost:,.0f} cost as input, saves {saves:,.0f} a call",
    )


def signed_cover(view: ViewIndex, summary: SummaryStored, log: Sequence[str]) -> CoverRange | None:
    """Make the cover that replaces everything up to a provider's summary's last entry by that summary.

    The block replaces exactly the messages of one request. What must stay in view verbatim (the task, what users said,
    what is pinned) cannot come before the block or directly after it, so it is repeated after the last entry of the
    snapshot, which the model has not answered yet. So are the stretches of ``log``.

    Returns:
        The cover; None if the summary cannot be used now, because the assistant's turn does not follow it or the last
        entry is not the user's.
    """
    plan, snapshot, upto, last = view.plan, view.snapshot, summary.last + 1, view.position - 1
    follows = plan.start <= summary.last < last and snapshot[upto].role == "assistant"
    if summary.first or not follows or snapshot[last].role != "user":
        return None
    covered = {position for cover in plan.covers for position in cover.kept} | {at for at in plan.pins if at < upto}
    kept = (
        position
        for position in sorted(covered.union(range(plan.start, upto)))
        if view.is_pinned(entry := snapshot[position]) or (entry.role == "user" and view.is_kept(entry))
    )
    return CoverRange(
        first=0,
        last=summary.last,
        content=(*summary.content, *map(Text, log)),
        tokens=summary.tokens + sum(map(text_tokens, log)),
        was_tokens=sum(entry.tokens for entry in snapshot[plan.start : upto])
        + sum(cover.tokens for cover in plan.covers),
        kept=tuple(kept),
        summary_id=summary.summary_id,
        strategy=summary.strategy,
        iterations=(snapshot[0].iteration, snapshot[summary.last].iteration),
        restated_at=last,
    )
