"""Policies: layers, defaults, and values that make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.context import ContextPolicy
from repertory.errors import ConfigurationError
from repertory.shortening import ResultPolicy
from repertory.shortening.rules import ResultRules, expiring_together, merge_policies


def test_the_run_beats_the_agent_and_the_agent_beats_the_tool() -> None:
    """Each field is what the strongest layer that says it says."""
    agent = ContextPolicy(tools={"read": ResultPolicy(cap_chars=200, pin=True)})
    policy = agent.with_layers(
        tools={"read": ResultPolicy(cap_chars=100, excerpt_chars=50, importance=2.0), "grep": ResultPolicy(pin=True)},
        run=ResultPolicy(cap_chars=300),
    )
    rules = policy.rules("read")
    assert (rules.cap_chars, rules.pin, rules.excerpt_chars, rules.importance) == (300, True, 50, 2.0)
    assert (policy.rules("grep").cap_chars, policy.rules("grep").pin) == (300, True)
    assert policy.rules("other") == ResultRules(cap_chars=300)


def test_a_policy_is_shown_by_what_was_said_of_it() -> None:
    """Defaults are left out, also those that are frozen."""
    assert repr(ContextPolicy()) == "ContextPolicy()"
    assert repr(ContextPolicy(window=3, tools={})) == "ContextPolicy(window=3)"


def test_what_no_layer_says_is_the_default() -> None:
    """An empty policy gives the documented defaults; None is not a value."""
    assert ContextPolicy().rules("x") == ResultRules()
    assert ContextPolicy().rules(None).cap_chars == 192_000
    assert merge_policies(None, ResultPolicy(cite_over=7), None, ResultPolicy(cite_over=8)) == ResultPolicy(cite_over=7)


def test_strict_rhythm_cuts_to_500_characters_unless_told_otherwise() -> None:
    """The documents' literal number is there, and any layer overrides it."""
    assert ContextPolicy(rhythm="strict").rules("x").cap_chars == 500
    assert ContextPolicy(rhythm="strict", strict_chars=0).rules("x").cap_chars == 192_000
    own = ContextPolicy(rhythm="strict", tools={"view": ResultPolicy(cap_chars=4_000)})
    assert own.rules("view").cap_chars == 4_000


def test_expiration_can_be_switched_off_as_a_whole() -> None:
    """One switch beats every tool's own expiration."""
    policy = ContextPolicy(expiration=False, results=ResultPolicy(expiration_mode="remove"))
    assert policy.rules("x").expiration_mode == "none"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ContextPolicy(window=0), "ContextPolicy.window is 0"),
        (lambda: ContextPolicy(window="five"), "ContextPolicy.window is 'five'"),  # type: ignore[arg-type]
        (lambda: ContextPolicy(tools=range(3)), r"ContextPolicy.tools is range\(0, 3\); not of the type"),  # type: ignore[arg-type]
        (lambda: ContextPolicy(rhythm="slow"), "ContextPolicy.rhythm is 'slow'; expected 'thrifty' or 'strict'"),  # type: ignore[arg-type]
        (lambda: ContextPolicy(budget_tokens=10), "ContextPolicy.budget_tokens is 10"),
        (lambda: ContextPolicy(summary_tokens=1), "ContextPolicy.summary_tokens is 1"),
        (lambda: ResultPolicy(cap_chars=-1), "ResultPolicy.cap_chars is -1"),
        (lambda: ResultPolicy(excerpt_chars=3), "ResultPolicy.excerpt_chars is 3"),
        (
            lambda: ResultPolicy(expiration_mode="vanish"),
            "ResultPolicy.expiration_mode is 'vanish'; expected 'none' or",
        ),  # type: ignore[arg-type]
        (lambda: ResultPolicy(importance=1e9), "ResultPolicy.importance is"),
        (lambda: ContextPolicy(tools={"x": 3}), "ContextPolicy.tools is"),  # type: ignore[dict-item]
        (lambda: ContextPolicy(tools={"x": {"cap_chars": 5}}), "{'x': {'cap_chars': 5}}; expected {'x': ResultPolicy"),  # type: ignore[dict-item]
        (lambda: ContextPolicy(tools=[]), "ContextPolicy.tools is"),  # type: ignore[arg-type]
        (
            lambda: ContextPolicy(results={"pin": True}),
            "ContextPolicy.results is {'pin': True}; expected",
        ),  # type: ignore[arg-type]
        (lambda: ResultPolicy(cite_on_arrival=True, cite_over=0), "cite_on_arrival is True and cite_over is 0"),
        (lambda: ResultPolicy(pin=True, expiration_mode="remove"), "pin is True and expiration_mode is 'remove'"),
        (
            lambda: ContextPolicy(summary_tokens=900, budget_tokens=800),
            "summary_tokens is 900; expected at most",
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(make: Any, words: str) -> None:
    """The error says which field and what came, where the mistake was made."""
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_layers_may_say_what_one_layer_may_not() -> None:
    """Whoever pins one tool's results may let all others go; what holds then is said."""
    gone = ResultPolicy(expiration_mode="remove", cite_on_arrival=True)
    kept = merge_policies(gone, ResultPolicy(pin=True, cite_over=0))
    assert (kept.pin, kept.expiration_mode, kept.cite_on_arrival) == (True, "none", False)
    assert ContextPolicy(results=gone, tools={"x": ResultPolicy(pin=True)}).rules("x").expiration_mode == "none"
    assert ContextPolicy(results=gone).rules("y").expiration_mode == "remove"


def test_results_of_one_turn_expire_under_the_most_aggressive_setting() -> None:
    """The earliest, the most thorough, the shortest, for all of them; nothing where nothing expires."""
    gentle = ResultRules(expiration_mode="compact", expiration_turns=5, compact_length=400)
    harsh = ResultRules(expiration_mode="remove", expiration_turns=9, compact_length=100)
    never = ResultRules(importance=2.0)
    for rules in expiring_together([never, gentle, harsh]):
        assert (rules.expiration_mode, rules.expiration_turns, rules.compact_length) == ("remove", 5, 100)
    assert [rules.expiration_mode for rules in expiring_together([gentle, never])] == ["compact", "compact"]
    assert expiring_together([gentle, never])[1].importance == 2.0
    assert expiring_together([never, never]) == [never, never]


@pytest.mark.parametrize(
    ("name", "tokens", "newest"), [("small", 7_500, 4), ("medium", 12_500, 6), ("large", 20_000, 10)]
)
def test_the_documents_budgets_go_by_their_names(name: str, tokens: int, newest: int) -> None:
    """30,000, 50,000 and 80,000 bytes at four a token, in strict rhythm."""
    policy = ContextPolicy.preset(name)
    assert (policy.rhythm, policy.budget_tokens, policy.keep_recent) == ("strict", tokens, newest)
    with pytest.raises(ConfigurationError, match="no context preset 'huge'; expected one of small, medium, large"):
        ContextPolicy.preset("huge")


def test_a_summary_is_as_long_as_its_stretch_deserves_unless_somebody_bounds_it() -> None:
    """In strict rhythm by the documents' 500 tokens."""
    assert ContextPolicy().summary_bound is None
    assert ContextPolicy(rhythm="strict").summary_bound == 500
    assert ContextPolicy(rhythm="strict", summary_tokens=900).summary_bound == 900
    assert ContextPolicy(summary_tokens=900).summary_bound == 900
