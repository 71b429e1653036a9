"""What an edit of the past costs and saves, under a model's prompt-cache prices."""

from __future__ import annotations

import msgspec

from repertory.llm.profiles import ModelProfile, Prices, prices_at

_PER = 1_000_000


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """The next prompt without an edit and with it, in tokens.

    Attributes:
        before: The whole prompt without the edit.
        after: The whole prompt with it.
        new: What no earlier request held, and must be written to the cache in any case.
        untouched: What stands before the edit and can still be read from the cache with it.
        cold: Whether nothing can be read from the cache any more.
    """

    before: int
    after: int
    new: int
    untouched: int
    cold: bool = False


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """An edit's price.

    Attributes:
        cost_now: US dollars that the next call costs more with the edit; negative where it is cheaper at once.
        saving_per_call: US dollars that every later call costs less.
        rewritten: Tokens that were in the cache and must be written again.
    """

    cost_now: float
    saving_per_call: float
    rewritten: int


def price_of(profile: ModelProfile, prospect: Prospect) -> Price:
    """Work out what an edit costs at the next call and saves at every call after it.

    A prefix is read from the cache at a fraction of the input price, and written to it at a premium. Whatever
    stands behind an edit is another prefix, so it is written again once; from then on every call reads less.
    """
    old, new = _input_prices(profile, prospect.before), _input_prices(profile, prospect.after)
    cached = 0 if prospect.cold else max(0, prospect.before - prospect.new)
    untouched = 0 if prospect.cold else min(prospect.untouched, cached, prospect.after)
    without = cached * old.cache_read + (prospect.before - cached) * old.cache_write
    edited = untouched * new.cache_read + (prospect.after - untouched) * new.cache_write
    saving = prospect.before * old.cache_read - prospect.after * new.cache_read
    return Price(
        cost_now=(edited - without) / _PER,
        saving_per_call=saving / _PER,
        rewritten=max(0, min(cached - untouched, prospect.after - untouched)),
    )


def _input_prices(profile: ModelProfile, prompt_tokens: int) -> Prices:
    prices = prices_at(profile, prompt_tokens)
    if profile.cache.breakpoints:
        return prices
    return msgspec.structs.replace(prices, cache_read=prices.input, cache_write=prices.input)
