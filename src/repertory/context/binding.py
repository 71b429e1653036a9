"""The provider's signed compaction: the only legal edit of the past for a model that binds its reasoning to it.

This decides when to ask for one and how it is swapped in. The log of what it replaces is repeated beside it, in
documents: a summary loses what it does not mention, and its words cost five times what ours do.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repertory.context.account import Account
from repertory.context.edits import HEADROOM
from repertory.context.live import Live
from repertory.context.plan import CoverRange
from repertory.llm.estimate import text_tokens
from repertory.llm.messages import Text
from repertory.record.entries import Entry
from repertory.record.records import SummaryStored

_SUMMARY_TOKENS = 1_500  # of a provider's first summary, as in the recorded runs
_INSTRUCTION_TOKENS = 200
_LEAST_CLEARED = 25_000  # tokens: many small compactions lose the most, as each loses what it does not mention
_BEFORE = 3  # turns before a limit is passed, since a summary takes time
_LOOKED_AT = 5  # newest turns from which the growth of the next ones is estimated


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


def _expected_tokens(live: Live) -> int:
    """Estimate the tokens of the next summary: it includes the one in view, which may be longer than the default."""
    return max([_SUMMARY_TOKENS, *map(signed_tokens, live.plan.covers[:1])])


def compactable(live: Live, position: int, log: int) -> int:
    """Tokens by which a compaction, with a log of ``log`` tokens beside it, would shorten the view below a position."""
    return max(0, live.before(position) - _expected_tokens(live) - log - live.restated(position))


def compaction_call(account: Account, view: int, tokens: int) -> float:
    """Price the provider's own call, in tokens at the input price: it reads the prompt and writes the summary."""
    rates = account.rates
    return rates.read * (account.head + view) + rates.output * tokens + _INSTRUCTION_TOKENS


def wanted_compaction(
    live: Live, account: Account, *, log: int, size: int, factor: float, limit: int, comfort: int
) -> Compaction | None:
    """Decide whether to ask now: the prompt will soon be too long, is longer than a model attends well to, or it pays.

    Args:
        live: The view; its reasoning is bound to the past.
        account: What the run has paid so far.
        log: Tokens of the log that would be repeated.
        size: Tokens of the next prompt, calibrated.
        factor: Real tokens for each estimated token.
        limit: Tokens that the prompt should not exceed, because of the window or because every token then costs more.
        comfort: Tokens of a comfortable view. It is kept whatever that costs: nothing is saved before the first
            compaction.
    """
    upto = live.last_turn
    gain = compactable(live, upto, log)
    if not gain:
        return None
    coming = round(_BEFORE * live.growth(_LOOKED_AT) * factor)
    rates, sent, summary = account.rates, live.before(upto), _expected_tokens(live)
    cost = compaction_call(account, sent, summary) + rates.write * (summary + log + live.restated(upto))
    cost -= rates.read * sent  # which the next request does not have to read
    saves = rates.read * gain
    if size + coming > limit:
        why = f"the prompt should not pass {limit:,} tokens"
    elif size > comfort and gain * factor >= (1 - HEADROOM) * comfort and gain >= summary:
        why = "a longer view costs the model's attention"
    elif gain >= _LEAST_CLEARED and account.owed + saves >= cost and account.pays_for(cost):
        why = "what is old has cost as much, and what was saved so far pays for it"
    else:
        return None
    return Compaction(
        upto=upto,
        reason=f"{why}: clears about {gain:,} tokens, costs what {cost:,.0f} cost as input, saves {saves:,.0f} a call",
    )


def signed_cover(
    live: Live, snapshot: Sequence[Entry], summary: SummaryStored, log: Sequence[str]
) -> CoverRange | None:
    """Make the cover that replaces everything up to a provider's summary's last entry by that summary.

    The block replaces exactly the messages of one request. What must stay in view verbatim (the task, what users said,
    what is pinned) cannot come before the block or directly after it, so it is repeated after the last entry of the
    snapshot, which the model has not answered yet. So are the stretches of ``log``.

    Returns:
        The cover; None if the summary cannot be used now, because the assistant's turn does not follow it or the last
        entry is not the user's.
    """
    plan, upto, last = live.plan, summary.last + 1, len(snapshot) - 1
    follows = plan.start <= summary.last < last and snapshot[upto].role == "assistant"
    if summary.first or not follows or snapshot[last].role != "user":
        return None
    before = {position for cover in plan.covers for position in cover.kept} | {at for at in plan.pins if at < upto}
    stays = (
        position
        for position in sorted(before.union(range(plan.start, upto)))
        if live.is_pinned(entry := snapshot[position]) or (entry.role == "user" and live.stays(entry))
    )
    return CoverRange(
        first=0,
        last=summary.last,
        content=(*summary.content, *map(Text, log)),
        tokens=summary.tokens + sum(map(text_tokens, log)),
        was_tokens=sum(entry.tokens for entry in snapshot[plan.start : upto])
        + sum(cover.tokens for cover in plan.covers),
        kept=tuple(stays),
        summary_id=summary.summary_id,
        strategy=summary.strategy,
        iterations=(snapshot[0].iteration, snapshot[summary.last].iteration),
        restated_at=last,
    )
