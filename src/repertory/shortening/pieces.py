"""Splits a very long line, such as JSON, HTML or prose without line breaks, where something ends in it, and joins the
lines of a short record.

A piece or a line may be read without its neighbours. So it ends where a record does, if it can: the end of one record
would pass for a part of the next that is shown.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from repertory._cutting import safe_cut

LONG_LINE = 400
"""Characters; a longer line is split."""
_LEAST = 120  # characters of a piece; a shorter one says little by itself
_SHORT_RECORD = 300  # characters: a line for which the trail has room in any result

_MARK = re.compile(
    r"(?P<begin>[\[{]|<(?!(?:br|hr|img|input|link|meta|source|wbr)\b)[a-z][\w:-]*+(?:\s[^<>]*+)?(?<!/)>)"
    r"|(?P<end>[\]}](?=[^\s,;)\]}])|</[a-z][^<>]*+>(?=\s*<[a-z]))"  # of a rule in CSS, of an element before the next
    r"|(?P<close>[\]}]|</[a-z][^<>]*+>)"
    r"|&#?\w++;"  # HTML's name of a character
    r"|(?P<after>,(?=\s*[\"'\[{])|(?<=[\"'\]}]),|;|[.!?؟]\s++|[。！？；]|\\n|<[a-z][^<>]*+>)",
    re.I,
)
# In indented JSON, a line of a record without records in it, or with those that are joined; and its last line.
_MEMBER = re.compile(
    r"""\s*+(?:"(?:[^"\\]|\\.)*+"\s*+(?::\s*+|(?=,?$)))?(?:[-\d.eE+]*+|true|false|null|".*"|\[.*\]|\{.*\}),?$"""
)
_LAST = re.compile(r"\s*+[\]}],?$")
_BEGINS = ("{", "[")
_BEFORE_RECORD = ("[", "},", "],")  # in a list
_BETWEEN_WORDS = (" ", ",", "，", "、")


class _End(NamedTuple):
    """Where something ends in a line, and how many brackets and tags are open there: the fewer, the more ends."""

    depth: int
    at: int


def pieces_of(line: str) -> Iterator[str]:
    """Split a very long line into pieces, each with its indentation, but no more of that than a piece may have."""
    indent = line[: len(line) - len(line.lstrip())][:_LEAST]
    ends = _ends(line)
    places = [end.at for end in ends]
    start = 0
    while len(line) - start > LONG_LINE:
        least, most = start + _LEAST, start + LONG_LINE
        if near := ends[bisect_left(places, least) : bisect_right(places, most)]:
            at = min(near).at
        else:
            words = (line.rfind(mark, least, most) + 1 for mark in _BETWEEN_WORDS)
            at = next(filter(None, words), 0) or safe_cut(line, most)
        yield indent + line[start:at].strip()
        start = at
    yield indent + line[start:].strip()


def join_records(lines: Iterable[str]) -> list[str]:
    """Join the lines of each short record in a list of indented JSON: it has no name, so only its other lines tell what
    one of them is about.
    """
    joined: list[str] = []
    begun: list[int] = []  # the first lines of a record, and of the records in it
    before = ""
    for line in lines:
        joined.append(line)
        if line.endswith(_BEGINS) and (_MEMBER.match(line[:-1]) if begun else before.endswith(_BEFORE_RECORD)):
            begun.append(len(joined) - 1)
        elif begun and _LAST.match(line):
            first, *members, last = joined[begun[-1] :]
            record = first + " ".join(map(str.strip, members)) + last.strip()
            if len(record) <= _SHORT_RECORD:
                joined[begun.pop() :] = [record]
            else:
                begun.clear()  # then those around it are too long as well
        elif begun and not _MEMBER.match(line):
            begun.clear()
        before = line
    return joined


def _ends(line: str) -> list[_End]:
    ends: list[_End] = []
    depth = 0
    for mark in _MARK.finditer(line):
        kind = mark.lastgroup
        depth += (kind == "begin") - (kind in ("end", "close"))
        if kind in ("end", "after"):
            ends.append(_End(depth, mark.end()))
    return ends
