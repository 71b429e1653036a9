"""The models we know, and what they cost. Prices change: every row says on which day it was checked.

Checked means: window, longest answer, prices, cache minimum and binding against the newest copies that could be had of
the provider's own pages: each model's overview, pricing, prompt caching, preserved thinking, on-demand compaction
(platform.claude.com/docs). Where a figure stands in none of them, the row says where it is from.
Characters per token are our own rough guesses: models from Opus 4.7 on make about 30% more tokens of a text.
"""

from __future__ import annotations

from repertory.llm.profiles import OFFLINE, SMALL_CLAUDE, CacheRules, ModelProfile, Prices, Target, comfort_in

_MILLION = 1_000_000
_WITHOUT_COMPACTION = frozenset({"claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"})


def _prices(input: float, output: float, read: float, *, above: int = 0) -> Prices:  # noqa: A002
    # Writes are 1.25 times input for five minutes and twice input for an hour, on every model so far.
    return Prices(
        input=input,
        output=output,
        cache_read=read,
        cache_write=round(input * 1.25, 6),
        cache_write_1h=input * 2,
        above=above,
    )


def _model(
    name: str,
    checked: str,
    *prices: Prices,
    minimum: int,
    window: int = _MILLION,
    max_output: int = 128_000,
    target: Target = "free",
    chars_per_token: float = 2.8,
) -> ModelProfile:
    return ModelProfile(
        name=name,
        target=target,
        compacts=name not in _WITHOUT_COMPACTION,
        context_window=window,
        max_output=max_output,
        prices=prices,
        cache=CacheRules(minimum_tokens=minimum),
        chars_per_token=chars_per_token,
        comfort_tokens=comfort_in(window),
        summary_model=SMALL_CLAUDE,
        as_of=checked,
    )


_OPUS = _prices(5, 25, 0.50)

CATALOG: dict[str, ModelProfile] = {
    profile.name: profile
    for profile in (
        OFFLINE,
        # Thinking is bound to the history: for every account on Fable 5.2, elsewhere for accounts made since
        # 2026-08-31. Append-only is legal for all of them, so all of them are `binding`.
        # Of Fable 5.2 (2026-11-09) the provider's page confirms the binding. Prices, window and longest answer are as
        # three resellers repeat them; the cache minimum was not found. 1,024 is the cautious guess: too much forgoes a
        # breakpoint, too little marks a prefix that is silently not cached.
        _model("claude-fable-5-2", "2026-11-22", _prices(8, 40, 0.20), minimum=1024, target="binding"),
        _model("claude-fable-5-1", "2026-11-22", _prices(10, 50, 0.25), minimum=512, target="binding"),
        _model("claude-fable-5", "2026-11-22", _prices(10, 50, 1.00), minimum=512),
        _model("claude-opus-5-5", "2026-11-22", _prices(4, 20, 0.20), minimum=512, target="binding"),
        # Reads cost 0.05 times input since 2026-10-07, by the provider's page on Haiku 5.5.
        _model("claude-sonnet-5-5", "2026-11-22", _prices(2, 10, 0.10), minimum=512, target="binding"),
        _model(
            "claude-haiku-5-5",
            "2026-11-22",
            _prices(0.10, 0.50, 0.01),
            _prices(0.50, 2.50, 0.05, above=100_000),  # every token of a longer request, the output too
            minimum=512,
            target="binding",
        ),
        _model("claude-opus-5", "2026-11-22", _OPUS, minimum=512),
        _model("claude-opus-4-8", "2026-11-22", _OPUS, minimum=1024),
        # Window and longest answer from two clouds' model cards.
        _model("claude-opus-4-7", "2026-11-22", _OPUS, minimum=2048),
        _model("claude-opus-4-6", "2026-11-22", _OPUS, minimum=4096, chars_per_token=3.6),
        _model(
            "claude-opus-4-5", "2026-11-22", _OPUS, minimum=4096, window=200_000, max_output=64_000, chars_per_token=3.6
        ),
        _model("claude-sonnet-5", "2026-11-22", _prices(2, 10, 0.20), minimum=1024),
        # Older pages and resellers say 64,000; the provider's page since Sonnet 5.5 came says 128,000.
        _model("claude-sonnet-4-6", "2026-11-22", _prices(3, 15, 0.30), minimum=1024, chars_per_token=3.6),
        # Retires on 2026-11-30.
        _model(
            "claude-sonnet-4-5",
            "2026-11-22",
            _prices(3, 15, 0.30),
            minimum=1024,
            window=200_000,
            max_output=64_000,
            chars_per_token=3.6,
        ),
        _model(
            "claude-haiku-4-5",
            "2026-11-22",
            _prices(1, 5, 0.10),
            minimum=4096,
            window=200_000,
            max_output=64_000,
            chars_per_token=3.6,
        ),
    )
}
