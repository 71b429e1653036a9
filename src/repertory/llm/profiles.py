"""Model profiles: what the planner needs to know about a model, the table of known models, and what a call costs.

Anything in a profile can be overridden: ``msgspec.structs.replace(profile, context_window=...)``, or ``with_prices``
for the prices alone.
"""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from repertory._choices import Checked, Natural, NotNegative, Positive, check_type
from repertory.errors import ConfigurationError, ModelResponseInvalid

Target: TypeAlias = Literal["free", "binding"]


class Prices(Checked, frozen=True, kw_only=True):
    """US dollars per million tokens.

    Attributes:
        above: These prices apply, to every token of a request, if its prompt has more than this many tokens; 0 for the
            base prices.
    """

    input: NotNegative
    output: NotNegative
    cache_read: NotNegative
    cache_write: NotNegative
    cache_write_1h: NotNegative
    above: Natural = 0


class CacheRules(Checked, frozen=True, kw_only=True):
    """How the provider's prompt cache works.

    Attributes:
        breakpoints: How many markers one request may carry; 0 means that there is no prompt cache.
        minimum_tokens: Shorter prefixes are silently not cached.
        lookback_blocks: How many blocks before a marker are searched for an earlier entry.
        ttl: Seconds that an entry lives after its last use.
    """

    breakpoints: Natural = 4
    minimum_tokens: Natural = 1024
    lookback_blocks: Natural = 20
    ttl: NotNegative = 300.0


class ModelProfile(Checked, frozen=True, kw_only=True):
    """What the planner knows about a model.

    Attributes:
        name: The model's name.
        target: ``free`` if the client may edit the past, ``binding`` if thinking blocks are bound to it.
        context_window: Tokens that prompt and answer may have together.
        max_output: Tokens that one answer may have.
        prices: Ascending by ``above``; the first are the base prices.
        cache: The prompt cache's rules.
        chars_per_token: About how many characters make one token. Used to cut the text that a summary is written from.
        as_of: ISO date on which these figures held.
        compacts: Whether the provider writes signed summaries on demand, the only ones that leave thinking valid.
        json_outputs: Whether the provider makes an answer fit a JSON schema (``output_config.format``).
        comfort_tokens: The longest prompt in which the model still attends well to all of it; None for half of the
            window, at most 100,000; 0 leaves the window as the only limit. ``comfort`` resolves None.
        summary_model: A small model of the same provider, to write summaries with; "" if none is known.
        documents: Whether it takes documents (PDF) in the results of tools.
        provider_types: Types of tools that the provider itself describes to the model; see ``ToolSchema``.
        known: False if the profile is a guess about an unknown model, which then costs $0.
    """

    name: str
    target: Target = "free"
    context_window: Positive
    max_output: Positive
    prices: Annotated[tuple[Prices, ...], msgspec.Meta(min_length=1)]
    cache: CacheRules = CacheRules()
    chars_per_token: Annotated[float, msgspec.Meta(gt=0)] = 4.0
    as_of: str = ""
    compacts: bool = False
    json_outputs: bool = False
    documents: bool = False
    comfort_tokens: Natural | None = None
    summary_model: str = ""
    provider_types: tuple[str, ...] = ()
    known: bool = True

    @property
    def comfort(self) -> int:
        """The longest prompt in which the model still attends well to all of it; 0 for no limit but the window."""
        # Models attend less well to a long prompt long before their window ends: all 18 that Chroma measured (Context
        # Rot, July 2025), and 10 of 12 fall below half of what they can by 32,000 tokens (NoLiMa, arXiv 2502.05167).
        # The provider says the same of its own (platform.claude.com/docs, Context windows), and its context editing
        # begins by default to clear tool results at 100,000 tokens, half of the window that its models then had.
        return min(100_000, self.context_window // 2) if self.comfort_tokens is None else self.comfort_tokens


NO_CACHE = CacheRules(breakpoints=0, minimum_tokens=0, lookback_blocks=0, ttl=0.0)
FREE_OF_CHARGE = Prices(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0, cache_write_1h=0.0)
OFFLINE = ModelProfile(
    name="offline",
    context_window=200_000,
    max_output=8_192,
    # Nobody bills the offline model. These are the prices of a small model, so that a run without a key still
    # shows what its shape would cost; there is no prompt cache, so a read or a write costs what input costs.
    prices=(Prices(input=1.0, output=5.0, cache_read=1.0, cache_write=1.0, cache_write_1h=1.0),),
    cache=NO_CACHE,
    documents=True,
    as_of="2026-11-21",
)

# The models we know. Prices change: `as_of` is the day on which window, longest answer, prices, cache minimum and
# binding were checked against the newest copies that could be had of the provider's own pages: each model's overview,
# pricing, prompt caching, preserved thinking, on-demand compaction (platform.claude.com/docs). If a figure is in none
# of them, its row names the source. Characters per token are our own rough guesses: models from Opus 4.7 on make about
# 30% more tokens of a text.


def _prices(input: float, output: float, read: float, *, above: int = 0) -> Prices:  # noqa: A002
    # Writes are 1.25 times input for five minutes and twice input for an hour, on every model so far.
    short, long = round(input * 1.25, 6), input * 2
    return Prices(input=input, output=output, cache_read=read, cache_write=short, cache_write_1h=long, above=above)


def _claude(
    name: str,
    *prices: Prices,
    minimum: int,
    window: int = 1_000_000,
    max_output: int = 128_000,
    target: Target = "free",
    chars_per_token: float = 2.8,
    compacts: bool = True,
) -> ModelProfile:
    return ModelProfile(
        name=name,
        target=target,
        context_window=window,
        max_output=max_output,
        prices=prices,
        cache=CacheRules(minimum_tokens=minimum),
        chars_per_token=chars_per_token,
        as_of="2026-11-22",
        compacts=compacts,
        documents=True,  # all active models (platform.claude.com/docs, PDF support; 2026-11)
        json_outputs=True,  # of every model from 4.5 on (platform.claude.com/docs, Structured outputs; 2026-11)
        summary_model="claude-haiku-5-5",  # the smallest of the provider's models overview, 2026-10-07
        # All Claude models since 4.5, on every platform, without a beta header (its page on the memory tool, 2026-11).
        provider_types=("memory_20250818",),
    )


_claude_4_5 = partial(_claude, window=200_000, max_output=64_000, chars_per_token=3.6, compacts=False)
_OPUS = _prices(5, 25, 0.50)

CATALOG: dict[str, ModelProfile] = {
    profile.name: profile
    for profile in (
        OFFLINE,
        # Thinking is bound to the history: for every account on Fable 5.2, elsewhere for accounts made since
        # 2026-08-31. Append-only is legal for all of them, so all of them are `binding`.
        # Fable 5.2 (2026-11-09): the read price is from three resellers; the cache minimum was not found. 1,024 is the
        # cautious guess: too much forgoes a breakpoint, too little marks a prefix that is silently not cached.
        _claude("claude-fable-5-2", _prices(8, 40, 0.20), minimum=1024, target="binding"),
        _claude("claude-fable-5-1", _prices(10, 50, 0.25), minimum=512, target="binding"),
        _claude("claude-fable-5", _prices(10, 50, 1.00), minimum=512),
        _claude("claude-opus-5-5", _prices(4, 20, 0.20), minimum=512, target="binding"),
        # Reads cost 0.05 times input since 2026-10-07, by the provider's page on Haiku 5.5.
        _claude("claude-sonnet-5-5", _prices(2, 10, 0.10), minimum=512, target="binding"),
        _claude(
            "claude-haiku-5-5",
            _prices(0.10, 0.50, 0.01),
            _prices(0.50, 2.50, 0.05, above=100_000),  # every token of a longer request, the output too
            minimum=512,
            target="binding",
        ),
        _claude("claude-opus-5", _OPUS, minimum=512),
        _claude("claude-opus-4-8", _OPUS, minimum=1024),
        # Window and longest answer from two clouds' model cards.
        _claude("claude-opus-4-7", _OPUS, minimum=2048),
        _claude("claude-opus-4-6", _OPUS, minimum=4096, chars_per_token=3.6),
        _claude_4_5("claude-opus-4-5", _OPUS, minimum=4096),
        _claude("claude-sonnet-5", _prices(2, 10, 0.20), minimum=1024),
        # Older pages and resellers say 64,000; the provider's page since Sonnet 5.5 came says 128,000.
        _claude("claude-sonnet-4-6", _prices(3, 15, 0.30), minimum=1024, chars_per_token=3.6),
        # Retires on 2026-11-30.
        _claude_4_5("claude-sonnet-4-5", _prices(3, 15, 0.30), minimum=1024),
        _claude_4_5("claude-haiku-4-5", _prices(1, 5, 0.10), minimum=4096),
    )
}

# A Claude model that is not in the table is assumed to be newer than it. Only the ratios of its prices matter: reads
# have cost 0.1 to 0.025 times input so far (Prompt caching, 2026-11). At the lowest ratio an edit of the past pays off
# latest, so it also pays off if reads turn out to be dearer. The minimum prefix is 512 to 4,096 tokens, for most models
# 1,024 or less; a marker below the minimum is ignored and costs nothing. A model of such a name may be behind a gateway
# that ignores an output format, while a final tool works everywhere.
_NEW_CLAUDE = msgspec.structs.replace(
    _claude("claude", _prices(1, 5, 0.025), minimum=1024, window=200_000, max_output=64_000, target="binding"),
    as_of="",
    json_outputs=False,
    known=False,
)
_LOCAL = ModelProfile(
    name="local",
    context_window=32_768,
    max_output=8_192,
    prices=(FREE_OF_CHARGE,),
    cache=NO_CACHE,
    chars_per_token=3.5,
    known=False,
)

# Cloud and gateway spellings of one model: "us.anthropic.claude-opus-4-6-v1:0", "anthropic/claude-opus-4.6",
# "claude-opus-4-6@20260205", "claude-opus-4-6[1m]", "claude-haiku-4-5-latest".
_SUFFIXES = re.compile(r"(?>\[[^\]]*\]|@\w+|-latest|-20\d{6}|-v\d+|:[\w.-]+)+$")


def profile_for(name: str) -> ModelProfile:
    """Look a model up by name; provider prefixes, dates and version suffixes do not matter.

    A name that is not in the table gets a cautious guess with ``known=False``, so that every cost is 0. The exception
    is a ``claude-…`` whose prices ``genai-prices`` lists, if that is installed (see ``with_listed_prices``). The guess:

    - ``claude-…`` is assumed to be newer than the table: 200,000 tokens, the least that any current Claude model has,
      the provider's prompt cache, and the binding target with its signed summaries, because the newest models refuse
      edits of the past while append-only is legal everywhere.
    - Anything else is assumed to run on a local server: no prompt cache, and 32,768 tokens. Some local servers silently
      cut the beginning of a longer prompt, which is worse than shortening a little early. If the server was started
      with a larger window, set it with ``msgspec.structs.replace``.

    Args:
        name: The model's name in requests.

    Returns:
        The profile, under the given name. Its ``summary_model`` is "" if the name is in a cloud's or a gateway's
        spelling, since the spelling of the small model's name there is unknown.

    Raises:
        ConfigurationError: The name is no text.
    """
    check_type("the name of a model", name, str, "a text")
    key = canonical_name(name)
    # Mythos has the specifications and prices of the Fable of its number (its overview page, 2026-11).
    row = key.replace("mythos-", "fable-")
    found = CATALOG.get(row) or CATALOG.get(f"claude-{row}")
    if found is None:
        found = _NEW_CLAUDE if key.startswith("claude-") else _LOCAL
        listed = _listed_prices(key, "anthropic") if found is _NEW_CLAUDE and find_spec(_PRICE_LIST) else ()
        found = msgspec.structs.replace(found, prices=listed, known=True) if listed else found
    plain = re.sub(r"-20\d{6}$", "", name) == key
    return msgspec.structs.replace(found, name=name, summary_model=found.summary_model if plain else "")


def canonical_name(name: str) -> str:
    """Strip what providers add around a model's name: ``anthropic/Claude-Sonnet-4.5@20250929`` and the like."""
    key = name.strip().lower()
    at = key.find("claude-")
    return key if at < 0 else _SUFFIXES.sub("", key[at:]).replace(".", "-")


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call, as the provider billed them; estimated if it does not say. The input figures do not overlap.

    Attributes:
        input_tokens: Input that neither came from the cache nor was written to it.
        output_tokens: What the model wrote, thinking included.
        cache_read_tokens: Input read from the prompt cache.
        cache_write_tokens: Input written to the 5-minute cache.
        cache_write_1h_tokens: Input written to the 1-hour cache.

    Raises:
        ModelResponseInvalid: A figure is not a whole number, or is below 0: costs and limits depend on it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            tokens: object = getattr(self, name)
            if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
                raise ModelResponseInvalid(f"usage.{name} must be a whole number of at least 0, got {tokens!r:.100}")

    @property
    def prompt_tokens(self) -> int:
        """All input: uncached, read from the cache and written to it."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens + self.cache_write_1h_tokens

    def __add__(self, other: Usage) -> Usage:
        figures = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Usage(*(mine + theirs for mine, theirs in figures))


def with_prices(
    profile: ModelProfile,
    *,
    input: float,  # noqa: A002 - the name of the thing
    output: float,
    cache_read: float | None = None,
    cache_write: float | None = None,
    cache_write_1h: float | None = None,
    as_of: str = "",
) -> ModelProfile:
    """Copy a profile with other prices, the same at every prompt length. The copy counts as known.

    Args:
        profile: The profile to copy.
        input: Dollars per million input tokens.
        output: Dollars per million output tokens.
        cache_read: Dollars per million tokens read from the cache; None for the input price.
        cache_write: Dollars per million tokens written to the 5-minute cache; None for the input price.
        cache_write_1h: The same for the 1-hour cache; None for the 5-minute price.
        as_of: ISO date on which these prices held; "" if unknown.
    """
    read = input if cache_read is None else cache_read
    write = input if cache_write is None else cache_write
    long = write if cache_write_1h is None else cache_write_1h
    prices = Prices(input=input, output=output, cache_read=read, cache_write=write, cache_write_1h=long)
    return msgspec.structs.replace(profile, prices=(prices,), as_of=as_of, known=True)


def with_listed_prices(profile: ModelProfile, *, provider: str) -> ModelProfile:
    """Copy a profile with the prices that pydantic's ``genai-prices`` lists for it. The copy counts as known.

    This needs the extra ``repertory[prices]``. A local server may serve a model under a name for which others charge,
    so repertory looks up prices by itself only for ``claude-…``, the provider's own names, that the table lacks.

    Args:
        profile: The model's profile, under the provider's name for the model.
        provider: The provider's name in ``genai-prices``: ``openai``, ``google``, ``openrouter``, …

    Raises:
        ConfigurationError: The extra is not installed, or lists no price for tokens of this model.
    """
    if not find_spec(_PRICE_LIST):
        raise ConfigurationError("genai-prices is not installed, which lists prices: pip install 'repertory[prices]'")
    prices = _listed_prices(profile.name, provider)
    if not prices:
        raise ConfigurationError(
            f"genai-prices lists no prices of model {profile.name!r} at provider {provider!r}; say them yourself: "
            "with_prices(profile, input=…, output=…)"
        )
    return msgspec.structs.replace(profile, prices=prices, known=True)


_PRICE_LIST: Final = "genai_prices"
_LISTED: Final = ("input", "output", "cache_read", "cache_write", "cache_write_1h")  # named ..._mtok there


def _listed_prices(name: str, provider: str) -> tuple[Prices, ...]:
    """The prices that ``genai-prices`` lists for a model, ascending by ``above``; () for none."""
    prices: Any = import_module(_PRICE_LIST)  # takes 150 ms, so only when needed
    try:
        found = prices.calc_price(prices.Usage(input_tokens=1, output_tokens=1), model_ref=name, provider_id=provider)
    except LookupError:
        return ()
    # The list matches a name by its longest known prefix: "claude-opus-4-51" gives Opus 4. That would be a guess.
    if _undated(found.model.id) != _undated(name):
        return ()
    listed = {each: getattr(found.model_price, f"{each}_mtok", None) for each in _LISTED}
    if listed["input"] is None or listed["output"] is None:
        return ()
    for each, instead in (("cache_read", "input"), ("cache_write", "input"), ("cache_write_1h", "cache_write")):
        listed[each] = listed[instead] if listed[each] is None else listed[each]
    lengths = {tier.start for price in listed.values() for tier in getattr(price, "tiers", ())}
    return tuple(
        Prices(**{each: _price_at(price, above) for each, price in listed.items()}, above=above)
        for above in sorted({0, *lengths})
    )


def _undated(name: str) -> str:
    return re.sub(r"-20\d\d-?\d\d-?\d\d$", "", canonical_name(name))


def _price_at(price: Any, above: int) -> float:
    tiers = reversed(getattr(price, "tiers", ()))
    return float(next((tier.price for tier in tiers if tier.start <= above), getattr(price, "base", price)))


def prices_at(profile: ModelProfile, prompt_tokens: int) -> Prices:
    """The prices for a request whose whole prompt, including cached parts, has this many tokens."""
    prices = profile.prices[0]
    for longer in profile.prices[1:]:
        if prompt_tokens > longer.above:
            prices = longer
    return prices


def cost_of(profile: ModelProfile, usage: Usage) -> float:
    """What one call costs, in US dollars.

    Args:
        profile: The model's profile; if its prices are unknown (``known=False``) the cost is 0.
        usage: The tokens of ONE call. Prices may depend on the length of each request's prompt, so add up costs, not
            usages.
    """
    if not profile.known:
        return 0.0
    prices = prices_at(profile, usage.prompt_tokens)
    return (
        usage.input_tokens * prices.input
        + usage.output_tokens * prices.output
        + usage.cache_read_tokens * prices.cache_read
        + usage.cache_write_tokens * prices.cache_write
        + usage.cache_write_1h_tokens * prices.cache_write_1h
    ) / 1_000_000


class Amount(msgspec.Struct, frozen=True):
    """What the limits on a tree of runs count for its model calls.

    Attributes:
        cost: US dollars.
        tokens: Tokens of prompts, cached or not, and of answers.
    """

    cost: float = 0.0
    tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.cost + other.cost, self.tokens + other.tokens)


def amount_at_most(profile: ModelProfile, *, prompt: int, output: int) -> Amount:
    """The most that a call can use: nothing is read from the cache, and the answer is as long as allowed."""
    prices = prices_at(profile, prompt)
    cost = (prompt * max(prices.input, prices.cache_write) + output * prices.output) / 1_000_000
    return Amount(cost if profile.known else 0.0, prompt + output)
