"""The account of a run: what its prompts have cost, what they would have cost unedited, and what a fold is owed.

All figures are estimates, in tokens at the input price. They follow from the record and the plan: one request was
made before every turn of the assistant.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from repertory.context.view_index import ViewIndex
from repertory.llm.profiles import ModelProfile
from repertory.record.entries import Entry

_MARGIN = 1.2  # both sides are estimates: at 1.1 two of 88 replayed runs cost up to 7 in 1,000 more than unedited ones


class Rates(msgspec.Struct, frozen=True):
    """Prices as multiples of the input price.

    Attributes:
        read: Price of a token that is read from the prompt cache.
        write: Price of a token that is written to it.
        output: Price of a token that the model writes.
    """

    read: float
    write: float
    output: float


def rates_of(profile: ModelProfile) -> Rates:
    """Return a model's prices. Without a cache or a price, every token of a prompt has the input price."""
    prices = profile.prices[0]
    if not prices.input:
        return Rates(1.0, 1.0, 5.0)
    if not profile.cache.breakpoints:
        return Rates(1.0, 1.0, prices.output / prices.input)
    return Rates(prices.cache_read / prices.input, prices.cache_write / prices.input, prices.output / prices.input)


def cliffs_of(profile: ModelProfile) -> list[int]:
    """Return the prompt lengths above which every token of a request costs more."""
    base = profile.prices[0]
    return [prices.above for prices in profile.prices if prices.above and prices.input > base.input]


class Account:
    """What one run has paid so far.

    Attributes:
        bank: By how much the run is cheaper than if nothing had been edited.
        owed: What the run has spent since the last fold on reading what a fold would have cleared.
        uncounted_requests: How many requests were made after the last one that the plan counts.
        cached: Tokens of the view that the last request left in the cache, head included.
    """

    def __init__(self, rates: Rates, head: int) -> None:
        """Start an empty account; ``head`` is the tokens of system text and tools."""
        self.rates = rates
        self.head = head
        self.bank = 0.0
        self.owed = 0.0
        self._position = 0  # entries below this are counted in ``_record_tokens``
        self._record_tokens = 0  # tokens of the record so far, with results as they came from their tools
        self._sent_tokens = 0  # those of them in the last request
        self.cached = 0
        self.uncounted_requests = 0
        self._answer_seen = True  # whether the answer to the request that the plan counts has been seen
        self._adopted_counts = (0, 0, 0)  # the three counts above at the last ``adopt``

    def adopt(self, view: ViewIndex, *, recount: bool = False) -> None:
        """Continue from the figures of a view's plan.

        ``recount`` first returns to the state of the last call: everything since is shown differently now.
        """
        plan = view.plan
        if recount:
            self._position, self._record_tokens, self._sent_tokens = self._adopted_counts
            self.cached = 0
        self._adopted_counts = (self._position, self._record_tokens, self._sent_tokens)
        self.bank, self.owed, self.uncounted_requests = plan.bank, plan.owed, 0
        self._answer_seen = plan.counted_at < 0
        if plan.counted_at >= 0:
            self.cached = self.head + (view.tokens_before(plan.cached_to) if plan.cached_to >= 0 else 0)

    def count_requests(self, view: ViewIndex, unneeded: Callable[[Entry], int]) -> None:
        """Count the requests that were made since the last call.

        Args:
            view: How the record was shown; its plan already counts its own request.
            unneeded: Returns the unneeded tokens in the request that an entry answers.
        """
        for entry in view.snapshot[self._position :]:
            if entry.role == "assistant" and entry.position:
                base = self.head + self._record_tokens
                if not self._answer_seen:
                    self._answer_seen = entry.position >= view.plan.counted_at
                else:
                    prompt = self.head + view.tokens_before(entry.position)
                    if entry.position >= view.plan.decided_at:  # else others edited since, and the savings are unknown
                        self.bank += self._price(base, self._sent_tokens) - self._price(prompt, self.cached)
                    self.owed += self.rates.read * unneeded(entry)
                    self.cached = prompt
                    self.uncounted_requests += 1
                self._sent_tokens = base
            self._record_tokens += max(entry.tokens, -(-entry.original_length // 4))
        self._position = view.position

    def pays_for(self, cost: float) -> bool:
        """Whether the savings pay for an edit of the past."""
        return cost * _MARGIN <= self.bank

    def bank_after(self, view: int, kept: int, *, held: int = 0, cold: bool = False) -> float:
        """Return what the bank holds after the next request is paid.

        Args:
            view: Tokens of its prompt.
            kept: How many of them can be read from the cache.
            held: How many of them are not written to it.
            cold: Whether the cache has expired.
        """
        base = self._price(self.head + self._record_tokens, 0 if cold else self._sent_tokens)
        kept = 0 if cold else kept
        return self.bank + base - self._price(view - held, kept) - held

    def _price(self, prompt: int, cached: int) -> float:
        cached = min(cached, prompt)
        return self.rates.read * cached + self.rates.write * (prompt - cached)
