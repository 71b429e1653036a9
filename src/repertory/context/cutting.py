"""Cut a long text where it stays readable: at lines, records, sentences or words, never inside a character."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal, TypeAlias

import msgspec

TextKind: TypeAlias = Literal["json", "code", "table", "log", "prose"]

# What to cut at, the best first; a cut may give up to a third of its room for a better boundary.
_BOUNDARIES: dict[TextKind, tuple[str, ...]] = {
    "json": ("},\n", "},", "],", "\n", ",", " "),
    "code": ("\n\n", "\n", ";", " "),
    "table": ("\n", ",", " "),
    "log": ("\n", " "),
    "prose": ("\n\n", "\n", ". ", "! ", "? ", "。", " "),
}
_CODE = re.compile(
    r"(?m)^\s*(?:\d+\s*[\t|:→]\s*)?(?:def |class |import |from \w+ import|func |fn |pub |#include|package |"
    r"(?:export |const |let |var |public |private |static |async )|[}\]];?\s*$)"
)
_LOG = re.compile(
    r"(?m)^\W{0,3}(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d|(?:DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b)"
)
_SAMPLE = 4_000
_JOINERS = "\u200d\ufe0e\ufe0f"


def kind_of_text(text: str) -> TextKind:
    """Guess what a text is from its first few thousand characters."""
    sample = text[:_SAMPLE]
    start = sample.lstrip()[:1]
    if start in "{[" and start and re.match(r'\s*[\[{]\s*(?:["{\[\]}\d-]|true|false|null|$)', sample):
        return "json"
    lines = [line for line in sample.split("\n") if line.strip()][:40]
    if len(lines) >= 3:
        if 2 * len(_LOG.findall("\n".join(lines))) >= len(lines):
            return "log"
        for mark in ("|", "\t", ","):
            counts = {line.count(mark) for line in lines[: len(lines) - (len(sample) == _SAMPLE)]}
            if len(counts) == 1 and counts.pop() >= (2 if mark == "|" else 1):
                return "table"
    if 5 * len(_CODE.findall("\n".join(lines))) >= len(lines) and len(lines) >= 2:
        return "code"
    return "prose"


def safe_cut(text: str, at: int) -> int:
    """The nearest place at or before ``at`` that is not inside a character as people see it."""
    while 0 < at < len(text) and (
        unicodedata.combining(text[at])
        or text[at] in _JOINERS
        or text[at - 1] == "\u200d"
        or "\udc00" <= text[at] <= "\udfff"
        or "\U0001f3fb" <= text[at] <= "\U0001f3ff"  # a skin tone belongs to what it colours
    ):
        at -= 1
    return at


def first_chars(text: str, limit: int, kind: TextKind | None = None) -> str:
    """At most ``limit`` characters from the beginning, ended where it reads well."""
    if len(text) <= limit:
        return text
    return text[: _boundary_before(text, limit, kind or kind_of_text(text))]


def clip(text: str, limit: int) -> str:
    """One line of at most ``limit`` characters."""
    text = " ".join(text[: limit * 4].split())
    return text if len(text) <= limit else text[: safe_cut(text, limit - 1)].rstrip() + "…"


class Cut(msgspec.Struct, frozen=True):
    """A text without its middle.

    Attributes:
        head: Its beginning.
        tail: Its end; "" where only the beginning fits.
        first_line: The first line that is not shown whole, counted from 1.
        last_line: The last such line.
        lines: How many lines the whole has.
        omitted: How many characters are not shown.
    """

    head: str
    tail: str
    first_line: int
    last_line: int
    lines: int
    omitted: int

    @property
    def text(self) -> str:
        """Head and tail with a mark between them."""
        where = f"lines {self.first_line}–{self.last_line} of {self.lines}" if self.lines > 1 else ""
        gap = f"[… {self.omitted:,} characters left out{', ' + where if where else ''} …]"
        head = self.head if self.head.endswith("\n") or not self.head else self.head + "\n"
        return f"{head}{gap}\n{self.tail}" if self.tail else f"{head}{gap}"


def cut(text: str, limit: int, *, kind: TextKind | None = None) -> Cut | None:
    """Take the middle out of a text.

    Args:
        text: The whole.
        limit: Characters of it to keep, about two thirds of them from the beginning.
        kind: What it is; None guesses.

    Returns:
        Head and tail with what is missing between them; None where the text is short enough.
    """
    if len(text) <= limit:
        return None
    kind = kind or kind_of_text(text)
    tail_room = limit // 3 if limit >= 120 else 0
    head_end = _boundary_before(text, limit - tail_room, kind)
    tail_start = _boundary_after(text, len(text) - tail_room, kind) if tail_room else len(text)
    lines = text.count("\n") + 1
    before = text.count("\n", 0, head_end)
    after = text.count("\n", 0, tail_start)
    return Cut(
        head=text[:head_end],
        tail=text[tail_start:],
        first_line=before + 1,
        last_line=max(before + 1, after + (0 if tail_start and text[tail_start - 1 : tail_start] == "\n" else 1)),
        lines=lines,
        omitted=tail_start - head_end,
    )


def _boundary_before(text: str, at: int, kind: TextKind) -> int:
    least = at - at // 3
    for mark in _BOUNDARIES[kind]:
        found = text.rfind(mark, least, at)
        if found >= 0 and found + len(mark) <= at:
            return found + len(mark)
    return safe_cut(text, at)


def _boundary_after(text: str, at: int, kind: TextKind) -> int:
    most = at + (len(text) - at) // 3
    for mark in _BOUNDARIES[kind]:
        found = text.find(mark, at, most)
        if found >= 0:
            return found + len(mark)
    return safe_cut(text, at)
