"""The best passages of a long text for some words or a pattern."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final

import msgspec

from repertory.memory.search import cut_at

PASSAGE: Final = 500  # characters
_MOST_PLACES: Final = 20_000  # occurrences that are looked at


class Passage(msgspec.Struct, frozen=True):
    """A piece of a text around matches.

    Attributes:
        text: At most ``PASSAGE`` characters, cut between words.
        first: Its first line, from 1.
        last: Its last line.
        matches: How often each term stands in it.
    """

    text: str
    first: int
    last: int
    matches: dict[str, int]


def line_starts(text: str) -> list[int]:
    """The offset at which each line begins."""
    return list(accumulate((len(line) + 1 for line in text.split("\n")[:-1]), initial=0))


def split_terms(search: str) -> list[str]:
    """What to look for: phrases between commas, or single words where there is no comma."""
    return [term.strip() for term in (search.split(",") if "," in search else search.split()) if term.strip()]


def find_terms(text: str, terms: Sequence[str]) -> list[tuple[int, str]]:
    """Where the terms stand in a text, in any case: offset and term, in order."""
    by_name = {term.casefold(): term for term in terms}
    # Plain words side by side: nothing in this pattern can repeat, so it cannot run away.
    either = re.compile("|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True)), re.IGNORECASE)
    found = islice(either.finditer(text), _MOST_PLACES)
    return [(match.start(), by_name.get(match[0].casefold(), match[0])) for match in found]


def best_passages(text: str, places: Sequence[tuple[int, str]], *, limit: int) -> tuple[list[Passage], int]:
    """Put places together to passages, and pick the best.

    Args:
        text: The whole.
        places: Offset and term of each match, in order.
        limit: How many passages to pick.

    Returns:
        The passages, those with most different terms first, then those with most matches; and how many there are.
    """
    groups: list[list[tuple[int, str]]] = []
    for place in places:
        if groups and place[0] - groups[-1][0][0] < PASSAGE // 2:
            groups[-1].append(place)
        else:
            groups.append([place])
    ranked = sorted(groups, key=lambda group: (-len({term for _, term in group}), -len(group), group[0][0]))
    starts = line_starts(text)
    passages: list[Passage] = []
    for group in ranked[:limit]:
        start, end = cut_at(text, group[0][0], PASSAGE)
        first, last = bisect_right(starts, start), bisect_right(starts, end - 1)
        passages.append(Passage(text[start:end], first, last, dict(Counter(term for _, term in group))))
    return passages, len(groups)
