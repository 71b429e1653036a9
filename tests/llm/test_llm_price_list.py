"""Prices that a library lists, where our own table has no row: looked up when they are asked for, and never guessed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from repertory.errors import ConfigurationError
from repertory.llm import profile_for, with_listed_prices
from repertory.llm.profiles import CATALOG, Prices, Usage, cost_of


def test_without_the_library_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an unknown name stays unknown."""
    monkeypatch.setattr("repertory.llm.profiles.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'repertory\[prices\]'"):
        with_listed_prices(profile_for("gpt-5"), provider="openai")
    assert not profile_for("claude-3-5-haiku-20241022").known


def test_a_listed_model_costs_what_the_library_says() -> None:
    """Each kind of token, dearer from a length of prompt on where the list says so."""
    genai_prices = pytest.importorskip("genai_prices")
    profile = with_listed_prices(profile_for("gemini-2.5-pro"), provider="google")
    assert profile.known
    for usage in (Usage(1_000, 100), Usage(300_000, 100), Usage(1_000, 100, cache_read_tokens=250_000)):
        theirs = genai_prices.Usage(
            input_tokens=usage.prompt_tokens, output_tokens=100, cache_read_tokens=usage.cache_read_tokens
        )
        price = genai_prices.calc_price(theirs, model_ref="gemini-2.5-pro", provider_id="google").total_price
        assert cost_of(profile, usage) == pytest.approx(float(price))


def test_a_claude_model_without_a_row_has_the_listed_prices() -> None:
    """Its name says who charges for it; everything else about it stays a guess."""
    pytest.importorskip("genai_prices")
    profile = profile_for("claude-3-5-haiku-20241022")
    assert profile.known
    assert profile.prices == (Prices(input=0.8, output=4.0, cache_read=0.08, cache_write=1.0, cache_write_1h=1.6),)
    assert profile.context_window == profile_for("claude-unheard-of").context_window


def test_what_is_not_listed_stays_unknown() -> None:
    """A new model, a local one, one at a provider that nobody knows; and no name is taken for another."""
    pytest.importorskip("genai_prices")
    assert not profile_for("claude-unheard-of").known
    assert not profile_for("gpt-5").known
    for name, provider in (("nobody-has-it", "openai"), ("gpt-5", "nobody"), ("gpt-5-else", "openai")):
        with pytest.raises(ConfigurationError, match=f"no prices of model '{name}' at provider '{provider}'"):
            with_listed_prices(profile_for(name), provider=provider)
    assert with_listed_prices(profile_for("gpt-5-2025-08-07"), provider="openai").known


def test_our_own_rows_come_first_and_the_library_is_not_even_imported() -> None:
    """It takes longer to import than all of ours."""
    names = [name for name in sorted(CATALOG) if name.startswith("claude-")]
    code = (
        f"import sys, repertory.llm as llm; [llm.profile_for(n) for n in {names}]; print('genai_prices' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
