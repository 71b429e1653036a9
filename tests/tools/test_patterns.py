"""Patterns that a model wrote: found, refused, and stopped where they would run for hours."""

from __future__ import annotations

import pytest

from repertory.errors import PatternRefused
from repertory.tools.patterns import find_pattern


@pytest.mark.parametrize(
    ("pattern", "places"),
    [("b+", [1, 5]), ("^a", [0, 4]), (r"\d", []), ("", [0, 1, 2, 3, 4, 5, 6]), ("(?i)A", [0, 4]), ("\udc80", [])],
)
def test_a_pattern_gives_its_places(pattern: str, places: list[int]) -> None:
    """Line by line, as ``re`` with MULTILINE."""
    assert find_pattern("abb\nab", pattern) == places


def test_a_text_that_is_not_utf8_can_be_searched() -> None:
    """Lone surrogates travel to the searching process and back."""
    assert find_pattern("a\udc80b", "b") == [2]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("(", "no regular expression"), ("a{99999999999}", "no regular expression"), ("x" * 1001, "1001 characters")],
)
def test_a_wrong_pattern_is_refused(pattern: str, reason: str) -> None:
    """With the reason."""
    with pytest.raises(PatternRefused, match=reason):
        find_pattern("text", pattern)


def test_a_catastrophic_pattern_is_stopped() -> None:
    """One that would run for hours ends when its time is over, and this process could go on all the while."""
    with pytest.raises(PatternRefused, match=r"took more than 0\.3 s; write it without nested repetitions"):
        find_pattern("a" * 40 + "b", "(a+)+$", timeout=0.3)
