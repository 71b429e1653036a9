"""Profiles: found under every spelling of a name, priced right, and honest about what they do not know."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.errors import ConfigurationError
from repertory.llm import Usage, profile_for, with_prices
from repertory.llm.profiles import (
    CATALOG,
    FREE_OF_CHARGE,
    OFFLINE,
    Amount,
    ModelProfile,
    Prices,
    amount_at_most,
    cost_of,
    prices_at,
)

tokens = st.integers(0, 2_000_000)
usages = st.builds(Usage, tokens, tokens, tokens, tokens, tokens)
profiles = st.sampled_from(list(CATALOG.values()))


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("anthropic/claude-opus-4.6", "claude-opus-4-6"),
        ("anthropic:claude-haiku-5-5", "claude-haiku-5-5"),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5"),
        ("claude-opus-4-5@20251101", "claude-opus-4-5"),
        ("claude-opus-4-6[1m]", "claude-opus-4-6"),
        ("claude-haiku-4-5-latest", "claude-haiku-4-5"),
        ("anthropic/claude-opus-4.6:thinking", "claude-opus-4-6"),
        ("Claude-Opus-5", "claude-opus-5"),
        ("sonnet-5-5", "claude-sonnet-5-5"),
        ("claude-mythos-5.2", "claude-fable-5-2"),
        (" offline ", "offline"),
    ],
)
def test_a_model_is_found_under_the_names_that_providers_give_it(spelling: str, name: str) -> None:
    """Prefixes, dates and versions around a name do not hide the model; the asked-for name is kept."""
    found = profile_for(spelling)
    assert found.known
    assert found == msgspec.structs.replace(CATALOG[name], name=spelling, summary_model=found.summary_model)


@pytest.mark.parametrize("name", ["claude-opus-5-6", "claude-sonnet-55", "claude-opus-4-51"])
def test_a_new_model_is_not_taken_for_an_old_one(name: str) -> None:
    """Negative control: matching is tolerant of decoration, not of another version."""
    profile = profile_for(name)
    assert not profile.known
    # Append-only is legal for every model, and editing the past is not for the newest: so the cautious target.
    assert profile.target == "binding"
    assert profile.context_window == 200_000


@pytest.mark.parametrize("name", ["claude-opus-6", "claude-haiku-5-7-20270101", "anthropic/claude-muse-1"])
def test_a_new_claude_model_has_the_providers_cache_and_no_known_cost(name: str) -> None:
    """It is planned for as the newest ones are, with reads as cheap as any, and marked as a guess."""
    profile = profile_for(name)
    assert (profile.name, profile.known, profile.as_of) == (name, False, "")
    assert (profile.cache, profile.compacts) == (CATALOG["claude-fable-5-2"].cache, True)
    guessed = profile.prices[0]
    proportions = (guessed.cache_read / guessed.input, guessed.cache_write / guessed.input)
    rows = [prices for row in CATALOG.values() if row.cache.breakpoints for prices in row.prices]
    assert proportions == (min(row.cache_read / row.input for row in rows), 1.25)
    assert cost_of(profile, Usage(10**6, 10**6, 10**6)) == 0.0
    assert amount_at_most(profile, prompt=10**6, output=10**6) == Amount(0.0, 2 * 10**6)


@pytest.mark.parametrize(
    ("name", "tokens"), [("claude-opus-5-5", 100_000), ("claude-haiku-4-5", 100_000), ("qwen3", 16_384)]
)
def test_comfort_ends_long_before_a_large_window_does(name: str, tokens: int) -> None:
    """A hundred thousand tokens, or half of what a smaller window holds; no bound where somebody says so."""
    assert profile_for(name).comfort == tokens
    bare = ModelProfile(name="x", context_window=8_000, max_output=1_000, prices=(FREE_OF_CHARGE,))
    assert bare.comfort == 4_000
    assert msgspec.structs.replace(bare, comfort_tokens=0).comfort == 0


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("claude-opus-5-5", "claude-haiku-5-5"),
        ("claude-sonnet-4-5-20250929", "claude-haiku-5-5"),
        ("claude-opus-7", "claude-haiku-5-5"),
        ("anthropic/claude-opus-4.6", ""),  # how this gateway spells the small one nobody knows
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", ""),
        ("qwen3", ""),
        ("offline", ""),
    ],
)
def test_a_small_model_is_named_where_the_same_server_has_one(name: str, small: str) -> None:
    """What writes summaries by default must be there under that name."""
    assert profile_for(name).summary_model == small
    assert not small or profile_for(small).known


@pytest.mark.parametrize("name", ["qwen3:30b", "llama-3.3-70b", "my-finetune", ""])
def test_an_unknown_name_is_taken_for_a_small_local_server(name: str) -> None:
    """No prices, no cache, a modest window: all errors are on the safe side, and marked as guesses."""
    profile = profile_for(name)
    assert (profile.known, profile.cache.breakpoints, profile.context_window) == (False, 0, 32_768)
    assert cost_of(profile, Usage(10**6, 10**6)) == 0.0


def test_every_row_of_the_table_is_complete_and_dated() -> None:
    """A row without a date, or with prices that make no sense together, is a slip of the pen."""
    assert len(CATALOG) == 16
    for name, profile in CATALOG.items():
        assert profile.name == name
        assert date.fromisoformat(profile.as_of) >= date(2026, 11, 21)  # when all of them were gone through
        assert 0 < profile.max_output < profile.context_window
        bounds = [prices.above for prices in profile.prices]
        assert bounds == sorted(set(bounds))
        assert bounds[0] == 0
        for prices in profile.prices:
            assert prices.output == pytest.approx(5 * prices.input)
            assert prices.cache_read <= prices.input <= prices.cache_write <= prices.cache_write_1h


@pytest.mark.parametrize(
    ("name", "read", "minimum", "target"),
    [
        ("claude-fable-5-2", 0.20, 1024, "binding"),
        ("claude-fable-5-1", 0.25, 512, "binding"),
        ("claude-sonnet-5-5", 0.10, 512, "binding"),
        ("claude-haiku-5-5", 0.01, 512, "binding"),
        ("claude-fable-5", 1.00, 512, "free"),
        ("claude-opus-5", 0.50, 512, "free"),
        ("claude-opus-4-7", 0.50, 2048, "free"),
        ("claude-sonnet-5", 0.20, 1024, "free"),
        ("claude-haiku-4-5", 0.10, 4096, "free"),
    ],
)
def test_the_table_says_what_the_published_one_says(name: str, read: float, minimum: int, target: str) -> None:
    """Spot checks against the documents, in the columns that differ most between models."""
    profile = CATALOG[name]
    assert (profile.prices[0].cache_read, profile.cache.minimum_tokens, profile.target) == (read, minimum, target)


@pytest.mark.parametrize(
    ("name", "window", "longest"),
    [
        ("claude-sonnet-4-6", 1_000_000, 128_000),
        ("claude-opus-4-6", 1_000_000, 128_000),
        ("claude-opus-4-5", 200_000, 64_000),
        ("claude-sonnet-4-5", 200_000, 64_000),
        ("claude-haiku-4-5", 200_000, 64_000),
    ],
)
def test_window_and_longest_answer_are_those_of_the_models_own_page(name: str, window: int, longest: int) -> None:
    """The rows that were in doubt, and those that differ from the rest."""
    assert (CATALOG[name].context_window, CATALOG[name].max_output) == (window, longest)


def test_a_cost_adds_up_each_kind_of_token_at_its_own_price() -> None:
    """One million of each: the sum of the five prices."""
    profile = CATALOG["claude-opus-4-6"]
    million = 1_000_000
    assert cost_of(profile, Usage(million, million, million, million, million)) == pytest.approx(
        5 + 25 + 0.5 + 6.25 + 10
    )


@pytest.mark.parametrize(("prompt", "input_price"), [(1, 0.10), (100_000, 0.10), (100_001, 0.50), (900_000, 0.50)])
def test_haiku_costs_five_times_as_much_beyond_its_cliff(prompt: int, input_price: float) -> None:
    """The whole prompt decides, cached parts included, and the dearer price holds for every token and the output."""
    profile = CATALOG["claude-haiku-5-5"]
    assert prices_at(profile, prompt).input == input_price
    cached = Usage(input_tokens=1, cache_read_tokens=prompt - 1, output_tokens=1_000)
    expected = (input_price + (prompt - 1) * input_price / 10 + 1_000 * 5 * input_price) / 1e6
    assert cost_of(profile, cached) == pytest.approx(expected)


@given(profiles, usages, usages)
def test_more_tokens_never_cost_less(profile: object, usage: Usage, more: Usage) -> None:
    """Costs are monotone, across price levels too."""
    assert cost_of(profile, usage) <= cost_of(profile, usage + more) + 1e-12  # type: ignore[arg-type]


@given(usages)
def test_offline_work_has_a_visible_price_and_no_cache(usage: Usage) -> None:
    """Without a prompt cache every input token costs the same, however it is called."""
    plain = Usage(usage.prompt_tokens, usage.output_tokens)
    assert cost_of(OFFLINE, usage) == pytest.approx(cost_of(OFFLINE, plain))
    assert OFFLINE.cache.breakpoints == 0
    assert OFFLINE.prices[0].output > OFFLINE.prices[0].input > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"context_window": 0},
        {"max_output": "many"},
        {"prices": ()},
        {"cache": {"ttl": 3600}},
        {"chars_per_token": 0},
        {"comfort_tokens": -1},
        {"target": "bound"},
    ],
)
def test_a_profile_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    """When it is made, not in the middle of planning; a dict is not taken for what it could be made into."""
    with pytest.raises(ConfigurationError, match=f"ModelProfile.{next(iter(wrong))} is .*; expected"):
        msgspec.structs.replace(OFFLINE, **wrong)
    with pytest.raises(ConfigurationError, match=r"Prices\.output is nan; expected"):
        with_prices(OFFLINE, input=1, output=math.nan)


def test_prices_can_be_overridden() -> None:
    """What the user says about prices holds, and the rest of the profile stays."""
    local = with_prices(profile_for("qwen3"), input=0.2, output=0.6, as_of="2026-11-01")
    assert local.known
    assert local.prices == (Prices(input=0.2, output=0.6, cache_read=0.2, cache_write=0.2, cache_write_1h=0.2),)
    assert (local.context_window, local.as_of) == (32_768, "2026-11-01")
    dear = with_prices(local, input=1, output=2, cache_read=0.1, cache_write=1.5)
    assert dear.prices[0].cache_write_1h == 1.5
    assert cost_of(dear, Usage(cache_read_tokens=10**6)) == pytest.approx(0.1)
