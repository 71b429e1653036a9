"""The account of a run: what its prompts have cost, what they would have cost unedited, and what is owed to the past.

All figures are in tokens at the input price, by estimates. They follow from the record and the plan: a request was
made in front of every turn of the assistant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from repertory.context.plan import Plan
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry

_MARGIN = 1.2  # both sides are estimates: at 1.1 two of 88 replayed runs came out up to 7 in 1,000 dearer than unedited


class Rates(msgspec.Struct, frozen=True):
    """Prices as multiples of the input price.

    Attributes:
        read: Of a token that is read from the prompt cache.
        write: Of one that is written to it.
        output: Of one that the model writes.
    """

    read: float
    write: float
    output: float


def rates_of(profile: ModelProfile) -> Rates:
    """A model's prices; where there is no cache, or no price, every token costs what input costs."""
    prices = profile.prices[0]
    if not prices.input:
        return Rates(1.0, 1.0, 5.0)
    if not profile.cache.breakpoints:
        return Rates(1.0, 1.0, prices.output / prices.input)
    return Rates(prices.cache_read / prices.input, prices.cache_write / prices.input, prices.output / prices.input)


def cliffs_of(profile: ModelProfile) -> list[int]:
    """The prompt lengths above which every token of a request costs more."""
    base = profile.prices[0]
    return [prices.above for prices in profile.prices if prices.above and prices.input > base.input]


class Account:
    """What one run has paid so far.

    Attributes:
        bank: By how much it is cheaper than if nothing had been edited.
        owed: What it has spent since the last fold on reading what a fold would have cleared.
        since_counted: How many requests were made after the one that the plan counts.
        cached: Tokens of the view that the last request left in the cache, head included.
    """

    def __init__(self, rates: Rates, head: int) -> None:
        """Begin with nothing.

        Args:
            rates: The model's.
            head: Tokens of system text and tools.
        """
        self.rates = rates
        self.head = head
        self.bank = 0.0
        self.owed = 0.0
        self._position = 0  # entries below are in ``_record``
        self._record = 0  # tokens of the record so far, results as they came from their tools
        self._sent = 0  # of them, those that the last request held
        self.cached = 0
        self.since_counted = 0
        self._passed = True  # whether the answer to the request that the plan counts has been seen
        self._taken_up = (0, 0, 0)  # how far the record was counted then

    def take_up(self, plan: Plan, view_before: Callable[[int], int], *, again: bool = False) -> None:
        """Go on from the figures of a plan; ``view_before`` gives the tokens of its view in front of a position.

        ``again`` goes back to where that was done last: what came since is shown otherwise.
        """
        if again:
            self._position, self._record, self._sent = self._taken_up
            self.cached = 0
        self._taken_up = (self._position, self._record, self._sent)
        self.bank, self.owed, self.since_counted = plan.bank, plan.owed, 0
        self._passed = plan.counted_at < 0
        if plan.counted_at >= 0:
            self.cached = self.head + (view_before(plan.cached_to) if plan.cached_to >= 0 else 0)

    def grow(
        self, snapshot: Sequence[Entry], plan: Plan, view_before: Callable[[int], int], unfolded: Callable[[Entry], int]
    ) -> None:
        """Count the requests that have been made since.

        Args:
            snapshot: The record.
            plan: As it was shown; its own request is counted in it already.
            view_before: Tokens of the view in front of a position.
            unfolded: Tokens that the request which an entry answers could have done without.
        """
        for entry in snapshot[self._position :]:
            if entry.role == "assistant" and entry.position:
                base = self.head + self._record
                if not self._passed:
                    self._passed = entry.position >= plan.counted_at
                else:
                    view = self.head + view_before(entry.position)
                    if entry.position >= plan.decided_at:  # else others have edited since; no telling what was saved
                        self.bank += self._price(base, self._sent) - self._price(view, self.cached)
                    self.owed += self.rates.read * unfolded(entry)
                    self.cached = view
                    self.since_counted += 1
                self._sent = base
            self._record += max(entry.tokens, -(-entry.original_length // 4))
        self._position = len(snapshot)

    def pays_for(self, cost: float) -> bool:
        """Whether what was saved pays for an edit of the past."""
        return cost * _MARGIN <= self.bank

    def bank_after(self, view: int, kept: int, *, held: int = 0, cold: bool = False) -> float:
        """What the bank holds once the next request is paid.

        Args:
            view: Tokens of its prompt.
            kept: Of them, those that can be read from the cache.
            held: Of them, those that are not written to it.
            cold: Whether the cache has expired.
        """
        base = self._price(self.head + self._record, 0 if cold else self._sent)
        kept = 0 if cold else kept
        return self.bank + base - self._price(view - held, kept) - held

    def _price(self, prompt: int, cached: int) -> float:
        cached = min(cached, prompt)
        return self.rates.read * cached + self.rates.write * (prompt - cached)
