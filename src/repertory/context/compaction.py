"""When to ask the provider for a compaction: the one way to shorten a past that the model's reasoning is bound to."""

from __future__ import annotations

import msgspec

from repertory.context.account import Account
from repertory.context.live import Live
from repertory.context.tokens import Calibration

SUMMARY_TOKENS = 1_500
"""What a provider's summary is expected to have."""
_INSTRUCTION_TOKENS = 200
_LEAST_CLEARED = 6_000  # tokens
_MARGIN = 1.1  # estimates are not bills
_SETTLED = 100  # requests; before, an edit must be paid from what was saved
_SOON = 0.3  # of the requests so far: within them an edit ahead of the savings must pay back
_RISK = 0.07  # of what the run has cost: so far ahead of the savings it may go
_BEFORE = 3  # turns before a limit is passed; a summary takes its time
_LOOKED_AT = 5  # of the newest turns, by which the growth of the next ones is guessed


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider should be asked to compact.

    Attributes:
        upto: Length of the ledger at the last request that was sent: exactly its messages are to be compacted.
        reason: Why, with the arithmetic.
    """

    upto: int
    reason: str


def compactable(live: Live, position: int) -> int:
    """Tokens that the view below a position would lose by a compaction."""
    return max(0, live.before(position) - SUMMARY_TOKENS - live.restated(position))


def compaction_call(account: Account, view: int, tokens: int) -> float:
    """What the provider's own call costs, in tokens at the input price: it reads the prompt and writes the summary."""
    rates = account.rates
    return rates.read * (account.head + view) + rates.output * tokens + _INSTRUCTION_TOKENS


def wanted_compaction(
    live: Live, account: Account, *, estimate: int, calibration: Calibration, limit: int
) -> Compaction | None:
    """Whether to ask now.

    Args:
        live: The view; its reasoning is bound to the past.
        account: What the run has paid so far.
        estimate: Tokens of the next prompt, uncalibrated.
        calibration: Makes tokens of estimates.
        limit: The length that the prompt should not pass: of the window, or where every token costs more.
    """
    upto = live.last_turn
    gain = compactable(live, upto)
    if not account.requests or not gain:
        return None
    coming = round(_BEFORE * live.growth(_LOOKED_AT) * calibration.factor)
    full = calibration.real_tokens(estimate) + coming > limit
    rates, sent = account.rates, live.before(upto)
    cost = compaction_call(account, sent, SUMMARY_TOKENS) + rates.write * (SUMMARY_TOKENS + live.restated(upto))
    cost -= rates.read * sent  # which the next request need not read
    saves = rates.read * gain
    ahead = account.bank - cost >= -_RISK * account.spent and cost <= _SOON * account.requests * saves
    borrowed = live.policy.borrow and account.requests >= _SETTLED and ahead
    paid = cost * _MARGIN <= account.bank or borrowed
    due = gain >= _LEAST_CLEARED and account.owed + saves >= cost and paid
    if not (full or due):
        return None
    why = f"the prompt should not pass {limit:,} tokens" if full else "what is old has cost as much"
    return Compaction(
        upto=upto,
        reason=f"{why}: clears about {gain:,} tokens, costs what {cost:,.0f} cost as input, saves {saves:,.0f} a call",
    )
