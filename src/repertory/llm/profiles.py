"""What the planner needs to know about a model: window, prices with their date, cache rules, binding."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Target: TypeAlias = Literal["free", "binding"]


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per million tokens.

    Attributes:
        above: A price that holds, for every token of the request, once its prompt has more than this many
            tokens; 0 for the base price.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    cache_write_1h: float
    above: int = 0


class CacheRules(msgspec.Struct, frozen=True, kw_only=True):
    """How the provider's prompt cache works.

    Attributes:
        breakpoints: How many markers one request may carry; 0 means that there is no prompt cache.
        minimum_tokens: Shorter prefixes are silently not cached.
        lookback_blocks: How many blocks before a marker are searched for an earlier entry.
        ttl: Seconds that an entry lives after its last use.
    """

    breakpoints: int = 4
    minimum_tokens: int = 1024
    lookback_blocks: int = 20
    ttl: float = 300.0


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One model, as the planner sees it.

    Attributes:
        name: The model's name.
        target: ``free`` where the client may edit the past, ``binding`` where thinking blocks are bound to it.
        context_window: Tokens that prompt and answer may have together.
        max_output: Tokens that one answer may have.
        prices: Ascending by ``above``; the first is the base price.
        cache: The prompt cache's rules.
        chars_per_token: First guess for the token estimate; usage figures calibrate it later.
        as_of: ISO date on which these figures held.
        known: False for the fallback that stands in for a model nobody has described.
    """

    name: str
    target: Target = "free"
    context_window: int
    max_output: int
    prices: tuple[Prices, ...]
    cache: CacheRules = CacheRules()
    chars_per_token: float = 4.0
    as_of: str = ""
    known: bool = True
