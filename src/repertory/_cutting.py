"""Cut a long text where it stays readable: at lines, records, sentences or words, never inside a character."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

TextKind: TypeAlias = Literal["json", "code", "table", "log", "prose"]

LOOKED_AT = 4_000
"""Characters of a text that decide what kind it is: some hundred lines, so that a long result costs no more."""

# Where to cut, best first; a cut may give up as much as a third of its room for a better boundary.
_BOUNDARIES: dict[TextKind, tuple[str, ...]] = {
    "json": ("},\n", "},", "],", "\n", ",", " "),
    "code": ("\n\n", "\n", ";", " "),
    "table": ("\n", ",", " "),
    "log": ("\n", " "),
    "prose": ("\n\n", "\n", ". ", "! ", "? ", "。", " "),
}
_CODE = re.compile(
    r"(?m)^\s*+(?:\d+ *+[\t|:→]\s*+)?(?:def |class |import |from \w+ import|func |fn |pub |#include|package |"
    r"(?:export |const |let |var |public |private |static |async )|[}\]];?\s*$)"
)
_LOG = re.compile(
    r"(?m)^\W{0,3}(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d|(?:DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b)"
)
_JSON = re.compile(r'\s*[\[{]\s*(?:["{\[\]}\d-]|true|false|null|$)')
_JOINERS = "\u200d\ufe0e\ufe0f"
_LONGEST_CHARACTER = 31  # code points: a letter with 30 marks, by Unicode's Stream-Safe Text Format


def kind_of_text(text: str) -> TextKind:
    """Guess what a text is from its beginning."""
    return _kind_of(text[:LOOKED_AT])


@lru_cache(maxsize=64)  # asked about eight times for each result
def _kind_of(sample: str) -> TextKind:
    if _JSON.match(sample):
        return "json"
    lines = [line for line in sample.split("\n") if line.strip()][:40]
    if len(lines) >= 3:
        if 2 * len(_LOG.findall("\n".join(lines))) >= len(lines):
            return "log"
        for mark in ("|", "\t", ","):
            counts = {line.count(mark) for line in lines[: len(lines) - (len(sample) == LOOKED_AT)]}
            if len(counts) == 1 and counts.pop() >= (2 if mark == "|" else 1):
                return "table"
    if 5 * len(_CODE.findall("\n".join(lines))) >= len(lines) and len(lines) >= 2:
        return "code"
    return "prose"


def safe_cut(text: str, at: int) -> int:
    """The nearest place at or before ``at`` that is not inside a character as people see it.

    If all places are that a character could reach, as in a text of nothing but accents, it is ``at``.
    """
    for place in range(at, max(0, at - _LONGEST_CHARACTER), -1):
        if place >= len(text) or not (
            unicodedata.combining(text[place])
            or text[place] in _JOINERS
            or text[place - 1] == "\u200d"
            or "\udc00" <= text[place] <= "\udfff"
            or "\U0001f3fb" <= text[place] <= "\U0001f3ff"  # a skin tone belongs to what it colours
        ):
            return place
    return 0 if at < _LONGEST_CHARACTER else at


def clip(text: str, limit: int) -> str:
    """One line of at most ``limit`` characters."""
    text = text.strip()
    line = " ".join(text[: limit * 4].split())
    if len(line) <= limit and len(text) <= limit * 4:
        return line
    return line[: safe_cut(line, limit - 1)].rstrip() + "…"


def first_chars(text: str, limit: int) -> str:
    """At most ``limit`` characters from the beginning, cut where it reads well; never empty if there is room."""
    if len(text) <= limit:
        return text
    return text[: _end_before(text, limit, kind_of_text(text))].rstrip() or text[:limit]


class Cut(msgspec.Struct, frozen=True):
    """A text without its middle.

    Attributes:
        head: Its beginning.
        tail: Its end; "" if only the beginning fits.
        omitted: How many characters are not shown.
        gap: The line between them, which says what is missing.
    """

    head: str
    tail: str
    omitted: int
    gap: str

    @property
    def text(self) -> str:
        """Head and tail with the gap between them."""
        head = self.head if self.head.endswith("\n") or not self.head else self.head + "\n"
        return f"{head}{self.gap}\n{self.tail}" if self.tail else f"{head}{self.gap}"


def cut(text: str, limit: int) -> Cut | None:
    """Take the middle out of a text, so that about ``limit`` characters remain, two thirds of them of its beginning.

    Returns:
        Head and tail, and what is missing between them; None if the text is short enough.
    """
    if len(text) <= limit:
        return None
    kind, room = kind_of_text(text), limit // 3 if limit >= 120 else 0  # a shorter tail would be a scrap
    end = _end_before(text, limit - room, kind)
    start = _start_after(text, len(text) - room, kind) if room else len(text)
    first, ends = text.count("\n", 0, end) + 1, text.count("\n")
    lines = ends + (not text.endswith("\n"))
    before = ends - text.count("\n", start)  # counting in the tail is faster, as most of a long text is before it
    last = max(first, before + (not text.endswith("\n", 0, start)))
    where = f", lines {first}–{last} of {lines}" if lines > 1 else ""
    return Cut(text[:end], text[start:], start - end, f"[… {start - end:,} characters left out{where} …]")


def _end_before(text: str, at: int, kind: TextKind) -> int:
    for mark in _BOUNDARIES[kind]:
        found = text.rfind(mark, at - at // 3, at)
        if found >= 0:
            return found + len(mark)
    return safe_cut(text, at)


def _start_after(text: str, at: int, kind: TextKind) -> int:
    for mark in _BOUNDARIES[kind]:
        found = text.find(mark, at, at + (len(text) - at) // 3)
        if found >= 0:
            return found + len(mark)
    return safe_cut(text, at)
