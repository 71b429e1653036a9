"""Pieces of a text, found by words, by a pattern or by line numbers."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import Final, TypeAlias

import msgspec

EXCERPT: Final = 500  # characters
_Place: TypeAlias = tuple[int, str]  # where something was found, and the word found; "" for a match of a pattern
_MOST_PLACES: Final = 20_000  # occurrences that are looked at
MOST_WORDS: Final = 100
"""Words of a query that are searched for. Searching two million characters takes 0.2 s for 100 words and 9 s for 5,000,
and a query on PostgreSQL has room for some 800."""
_LONGEST_WORD: Final = 100  # characters of a word that are searched for; preparing a search for a million took 4 s

# Letters of scripts that put no space between words: Thai, Lao, Burmese, Khmer; kana, Han characters and Hangul.
UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_BEGINS = rf"(?<![^\W_{UNSPACED}])"  # not in the middle of a word of another script
_WORD = re.compile(r"[^\W_]+")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a text around something that was searched for.

    Attributes:
        text: At most 500 characters, unless another size was asked for.
        location: Where it is: ``lines 3-9 of 340``.
        start: Offset of its first character in the whole text.
        relevance: From 0 to 1. For words, the share of them that it contains; for a pattern, its share of all matches.
        matches: How many matches it contains.
    """

    text: str
    location: str
    start: int
    relevance: float
    matches: int


def words_of(query: str) -> list[str]:
    """The first words of a query, lower case and without accents, each once."""
    return list(dict.fromkeys(fold(word[:_LONGEST_WORD]) for word in _WORD.findall(query)))[:MOST_WORDS]


def pattern_of(words: Iterable[str]) -> str:
    """A pattern for words of a query at word beginnings in a folded text, or anywhere in an unspaced script; the longer
    words first.
    """
    longest_first = [re.escape(word) for word in sorted(words, key=len, reverse=True)]
    unspaced = [word for word in longest_first if _UNSPACED.match(word)]
    others = "|".join(word for word in longest_first if word not in unspaced)
    return "|".join([*([f"{_BEGINS}(?:{others})"] if others else []), *unspaced])


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    if "\uac00" <= character <= "\ud7a3":
        return character  # a Hangul syllable is no letter with accents, though it is decomposed like one
    return unicodedata.normalize("NFD", character)[0].lower()[:1]


def fold(text: str) -> str:
    """Lower case without accents, character for character, so that places in it are places in the text."""
    lowered = text.lower()
    if len(lowered) != len(text):  # a character that grows, such as a capital dotted i
        return "".join(map(_fold_character, text))
    return _BEYOND_ASCII.sub(lambda match: _fold_character(match[0]), lowered)


def cut_at(text: str, start: int, end: int, limit: int = EXCERPT) -> tuple[int, int]:
    """Bounds of a piece of at most ``limit`` characters that begins and ends between words.

    It contains everything from ``start`` to ``end``, or as much as fits, and some of the text around it.
    """
    if len(text) <= limit:
        return 0, len(text)
    lead = max(0, min(limit // 4, limit - (end - start)))
    first = max(0, min(start - lead, len(text) - limit))
    last = first + limit
    if first > 0 and (space := text.find(" ", first, start + 1)) >= 0:
        first = space + 1
    if last < len(text) and (space := text.rfind(" ", max(start + 1, end), last + 1)) >= 0:
        last = space
    return first, last


class Lines:
    """The lines of a text, to describe where something is."""

    def __init__(self, text: str) -> None:
        self.text = text
        pieces = text.split("\n")
        self.starts = list(accumulate((len(piece) + 1 for piece in pieces[:-1]), initial=0))
        self.count = len(pieces) - (1 if len(pieces) > 1 and not pieces[-1] else 0)

    def slice(self, first: int, last: int) -> tuple[int, int]:
        """Offsets of the lines ``first`` to ``last``, from 1 and both included, without the last line's newline."""
        start = self.starts[first - 1]
        end = self.starts[last] - 1 if last < len(self.starts) else len(self.text)
        return start, end

    def locate(self, start: int, end: int) -> str:
        """Describe where a piece is."""
        if self.count == 1:
            return f"characters {start + 1}-{end} of {len(self.text)}"
        first = bisect_right(self.starts, start)
        last = max(first, bisect_right(self.starts, end - 1))
        return f"lines {first}-{last} of {self.count}"


def find_words(text: str, query: str, *, limit: int = 5, size: int = EXCERPT) -> list[Excerpt]:
    """The places where the most words of a query are close together, best first, each at most ``size`` characters long.

    A word also finds its longer forms (``cache`` finds ``caches``), whatever the case and accents.
    """
    words = words_of(query)
    if not words:
        return []
    found = re.finditer(pattern_of(words), fold(text))
    places = [(match.start(), match.group()) for match in islice(found, _MOST_PLACES)]
    groups = _groups(places, size)
    groups.sort(key=lambda group: (-len({word for _, word in group}), -len(group), group[0][0]))
    return [
        _excerpt(text, lines, group, len({word for _, word in group}) / len(words), size)
        for lines in [Lines(text)]
        for group in groups[: max(0, limit)]
    ]


def excerpts_around(text: str, places: Iterable[int], *, limit: int = 5) -> list[Excerpt]:
    """The pieces around the matches of a pattern, in order: those with most matches, if there are too many."""
    groups = _groups([(place, "") for place in islice(places, _MOST_PLACES)], EXCERPT)
    total = sum(len(group) for group in groups)
    chosen = sorted(groups, key=lambda group: -len(group))[: max(0, limit)]
    lines = Lines(text)
    return [
        _excerpt(text, lines, group, len(group) / total, EXCERPT)
        for group in sorted(chosen, key=lambda group: group[0][0])
    ]


def _groups(places: Sequence[_Place], size: int) -> list[list[_Place]]:
    """Group places that fit into one excerpt."""
    groups: list[list[_Place]] = []
    for place, word in places:
        begun = groups[-1][0][0] if groups else 0
        if groups and place - begun < size // 2 and place + len(word) - begun <= size:
            groups[-1].append((place, word))
        else:
            groups.append([(place, word)])
    return groups


def _excerpt(text: str, lines: Lines, group: Sequence[_Place], relevance: float, size: int) -> Excerpt:
    last, word = group[-1]
    start, end = cut_at(text, group[0][0], last + len(word), size)
    return Excerpt(
        text=text[start:end],
        location=lines.locate(start, end),
        start=start,
        relevance=relevance,
        matches=len(group),
    )
