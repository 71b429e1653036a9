"""How numbers stand with their nouns."""

from __future__ import annotations

import pytest

from repertory._counting import counted


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [
        (0, ("run",), "0 runs"),
        (1, ("run",), "1 run"),
        (2_000, ("run",), "2,000 runs"),
        (1, ("entry", "entries"), "1 entry"),
        (3, ("entry", "entries"), "3 entries"),
        (1.0, ("second",), "1 second"),
        (0.05, ("second",), "0.05 seconds"),
    ],
)
def test_only_one_of_a_thing_is_named_in_the_singular(number: float, nouns: tuple[str, ...], text: str) -> None:
    """Whether the number is whole or not, and however the plural is made."""
    assert counted(number, *nouns) == text
